"""The primitives. Only this module of local encryption imports the package ``cryptography``.

X-Wing (draft-connolly-cfrg-xwing-kem) joins ML-KEM-768 and X25519 by SHA3-256. The package
offers it only inside HPKE.

This module also makes shared secrets for public keys.
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
"""The hash function for keys that belong to the file, not to a recipient."""
KEY_SIZE = 32
NONCE_SIZE = 12
TAG_SIZE = 16
_M_PUBLIC_KEY = 1184
_LABEL = bytes.fromhex("5c2e2f2f5e5c")


@dataclass(frozen=True, slots=True)
class Kem:
    """A key encapsulation mechanism, and its hash function for key derivation."""

    ciphertext_size: int
    hash: HashAlgorithm
    encapsulate: Callable[[bytes], tuple[bytes, bytes]]
    """Returns a new shared secret (32 bytes) and its KEM ciphertext for a public key. Raises
    ValueError for an invalid public key.
    """

    def derive(self, shared_secret: bytes, *purpose: bytes) -> bytes:
        """Return a key of 32 bytes for this purpose only."""
        return derive(self.hash, shared_secret, *purpose)


def derive(
    hash_algorithm: HashAlgorithm, secret: bytes, *purpose: bytes, length: int = KEY_SIZE
) -> bytes:
    """Return ``length`` bytes of HKDF (RFC 5869).

    There is no salt. The info is the purpose: each part follows its length in 2 bytes.
    """
    info = b"".join(len(part).to_bytes(2, "big") + part for part in purpose)
    return HKDF(hash_algorithm, length=length, salt=None, info=info).derive(secret)


def x_wing_secret(m_secret: bytes, x_secret: bytes, x_ciphertext: bytes, x_public: bytes) -> bytes:
    """Join the shared secrets of ML-KEM and X25519."""
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
"""The KEMs by their names in the service's API."""
ALIASES: Mapping[str, str] = {"ML-KEM-768": "Kyber768"}
"""The standards' names that differ from the API's."""


def canonical(algorithm: str) -> str:
    """Return the API's name of an algorithm."""
    return ALIASES.get(algorithm, algorithm)


LARGEST_KEY_VERSION = (1 << 32) - 1


def encapsulate(*, public_key: bytes, algorithm: str, key_version: int) -> Encapsulation:
    """Make a new shared secret of 32 bytes, like ``client.kem.encapsulate``, but on this machine.

    Raises ValueError for an invalid argument, or a public key of another algorithm.
    """
    algorithm = canonical(algorithm)
    if algorithm not in KEMS:
        raise ValueError(f"the algorithm must be one of {', '.join(KEMS)}")
    if not 1 <= key_version <= LARGEST_KEY_VERSION:
        raise ValueError(f"the key version must be from 1 to {LARGEST_KEY_VERSION}")
    try:
        shared_secret, kem_ciphertext = KEMS[algorithm].encapsulate(public_key)
    except ValueError:
        raise ValueError(f"the public key is not one of {algorithm}") from None
    return Encapsulation(
        kem_ciphertext=kem_ciphertext,
        shared_secret=shared_secret,
        key_version=key_version,
        algorithm=algorithm,
    )
