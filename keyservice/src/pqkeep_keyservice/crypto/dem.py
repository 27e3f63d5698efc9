"""The data half of KEM-DEM: HKDF (RFC 5869), then AES-256-GCM (SP 800-38D).

    sealed = nonce (12) || AES-GCM ciphertext || tag (16)

What the data is bound to is in the ``info`` of the key derivation. The associated data is empty, as
the specified layout has it, unless the caller has some.
"""

import os

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import HashAlgorithm
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

KEY_SIZE = 32
NONCE_SIZE = 12
TAG_SIZE = 16


class DecryptionError(Exception):
    """The data does not decrypt under this key. Says nothing more."""


def encrypt(
    hkdf_hash: HashAlgorithm,
    shared_secret: bytes,
    plaintext: bytes | bytearray,
    *,
    info: bytes,
    associated_data: bytes = b"",
    prefix: bytes = b"",
) -> bytes:
    """Return sealed data (28 bytes longer than the plaintext) behind a prefix."""
    nonce = os.urandom(NONCE_SIZE)
    aead = _aead(hkdf_hash, shared_secret, info)
    return b"".join((prefix, nonce, aead.encrypt(nonce, plaintext, associated_data)))


def decrypt(
    hkdf_hash: HashAlgorithm,
    shared_secret: bytes,
    sealed: bytes | memoryview,
    *,
    info: bytes,
    associated_data: bytes = b"",
) -> bytes:
    """Return the plaintext. Raises DecryptionError."""
    nonce, ciphertext = sealed[:NONCE_SIZE], sealed[NONCE_SIZE:]
    if len(ciphertext) < TAG_SIZE:
        raise DecryptionError
    try:
        return _aead(hkdf_hash, shared_secret, info).decrypt(nonce, ciphertext, associated_data)
    except InvalidTag:
        raise DecryptionError from None


def _aead(hkdf_hash: HashAlgorithm, shared_secret: bytes, info: bytes) -> AESGCM:
    kdf = HKDF(hkdf_hash, length=KEY_SIZE, salt=None, info=info)
    return AESGCM(kdf.derive(shared_secret))
