"""Signature schemes: their interface, and the table of all schemes."""

from collections.abc import Mapping
from typing import Protocol

from pqkeep_keyservice.crypto import composite, mldsa
from pqkeep_keyservice.crypto.secret import Secret
from pqkeep_keyservice.crypto.slhdsa import Implementation, SlhDsa
from pqkeep_protocol.algorithms import Algorithm


class VerifyingKey(Protocol):
    """The public half of a signature key pair."""

    def verify(self, signature: bytes, message: bytes, context: bytes = b"") -> None:
        """Raise InvalidSignature unless the signature is valid. Any size is allowed."""
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

    @property
    def holds_interpreter_lock(self) -> bool:
        """Whether it computes with the lock held, so that only other processes run in parallel."""
        ...

    def generate(self) -> SigningKey:
        """Generate a key pair."""
        ...

    def load_public(self, data: bytes) -> VerifyingKey:
        """Load a verifying key. Raises ValueError if it is invalid."""
        ...

    def load_seed(self, seed: Secret) -> SigningKey:
        """Expand a stored seed. Raises ValueError if it is invalid."""
        ...


SignatureSchemes = Mapping[Algorithm, SignatureScheme]


def signature_schemes(slh_dsa: Implementation) -> SignatureSchemes:
    """Return the table of all schemes, with this implementation of SLH-DSA."""
    return {
        Algorithm.ML_DSA_65: mldsa.ML_DSA_65,
        Algorithm.COMPOSITE_ML_DSA: composite.COMPOSITE_ML_DSA,
        Algorithm.ML_DSA_87: mldsa.ML_DSA_87,
        Algorithm.SLH_DSA_SHA2_128S: SlhDsa(slh_dsa, Algorithm.SLH_DSA_SHA2_128S),
        Algorithm.SLH_DSA_SHA2_128F: SlhDsa(slh_dsa, Algorithm.SLH_DSA_SHA2_128F),
        Algorithm.SLH_DSA_SHA2_192S: SlhDsa(slh_dsa, Algorithm.SLH_DSA_SHA2_192S),
        Algorithm.SLH_DSA_SHA2_256S: SlhDsa(slh_dsa, Algorithm.SLH_DSA_SHA2_256S),
    }
