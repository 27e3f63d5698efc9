"""KEM-DEM: data encrypted under a tenant's KEM key, for encrypt and for wrap.

    ciphertext = KEM ciphertext || nonce (12) || AES-GCM ciphertext || tag (16)

The purpose, the tenant, the algorithm and the version are in the key derivation: only with all of
them right does a ciphertext decrypt.
"""

from enum import Enum

from pqkeep_keyservice.crypto import dem
from pqkeep_keyservice.crypto.binding import key_info
from pqkeep_keyservice.crypto.kem import KEMS
from pqkeep_keyservice.keys.keyring import KeyEntry, Keyring
from pqkeep_keyservice.live.key_material import KeyMaterial
from pqkeep_protocol.algorithms import ALGORITHMS
from pqkeep_protocol.errors import ErrorKind, KeyServiceError


class Purpose(Enum):
    """What a ciphertext is for."""

    ENCRYPT = b"encrypt"
    WRAP = b"wrap"


def encrypt(
    purpose: Purpose,
    data: bytes | bytearray,
    keyring: Keyring,
    key: KeyEntry,
    material: KeyMaterial,
) -> bytes:
    """Encapsulate to the key, and encrypt the data under the shared secret."""
    shared_secret, kem_ciphertext = material.encapsulation_key(keyring.tenant, key).encapsulate()
    info = key_info(purpose.value, keyring.tenant, keyring.algorithm, key.info.version)
    hkdf_hash = KEMS[keyring.algorithm].hkdf_hash
    return kem_ciphertext + dem.encrypt(hkdf_hash, shared_secret, data, info=info)


def decrypt(
    purpose: Purpose,
    ciphertext: bytes,
    keyring: Keyring,
    key: KeyEntry,
    material: KeyMaterial,
) -> bytes:
    """Return the data. Raises DECRYPTION_FAILED."""
    private = material.decapsulation_key(keyring.tenant, key)
    size = ALGORITHMS[keyring.algorithm].output_size
    info = key_info(purpose.value, keyring.tenant, keyring.algorithm, key.info.version)
    hkdf_hash = KEMS[keyring.algorithm].hkdf_hash
    try:
        shared_secret = private.decapsulate(ciphertext[:size])
        return dem.decrypt(hkdf_hash, shared_secret, ciphertext[size:], info=info)
    except (ValueError, dem.DecryptionError):
        raise KeyServiceError(ErrorKind.DECRYPTION_FAILED) from None
