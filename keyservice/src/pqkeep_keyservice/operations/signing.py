"""sign, verify, and the same for a digest and for a mu; and sign-jws.

A signature over a message has the caller's context or an empty one, so that any verifier of the
standard can check it; one over a mu is the same (FIPS 204, algorithm 7). One over a digest is
described in ``crypto/prehash``.
"""

from cryptography.exceptions import InvalidSignature

from pqkeep_keyservice.crypto import jws, prehash
from pqkeep_keyservice.keys.key_versions import KeyVersions
from pqkeep_keyservice.live.executors import Executor
from pqkeep_keyservice.live.signables import ExternalMu, Message, Signable
from pqkeep_keyservice.operations.result import OperationResult
from pqkeep_protocol.errors import ErrorKind, KeyServiceError
from pqkeep_protocol.messages import (
    Jws,
    Sign,
    Signed,
    SignHash,
    SignJws,
    SignMu,
    Verified,
    Verify,
    VerifyHash,
    VerifyMu,
)

_Sign = Sign | SignHash | SignMu
VerifyRequest = Verify | VerifyHash | VerifyMu


async def sign(
    request: _Sign, versions: KeyVersions, executor: Executor, deadline: float
) -> OperationResult:
    """Sign a message, a digest or a mu."""
    key = versions.key_for(request.operation, request.version)
    signature = await executor.sign(versions.tenant, key, signable_of(request), deadline)
    version = key.info.version
    return OperationResult(Signed(signature=signature, version=version), version)


async def sign_jws(
    request: SignJws, versions: KeyVersions, executor: Executor, deadline: float
) -> OperationResult:
    """Sign a payload as JWS. The context is empty, so a signature over its signing input is one."""
    key = versions.key_for(request.operation, request.version)
    header = jws.protected_header(versions.algorithm, key.info.public_key)
    message = jws.signing_input(header, request.payload)
    signature = await executor.sign(versions.tenant, key, Message(message), deadline)
    made = jws.compact(header, None if request.detached else request.payload, signature)
    version = key.info.version
    return OperationResult(Jws(jws=made, version=version), version)


async def verify(
    request: VerifyRequest, versions: KeyVersions, executor: Executor, deadline: float
) -> OperationResult:
    """Verify a signature over a message, a digest or a mu. Raises VERIFICATION_FAILED."""
    key = versions.key_for(request.operation, request.version)
    signable = signable_of(request)
    try:
        await executor.verify(versions.tenant, key, signable, request.signature, deadline)
    except InvalidSignature:
        raise KeyServiceError(ErrorKind.VERIFICATION_FAILED) from None
    return OperationResult(Verified(), key.info.version)


def signable_of(request: _Sign | VerifyRequest) -> Signable:
    """Return what the signature scheme gets."""
    if isinstance(request, Sign | Verify):
        return Message(request.message, request.context)
    if isinstance(request, SignMu | VerifyMu):
        return ExternalMu(request.mu)
    represented = prehash.represent(request.hash_algorithm, request.digest)
    return Message(represented, prehash.CONTEXT)
