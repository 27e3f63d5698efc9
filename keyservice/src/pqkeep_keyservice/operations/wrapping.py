"""wrap and unwrap: a customer's symmetric key under a tenant's KEM key."""

from pqkeep_keyservice.keys.keyring import Keyring
from pqkeep_keyservice.live.key_material import KeyMaterial
from pqkeep_keyservice.operations import kem_dem
from pqkeep_keyservice.operations.done import Done
from pqkeep_keyservice.operations.kem_dem import Purpose
from pqkeep_protocol.messages import Unwrap, Unwrapped, Wrap, Wrapped


def wrap(request: Wrap, ring: Keyring, material: KeyMaterial) -> Done:
    """Encrypt a symmetric key, and overwrite it."""
    key = ring.key_for(request.operation, request.version)
    wrapped_key = kem_dem.close(Purpose.WRAP, request.symmetric_key, ring, key, material)
    request.symmetric_key[:] = bytes(len(request.symmetric_key))
    return Done(Wrapped(wrapped_key=wrapped_key), key.info.version)


def unwrap(request: Unwrap, ring: Keyring, material: KeyMaterial) -> Done:
    """Open what wrap made with the same key version."""
    key = ring.key_for(request.operation, request.version)
    symmetric_key = kem_dem.open_(Purpose.WRAP, request.wrapped_key, ring, key, material)
    return Done(Unwrapped(symmetric_key=symmetric_key), request.version)
