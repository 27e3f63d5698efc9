"""The primitives, from cryptography: the only module of local encryption that loads it.

X-Wing (draft-connolly-cfrg-xwing-kem) is ML-KEM-768 and X25519, joined by SHA3-256; the library has
it inside HPKE only.

Shared secrets for a public key are made here too.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from hashlib import sha3_256

from pqkeep.errors import how_to_install

try:
    from cryptography.exceptions import InvalidTag
    from cryptography.hazmat.primitives.asymmetric.mlkem import (
        MLKEM768PublicKey,
        MLKEM1024PublicKey,
    )
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM
    from cryptography.hazmat.primitives.hashes import SHA256, SHA384, HashAlgorithm
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF
except ModuleNotFoundError:
    raise ModuleNotFoundError(
        f"local encryption is not installed: {how_to_install('local')}", name="cryptography"
    ) from None
from pqkeep.models import Encapsulation

__all__ = [
    "AESGCM",
    "FILE_HASH",
    "KEMS",
    "KEY_SIZE",
    "NONCE_SIZE",
    "TAG_SIZE",
    "InvalidTag",
    "Kem",
    "canonical",
    "derive",
    "x_wing_secret",
]

FILE_HASH = SHA384()
"""What belongs to a file and to none of its recipients is derived with this."""
KEY_SIZE = 32
NONCE_SIZE = 12
TAG_SIZE = 16
_M_PUBLIC_KEY = 1184
_LABEL = bytes.fromhex("5c2e2f2f5e5c")


@dataclass(frozen=True, slots=True)
class Kem:
    """One key encapsulation mechanism, and the hash function that goes with it."""

    ciphertext_size: int
    hash: HashAlgorithm
    encapsulate: Callable[[bytes], tuple[bytes, bytes]]
    """Makes of a public key a new shared secret (32 bytes) and its KEM ciphertext. Raises
    ValueError for what is no public key."""

    def derive(self, shared_secret: bytes, *purpose: bytes) -> bytes:
        """Return 32 bytes, for this purpose only."""
        return derive(self.hash, shared_secret, *purpose)


def derive(
    hash_algorithm: HashAlgorithm, secret: bytes, *purpose: bytes, length: int = KEY_SIZE
) -> bytes:
    """Return so many bytes of HKDF (RFC 5869).

    There is no salt, and the info is the purpose: its parts, each behind its length as 2 bytes.
    """
    info = b"".join(len(part).to_bytes(2, "big") + part for part in purpose)
    return HKDF(hash_algorithm, length=length, salt=None, info=info).derive(secret)


def x_wing_secret(m_secret: bytes, x_secret: bytes, x_ciphertext: bytes, x_public: bytes) -> bytes:
    """Join the secrets of ML-KEM and X25519."""
    return sha3_256(m_secret + x_secret + x_ciphertext + x_public + _LABEL).digest()


def _ml_kem_768(public_key: bytes) -> tuple[bytes, bytes]:
    return MLKEM768PublicKey.from_public_bytes(public_key).encapsulate()


def _ml_kem_1024(public_key: bytes) -> tuple[bytes, bytes]:
    return MLKEM1024PublicKey.from_public_bytes(public_key).encapsulate()


def _x_wing(public_key: bytes) -> tuple[bytes, bytes]:
    x_public = public_key[_M_PUBLIC_KEY:]
    m_secret, m_ciphertext = _ml_kem_768(public_key[:_M_PUBLIC_KEY])
    ephemeral = X25519PrivateKey.generate()
    x_secret = ephemeral.exchange(X25519PublicKey.from_public_bytes(x_public))
    x_ciphertext = ephemeral.public_key().public_bytes_raw()
    secret = x_wing_secret(m_secret, x_secret, x_ciphertext, x_public)
    return secret, m_ciphertext + x_ciphertext


KEMS: Mapping[str, Kem] = {
    "Kyber768": Kem(1088, SHA256(), _ml_kem_768),
    "X-Wing": Kem(1120, SHA256(), _x_wing),
    "ML-KEM-1024": Kem(1568, SHA384(), _ml_kem_1024),  # CNSA 2.0 asks for SHA-384 with it
}
"""By the names that the service's API has for them."""
ALIASES: Mapping[str, str] = {"ML-KEM-768": "Kyber768"}
"""The standards' names of what the API calls otherwise."""


def canonical(algorithm: str) -> str:
    """Return the API's name of an algorithm."""
    return ALIASES.get(algorithm, algorithm)


LARGEST_KEY_VERSION = (1 << 32) - 1


def encapsulate(*, public_key: bytes, algorithm: str, key_version: int) -> Encapsulation:
    """Make a new shared secret of 32 bytes, as ``client.kem.encapsulate`` does, but here.

    Raises ValueError where the three cannot be those of one key.
    """
    algorithm = canonical(algorithm)
    if algorithm not in KEMS:
        raise ValueError(f"the algorithm must be one of {', '.join(KEMS)}")
    if not 1 <= key_version <= LARGEST_KEY_VERSION:
        raise ValueError(f"the key version must be from 1 to {LARGEST_KEY_VERSION}")
    try:
        shared_secret, kem_ciphertext = KEMS[algorithm].encapsulate(public_key)
    except ValueError:
        raise ValueError(f"the public key is none of {algorithm}") from None
    return Encapsulation(
        kem_ciphertext=kem_ciphertext,
        shared_secret=shared_secret,
        key_version=key_version,
        algorithm=algorithm,
    )
