"""The data half of KEM-DEM: HKDF (RFC 5869), then AES-256-GCM (SP 800-38D).

A box is nonce (12) || AES-GCM ciphertext || tag (16). Everything the box is bound to is in the
``info`` of the key derivation; the associated data is empty, as the specified layout wants it.
"""

import os
from collections.abc import Mapping

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256, SHA384, HashAlgorithm
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from pqkeep_protocol.algorithms import Algorithm

KEY_SIZE = 32
NONCE_SIZE = 12
TAG_SIZE = 16

HASHES: Mapping[Algorithm, HashAlgorithm] = {
    Algorithm.ML_KEM_768: SHA256(),
    Algorithm.X_WING: SHA256(),
    Algorithm.ML_KEM_1024: SHA384(),  # CNSA 2.0 asks for it at Category 5
}
"""The hash function inside HKDF, for each KEM."""


class DecryptionError(Exception):
    """The box does not open under this key. Says nothing more."""


def close(
    algorithm: Algorithm, shared_secret: bytes, plaintext: bytes | bytearray, *, info: bytes
) -> bytes:
    """Return a box (28 bytes longer than the plaintext)."""
    nonce = os.urandom(NONCE_SIZE)
    return nonce + _aead(algorithm, shared_secret, info).encrypt(nonce, plaintext, None)


def open_(algorithm: Algorithm, shared_secret: bytes, box: bytes, *, info: bytes) -> bytes:
    """Return the plaintext. Raises DecryptionError."""
    nonce, sealed = box[:NONCE_SIZE], box[NONCE_SIZE:]
    if len(sealed) < TAG_SIZE:
        raise DecryptionError
    try:
        return _aead(algorithm, shared_secret, info).decrypt(nonce, sealed, None)
    except InvalidTag:
        raise DecryptionError from None


def _aead(algorithm: Algorithm, shared_secret: bytes, info: bytes) -> AESGCM:
    kdf = HKDF(HASHES[algorithm], length=KEY_SIZE, salt=None, info=info)
    return AESGCM(kdf.derive(shared_secret))
