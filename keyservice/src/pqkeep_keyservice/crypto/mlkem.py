"""ML-KEM (FIPS 203), from pyca/cryptography. Seeds are d || z, 64 bytes."""

from collections.abc import Callable
from dataclasses import dataclass

from cryptography.hazmat.primitives.asymmetric import mlkem
from cryptography.hazmat.primitives.hashes import SHA256, SHA384, HashAlgorithm

from pqkeep_keyservice.crypto.secret import Secret

Private = mlkem.MLKEM768PrivateKey | mlkem.MLKEM1024PrivateKey
Public = mlkem.MLKEM768PublicKey | mlkem.MLKEM1024PublicKey


@dataclass(frozen=True, slots=True, repr=False)
class DecapsulationKey:
    """An expanded private key."""

    _key: Private

    def decapsulate(self, ciphertext: bytes) -> bytes:
        """Return the shared secret (32 bytes). Raises ValueError on a wrong size."""
        return self._key.decapsulate(ciphertext)

    def seed(self) -> Secret:
        """Return d || z (64 bytes)."""
        return Secret(self._key.private_bytes_raw())

    def public_bytes(self) -> bytes:
        """Return the encapsulation key."""
        return self._key.public_key().public_bytes_raw()


@dataclass(frozen=True, slots=True)
class MlKem:
    """One parameter set."""

    hkdf_hash: HashAlgorithm
    _generate: Callable[[], Private]
    _from_seed: Callable[[memoryview], Private]
    _from_public: Callable[[bytes], Public]

    def generate(self) -> DecapsulationKey:
        return DecapsulationKey(self._generate())

    def load_public(self, data: bytes) -> Public:
        """Load an encapsulation key, with the checks of FIPS 203, section 7.2."""
        return self._from_public(data)

    def load_seed(self, seed: Secret) -> DecapsulationKey:
        """Expand a seed (64 bytes)."""
        return DecapsulationKey(self._from_seed(seed.reveal()))


ML_KEM_768 = MlKem(
    SHA256(),
    mlkem.MLKEM768PrivateKey.generate,
    mlkem.MLKEM768PrivateKey.from_seed_bytes,
    mlkem.MLKEM768PublicKey.from_public_bytes,
)
"""Encapsulation key 1184 bytes, ciphertext 1088, shared secret 32."""

ML_KEM_1024 = MlKem(
    SHA384(),  # CNSA 2.0 requires it at category 5
    mlkem.MLKEM1024PrivateKey.generate,
    mlkem.MLKEM1024PrivateKey.from_seed_bytes,
    mlkem.MLKEM1024PublicKey.from_public_bytes,
)
"""Encapsulation key 1568 bytes, ciphertext 1568, shared secret 32."""
