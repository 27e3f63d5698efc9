"""POST /api/v1/signature/*."""

from typing import Annotated, Literal

from msgspec import Meta

from pqkeep_gateway.api.key_fields import (
    ACTIVE_KEY_VERSION,
    HASH,
    HASH_ALGORITHM,
    KEY_VERSION,
    MESSAGE,
    SIGNATURE,
    SIGNATURE_OVER_HASH,
    AlgorithmUsed,
    KeyVersionUsed,
    check_digest,
    shortened,
)
from pqkeep_gateway.api.key_operation import KeyCall, KeyOperation
from pqkeep_gateway.http.envelope import Data
from pqkeep_gateway.http.text import Base64, base64
from pqkeep_protocol.algorithms import Algorithm, HashAlgorithm, Operation
from pqkeep_protocol.errors import ErrorKind, KeyServiceError
from pqkeep_protocol.messages import Sign, SignHash, Verify, VerifyHash


class Signed(Data, frozen=True, kw_only=True):
    """A signature over a message."""

    signature: Annotated[Base64, Meta(description="The signature.")]
    key_version: KeyVersionUsed
    algorithm: AlgorithmUsed


async def sign(call: KeyCall) -> Signed:
    """Sign a message with the active key, or with the active version that is named."""
    signed = await call.execute(
        Sign(
            tenant=call.tenant,
            algorithm=call.algorithm,
            message=call[MESSAGE],
            version=call[ACTIVE_KEY_VERSION],
        )
    )
    return Signed(
        signature=base64(signed.signature),
        key_version=signed.version,
        algorithm=call.algorithm,
    )


class Verified(Data, frozen=True, kw_only=True):
    """Whether a signature over a message holds."""

    valid: Annotated[bool, Meta(description="Whether the signature holds.")]
    key_version: KeyVersionUsed
    algorithm: AlgorithmUsed


async def verify(call: KeyCall) -> Verified:
    """Check a signature. One that does not hold is an answer, not an error."""
    request = Verify(
        tenant=call.tenant,
        algorithm=call.algorithm,
        message=call[MESSAGE],
        signature=call[SIGNATURE],
        version=call[KEY_VERSION],
    )
    return Verified(
        valid=await _holds(call, request),
        key_version=request.version,
        algorithm=call.algorithm,
    )


class SignedHash(Data, frozen=True, kw_only=True):
    """A signature over a digest."""

    signature: Annotated[Base64, Meta(description="The signature.")]
    key_version: KeyVersionUsed
    algorithm: AlgorithmUsed
    hash_algorithm: HashAlgorithm
    signature_type: Literal["detached"]


async def sign_hash(call: KeyCall) -> SignedHash:
    """Sign a digest that the caller computed."""
    hash_algorithm, digest = call[HASH_ALGORITHM], call[HASH]
    check_digest(digest, hash_algorithm)
    signed = await call.execute(
        SignHash(
            tenant=call.tenant,
            algorithm=call.algorithm,
            hash_algorithm=hash_algorithm,
            digest=digest,
            version=call[ACTIVE_KEY_VERSION],
        )
    )
    return SignedHash(
        signature=base64(signed.signature),
        key_version=signed.version,
        algorithm=call.algorithm,
        hash_algorithm=hash_algorithm,
        signature_type="detached",
    )


class VerifiedHash(Data, frozen=True, kw_only=True):
    """Whether a signature over a digest holds."""

    valid: Annotated[bool, Meta(description="Whether the signature holds.")]
    key_version: KeyVersionUsed
    algorithm: AlgorithmUsed
    hash_algorithm: HashAlgorithm


async def verify_hash(call: KeyCall) -> VerifiedHash:
    """Check a signature over a digest. One that does not hold is an answer, not an error."""
    hash_algorithm, digest = call[HASH_ALGORITHM], call[HASH]
    check_digest(digest, hash_algorithm)
    request = VerifyHash(
        tenant=call.tenant,
        algorithm=call.algorithm,
        hash_algorithm=hash_algorithm,
        digest=digest,
        signature=call[SIGNATURE],
        version=call[KEY_VERSION],
    )
    return VerifiedHash(
        valid=await _holds(call, request),
        key_version=request.version,
        algorithm=call.algorithm,
        hash_algorithm=hash_algorithm,
    )


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
    KeyOperation(
        "POST",
        "/signature/sign",
        Operation.SIGN,
        sign,
        DEFAULT,
        name="sign",
        fields=(MESSAGE, ACTIVE_KEY_VERSION),
        example=Signed(signature=shortened(SIGNATURE), key_version=1, algorithm=DEFAULT),
    ),
    KeyOperation(
        "POST",
        "/signature/verify",
        Operation.VERIFY,
        verify,
        DEFAULT,
        name="verify",
        fields=(MESSAGE, SIGNATURE, KEY_VERSION),
        example=Verified(valid=True, key_version=1, algorithm=DEFAULT),
    ),
    KeyOperation(
        "POST",
        "/signature/sign-hash",
        Operation.SIGN_HASH,
        sign_hash,
        DEFAULT,
        name="sign_hash",
        fields=(HASH_ALGORITHM, HASH, ACTIVE_KEY_VERSION),
        example=SignedHash(
            signature=shortened(SIGNATURE_OVER_HASH),
            key_version=1,
            algorithm=DEFAULT,
            hash_algorithm=HashAlgorithm.SHA_256,
            signature_type="detached",
        ),
    ),
    KeyOperation(
        "POST",
        "/signature/verify-hash",
        Operation.VERIFY_HASH,
        verify_hash,
        DEFAULT,
        name="verify_hash",
        fields=(HASH_ALGORITHM, HASH, SIGNATURE_OVER_HASH, KEY_VERSION),
        example=VerifiedHash(
            valid=True,
            key_version=1,
            algorithm=DEFAULT,
            hash_algorithm=HashAlgorithm.SHA_256,
        ),
    ),
)
