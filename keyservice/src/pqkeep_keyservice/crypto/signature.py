"""Signature schemes: the interface, and the table of all there are."""

from collections.abc import Mapping
from typing import Protocol

from pqkeep_keyservice.crypto import mldsa
from pqkeep_keyservice.crypto.secret import Secret
from pqkeep_protocol.algorithms import Algorithm


class VerifyingKey(Protocol):
    """The public half of a signature key pair."""

    def verify(self, signature: bytes, message: bytes) -> None:
        """Raise cryptography's InvalidSignature unless it holds, whatever its size."""
        ...


class SigningKey(Protocol):
    """The private half of a signature key pair."""

    def sign(self, message: bytes) -> bytes:
        """Return a signature over the message, with an empty context."""
        ...

    def seed(self) -> Secret:
        """Return the private key in its stored form."""
        ...

    def public_bytes(self) -> bytes:
        """Return the verifying key's standard encoding."""
        ...


class SignatureScheme(Protocol):
    """One scheme, e.g. ML-DSA-65."""

    def generate(self) -> SigningKey:
        """Make a new key pair."""
        ...

    def load_public(self, data: bytes) -> VerifyingKey:
        """Load a verifying key. Raises ValueError if it is none."""
        ...

    def load_seed(self, seed: Secret) -> SigningKey:
        """Expand a stored seed. Raises ValueError on a wrong size."""
        ...


SIGNATURE_SCHEMES: Mapping[Algorithm, SignatureScheme] = {
    Algorithm.ML_DSA_65: mldsa.ML_DSA_65,
}
