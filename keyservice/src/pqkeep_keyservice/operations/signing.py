"""sign and verify, with an empty context: any verifier of the standard can check them."""

from cryptography.exceptions import InvalidSignature

from pqkeep_keyservice.keyring import Keyring
from pqkeep_keyservice.operations.done import Done
from pqkeep_keyservice.storage.material import KeyMaterial
from pqkeep_keyservice.workers import Workers
from pqkeep_protocol.errors import ErrorKind, KeyServiceError
from pqkeep_protocol.messages import Sign, Signed, Verified, Verify


async def sign(request: Sign, ring: Keyring, material: KeyMaterial, workers: Workers) -> Done:
    """Sign a message."""
    key, sealed = ring.private_key_for(request.operation, request.version)
    private = material.signing_key(ring.tenant, key, sealed)
    signature = await workers.in_thread(private.sign, request.message)
    return Done(Signed(signature=signature, version=key.version), key.version)


async def verify(request: Verify, ring: Keyring, material: KeyMaterial, workers: Workers) -> Done:
    """Check a signature."""
    key = ring.public_key_for(request.operation, request.version)
    public = material.verifying_key(ring.tenant, key)
    try:
        await workers.in_thread(public.verify, request.signature, request.message)
    except InvalidSignature:
        raise KeyServiceError(ErrorKind.VERIFICATION_FAILED) from None
    return Done(Verified(), key.version)
