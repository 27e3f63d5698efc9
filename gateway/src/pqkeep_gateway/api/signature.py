"""POST /api/v1/signature/*."""

from typing import Annotated, Literal

from msgspec import UNSET, Meta, UnsetType

from pqkeep_gateway.api.key_fields import (
    ACTIVE_KEY_VERSION,
    CONTEXT,
    DETACHED,
    HASH,
    HASH_ALGORITHM,
    MESSAGE,
    MU,
    PAYLOAD,
    SIGNATURE,
    SIGNATURE_OVER_HASH,
    SIGNATURE_OVER_MU,
    TYP,
    AlgorithmUsed,
    KeyResponse,
    KeyVersionUsed,
    check_digest,
    check_verifiable,
    shortened,
)
from pqkeep_gateway.api.key_operation import (
    KEY_VERSION_OR_KEY,
    PUBLIC_KEY,
    KeyCall,
    KeyOperation,
    key_of,
    version_of,
)
from pqkeep_gateway.http.endpoint import ApiCall
from pqkeep_gateway.http.text import Base64, base64
from pqkeep_protocol import messages
from pqkeep_protocol.algorithms import Algorithm, HashAlgorithm, Operation
from pqkeep_protocol.errors import ErrorKind
from pqkeep_protocol.messages import (
    Sign,
    SignHash,
    SignJws,
    SignMu,
    Verify,
    VerifyHash,
    VerifyMu,
)


class Signed(KeyResponse, frozen=True, kw_only=True):
    """A signature over a message."""

    signature: Annotated[Base64, Meta(description="The signature.")]
    key_version: KeyVersionUsed
    algorithm: AlgorithmUsed


def sign(call: KeyCall) -> Sign:
    """Sign a message with the active key, or with the named active version."""
    return Sign(
        tenant=call.tenant,
        algorithm=call.algorithm,
        message=call[MESSAGE],
        context=call[CONTEXT],
        version=call[ACTIVE_KEY_VERSION],
    )


def signed(_: ApiCall, request: Sign | SignMu, result: messages.Signed) -> Signed:
    """Return the signature."""
    return Signed(
        signature=base64(result.signature),
        key_version=result.version,
        algorithm=request.algorithm,
    )


class Verified(KeyResponse, frozen=True, kw_only=True):
    """The result of verifying a signature over a message."""

    valid: Annotated[bool, Meta(description="Whether the signature is valid.")]
    key_version: KeyVersionUsed | UnsetType = UNSET
    algorithm: AlgorithmUsed


def verify(call: KeyCall) -> Verify:
    """Verify a signature. An invalid signature is a result, not an error."""
    public_key = key_of(call)
    check_verifiable(call.algorithm, call[CONTEXT])
    return Verify(
        tenant=call.tenant,
        algorithm=call.algorithm,
        message=call[MESSAGE],
        context=call[CONTEXT],
        signature=call[SIGNATURE],
        version=call[KEY_VERSION_OR_KEY],
        public_key=public_key,
        within=call.within(Operation.VERIFY, public_key),
    )


def verified(_: ApiCall, request: Verify | VerifyMu, outcome: object) -> Verified:
    """Return whether the signature is valid."""
    return Verified(
        valid=outcome is not ErrorKind.VERIFICATION_FAILED,
        key_version=version_of(request.version),
        algorithm=request.algorithm,
    )


class SignedHash(KeyResponse, frozen=True, kw_only=True):
    """A signature over a digest."""

    signature: Annotated[Base64, Meta(description="The signature.")]
    key_version: KeyVersionUsed
    algorithm: AlgorithmUsed
    hash_algorithm: HashAlgorithm
    signature_type: Literal["detached"]


def sign_hash(call: KeyCall) -> SignHash:
    """Sign a digest that the caller computed."""
    hash_algorithm, digest = call[HASH_ALGORITHM], call[HASH]
    check_digest(digest, hash_algorithm)
    return SignHash(
        tenant=call.tenant,
        algorithm=call.algorithm,
        hash_algorithm=hash_algorithm,
        digest=digest,
        version=call[ACTIVE_KEY_VERSION],
    )


def signed_hash(_: ApiCall, request: SignHash, result: messages.Signed) -> SignedHash:
    """Return the signature."""
    return SignedHash(
        signature=base64(result.signature),
        key_version=result.version,
        algorithm=request.algorithm,
        hash_algorithm=request.hash_algorithm,
        signature_type="detached",
    )


class VerifiedHash(KeyResponse, frozen=True, kw_only=True):
    """The result of verifying a signature over a digest."""

    valid: Annotated[bool, Meta(description="Whether the signature is valid.")]
    key_version: KeyVersionUsed | UnsetType = UNSET
    algorithm: AlgorithmUsed
    hash_algorithm: HashAlgorithm


def verify_hash(call: KeyCall) -> VerifyHash:
    """Verify a signature over a digest. An invalid signature is a result, not an error."""
    hash_algorithm, digest = call[HASH_ALGORITHM], call[HASH]
    check_digest(digest, hash_algorithm)
    check_verifiable(call.algorithm, b"", hash_algorithm)
    public_key = key_of(call)
    return VerifyHash(
        tenant=call.tenant,
        algorithm=call.algorithm,
        hash_algorithm=hash_algorithm,
        digest=digest,
        signature=call[SIGNATURE],
        version=call[KEY_VERSION_OR_KEY],
        public_key=public_key,
        within=call.within(Operation.VERIFY_HASH, public_key),
    )


def verified_hash(_: ApiCall, request: VerifyHash, outcome: object) -> VerifiedHash:
    """Return whether the signature is valid."""
    return VerifiedHash(
        valid=outcome is not ErrorKind.VERIFICATION_FAILED,
        key_version=version_of(request.version),
        algorithm=request.algorithm,
        hash_algorithm=request.hash_algorithm,
    )


def sign_mu(call: KeyCall) -> SignMu:
    """Sign a message by its mu, which the caller computed. Any ML-DSA verifier accepts the result.

    The service cannot see the message behind mu: the permission for this operation allows signing
    any message with any context.
    """
    return SignMu(
        tenant=call.tenant,
        algorithm=call.algorithm,
        mu=call[MU],
        version=call[ACTIVE_KEY_VERSION],
    )


def verify_mu(call: KeyCall) -> VerifyMu:
    """Verify a signature by the message's mu. An invalid signature is a result, not an error."""
    public_key = key_of(call)
    return VerifyMu(
        tenant=call.tenant,
        algorithm=call.algorithm,
        mu=call[MU],
        signature=call[SIGNATURE_OVER_MU],
        version=call[KEY_VERSION_OR_KEY],
        public_key=public_key,
        within=call.within(Operation.VERIFY_MU, public_key),
    )


class SignedJws(KeyResponse, frozen=True, kw_only=True):
    """A JWS."""

    jws: Annotated[
        str,
        Meta(
            description=(
                "Header, payload and signature in compact form; without the payload if detached."
            )
        ),
    ]
    key_version: KeyVersionUsed
    algorithm: AlgorithmUsed


def sign_jws(call: KeyCall) -> SignJws:
    """Sign a payload as a JSON Web Signature (RFC 7515), with ML-DSA as RFC 9964 defines it.

    To verify it, use the key in /kms/jwks that the header's kid names. A detached payload is signed
    too, but omitted from the response: insert it again, in base64url, before verification.
    """
    return SignJws(
        tenant=call.tenant,
        algorithm=call.algorithm,
        payload=call[PAYLOAD],
        detached=call[DETACHED],
        typ=call[TYP],
        version=call[ACTIVE_KEY_VERSION],
    )


def signed_jws(_: ApiCall, request: SignJws, result: messages.Jws) -> SignedJws:
    """Return the JWS."""
    return SignedJws(jws=result.jws, key_version=result.version, algorithm=request.algorithm)


DEFAULT = Algorithm.ML_DSA_65
_MAY_FAIL = frozenset({ErrorKind.VERIFICATION_FAILED})

OPERATIONS = (
    KeyOperation(
        "POST",
        "/signature/sign",
        Operation.SIGN,
        sign,
        signed,
        DEFAULT,
        name="sign",
        fields=(MESSAGE, ACTIVE_KEY_VERSION, CONTEXT),
        example=Signed(signature=shortened(SIGNATURE), key_version=1, algorithm=DEFAULT),
    ),
    KeyOperation(
        "POST",
        "/signature/verify",
        Operation.VERIFY,
        verify,
        verified,
        DEFAULT,
        outcomes=_MAY_FAIL,
        name="verify",
        fields=(MESSAGE, SIGNATURE, KEY_VERSION_OR_KEY, CONTEXT, PUBLIC_KEY),
        example=Verified(valid=True, key_version=1, algorithm=DEFAULT),
    ),
    KeyOperation(
        "POST",
        "/signature/sign-hash",
        Operation.SIGN_HASH,
        sign_hash,
        signed_hash,
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
        verified_hash,
        DEFAULT,
        outcomes=_MAY_FAIL,
        name="verify_hash",
        fields=(HASH_ALGORITHM, HASH, SIGNATURE_OVER_HASH, KEY_VERSION_OR_KEY, PUBLIC_KEY),
        example=VerifiedHash(
            valid=True,
            key_version=1,
            algorithm=DEFAULT,
            hash_algorithm=HashAlgorithm.SHA_256,
        ),
    ),
    KeyOperation(
        "POST",
        "/signature/jws",
        Operation.SIGN_JWS,
        sign_jws,
        signed_jws,
        DEFAULT,
        name="sign_jws",
        fields=(PAYLOAD, DETACHED, TYP, ACTIVE_KEY_VERSION),
        example=SignedJws(
            jws="eyJhbGciOiJNTC1EU0EtNjUifQ.eyJhbW91bnQiOjEwfQ.xV3Jb0nRUZ3ZoN8HqY0mS4uC5cEw2kPz",
            key_version=1,
            algorithm=DEFAULT,
        ),
    ),
    KeyOperation(
        "POST",
        "/signature/sign-mu",
        Operation.SIGN_MU,
        sign_mu,
        signed,
        DEFAULT,
        name="sign_mu",
        fields=(MU, ACTIVE_KEY_VERSION),
        example=Signed(signature=shortened(SIGNATURE_OVER_MU), key_version=1, algorithm=DEFAULT),
    ),
    KeyOperation(
        "POST",
        "/signature/verify-mu",
        Operation.VERIFY_MU,
        verify_mu,
        verified,
        DEFAULT,
        outcomes=_MAY_FAIL,
        name="verify_mu",
        fields=(MU, SIGNATURE_OVER_MU, KEY_VERSION_OR_KEY, PUBLIC_KEY),
        example=Verified(valid=True, key_version=1, algorithm=DEFAULT),
    ),
)
