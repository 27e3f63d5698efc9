"""ML-DSA (FIPS 204), hedged, from pyca/cryptography. Seeds are 32 bytes."""

from collections.abc import Callable
from dataclasses import dataclass

from cryptography.hazmat.primitives.asymmetric import mldsa

from pqkeep_keyservice.crypto.secret import Secret


@dataclass(frozen=True, slots=True, repr=False)
class VerifyingKey:
    """A public key."""

    _key: mldsa.MLDSA65PublicKey

    def verify(self, signature: bytes, message: bytes) -> None:
        """Raise InvalidSignature unless it holds (FIPS 204, algorithm 3, empty context)."""
        self._key.verify(signature, message)


@dataclass(frozen=True, slots=True, repr=False)
class SigningKey:
    """An expanded private key."""

    _key: mldsa.MLDSA65PrivateKey

    def sign(self, message: bytes) -> bytes:
        """Return a hedged signature (FIPS 204, algorithm 2, empty context)."""
        return self._key.sign(message)

    def seed(self) -> Secret:
        """Return the seed (32 bytes)."""
        return Secret(self._key.private_bytes_raw())

    def public_bytes(self) -> bytes:
        """Return the verifying key (ML-DSA-65: 1952 bytes)."""
        return self._key.public_key().public_bytes_raw()


@dataclass(frozen=True, slots=True)
class MlDsa:
    """One parameter set."""

    _generate: Callable[[], mldsa.MLDSA65PrivateKey]
    _from_seed: Callable[[memoryview], mldsa.MLDSA65PrivateKey]
    _from_public: Callable[[bytes], mldsa.MLDSA65PublicKey]

    def generate(self) -> SigningKey:
        """Make a new key pair."""
        return SigningKey(self._generate())

    def load_public(self, data: bytes) -> VerifyingKey:
        """Load a verifying key."""
        return VerifyingKey(self._from_public(data))

    def load_seed(self, seed: Secret) -> SigningKey:
        """Expand a seed (32 bytes)."""
        return SigningKey(self._from_seed(seed.reveal()))


ML_DSA_65 = MlDsa(
    mldsa.MLDSA65PrivateKey.generate,
    mldsa.MLDSA65PrivateKey.from_seed_bytes,
    mldsa.MLDSA65PublicKey.from_public_bytes,
)
"""Verifying key 1952 bytes, signature 3309."""
