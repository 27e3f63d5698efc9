"""Known-answer and pairwise consistency tests, run before a process serves requests.

The known answers are in selftest.json, one entry for each algorithm. They were recorded once with
these libraries. The test suite checks the same code against published vectors.
"""

import json
from base64 import b64decode
from collections.abc import Callable, Iterator, Mapping
from hashlib import sha256
from importlib.resources import files

from cryptography.exceptions import InvalidSignature

from pqkeep_keyservice.crypto import dem, legacy
from pqkeep_keyservice.crypto.kem import KEMS, DecapsulationKey, Kem
from pqkeep_keyservice.crypto.secret import Secret
from pqkeep_keyservice.crypto.signature import SignatureScheme, SignatureSchemes, SigningKey
from pqkeep_keyservice.crypto.symmetric import SYMMETRIC, SymmetricKey, SymmetricScheme
from pqkeep_protocol.algorithms import Algorithm

PAIR_MESSAGE = b"pqkeep pairwise consistency"
PAIR_CONTEXT = b"pqkeep/v1/pairwise"


def is_kem_pair(kem: Kem, private: DecapsulationKey, public_key: bytes) -> bool:
    """Return whether a private key decapsulates a ciphertext for the public key."""
    secret, ciphertext = kem.load_public(public_key).encapsulate()
    return private.decapsulate(ciphertext) == secret


def is_symmetric_key(key: SymmetricKey, check_value: bytes) -> bool:
    """Return whether a symmetric key has a check value, and accepts its own output."""
    if key.is_cipher:
        sealed = key.encrypt(PAIR_MESSAGE, info=PAIR_CONTEXT, associated_data=b"")
        opened = key.decrypt(sealed, info=PAIR_CONTEXT, associated_data=b"")
        accepts = opened == PAIR_MESSAGE
    else:
        mac = key.mac(PAIR_MESSAGE, info=PAIR_CONTEXT)
        accepts = key.is_mac(mac, PAIR_MESSAGE, info=PAIR_CONTEXT)
    return accepts and key.public_bytes() == check_value


def is_signature_pair(scheme: SignatureScheme, private: SigningKey, public_key: bytes) -> bool:
    """Return whether a signature by a private key verifies under a public key."""
    try:
        signature = private.sign(PAIR_MESSAGE, PAIR_CONTEXT)
        scheme.load_public(public_key).verify(signature, PAIR_MESSAGE, PAIR_CONTEXT)
    except InvalidSignature:
        return False
    return True


MESSAGE = b"pqkeep self-test"
CONTEXT = b"pqkeep/v1/self-test"
FASTEST_IN_WORKERS = Algorithm.SLH_DSA_SHA2_128F

KnownAnswers = Mapping[str, bytes]


class SelfTestError(Exception):
    """The cryptography computes wrong results. The process must not serve requests."""


def require(schemes: SignatureSchemes) -> None:
    """Test the cryptography of the key service's own process. Raises SelfTestError.

    Worker processes sign with some schemes. This process only verifies with those.
    """
    responses = _read()
    passed = {a: _holds(_kem(kem, responses[a])) for a, kem in KEMS.items()}
    passed |= {a: _holds(_symmetric(s, responses[a])) for a, s in SYMMETRIC.items()}
    passed |= _legacy(responses)
    for algorithm, scheme in schemes.items():
        signs = not scheme.holds_interpreter_lock
        passed[algorithm] = _holds(_signature(scheme, responses[algorithm], signs=signs))
    _require(passed)


def require_kems() -> None:
    """Test the cryptography of a worker process for KEMs. Raises SelfTestError."""
    responses = _read()
    _require({a: _holds(_kem(kem, responses[a])) for a, kem in KEMS.items()})


def require_worker(schemes: SignatureSchemes, *, signs: bool) -> None:
    """Test the cryptography of a worker process for signatures. Raises SelfTestError.

    A worker that signs tests signing with the fastest scheme only. Tests of the others would take
    seconds, and every signature is verified before its release anyway.
    """
    responses = _read()
    _require(
        {
            algorithm: _holds(
                _signature(
                    scheme, responses[algorithm], signs=signs and algorithm is FASTEST_IN_WORKERS
                )
            )
            for algorithm, scheme in schemes.items()
            if scheme.holds_interpreter_lock
        }
    )


def run(schemes: SignatureSchemes) -> Mapping[Algorithm, bool]:
    """Run all tests, with a new signature from each scheme, and return which algorithms passed."""
    responses = _read()
    return {
        **{a: _holds(_kem(kem, responses[a])) for a, kem in KEMS.items()},
        **{a: _holds(_signature(s, responses[a], signs=True)) for a, s in schemes.items()},
        **{a: _holds(_symmetric(s, responses[a])) for a, s in SYMMETRIC.items()},
        **_legacy(responses),
    }


def _read() -> Mapping[str, KnownAnswers]:
    text = files(__package__).joinpath("selftest.json").read_text()
    return {
        algorithm: {name: b64decode(value) for name, value in responses.items()}
        for algorithm, responses in json.loads(text).items()
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


def _kem(kem: Kem, known: KnownAnswers) -> Iterator[bool]:
    private = kem.load_seed(Secret(known["seed"]))
    yield sha256(private.public_bytes()).digest() == known["public_key_sha256"]
    yield private.decapsulate(known["ciphertext"]) == known["shared_secret"]
    yield private.decapsulate(_damaged(known["ciphertext"])) == known["rejection_secret"]
    yield is_kem_pair(kem, private, private.public_bytes())
    secret = known["shared_secret"]
    sealed = dem.encrypt(kem.hkdf_hash, secret, MESSAGE, info=CONTEXT)
    yield dem.decrypt(kem.hkdf_hash, secret, sealed, info=CONTEXT) == MESSAGE


def _signature(scheme: SignatureScheme, known: KnownAnswers, *, signs: bool) -> Iterator[bool]:
    private = None
    if scheme.holds_interpreter_lock:  # its known answer has no private key
        public_key = known["public_key"]
    else:
        private = scheme.load_seed(Secret(known["seed"]))
        public_key = private.public_bytes()
        yield sha256(public_key).digest() == known["public_key_sha256"]
    public = scheme.load_public(public_key)
    public.verify(known["signature"], MESSAGE, CONTEXT)
    yield _is_refused(lambda: public.verify(_damaged(known["signature"]), MESSAGE, CONTEXT))
    if signs:
        signing = private or scheme.generate()
        yield is_signature_pair(scheme, signing, signing.public_bytes())


def _symmetric(scheme: SymmetricScheme, known: KnownAnswers) -> Iterator[bool]:
    key = scheme.load_seed(Secret(known["seed"]))
    yield key.public_bytes() == known["check_value"]
    yield is_symmetric_key(key, known["check_value"])
    if key.is_cipher:
        yield key.decrypt(known["sealed"], info=CONTEXT, associated_data=CONTEXT) == MESSAGE
        try:
            key.decrypt(_damaged(known["sealed"]), info=CONTEXT, associated_data=CONTEXT)
            yield False
        except dem.DecryptionError:
            yield True
    else:
        yield key.mac(MESSAGE, info=CONTEXT) == known["mac"]
        yield not key.is_mac(_damaged(known["mac"]), MESSAGE, info=CONTEXT)


def _legacy(responses: Mapping[str, KnownAnswers]) -> Mapping[Algorithm, bool]:
    passed = {a: _holds(_decryption(s, responses[a])) for a, s in legacy.DECRYPTION.items()}
    for algorithm, scheme in legacy.VERIFICATION.items():
        passed[algorithm] = _holds(_verification(scheme, responses[algorithm]))
    return passed


def _decryption(scheme: legacy.Decryption, known: KnownAnswers) -> Iterator[bool]:
    private = scheme.load_seed(Secret(known["seed"]))
    yield private.decrypt(known["ciphertext"], CONTEXT) == MESSAGE
    try:
        private.decrypt(_damaged(known["ciphertext"]), CONTEXT)
        yield False
    except dem.DecryptionError:
        yield True


def _verification(scheme: legacy.Verification, known: KnownAnswers) -> Iterator[bool]:
    public = scheme.load_public(known["public_key"])
    public.verify(known["signature"], MESSAGE)
    yield _is_refused(lambda: public.verify(known["signature"], CONTEXT))


def _is_refused(verify: Callable[[], None]) -> bool:
    try:
        verify()
    except InvalidSignature:
        return True
    return False


def _damaged(data: bytes) -> bytes:
    return bytes((data[0] ^ 1,)) + data[1:]
