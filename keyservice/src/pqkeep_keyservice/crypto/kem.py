"""Key encapsulation mechanisms: their interface, and the table of all mechanisms."""

from collections.abc import Mapping
from typing import Protocol

from cryptography.hazmat.primitives.hashes import HashAlgorithm

from pqkeep_keyservice.crypto import mlkem, xwing
from pqkeep_keyservice.crypto.secret import Secret
from pqkeep_protocol.algorithms import Algorithm


class EncapsulationKey(Protocol):
    """The public half of a KEM key pair."""

    def encapsulate(self) -> tuple[bytes, bytes]:
        """Return a fresh shared secret (32 bytes) and the KEM ciphertext that carries it."""
        ...


class DecapsulationKey(Protocol):
    """The private half of a KEM key pair."""

    def decapsulate(self, ciphertext: bytes) -> bytes:
        """Return the shared secret (32 bytes). Raises ValueError on a ciphertext of a wrong form.

        ML-KEM rejects implicitly (FIPS 203, section 6.3): a damaged ciphertext of the right size
        gives an unrelated secret, not an error.
        """
        ...

    def seed(self) -> Secret:
        """Return the private key in its stored form."""
        ...

    def public_bytes(self) -> bytes:
        """Return the encapsulation key's standard encoding."""
        ...


class Kem(Protocol):
    """One mechanism, e.g. ML-KEM-768."""

    @property
    def hkdf_hash(self) -> HashAlgorithm:
        """The hash function with which HKDF derives a data key from the shared secret."""
        ...

    def generate(self) -> DecapsulationKey:
        """Generate a key pair."""
        ...

    def load_public(self, data: bytes) -> EncapsulationKey:
        """Load an encapsulation key. Raises ValueError if it is invalid."""
        ...

    def load_seed(self, seed: Secret) -> DecapsulationKey:
        """Expand a stored seed. Raises ValueError on a wrong size."""
        ...


KEMS: Mapping[Algorithm, Kem] = {
    Algorithm.ML_KEM_768: mlkem.ML_KEM_768,
    Algorithm.X_WING: xwing.X_WING,
    Algorithm.ML_KEM_1024: mlkem.ML_KEM_1024,
}
