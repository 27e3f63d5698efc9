"""encrypt and decrypt."""

from pqkeep_keyservice.keys.keyring import Keyring
from pqkeep_keyservice.live.key_material import KeyMaterial
from pqkeep_keyservice.operations import kem_dem
from pqkeep_keyservice.operations.kem_dem import Purpose
from pqkeep_keyservice.operations.result import OperationResult
from pqkeep_protocol.messages import Decrypt, Decrypted, Encrypt, Encrypted


def encrypt(request: Encrypt, keyring: Keyring, material: KeyMaterial) -> OperationResult:
    """Encrypt data."""
    key = keyring.key_for(request.operation, request.version)
    ciphertext = kem_dem.encrypt(Purpose.ENCRYPT, request.plaintext, keyring, key, material)
    version = key.info.version
    return OperationResult(Encrypted(ciphertext=ciphertext, version=version), version)


def decrypt(request: Decrypt, keyring: Keyring, material: KeyMaterial) -> OperationResult:
    """Decrypt what was encrypted with the same key version. Raises DECRYPTION_FAILED."""
    key = keyring.key_for(request.operation, request.version)
    plaintext = kem_dem.decrypt(Purpose.ENCRYPT, request.ciphertext, keyring, key, material)
    return OperationResult(Decrypted(plaintext=plaintext), request.version)
