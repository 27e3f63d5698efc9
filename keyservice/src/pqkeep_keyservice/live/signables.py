"""What is signed: a message with its context, or a mu that stands for both."""

from dataclasses import dataclass

from pqkeep_keyservice.crypto import mldsa
from pqkeep_keyservice.crypto.signature import SigningKey, VerifyingKey


@dataclass(frozen=True, slots=True, repr=False)
class Message:
    """A message, and the context (at most 255 bytes) that a signature binds it to."""

    message: bytes
    context: bytes = b""


@dataclass(frozen=True, slots=True, repr=False)
class ExternalMu:
    """What ML-DSA makes of a message and its context first: 64 bytes (FIPS 204, algorithm 7)."""

    mu: bytes


Signable = Message | ExternalMu


def sign(private: SigningKey, signable: Signable) -> bytes:
    """Return a signature. Raises TypeError on a mu for a scheme that has none."""
    if isinstance(signable, Message):
        return private.sign(signable.message, signable.context)
    if isinstance(private, mldsa.SigningKey):
        return private.sign_mu(signable.mu)
    raise TypeError("only ML-DSA signs a mu")


def sign_and_verify(private: SigningKey, public: VerifyingKey, signable: Signable) -> bytes:
    """Return a signature that holds. Raises InvalidSignature if it does not: a computation failed."""
    signature = sign(private, signable)
    verify(public, signature, signable)
    return signature


def verify(public: VerifyingKey, signature: bytes, signable: Signable) -> None:
    """Raise InvalidSignature unless it holds; TypeError on a mu for a scheme that has none."""
    if isinstance(signable, Message):
        public.verify(signature, signable.message, signable.context)
    elif isinstance(public, mldsa.VerifyingKey):
        public.verify_mu(signature, signable.mu)
    else:
        raise TypeError("only ML-DSA verifies a mu")
