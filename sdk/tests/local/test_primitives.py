"""X-Wing, and the refusals of encapsulation."""

from __future__ import annotations

import base64
import json
from hashlib import shake_256
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from cryptography.hazmat.primitives.asymmetric.mlkem import MLKEM768PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey

from pqkeep.local import encapsulate
from pqkeep.local._primitives import KEMS, x_wing_secret
from pqkeep_protocol.algorithms import ALGORITHMS, Algorithm

if TYPE_CHECKING:
    from sdk.tests.local.conftest import Pair

VECTORS = Path(__file__).parents[3] / "tests" / "vectors" / "x-wing.json"


def test_the_same_secret(pair: Pair) -> None:
    """The key service's code recovers the client's secret, for every algorithm."""
    made = encapsulate(**pair.public)
    assert pair.private.decapsulate(made.kem_ciphertext) == made.shared_secret
    assert (made.algorithm, made.key_version) == (pair.algorithm, pair.key_version)
    assert encapsulate(**pair.public).shared_secret != made.shared_secret


def test_sizes() -> None:
    """The client has all KEMs of the service, with ciphertexts of the same sizes."""
    kems = {name for name, spec in ALGORITHMS.items() if name in KEMS}
    assert kems == set(KEMS)
    assert {KEMS[name].ciphertext_size for name in KEMS} == {1088, 1120, 1568}
    for name, kem in KEMS.items():
        assert kem.ciphertext_size == ALGORITHMS[Algorithm(name)].output_size


def test_x_wing_s_vectors() -> None:
    """The halves of the published vectors give the published secret."""
    cases = json.loads(VECTORS.read_text())["cases"]
    assert cases
    for case in cases:
        seed, ciphertext, secret = (
            base64.b64decode(case[name]) for name in ("seed", "kem_ciphertext", "shared_secret")
        )
        expanded = shake_256(seed).digest(96)
        x = X25519PrivateKey.from_private_bytes(expanded[64:])
        x_ciphertext = ciphertext[1088:]
        joined = x_wing_secret(
            MLKEM768PrivateKey.from_seed_bytes(expanded[:64]).decapsulate(ciphertext[:1088]),
            x.exchange(X25519PublicKey.from_public_bytes(x_ciphertext)),
            x_ciphertext,
            x.public_key().public_bytes_raw(),
        )
        assert joined == secret


@pytest.mark.parametrize("size", [0, 1, 1183, 1185, 1215, 1217, 1567, 1569])
@pytest.mark.parametrize("algorithm", list(KEMS))
def test_no_public_key(algorithm: str, size: int) -> None:
    """A public key of another size is refused and not quoted."""
    with pytest.raises(ValueError, match=f"^the public key is not one of {algorithm}$") as caught:
        encapsulate(public_key=bytes(size), algorithm=algorithm, key_version=1)
    assert caught.value.__suppress_context__


def test_no_public_key_of_the_right_size() -> None:
    """Too large coefficients, and a point of low order, are refused."""
    for algorithm, key in (
        ("Kyber768", b"\xff" * 1184),
        ("ML-KEM-1024", b"\xff" * 1568),
        ("X-Wing", b"\xff" * 1184 + bytes(32)),
        ("X-Wing", bytes(1184) + bytes(32)),
    ):
        with pytest.raises(ValueError, match="the public key is not one of"):
            encapsulate(public_key=key, algorithm=algorithm, key_version=1)


@pytest.mark.parametrize("version", [0, -1, 1 << 32])
def test_no_key_version(kyber: Pair, version: int) -> None:
    """A key version that no header can have is refused."""
    with pytest.raises(ValueError, match="from 1 to 4294967295"):
        encapsulate(**{**kyber.public, "key_version": version})


@pytest.mark.parametrize("algorithm", ["", "kyber768", "ML-KEM-512", "Dilithium3"])
def test_no_algorithm(kyber: Pair, algorithm: str) -> None:
    """An algorithm other than the service's KEMs is refused and not quoted."""
    with pytest.raises(ValueError, match="Kyber768, X-Wing, ML-KEM-1024"):
        encapsulate(**{**kyber.public, "algorithm": algorithm})
