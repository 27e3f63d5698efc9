"""The self-test passes on what is right, fails on what is not, and covers every algorithm."""

import json
from base64 import b64decode
from collections.abc import Callable, Iterator
from hashlib import sha256
from importlib.resources import files

import pytest
from cryptography.hazmat.primitives.asymmetric.mldsa import MLDSA65PrivateKey, MLDSA87PrivateKey
from cryptography.hazmat.primitives.asymmetric.mlkem import MLKEM768PrivateKey, MLKEM1024PrivateKey

from pqkeep_keyservice.crypto import selftest
from pqkeep_keyservice.crypto.kem import KEMS
from pqkeep_keyservice.crypto.signature import SIGNATURE_SCHEMES
from pqkeep_keyservice.crypto.slhdsa_pqcrypto import Pqcrypto
from pqkeep_protocol.algorithms import Algorithm

KNOWN: dict[str, dict[str, bytes]] = {
    algorithm: {name: b64decode(value) for name, value in answer.items()}
    for algorithm, answer in json.loads(
        files("pqkeep_keyservice.crypto").joinpath("selftest.json").read_text()
    ).items()
}
VALUES = [(name, field) for name, answer in KNOWN.items() for field in answer]


def test_every_algorithm_passes() -> None:
    """Every algorithm there is has its known answers, and computes them."""
    assert selftest.run(Pqcrypto()) == dict.fromkeys(Algorithm, True)
    assert sorted(KNOWN) == sorted(Algorithm)
    selftest.require()
    selftest.require_slhdsa(Pqcrypto())


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
    """The file agrees with the library, asked without any of our classes."""
    known = KNOWN[algorithm]
    private = load(known["seed"])
    assert private.decapsulate(known["ciphertext"]) == known["shared_secret"]
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
    """The file agrees with the library, asked without any of our classes."""
    known = KNOWN[algorithm]
    public = load(known["seed"]).public_key()
    public.verify(known["signature"], selftest.MESSAGE, selftest.CONTEXT)
    assert sha256(public.public_bytes_raw()).digest() == known["public_key_sha256"]


def passes(algorithm: Algorithm, known: dict[str, bytes]) -> bool:
    """Return whether an algorithm passes with known answers of our choice."""
    if algorithm in KEMS:
        return selftest._holds(selftest._kem(algorithm, KEMS[algorithm], known))
    if algorithm in SIGNATURE_SCHEMES:
        return selftest._holds(selftest._signature(SIGNATURE_SCHEMES[algorithm], known))
    return selftest._holds(selftest._slhdsa(algorithm, Pqcrypto(), known))


def damaged(data: bytes) -> Iterator[bytes]:
    """Return a known answer with a bit flipped in its first half, cut short, and empty.

    The second half of an ML-KEM seed is used for rejected ciphertexts only: no self-test sees it.
    """
    for at in (0, len(data) // 2 - 1):
        yield data[:at] + bytes([data[at] ^ 0x10]) + data[at + 1 :]
    yield data[:-1]
    yield b""


@pytest.mark.parametrize(("name", "field"), VALUES)
def test_a_damaged_known_answer_fails(name: str, field: str) -> None:
    """Each value of each known answer matters: with any of them damaged the test fails."""
    algorithm = Algorithm(name)
    assert passes(algorithm, KNOWN[name])
    for wrong in damaged(KNOWN[name][field]):
        assert not passes(algorithm, {**KNOWN[name], field: wrong})
