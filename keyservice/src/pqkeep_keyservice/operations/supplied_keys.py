"""Operations with a public key from the caller.

If the public key belongs to a key version of the tenant, that version's status and its keyring's
purposes apply. The record names that version. So a retired version gets no new data, unless its
keyring allows retired public keys. The ciphertext is the same as for any supplied key. Every
problem with the key is INVALID_PUBLIC_KEY. The key has its algorithm's size, so that the look-up is
cheap. It is not stored.
"""

from collections.abc import Awaitable, Callable
from typing import NamedTuple, TypeAlias, TypeVar

from cryptography.exceptions import InvalidSignature
from msgspec import structs

from pqkeep_keyservice.crypto.kem import KEMS
from pqkeep_keyservice.keys.key_versions import KeyName
from pqkeep_keyservice.keys.keyring import KeyringId
from pqkeep_keyservice.live.executors import SuppliedKey
from pqkeep_keyservice.operations import kem_dem
from pqkeep_keyservice.operations.context import Context, OperationResult, Parts, RecordedError
from pqkeep_keyservice.operations.signing import VerifyRequest, signable_of
from pqkeep_keyservice.storage.key_versions import find_public_key
from pqkeep_protocol.algorithms import ALGORITHMS, Algorithm
from pqkeep_protocol.errors import ErrorKind, KeyServiceError
from pqkeep_protocol.keyrings import PURPOSE_OF
from pqkeep_protocol.keys import KeyringName, KeyVersion
from pqkeep_protocol.messages import Encapsulate, Encapsulated, Encrypt, Encrypted, Verified
from pqkeep_protocol.rules import USE_OF

Supplied = Encrypt | Encapsulate | VerifyRequest
S = TypeVar("S", bound=Supplied)
Run: TypeAlias = Callable[[S, bytes, Context], Awaitable[OperationResult]]
Operation: TypeAlias = Callable[[S, Context], Awaitable[OperationResult]]


class OwnKey(NamedTuple):
    """The tenant's key version with the supplied public key."""

    keyring: KeyringName
    version: KeyVersion


async def _find_own(request: Supplied, public_key: bytes, parts: Parts) -> OwnKey | None:
    """Return the tenant's key version with a public key, or None.

    If several versions have the key, return a permitted one. Raises RecordedError if none is
    permitted by the caller's scopes, the keyring's purposes and the version's status.
    """
    refusal: RecordedError | None = None
    for keyring, version in await parts.store.database.read(
        find_public_key, request.tenant, request.algorithm, public_key
    ):
        kind = ErrorKind.SCOPE_DENIED
        if request.within is None or request.within.match(keyring):
            try:
                own_keyring = await parts.keyrings.get(KeyringId(request.tenant, keyring))
                own_keyring.require_exists()
                own_keyring.require(PURPOSE_OF[request.operation])
                if isinstance(request, Encrypt):
                    own_keyring.require_context(request.context)
                versions = await parts.keys.get(KeyName(request.tenant, request.algorithm, keyring))
                versions.require_public_key(request.operation, version, own_keyring.info)
            except KeyServiceError as refused:
                kind = refused.kind
            else:
                return OwnKey(keyring, version)
        if refusal is None or refusal.kind is ErrorKind.SCOPE_DENIED:
            refusal = RecordedError(kind, keyring=keyring, version=version)
    if refusal is not None:
        raise refusal
    return None


def _own_recorded(run: Run[S]) -> Operation[S]:
    """Return an operation that records the keyring and version of the tenant's own key."""

    async def respond(request: S, context: Context) -> OperationResult:
        spec = ALGORITHMS[request.algorithm]
        if spec.is_symmetric or spec.is_legacy:
            raise KeyServiceError(ErrorKind.UNSUPPORTED)
        public_key = request.public_key or b""
        own = await _find_own(request, public_key, context.parts)
        try:
            if (use := USE_OF.get(request.operation)) is not None:
                keyring = None if own is None else own.keyring
                await context.assess_stored(request.tenant, use, request.algorithm, keyring)
            done = await run(request, public_key, context)
        except KeyServiceError as error:
            if own is None:
                raise
            raise RecordedError(
                error.kind,
                keyring=own.keyring,
                version=own.version,
                notice=error.notice,
            ) from None
        if own is None:
            return done
        return structs.replace(done, keyring=own.keyring, version=own.version)

    return respond


@_own_recorded
async def encrypt(request: Encrypt, public_key: bytes, _: Context) -> OperationResult:
    """Encrypt data for the holder of the private key."""
    shared_secret, kem_ciphertext = _encapsulated(request.algorithm, public_key)
    sealed = kem_dem.seal_to(
        request.algorithm, public_key, shared_secret, request.plaintext, request.associated_data
    )
    return OperationResult(Encrypted(ciphertext=kem_ciphertext + sealed, version=None), None)


@_own_recorded
async def encapsulate(request: Encapsulate, public_key: bytes, _: Context) -> OperationResult:
    """Return a fresh shared secret and its KEM ciphertext."""
    shared_secret, kem_ciphertext = _encapsulated(request.algorithm, public_key)
    result = Encapsulated(kem_ciphertext=kem_ciphertext, shared_secret=shared_secret)
    return OperationResult(result, None)


@_own_recorded
async def verify(request: VerifyRequest, public_key: bytes, context: Context) -> OperationResult:
    """Verify a signature. Raises VERIFICATION_FAILED."""
    key = SuppliedKey(request.algorithm, public_key)
    executor = context.parts.executors[request.algorithm]
    signable = signable_of(request)
    try:
        await executor.verify(request.tenant, key, signable, request.signature, context.deadline)
    except InvalidSignature:
        raise KeyServiceError(ErrorKind.VERIFICATION_FAILED) from None
    except ValueError:
        raise KeyServiceError(ErrorKind.INVALID_PUBLIC_KEY) from None
    return OperationResult(Verified(), None)


def _encapsulated(algorithm: Algorithm, public_key: bytes) -> tuple[bytes, bytes]:
    try:
        return KEMS[algorithm].load_public(public_key).encapsulate()
    except ValueError:  # also for an X25519 part of low order
        raise KeyServiceError(ErrorKind.INVALID_PUBLIC_KEY) from None
