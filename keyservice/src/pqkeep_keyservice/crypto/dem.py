"""The data half of KEM-DEM: HKDF (RFC 5869), then AES-256-GCM (SP 800-38D).

    sealed = nonce (12) || AES-GCM ciphertext || tag (16)

The ``info`` of the key derivation binds the data to its key version or public key. The associated
data is empty, as in the specified layout, unless the caller gives some. The encodings are
unambiguous.
"""

import os
from hashlib import sha256

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import HashAlgorithm
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from pqkeep_protocol.algorithms import Algorithm
from pqkeep_protocol.keys import DEFAULT_KEYRING, KeyringName, KeyVersion, TenantId


def length_prefixed(*parts: bytes) -> bytes:
    """Return the parts joined, each after its length in 2 bytes, big-endian."""
    return b"".join([len(part).to_bytes(2, "big") + part for part in parts])


def bound_keyring(keyring: KeyringName) -> tuple[bytes, ...]:
    """Return a keyring's extra parts: none for the default keyring, otherwise its name."""
    return () if keyring == DEFAULT_KEYRING else (keyring.encode(),)


def key_info(
    purpose: bytes,
    tenant: TenantId,
    algorithm: Algorithm,
    version: KeyVersion,
    keyring: KeyringName,
    context: bytes = b"",
) -> bytes:
    """Return the HKDF info that binds a data key to a purpose, a key version and a context."""
    protocol = (b"pqkeep/v1/derived", context) if context else (b"pqkeep/v1",)
    return length_prefixed(
        *protocol,
        purpose,
        algorithm.encode(),
        tenant.bytes,
        version.to_bytes(4, "big"),
        *bound_keyring(keyring),
    )


def bound_context(context: bytes, associated_data: bytes) -> bytes:
    """Return the cipher's associated data for a context, if any, and the caller's."""
    if not context:
        return associated_data
    parts = [len(part).to_bytes(4, "big") + part for part in (context, associated_data)]
    return b"".join((b"pqkeep/v1/context", *parts))


def supplied_key_info(algorithm: Algorithm, public_key: bytes) -> bytes:
    """Return the HKDF info that binds a data key to a supplied public key."""
    fingerprint = sha256(public_key).digest()
    return length_prefixed(b"pqkeep/v1", b"encrypt-to-key", algorithm.encode(), fingerprint)


KEY_SIZE = 32
NONCE_SIZE = 12
TAG_SIZE = 16


class DecryptionError(Exception):
    """The data does not decrypt under this key. The error carries nothing more."""


def encrypt(
    hkdf_hash: HashAlgorithm,
    shared_secret: bytes,
    plaintext: bytes | bytearray,
    *,
    info: bytes,
    associated_data: bytes = b"",
    prefix: bytes = b"",
) -> bytes:
    """Return the prefix and the sealed data (28 bytes longer than the plaintext)."""
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
