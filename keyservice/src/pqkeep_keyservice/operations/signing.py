"""sign, verify, sign-hash and verify-hash.

A signature over a message has an empty context, so that any verifier of the standard can check it;
one over a digest is described in ``crypto/prehash``.
"""

from cryptography.exceptions import InvalidSignature

from pqkeep_keyservice.crypto import prehash
from pqkeep_keyservice.crypto.slhdsa import SETS
from pqkeep_keyservice.keys.keyring import Keyring
from pqkeep_keyservice.live.resources import Resources
from pqkeep_keyservice.operations.result import OperationResult
from pqkeep_protocol.errors import ErrorKind, KeyServiceError
from pqkeep_protocol.messages import Sign, Signed, SignHash, Verified, Verify, VerifyHash


async def sign(
    request: Sign | SignHash, keyring: Keyring, resources: Resources, deadline: float
) -> OperationResult:
    """Sign a message or a digest."""
    key = keyring.key_for(request.operation, request.version)
    message, context = _signed_bytes(request)
    if keyring.algorithm in SETS:
        signature = await resources.slh_dsa.sign(keyring.tenant, key, message, context, deadline)
    else:
        private = resources.material.signing_key(keyring.tenant, key)
        signature = await resources.threads.run(private.sign, message, context)
    return OperationResult(Signed(signature=signature, version=key.info.version), key.info.version)


async def verify(
    request: Verify | VerifyHash, keyring: Keyring, resources: Resources, deadline: float
) -> OperationResult:
    """Check a signature over a message or a digest."""
    key = keyring.key_for(request.operation, request.version)
    message, context = _signed_bytes(request)
    try:
        if keyring.algorithm in SETS:
            resources.material.authenticate(keyring.tenant, key)
            await resources.slh_dsa.verify(
                keyring.tenant, key, message, context, request.signature, deadline
            )
        else:
            public = resources.material.verifying_key(keyring.tenant, key)
            await resources.threads.run(public.verify, request.signature, message, context)
    except InvalidSignature:
        raise KeyServiceError(ErrorKind.VERIFICATION_FAILED) from None
    return OperationResult(Verified(), key.info.version)


def _signed_bytes(request: Sign | Verify | SignHash | VerifyHash) -> tuple[bytes, bytes]:
    if isinstance(request, Sign | Verify):
        return request.message, b""
    return prehash.represent(request.hash_algorithm, request.digest), prehash.CONTEXT
