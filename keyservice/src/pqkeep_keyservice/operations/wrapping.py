"""wrap and unwrap: a customer's symmetric key under a tenant's KEM key."""

from pqkeep_keyservice.keys.keyring import Keyring
from pqkeep_keyservice.live.key_material import KeyMaterial
from pqkeep_keyservice.operations import kem_dem
from pqkeep_keyservice.operations.kem_dem import Purpose
from pqkeep_keyservice.operations.result import OperationResult
from pqkeep_protocol.messages import Unwrap, Unwrapped, Wrap, Wrapped


def wrap(request: Wrap, keyring: Keyring, material: KeyMaterial) -> OperationResult:
    """Encrypt a symmetric key."""
    key = keyring.key_for(request.operation, request.version)
    wrapped_key = kem_dem.encrypt(Purpose.WRAP, request.symmetric_key, keyring, key, material)
    return OperationResult(Wrapped(wrapped_key=wrapped_key), key.info.version)


def unwrap(request: Unwrap, keyring: Keyring, material: KeyMaterial) -> OperationResult:
    """Decrypt what was wrapped with the same key version. Raises DECRYPTION_FAILED."""
    key = keyring.key_for(request.operation, request.version)
    symmetric_key = kem_dem.decrypt(Purpose.WRAP, request.wrapped_key, keyring, key, material)
    return OperationResult(Unwrapped(symmetric_key=symmetric_key), request.version)
