"""POST /api/v1/signature/*."""

from pqkeep_gateway.http.envelope import Data
from pqkeep_gateway.http.fields import MAX_MESSAGE, MAX_SIGNATURE
from pqkeep_gateway.http.key_operation import KeyCall, KeyOperation
from pqkeep_protocol.algorithms import Algorithm, Operation
from pqkeep_protocol.errors import ErrorKind, KeyServiceError
from pqkeep_protocol.messages import Sign, Verify


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
    try:
        await call.execute(request)
        valid = True
    except KeyServiceError as refusal:
        if refusal.kind is not ErrorKind.VERIFICATION_FAILED:
            raise
        valid = False
    return {"valid": valid, "key_version": request.version, "algorithm": call.algorithm}


DEFAULT = Algorithm.ML_DSA_65

OPERATIONS = (
    KeyOperation("POST", "/signature/sign", Operation.SIGN, sign, DEFAULT),
    KeyOperation("POST", "/signature/verify", Operation.VERIFY, verify, DEFAULT),
)
