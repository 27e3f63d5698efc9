"""Key pairs of each algorithm, with private keys in the test, and the published vectors."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from pqkeep import DecryptionError
from pqkeep.local import Recipient
from pqkeep_keyservice.crypto.kem import KEMS, DecapsulationKey
from pqkeep_keyservice.crypto.secret import Secret
from pqkeep_protocol.algorithms import Algorithm


@dataclass(frozen=True)
class Pair:
    """A key pair. The private key uses the key service's code, not the client's."""

    algorithm: str
    key_version: int
    private: DecapsulationKey
    keyring: str = "default"

    @property
    def public(self) -> dict[str, Any]:
        """What encapsulation takes."""
        return {
            "public_key": self.private.public_bytes(),
            "algorithm": self.algorithm,
            "key_version": self.key_version,
        }

    @property
    def recipient(self) -> Recipient:
        """What encryption takes."""
        return Recipient(**self.public, keyring=self.keyring)

    def decapsulate(
        self, kem_ciphertext: bytes, *, key_version: int, algorithm: str, keyring: str
    ) -> bytes:
        """Act like the service, with the same refusals."""
        named = (algorithm, key_version, keyring)
        if named != (self.algorithm, self.key_version, self.keyring):
            raise DecryptionError("no such key")
        try:
            return self.private.decapsulate(kem_ciphertext)
        except ValueError:
            raise DecryptionError("refused") from None


@pytest.fixture(scope="session")
def pair_of() -> Callable[..., Pair]:
    """Make a key pair, optionally from a stored private key."""

    def make(algorithm: str, seed: bytes | None = None, *, keyring: str = "default") -> Pair:
        kem = KEMS[Algorithm(algorithm)]
        private = kem.generate() if seed is None else kem.load_seed(Secret(seed))
        return Pair(algorithm, 7, private, keyring)

    return make


@pytest.fixture(scope="session")
def vectors() -> Any:
    """The test vectors of docs/local-format.md."""
    return json.loads(Path(__file__).with_name("vectors.json").read_text())


@pytest.fixture(scope="session", params=["Kyber768", "X-Wing", "ML-KEM-1024"])
def pair(request: pytest.FixtureRequest, pair_of: Callable[..., Pair]) -> Pair:
    """A key pair of each algorithm in turn."""
    return pair_of(request.param)


@pytest.fixture(scope="session")
def kyber(pair_of: Callable[..., Pair]) -> Pair:
    """A key pair for tests in which the algorithm does not matter."""
    return pair_of("Kyber768")
