"""wrap and unwrap: a customer's symmetric key under a tenant's KEM key."""

from pqkeep_keyservice.keys.key_versions import KeyVersions
from pqkeep_keyservice.live.key_material import KeyMaterial
from pqkeep_keyservice.operations import kem_dem
from pqkeep_keyservice.operations.kem_dem import Purpose
from pqkeep_keyservice.operations.result import OperationResult
from pqkeep_protocol.messages import Unwrap, Unwrapped, Wrap, Wrapped


def wrap(request: Wrap, versions: KeyVersions, material: KeyMaterial) -> OperationResult:
    """Encrypt a symmetric key."""
    key = versions.key_for(request.operation, request.version)
    wrapped_key = kem_dem.encrypt(
        Purpose.WRAP, request.symmetric_key, versions, key, material, request.associated_data
    )
    return OperationResult(Wrapped(wrapped_key=wrapped_key), key.info.version)


def unwrap(request: Unwrap, versions: KeyVersions, material: KeyMaterial) -> OperationResult:
    """Decrypt what was wrapped with the same key version. Raises DECRYPTION_FAILED."""
    key = versions.key_for(request.operation, request.version)
    symmetric_key = kem_dem.decrypt(
        Purpose.WRAP, request.wrapped_key, versions, key, material, request.associated_data
    )
    return OperationResult(Unwrapped(symmetric_key=symmetric_key), request.version)
