"""The self-test passes for correct results, fails for wrong ones, and covers every algorithm."""

import json
from base64 import b64decode
from collections.abc import Callable, Iterator
from hashlib import sha256, shake_256
from importlib.resources import files

import pytest
from cryptography.hazmat.primitives.asymmetric.mldsa import MLDSA65PrivateKey, MLDSA87PrivateKey
from cryptography.hazmat.primitives.asymmetric.mlkem import MLKEM768PrivateKey, MLKEM1024PrivateKey

from pqkeep_keyservice.crypto import legacy, selftest
from pqkeep_keyservice.crypto.kem import KEMS
from pqkeep_keyservice.crypto.signature import signature_schemes
from pqkeep_keyservice.crypto.slhdsa import PARAMETER_SETS
from pqkeep_keyservice.crypto.slhdsa_pqcrypto import Pqcrypto
from pqkeep_keyservice.crypto.symmetric import SYMMETRIC
from pqkeep_protocol.algorithms import Algorithm

SCHEMES = signature_schemes(Pqcrypto())
KNOWN: dict[str, dict[str, bytes]] = {
    algorithm: {name: b64decode(value) for name, value in response.items()}
    for algorithm, response in json.loads(
        files("pqkeep_keyservice.crypto").joinpath("selftest.json").read_text()
    ).items()
}
VALUES = [
    (name, field)
    for name, response in KNOWN.items()
    for field in response
    if (name in legacy.DECRYPTION, field) != (True, "seed")  # OpenSSL corrects a damaged CRT part
]


def test_every_algorithm_passes() -> None:
    """Every algorithm has known answers, and computes them."""
    assert selftest.run(SCHEMES) == dict.fromkeys(Algorithm, True)
    assert sorted(KNOWN) == sorted(Algorithm)
    selftest.require(SCHEMES)
    selftest.require_worker(SCHEMES, signs=False)


@pytest.mark.parametrize(
    ("algorithm", "load"),
    [
        (Algorithm.ML_KEM_768, MLKEM768PrivateKey.from_seed_bytes),
        (Algorithm.ML_KEM_1024, MLKEM1024PrivateKey.from_seed_bytes),
    ],
)
def test_the_known_answers_of_ml_kem_are_the_librarys(
    algorithm: Algorithm, load: Callable[[bytes], MLKEM768PrivateKey]
) -> None:
    """The known answers match the library, used without our classes."""
    known = KNOWN[algorithm]
    private = load(known["seed"])
    assert private.decapsulate(known["ciphertext"]) == known["shared_secret"]
    damaged = bytes([known["ciphertext"][0] ^ 1]) + known["ciphertext"][1:]
    assert private.decapsulate(damaged) == known["rejection_secret"]
    by_hand = shake_256(known["seed"][32:] + damaged).digest(32)  # FIPS 203: J(z || c)
    assert by_hand == known["rejection_secret"]
    public_bytes = private.public_key().public_bytes_raw()
    assert sha256(public_bytes).digest() == known["public_key_sha256"]


@pytest.mark.parametrize(
    ("algorithm", "load"),
    [
        (Algorithm.ML_DSA_65, MLDSA65PrivateKey.from_seed_bytes),
        (Algorithm.ML_DSA_87, MLDSA87PrivateKey.from_seed_bytes),
    ],
)
def test_the_known_answers_of_ml_dsa_are_the_librarys(
    algorithm: Algorithm, load: Callable[[bytes], MLDSA65PrivateKey]
) -> None:
    """The known answers match the library, used without our classes."""
    known = KNOWN[algorithm]
    public = load(known["seed"]).public_key()
    public.verify(known["signature"], selftest.MESSAGE, selftest.CONTEXT)
    assert sha256(public.public_bytes_raw()).digest() == known["public_key_sha256"]


def passes(algorithm: Algorithm, known: dict[str, bytes]) -> bool:
    """Return whether an algorithm passes with these known answers."""
    if algorithm in KEMS:
        return selftest._holds(selftest._kem(KEMS[algorithm], known))
    if algorithm in SYMMETRIC:
        return selftest._holds(selftest._symmetric(SYMMETRIC[algorithm], known))
    if algorithm in legacy.DECRYPTION:
        return selftest._holds(selftest._decryption(legacy.DECRYPTION[algorithm], known))
    if algorithm in legacy.VERIFICATION:
        return selftest._holds(selftest._verification(legacy.VERIFICATION[algorithm], known))
    signs = algorithm not in PARAMETER_SETS
    return selftest._holds(selftest._signature(SCHEMES[algorithm], known, signs=signs))


def damaged(data: bytes) -> Iterator[bytes]:
    """Return a known answer with flipped bits, cut short, and empty."""
    for at in (0, len(data) // 2 - 1, len(data) // 2, len(data) - 1):
        yield data[:at] + bytes([data[at] ^ 0x10]) + data[at + 1 :]
    yield data[:-1]
    yield b""


@pytest.mark.parametrize(("name", "field"), VALUES)
def test_a_damaged_known_answer_fails(name: str, field: str) -> None:
    """A damage in any value of a known answer makes the test fail."""
    algorithm = Algorithm(name)
    assert passes(algorithm, KNOWN[name])
    for wrong in damaged(KNOWN[name][field]):
        assert not passes(algorithm, {**KNOWN[name], field: wrong})


@pytest.mark.parametrize("algorithm", KEMS)
def test_a_wrong_rejection_secret_fails(algorithm: Algorithm) -> None:
    """A KEM with a wrong rejection secret for a damaged ciphertext fails."""
    right = KNOWN[algorithm]
    assert passes(algorithm, right)
    for wrong in (right["shared_secret"], bytes(32), right["rejection_secret"][::-1]):
        assert not passes(algorithm, {**right, "rejection_secret": wrong})
    without = {name: value for name, value in right.items() if name != "rejection_secret"}
    with pytest.raises(KeyError):  # nor is it left out in silence
        passes(algorithm, without)


class Forging(Pqcrypto):
    """An implementation that verifies, but does not sign."""

    def sign(
        self, algorithm: Algorithm, private_key: bytes, message: bytes, context: bytes
    ) -> bytes:
        """Return zeros of a signature's size."""
        return bytes(PARAMETER_SETS[algorithm].signature)


def test_who_signs_is_tested_by_signing() -> None:
    """An implementation that cannot sign passes as a verifier, but not as a signer."""
    schemes = signature_schemes(Forging())
    selftest.require(schemes)
    selftest.require_worker(schemes, signs=False)
    with pytest.raises(selftest.SelfTestError, match="SLH-DSA-SHA2-128f"):
        selftest.require_worker(schemes, signs=True)
    passed = selftest.run(schemes)
    assert {name for name, holds in passed.items() if not holds} == set(PARAMETER_SETS)
