"""sign and verify, for a message, a digest or an external mu; and sign-jws.

A signature over a message uses the caller's context, or an empty one. So any verifier of the
standard can check it. A signature over a mu is the same (FIPS 204, algorithm 7). A signature over a
digest is defined here:

    signature = Sign(OID(hash function) || digest, context = "pqkeep/v1/sign-hash")

The OID binds the hash function. With this context, such a signature never verifies as a signature
over a message. Legacy keys verify signatures of their own standards, over a message or its digest.

A JSON Web Signature (RFC 7515) is in compact form, with ML-DSA (RFC 9964). Its header names the
algorithm, and the key by its thumbprint. The caller controls no part of the header.

    signing input = BASE64URL(header) || "." || BASE64URL(payload)
    JWS           = signing input || "." || BASE64URL(Sign(signing input, context = ""))
"""

from collections.abc import Mapping

import msgspec
from cryptography.exceptions import InvalidSignature

from pqkeep_keyservice.live.executors import Digest, ExternalMu, Message, Signable
from pqkeep_keyservice.operations.context import Context, OperationResult
from pqkeep_protocol.algorithms import ALGORITHMS, VERIFIED_HASH, Algorithm, HashAlgorithm
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
from pqkeep_protocol.public_keys import JWK_ALGORITHM, base64url, thumbprint

_Sign = Sign | SignHash | SignMu
VerifyRequest = Verify | VerifyHash | VerifyMu


async def sign(request: _Sign, context: Context) -> OperationResult:
    """Sign a message, a digest or a mu."""
    versions = context.versions
    key = context.key_for(request.operation, request.version)
    signature = await context.executor.sign(
        versions.tenant, key, signable_of(request), context.deadline
    )
    version = key.info.version
    return OperationResult(Signed(signature=signature, version=version), version)


async def sign_jws(request: SignJws, context: Context) -> OperationResult:
    """Sign a payload as JWS. It equals a signature over the signing input with an empty context."""
    versions = context.versions
    key = context.key_for(request.operation, request.version)
    header = _protected_header(versions.algorithm, key.info.public_key, request.typ)
    message = _signing_input(header, request.payload)
    signature = await context.executor.sign(
        versions.tenant, key, Message(message), context.deadline
    )
    jws = _compact(header, None if request.detached else request.payload, signature)
    version = key.info.version
    return OperationResult(Jws(jws=jws, version=version), version)


async def verify(request: VerifyRequest, context: Context) -> OperationResult:
    """Verify a signature over a message, a digest or a mu. Raises VERIFICATION_FAILED."""
    versions = context.versions
    key = context.key_for(request.operation, request.version)
    signable = (
        _legacy_signable_of(request)
        if ALGORITHMS[request.algorithm].is_legacy
        else signable_of(request)
    )
    try:
        await context.executor.verify(
            versions.tenant, key, signable, request.signature, context.deadline
        )
    except InvalidSignature:
        raise KeyServiceError(ErrorKind.VERIFICATION_FAILED) from None
    return OperationResult(Verified(), key.info.version)


def signable_of(request: _Sign | VerifyRequest) -> Signable:
    """Return the input of the signature scheme."""
    if isinstance(request, Sign | Verify):
        return Message(request.message, request.context)
    if isinstance(request, SignMu | VerifyMu):
        return ExternalMu(request.mu)
    represented = represent_digest(request.hash_algorithm, request.digest)
    return Message(represented, HASH_CONTEXT)


def _legacy_signable_of(request: VerifyRequest) -> Signable:
    """Return the input of a legacy scheme. A message and its digest give the same signature.

    Raises UNSUPPORTED for a context, and for a hash function that is not the algorithm's.
    """
    match request:
        case Verify(context=b""):
            return Message(request.message)
        case VerifyHash(hash_algorithm=hash_algorithm) if (
            VERIFIED_HASH.get(request.algorithm, hash_algorithm) is hash_algorithm
        ):
            return Digest(hash_algorithm, request.digest)
        case _:
            raise KeyServiceError(ErrorKind.UNSUPPORTED)


HASH_CONTEXT = b"pqkeep/v1/sign-hash"

_OID: Mapping[HashAlgorithm, bytes] = {
    HashAlgorithm.SHA_256: bytes.fromhex("0609608648016503040201"),
    HashAlgorithm.SHA_384: bytes.fromhex("0609608648016503040202"),
    HashAlgorithm.SHA_512: bytes.fromhex("0609608648016503040203"),
}
"""DER of the object identifiers in NIST's hashAlgs arc (FIPS 204, section 5.4.1)."""


def represent_digest(hash_algorithm: HashAlgorithm, digest: bytes) -> bytes:
    """Return the message that is signed for a digest."""
    return _OID[hash_algorithm] + digest


_ENCODER = msgspec.json.Encoder(order="sorted")


def _protected_header(algorithm: Algorithm, public_key: bytes, typ: str | None) -> str:
    """Return a key's JWS header in base64url."""
    alg = JWK_ALGORITHM[algorithm]
    header = {"alg": alg, "kid": thumbprint(alg, public_key)}
    if typ is not None:
        header["typ"] = typ
    return base64url(_ENCODER.encode(header))


def _signing_input(header: str, payload: bytes) -> bytes:
    """Return the signing input (RFC 7515, section 5.1)."""
    return f"{header}.{base64url(payload)}".encode("ascii")


def _compact(header: str, payload: bytes | None, signature: bytes) -> str:
    """Return the compact form. For a payload of None it is detached (RFC 7515, appendix F)."""
    return f"{header}.{base64url(payload or b'')}.{base64url(signature)}"
