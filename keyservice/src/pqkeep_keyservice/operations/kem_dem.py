"""KEM-DEM: data encrypted under a tenant's KEM key, for encrypt and for wrap.

    ciphertext = KEM ciphertext || nonce (12) || AES-GCM ciphertext || tag (16)

The purpose, the tenant, the keyring, the algorithm and the version are in the key derivation, and
what the caller binds it to is the cipher's associated data: only with all of them right does a
ciphertext decrypt.
Of a public key that was supplied, none of them is known: the key itself is in the key derivation.
"""

from enum import Enum
from functools import partial

from pqkeep_keyservice.crypto import dem
from pqkeep_keyservice.crypto.binding import key_info, supplied_key_info
from pqkeep_keyservice.crypto.kem import KEMS
from pqkeep_keyservice.keys.key_versions import KeyEntry, KeyVersions
from pqkeep_keyservice.live.key_material import KeyMaterial
from pqkeep_protocol.algorithms import ALGORITHMS, Algorithm
from pqkeep_protocol.errors import ErrorKind, KeyServiceError


class Purpose(Enum):
    """What a ciphertext is for."""

    ENCRYPT = b"encrypt"
    ENVELOPE = b"envelope"
    WRAP = b"wrap"


def encrypt(
    purpose: Purpose,
    data: bytes | bytearray,
    versions: KeyVersions,
    key: KeyEntry,
    material: KeyMaterial,
    associated_data: bytes,
) -> bytes:
    """Encapsulate to the key, and encrypt the data under the shared secret."""
    shared_secret, kem_ciphertext = material.encapsulation_key(versions.tenant, key).encapsulate()
    info = _info(purpose, versions, key)
    hkdf_hash = KEMS[versions.algorithm].hkdf_hash
    return dem.encrypt(
        hkdf_hash,
        shared_secret,
        data,
        info=info,
        associated_data=associated_data,
        prefix=kem_ciphertext,
    )


def seal_to(
    algorithm: Algorithm,
    public_key: bytes,
    shared_secret: bytes,
    data: bytes,
    associated_data: bytes,
) -> bytes:
    """Encrypt data under the shared secret of a public key that was supplied."""
    info = supplied_key_info(algorithm, public_key)
    hkdf_hash = KEMS[algorithm].hkdf_hash
    return dem.encrypt(hkdf_hash, shared_secret, data, info=info, associated_data=associated_data)


def decrypt(
    purpose: Purpose,
    ciphertext: bytes,
    versions: KeyVersions,
    key: KeyEntry,
    material: KeyMaterial,
    associated_data: bytes,
) -> bytes:
    """Return the data, also if its key was supplied to encrypt. Raises DECRYPTION_FAILED."""
    private = material.decapsulation_key(versions.tenant, key)
    size = ALGORITHMS[versions.algorithm].output_size
    hkdf_hash = KEMS[versions.algorithm].hkdf_hash
    try:
        shared_secret = private.decapsulate(ciphertext[:size])
    except ValueError:
        raise KeyServiceError(ErrorKind.DECRYPTION_FAILED) from None
    sealed = memoryview(ciphertext)[size:]
    open_with = partial(
        dem.decrypt, hkdf_hash, shared_secret, sealed, associated_data=associated_data
    )
    try:
        return open_with(info=_info(purpose, versions, key))
    except dem.DecryptionError:
        if purpose is not Purpose.ENCRYPT:
            raise KeyServiceError(ErrorKind.DECRYPTION_FAILED) from None
    try:
        return open_with(info=supplied_key_info(versions.algorithm, key.info.public_key))
    except dem.DecryptionError:
        raise KeyServiceError(ErrorKind.DECRYPTION_FAILED) from None


def _info(purpose: Purpose, versions: KeyVersions, key: KeyEntry) -> bytes:
    info = key.derivation_info.get(purpose.value)
    if info is None:
        info = key.derivation_info[purpose.value] = key_info(
            purpose.value, versions.tenant, versions.algorithm, key.info.version, versions.keyring
        )
    return info
