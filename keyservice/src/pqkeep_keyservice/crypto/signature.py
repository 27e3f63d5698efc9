"""Signature schemes: the interface, and the table of those that run in this process."""

from collections.abc import Mapping
from typing import Protocol

from pqkeep_keyservice.crypto import composite, mldsa
from pqkeep_keyservice.crypto.secret import Secret
from pqkeep_protocol.algorithms import Algorithm


class VerifyingKey(Protocol):
    """The public half of a signature key pair."""

    def verify(self, signature: bytes, message: bytes, context: bytes = b"") -> None:
        """Raise cryptography's InvalidSignature unless it holds, whatever its size."""
        ...


class SigningKey(Protocol):
    """The private half of a signature key pair."""

    def sign(self, message: bytes, context: bytes = b"") -> bytes:
        """Return a signature. The context has at most 255 bytes."""
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
        """Expand a stored seed. Raises ValueError if it is none."""
        ...


SIGNATURE_SCHEMES: Mapping[Algorithm, SignatureScheme] = {
    Algorithm.ML_DSA_65: mldsa.ML_DSA_65,
    Algorithm.COMPOSITE_ML_DSA: composite.COMPOSITE_ML_DSA,
    Algorithm.ML_DSA_87: mldsa.ML_DSA_87,
}
"""SLH-DSA is not among them: see slhdsa.SETS and live/slhdsa_process."""
