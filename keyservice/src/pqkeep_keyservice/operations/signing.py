"""sign, verify, sign-hash and verify-hash.

A signature over a message has an empty context, so that any verifier of the standard can check it;
one over a digest is described in ``crypto/prehash``.
"""

from cryptography.exceptions import InvalidSignature

from pqkeep_keyservice.crypto import prehash
from pqkeep_keyservice.keys.keyring import Keyring
from pqkeep_keyservice.live.executors import Executor
from pqkeep_keyservice.operations.result import OperationResult
from pqkeep_protocol.errors import ErrorKind, KeyServiceError
from pqkeep_protocol.messages import Sign, Signed, SignHash, Verified, Verify, VerifyHash


async def sign(
    request: Sign | SignHash, keyring: Keyring, executor: Executor, deadline: float
) -> OperationResult:
    """Sign a message or a digest."""
    key = keyring.key_for(request.operation, request.version)
    message, context = _signed_bytes(request)
    signature = await executor.sign(keyring.tenant, key, message, context, deadline)
    version = key.info.version
    return OperationResult(Signed(signature=signature, version=version), version)


async def verify(
    request: Verify | VerifyHash, keyring: Keyring, executor: Executor, deadline: float
) -> OperationResult:
    """Verify a signature over a message or a digest. Raises VERIFICATION_FAILED."""
    key = keyring.key_for(request.operation, request.version)
    message, context = _signed_bytes(request)
    try:
        await executor.verify(keyring.tenant, key, message, context, request.signature, deadline)
    except InvalidSignature:
        raise KeyServiceError(ErrorKind.VERIFICATION_FAILED) from None
    return OperationResult(Verified(), key.info.version)


def _signed_bytes(request: Sign | Verify | SignHash | VerifyHash) -> tuple[bytes, bytes]:
    """Return message and context, as the signature scheme gets them."""
    if isinstance(request, Sign | Verify):
        return request.message, b""
    return prehash.represent(request.hash_algorithm, request.digest), prehash.CONTEXT
