"""encrypt and decrypt."""

from pqkeep_keyservice.keys.key_versions import KeyVersions
from pqkeep_keyservice.live.key_material import KeyMaterial
from pqkeep_keyservice.operations import kem_dem
from pqkeep_keyservice.operations.kem_dem import Purpose
from pqkeep_keyservice.operations.result import OperationResult
from pqkeep_protocol.envelopes import Header
from pqkeep_protocol.keys import KeyVersion
from pqkeep_protocol.messages import CiphertextFormat, Decrypt, Decrypted, Encrypt, Encrypted


def encrypt(request: Encrypt, versions: KeyVersions, material: KeyMaterial) -> OperationResult:
    """Encrypt data."""
    key = versions.key_for(request.operation, request.version)
    purpose, associated_data = _binding(request, key.info.version)
    ciphertext = kem_dem.encrypt(
        purpose, request.plaintext, versions, key, material, associated_data
    )
    version = key.info.version
    return OperationResult(Encrypted(ciphertext=ciphertext, version=version), version)


def decrypt(request: Decrypt, versions: KeyVersions, material: KeyMaterial) -> OperationResult:
    """Decrypt what was encrypted with the same key version. Raises DECRYPTION_FAILED."""
    key = versions.key_for(request.operation, request.version)
    purpose, associated_data = _binding(request, request.version)
    plaintext = kem_dem.decrypt(
        purpose, request.ciphertext, versions, key, material, associated_data
    )
    return OperationResult(Decrypted(plaintext=plaintext), request.version)


def _binding(request: Encrypt | Decrypt, version: KeyVersion) -> tuple[Purpose, bytes]:
    """Return what a ciphertext is bound to beside its key; an envelope to its header, too."""
    if request.format is CiphertextFormat.CIPHERTEXT:
        return Purpose.ENCRYPT, request.associated_data
    header = Header(request.algorithm, version, request.keyring)
    return Purpose.ENVELOPE, header.bound() + request.associated_data
