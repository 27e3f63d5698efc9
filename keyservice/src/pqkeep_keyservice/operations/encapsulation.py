"""encapsulate and decapsulate: the raw KEM, for callers that encrypt on their side."""

from pqkeep_keyservice.keys.keyring import Keyring
from pqkeep_keyservice.live.key_material import KeyMaterial
from pqkeep_keyservice.operations.done import Done
from pqkeep_protocol.errors import ErrorKind, KeyServiceError
from pqkeep_protocol.messages import Decapsulate, Decapsulated, Encapsulate, Encapsulated


def encapsulate(request: Encapsulate, ring: Keyring, material: KeyMaterial) -> Done:
    """Make a shared secret and its KEM ciphertext."""
    key = ring.key_for(request.operation, request.version)
    shared_secret, kem_ciphertext = material.encapsulation_key(ring.tenant, key).encapsulate()
    result = Encapsulated(kem_ciphertext=kem_ciphertext, shared_secret=shared_secret)
    return Done(result, key.info.version)


def decapsulate(request: Decapsulate, ring: Keyring, material: KeyMaterial) -> Done:
    """Recover the shared secret.

    A damaged KEM ciphertext of the right size gives another secret, not an error: ML-KEM rejects
    implicitly. Refused are a wrong size, and X-Wing's points of low order.
    """
    key = ring.key_for(request.operation, request.version)
    private = material.decapsulation_key(ring.tenant, key)
    try:
        shared_secret = private.decapsulate(request.kem_ciphertext)
    except ValueError:
        raise KeyServiceError(ErrorKind.DECRYPTION_FAILED) from None
    return Done(Decapsulated(shared_secret=shared_secret), key.info.version)
