"""KEM-DEM: data under a tenant's KEM key, for encrypt and for wrap.

    blob = KEM ciphertext || nonce (12) || AES-GCM ciphertext || tag (16)

The purpose, the tenant, the algorithm and the version are in the key derivation: a blob opens for
all of them together, or not at all.
"""

from enum import Enum

from pqkeep_keyservice.crypto import dem
from pqkeep_keyservice.crypto.binding import key_info
from pqkeep_keyservice.keys.keyring import KeyEntry, Keyring
from pqkeep_keyservice.live.key_material import KeyMaterial
from pqkeep_protocol.algorithms import ALGORITHMS
from pqkeep_protocol.errors import ErrorKind, KeyServiceError


class Purpose(Enum):
    """What a blob is for."""

    ENCRYPT = b"encrypt"
    WRAP = b"wrap"


def close(
    purpose: Purpose,
    data: bytes | bytearray,
    keyring: Keyring,
    key: KeyEntry,
    material: KeyMaterial,
) -> bytes:
    """Encapsulate to the key, and encrypt the data under the shared secret."""
    shared_secret, kem_ciphertext = material.encapsulation_key(keyring.tenant, key).encapsulate()
    info = key_info(purpose.value, keyring.tenant, keyring.algorithm, key.info.version)
    return kem_ciphertext + dem.close(keyring.algorithm, shared_secret, data, info=info)


def open_(
    purpose: Purpose,
    blob: bytes,
    keyring: Keyring,
    key: KeyEntry,
    material: KeyMaterial,
) -> bytes:
    """Return the data. Raises DECRYPTION_FAILED."""
    private = material.decapsulation_key(keyring.tenant, key)
    size = ALGORITHMS[keyring.algorithm].output_size
    binding = key_info(purpose.value, keyring.tenant, keyring.algorithm, key.info.version)
    try:
        shared_secret = private.decapsulate(blob[:size])
        return dem.open_(keyring.algorithm, shared_secret, blob[size:], info=binding)
    except (ValueError, dem.DecryptionError):
        raise KeyServiceError(ErrorKind.DECRYPTION_FAILED) from None
