"""Known answers and pairwise consistency, checked before a process serves anything.

The known answers are in selftest.json, one entry an algorithm. They were made once with these
libraries; the tests check the same code against other people's vectors.
"""

import json
from base64 import b64decode
from collections.abc import Callable, Iterator, Mapping
from hashlib import sha256
from importlib.resources import files

from cryptography.exceptions import InvalidSignature

from pqkeep_keyservice.crypto import dem
from pqkeep_keyservice.crypto.kem import KEMS, Kem
from pqkeep_keyservice.crypto.secret import Secret
from pqkeep_keyservice.crypto.signature import SIGNATURE_SCHEMES, SignatureScheme
from pqkeep_keyservice.crypto.slhdsa import SETS, Implementation, sign_checked
from pqkeep_protocol.algorithms import Algorithm

MESSAGE = b"pqkeep self-test"
CONTEXT = b"pqkeep/v1/self-test"
FASTEST = Algorithm.SLH_DSA_SHA2_128F

Known = Mapping[str, bytes]


class SelfTestError(Exception):
    """The cryptography here does not compute what it must. Nothing may be served."""


def require() -> None:
    """Test what runs in the key service's own process. Raises SelfTestError."""
    known = _read()
    _require(
        {
            **{a: _holds(_kem(a, kem, known[a])) for a, kem in KEMS.items()},
            **{a: _holds(_signature(s, known[a])) for a, s in SIGNATURE_SCHEMES.items()},
        }
    )


def require_slhdsa(implementation: Implementation, *, signs: bool) -> None:
    """Test what a worker process runs. Raises SelfTestError.

    One that signs makes a signature with the fastest set. The others would take seconds, and every
    signature is verified before it is released anyway.
    """
    known = _read()
    passed = {a: _holds(_slhdsa(a, implementation, known[a])) for a in SETS}
    if signs:
        passed[FASTEST] = passed[FASTEST] and _holds(_pair(FASTEST, implementation))
    _require(passed)


def run(implementation: Implementation) -> Mapping[Algorithm, bool]:
    """Test everything, with a fresh signature of each kind; return what passed."""
    known = _read()
    return {
        **{a: _holds(_kem(a, kem, known[a])) for a, kem in KEMS.items()},
        **{a: _holds(_signature(s, known[a])) for a, s in SIGNATURE_SCHEMES.items()},
        **{
            a: _holds(_slhdsa(a, implementation, known[a])) and _holds(_pair(a, implementation))
            for a in SETS
        },
    }


def _read() -> Mapping[str, Known]:
    text = files(__package__).joinpath("selftest.json").read_text()
    return {
        algorithm: {name: b64decode(value) for name, value in known.items()}
        for algorithm, known in json.loads(text).items()
    }


def _require(passed: Mapping[Algorithm, bool]) -> None:
    failed = [algorithm for algorithm, holds in passed.items() if not holds]
    if failed:
        raise SelfTestError("self-test failed: " + ", ".join(failed))


def _holds(facts: Iterator[bool]) -> bool:
    try:
        return all(facts)
    except (ValueError, InvalidSignature, dem.DecryptionError):
        return False


def _kem(algorithm: Algorithm, kem: Kem, known: Known) -> Iterator[bool]:
    private = kem.load_seed(Secret(known["seed"]))
    yield sha256(private.public_bytes()).digest() == known["public_key_sha256"]
    yield private.decapsulate(known["ciphertext"]) == known["shared_secret"]
    yield private.decapsulate(_damaged(known["ciphertext"])) == known["rejection_secret"]
    secret, ciphertext = kem.load_public(private.public_bytes()).encapsulate()
    yield private.decapsulate(ciphertext) == secret
    box = dem.close(algorithm, secret, MESSAGE, info=CONTEXT)
    yield dem.open_(algorithm, secret, box, info=CONTEXT) == MESSAGE


def _signature(scheme: SignatureScheme, known: Known) -> Iterator[bool]:
    private = scheme.load_seed(Secret(known["seed"]))
    yield sha256(private.public_bytes()).digest() == known["public_key_sha256"]
    public = scheme.load_public(private.public_bytes())
    public.verify(known["signature"], MESSAGE, CONTEXT)
    public.verify(private.sign(MESSAGE, CONTEXT), MESSAGE, CONTEXT)
    yield _is_refused(lambda: public.verify(_damaged(known["signature"]), MESSAGE, CONTEXT))


def _slhdsa(algorithm: Algorithm, implementation: Implementation, known: Known) -> Iterator[bool]:
    public_key, signature = known["public_key"], known["signature"]
    implementation.verify(algorithm, public_key, MESSAGE, CONTEXT, signature)
    yield _is_refused(
        lambda: implementation.verify(algorithm, public_key, MESSAGE, CONTEXT, _damaged(signature))
    )


def _pair(algorithm: Algorithm, implementation: Implementation) -> Iterator[bool]:
    private_key = implementation.generate(algorithm)
    yield bool(sign_checked(implementation, algorithm, private_key, MESSAGE, CONTEXT))


def _is_refused(verify: Callable[[], None]) -> bool:
    try:
        verify()
    except InvalidSignature:
        return True
    return False


def _damaged(data: bytes) -> bytes:
    return bytes((data[0] ^ 1,)) + data[1:]
