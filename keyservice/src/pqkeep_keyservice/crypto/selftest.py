"""Known answers and pairwise consistency, checked before the process serves anything.

The known answers are in selftest.json, one entry an algorithm, made once with this package and
cross-checked in the tests against the libraries' own vectors.
"""

import json
from base64 import b64decode
from hashlib import sha256
from importlib.resources import files

from cryptography.exceptions import InvalidSignature

from pqkeep_keyservice.crypto import dem
from pqkeep_keyservice.crypto.kem import KEMS, Kem
from pqkeep_keyservice.crypto.secret import Secret
from pqkeep_keyservice.crypto.signature import SIGNATURE_SCHEMES, SignatureScheme
from pqkeep_protocol.algorithms import Algorithm

MESSAGE = b"pqkeep self-test"


class SelfTestError(Exception):
    """The cryptography here does not compute what it must. Nothing may be served."""


def run() -> dict[Algorithm, bool]:
    """Test every algorithm and the data encapsulation; return what passed."""
    known = json.loads(files(__package__).joinpath("selftest.json").read_text())
    return {
        algorithm: _passes(algorithm, known[algorithm]) for algorithm in (*KEMS, *SIGNATURE_SCHEMES)
    }


def require() -> None:
    """Raise SelfTestError unless everything passes."""
    failed = [algorithm for algorithm, passed in run().items() if not passed]
    if failed:
        raise SelfTestError("self-test failed: " + ", ".join(failed))


def _passes(algorithm: Algorithm, known: dict[str, str]) -> bool:
    answer = {name: b64decode(value) for name, value in known.items()}
    try:
        if algorithm in KEMS:
            return _kem_passes(KEMS[algorithm], answer)
        return _signature_passes(SIGNATURE_SCHEMES[algorithm], answer)
    except (ValueError, InvalidSignature, dem.DecryptionError):
        return False


def _kem_passes(kem: Kem, answer: dict[str, bytes]) -> bool:
    private = kem.load_seed(Secret(answer["seed"]))
    fresh_secret, fresh_ciphertext = kem.load_public(private.public_bytes()).encapsulate()
    box = dem.close(fresh_secret, MESSAGE, info=b"self-test")
    return (
        sha256(private.public_bytes()).digest() == answer["public_key_sha256"]
        and private.decapsulate(answer["ciphertext"]) == answer["shared_secret"]
        and dem.open_(private.decapsulate(fresh_ciphertext), box, info=b"self-test") == MESSAGE
    )


def _signature_passes(scheme: SignatureScheme, answer: dict[str, bytes]) -> bool:
    private = scheme.load_seed(Secret(answer["seed"]))
    public = scheme.load_public(private.public_bytes())
    public.verify(answer["signature"], MESSAGE)
    public.verify(private.sign(MESSAGE), MESSAGE)
    damaged = bytes((answer["signature"][0] ^ 1, *answer["signature"][1:]))
    try:
        public.verify(damaged, MESSAGE)
    except InvalidSignature:
        return sha256(private.public_bytes()).digest() == answer["public_key_sha256"]
    return False
