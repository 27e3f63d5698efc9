"""encrypt and decrypt: KEM-DEM with a tenant's KEM key.

ciphertext = KEM ciphertext || nonce (12) || AES-GCM ciphertext || tag (16)
"""

from pqkeep_keyservice.crypto import dem
from pqkeep_keyservice.crypto.binding import key_info
from pqkeep_keyservice.keyring import Keyring
from pqkeep_keyservice.operations.done import Done
from pqkeep_keyservice.storage.material import KeyMaterial
from pqkeep_protocol.algorithms import ALGORITHMS
from pqkeep_protocol.errors import ErrorKind, KeyServiceError
from pqkeep_protocol.messages import Decrypt, Decrypted, Encrypt, Encrypted

_PURPOSE = b"encrypt"


def encrypt(request: Encrypt, ring: Keyring, material: KeyMaterial) -> Done:
    """Encapsulate to the key and close the plaintext under the shared secret."""
    key = ring.public_key_for(request.operation, request.version)
    shared_secret, kem_ciphertext = material.encapsulation_key(ring.tenant, key).encapsulate()
    info = key_info(_PURPOSE, ring.tenant, ring.algorithm, key.version)
    box = dem.close(shared_secret, request.plaintext, info=info)
    return Done(Encrypted(ciphertext=kem_ciphertext + box, version=key.version), key.version)


def decrypt(request: Decrypt, ring: Keyring, material: KeyMaterial) -> Done:
    """Open what encrypt made with the same key version."""
    key, sealed = ring.private_key_for(request.operation, request.version)
    private = material.decapsulation_key(ring.tenant, key, sealed)
    size = ALGORITHMS[ring.algorithm].output_size
    info = key_info(_PURPOSE, ring.tenant, ring.algorithm, key.version)
    try:
        shared_secret = private.decapsulate(request.ciphertext[:size])
        plaintext = dem.open_(shared_secret, request.ciphertext[size:], info=info)
    except (ValueError, dem.DecryptionError):
        raise KeyServiceError(ErrorKind.DECRYPTION_FAILED) from None
    return Done(Decrypted(plaintext=plaintext), key.version)
