"""What the service returns. A repr shows neither secrets nor long byte strings."""

from dataclasses import dataclass, field
from datetime import datetime


@dataclass(frozen=True, slots=True)
class Ciphertext:
    """Encrypted data. Keep all three: decryption needs them."""

    ciphertext: bytes = field(repr=False)
    key_version: int
    algorithm: str


@dataclass(frozen=True, slots=True)
class Encapsulation:
    """A new shared secret (32 bytes), and what the key's owner recovers it from."""

    kem_ciphertext: bytes = field(repr=False)
    shared_secret: bytes = field(repr=False)
    key_version: int
    algorithm: str


@dataclass(frozen=True, slots=True)
class Signature:
    """A signature. Keep all three: verification needs them."""

    signature: bytes = field(repr=False)
    key_version: int
    algorithm: str


@dataclass(frozen=True, slots=True)
class Key:
    """One version of a key: its public half and its state."""

    key_version: int
    algorithm: str
    status: str
    """``active``, ``retired`` or ``archived``."""
    public_key: bytes = field(repr=False)
    created_at: datetime


@dataclass(frozen=True, slots=True)
class Rotation:
    """A new active key, and the version that it replaced."""

    public_key: bytes = field(repr=False)
    key_version: int
    algorithm: str
    old_key_version: int
