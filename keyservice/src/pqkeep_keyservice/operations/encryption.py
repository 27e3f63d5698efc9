"""encrypt and decrypt."""

from pqkeep_keyservice.keys.keyring import Keyring
from pqkeep_keyservice.live.key_material import KeyMaterial
from pqkeep_keyservice.operations import kem_dem
from pqkeep_keyservice.operations.done import Done
from pqkeep_keyservice.operations.kem_dem import Purpose
from pqkeep_protocol.messages import Decrypt, Decrypted, Encrypt, Encrypted


def encrypt(request: Encrypt, ring: Keyring, material: KeyMaterial) -> Done:
    """Encrypt data."""
    key = ring.key_for(request.operation, request.version)
    ciphertext = kem_dem.close(Purpose.ENCRYPT, request.plaintext, ring, key, material)
    return Done(Encrypted(ciphertext=ciphertext, version=key.info.version), key.info.version)


def decrypt(request: Decrypt, ring: Keyring, material: KeyMaterial) -> Done:
    """Open what encrypt made with the same key version."""
    key = ring.key_for(request.operation, request.version)
    plaintext = kem_dem.open_(Purpose.ENCRYPT, request.ciphertext, ring, key, material)
    return Done(Decrypted(plaintext=plaintext), request.version)
