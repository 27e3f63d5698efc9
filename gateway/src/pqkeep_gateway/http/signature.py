"""POST /api/v1/signature/*."""

from pqkeep_gateway.http.envelope import Data
from pqkeep_gateway.http.fields import MAX_MESSAGE, MAX_SIGNATURE
from pqkeep_gateway.http.key_operation import KeyCall, KeyOperation
from pqkeep_protocol.algorithms import Algorithm, Operation
from pqkeep_protocol.errors import ErrorKind, KeyServiceError
from pqkeep_protocol.messages import Sign, SignHash, Verify, VerifyHash


async def sign(call: KeyCall) -> Data:
    """Sign a message with the active key, or with the active version that is named."""
    signed = await call.execute(
        Sign(
            tenant=call.tenant,
            algorithm=call.algorithm,
            message=call.fields.binary("message", at_most=MAX_MESSAGE),
            version=call.fields.optional_version(),
        )
    )
    return {
        "signature": signed.signature,
        "key_version": signed.version,
        "algorithm": call.algorithm,
    }


async def verify(call: KeyCall) -> Data:
    """Check a signature. One that does not hold is an answer, not an error."""
    request = Verify(
        tenant=call.tenant,
        algorithm=call.algorithm,
        message=call.fields.binary("message", at_most=MAX_MESSAGE),
        signature=call.fields.binary("signature", at_most=MAX_SIGNATURE),
        version=call.fields.version(),
    )
    return {
        "valid": await _holds(call, request),
        "key_version": request.version,
        "algorithm": call.algorithm,
    }


async def sign_hash(call: KeyCall) -> Data:
    """Sign a digest that the caller computed."""
    hash_algorithm, digest = call.fields.digest()
    signed = await call.execute(
        SignHash(
            tenant=call.tenant,
            algorithm=call.algorithm,
            hash_algorithm=hash_algorithm,
            digest=digest,
            version=call.fields.optional_version(),
        )
    )
    return {
        "signature": signed.signature,
        "key_version": signed.version,
        "algorithm": call.algorithm,
        "hash_algorithm": hash_algorithm,
        "signature_type": "detached",
    }


async def verify_hash(call: KeyCall) -> Data:
    """Check a signature over a digest. One that does not hold is an answer, not an error."""
    hash_algorithm, digest = call.fields.digest()
    request = VerifyHash(
        tenant=call.tenant,
        algorithm=call.algorithm,
        hash_algorithm=hash_algorithm,
        digest=digest,
        signature=call.fields.binary("signature", at_most=MAX_SIGNATURE),
        version=call.fields.version(),
    )
    return {
        "valid": await _holds(call, request),
        "key_version": request.version,
        "algorithm": call.algorithm,
        "hash_algorithm": hash_algorithm,
    }


async def _holds(call: KeyCall, request: Verify | VerifyHash) -> bool:
    try:
        await call.execute(request)
    except KeyServiceError as refusal:
        if refusal.kind is ErrorKind.VERIFICATION_FAILED:
            return False
        raise
    return True


DEFAULT = Algorithm.ML_DSA_65

OPERATIONS = (
    KeyOperation("POST", "/signature/sign", Operation.SIGN, sign, DEFAULT),
    KeyOperation("POST", "/signature/verify", Operation.VERIFY, verify, DEFAULT),
    KeyOperation("POST", "/signature/sign-hash", Operation.SIGN_HASH, sign_hash, DEFAULT),
    KeyOperation("POST", "/signature/verify-hash", Operation.VERIFY_HASH, verify_hash, DEFAULT),
)
