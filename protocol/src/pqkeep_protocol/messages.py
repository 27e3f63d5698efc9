"""Every request the key service answers, and the result of each.

A request names its result in its base class, so ``await keys.execute(Encrypt(...))`` is typed.
On the wire each is an array that starts with its tag (see ``codec``).
"""

from typing import Annotated, Any, ClassVar, Generic, Protocol, TypeVar

from msgspec import Meta, Struct

from pqkeep_protocol.algorithms import Algorithm, HashAlgorithm, Operation
from pqkeep_protocol.keys import KeyInfo, KeyStatus, SomeVersion, TenantId

R_co = TypeVar("R_co", covariant=True)

PRINTABLE = r"\A[ -~\xa0-\U0010ffff]*\Z"
"""The pattern of a text that is recorded: without control characters. PostgreSQL does not store NUL."""


class Attribution(Struct, frozen=True, array_like=True):
    """Who sent a request, as the audit log records it."""

    request_id: Annotated[str, Meta(max_length=128, pattern=PRINTABLE)]
    principal: Annotated[str, Meta(max_length=128, pattern=PRINTABLE)]
    """Kind and identity, e.g. ``api-key:3``."""
    source_address: Annotated[str, Meta(max_length=64, pattern=PRINTABLE)]
    policy: Annotated[str, Meta(max_length=128, pattern=PRINTABLE)] = ""
    """The policy that allowed the request."""

    def by(self, principal: str) -> "Attribution":
        """Return the same request's attribution to another principal."""
        return Attribution(self.request_id, principal, self.source_address, self.policy)


class RedactedRepr:
    """A mixin whose repr is the type's name, because fields can be secret."""

    __slots__ = ()

    def __repr__(self) -> str:
        return f"<{type(self).__name__}>"

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        return []


class Request(RedactedRepr, Struct, Generic[R_co], frozen=True, array_like=True, kw_only=True):
    """Base of all requests; ``R_co`` is the type of the result."""

    tenant: TenantId


class KeyRequest(Request[R_co], Generic[R_co], frozen=True, kw_only=True):
    """Base of all requests that use keys or change them. Each leaves one record in the log."""

    operation: ClassVar[Operation]


class Result(RedactedRepr, Struct, frozen=True, array_like=True, kw_only=True):
    """Base of all results."""


class Encrypted(Result, frozen=True, kw_only=True, tag="encrypted"):
    """``ciphertext``: KEM ciphertext, nonce (12), AES-GCM ciphertext, tag (16)."""

    ciphertext: bytes
    version: SomeVersion


class Encrypt(KeyRequest[Encrypted], frozen=True, kw_only=True, tag="encrypt"):
    """Encrypt under a key version, or under the active key where it is None."""

    operation: ClassVar = Operation.ENCRYPT
    algorithm: Algorithm
    version: SomeVersion | None
    plaintext: bytes


class Decrypted(Result, frozen=True, kw_only=True, tag="decrypted"):
    """The plaintext that was encrypted."""

    plaintext: bytes


class Decrypt(KeyRequest[Decrypted], frozen=True, kw_only=True, tag="decrypt"):
    """Decrypt a ciphertext of encrypt. Errors: DECRYPTION_FAILED, ALGORITHM_MISMATCH."""

    operation: ClassVar = Operation.DECRYPT
    algorithm: Algorithm
    version: SomeVersion
    ciphertext: bytes


class Encapsulated(Result, frozen=True, kw_only=True, tag="encapsulated"):
    """A fresh shared secret (32 bytes) and the KEM ciphertext that carries it."""

    kem_ciphertext: bytes
    shared_secret: bytes


class Encapsulate(KeyRequest[Encapsulated], frozen=True, kw_only=True, tag="encapsulate"):
    """Encapsulate a fresh shared secret to a key version."""

    operation: ClassVar = Operation.ENCAPSULATE
    algorithm: Algorithm
    version: SomeVersion


class Decapsulated(Result, frozen=True, kw_only=True, tag="decapsulated"):
    """The shared secret (32 bytes)."""

    shared_secret: bytes


class Decapsulate(KeyRequest[Decapsulated], frozen=True, kw_only=True, tag="decapsulate"):
    """Recover a shared secret. Errors: DECRYPTION_FAILED on a wrong size."""

    operation: ClassVar = Operation.DECAPSULATE
    algorithm: Algorithm
    version: SomeVersion
    kem_ciphertext: bytes


class Wrapped(Result, frozen=True, kw_only=True, tag="wrapped"):
    """``wrapped_key``: the layout of a ciphertext, bound to wrapping."""

    wrapped_key: bytes


class Wrap(KeyRequest[Wrapped], frozen=True, kw_only=True, tag="wrap"):
    """Encrypt a symmetric key of SYMMETRIC_KEY_SIZES bytes, which is wiped afterwards."""

    operation: ClassVar = Operation.WRAP
    algorithm: Algorithm
    version: SomeVersion
    symmetric_key: bytearray


class Unwrapped(Result, frozen=True, kw_only=True, tag="unwrapped"):
    """The symmetric key that was wrapped."""

    symmetric_key: bytes


class Unwrap(KeyRequest[Unwrapped], frozen=True, kw_only=True, tag="unwrap"):
    """Decrypt a wrapped key. Errors: DECRYPTION_FAILED, ALGORITHM_MISMATCH."""

    operation: ClassVar = Operation.UNWRAP
    algorithm: Algorithm
    version: SomeVersion
    wrapped_key: bytes


class Signed(Result, frozen=True, kw_only=True, tag="signed"):
    """A signature, and the key version that made it."""

    signature: bytes
    version: SomeVersion


class Sign(KeyRequest[Signed], frozen=True, kw_only=True, tag="sign"):
    """Sign with a key version, or with the active key where it is None."""

    operation: ClassVar = Operation.SIGN
    algorithm: Algorithm
    version: SomeVersion | None
    message: bytes


class Verified(Result, frozen=True, kw_only=True, tag="verified"):
    """The signature is valid. An invalid one is refused: VERIFICATION_FAILED."""


class Verify(KeyRequest[Verified], frozen=True, kw_only=True, tag="verify"):
    """Verify a signature. Errors: VERIFICATION_FAILED."""

    operation: ClassVar = Operation.VERIFY
    algorithm: Algorithm
    version: SomeVersion
    message: bytes
    signature: bytes


class SignHash(KeyRequest[Signed], frozen=True, kw_only=True, tag="sign-hash"):
    """Sign a digest of DIGEST_SIZE bytes, which the caller computed."""

    operation: ClassVar = Operation.SIGN_HASH
    algorithm: Algorithm
    version: SomeVersion | None
    hash_algorithm: HashAlgorithm
    digest: bytes


class VerifyHash(KeyRequest[Verified], frozen=True, kw_only=True, tag="verify-hash"):
    """Verify a signature over a digest. Errors: VERIFICATION_FAILED."""

    operation: ClassVar = Operation.VERIFY_HASH
    algorithm: Algorithm
    version: SomeVersion
    hash_algorithm: HashAlgorithm
    digest: bytes
    signature: bytes


class Key(Result, frozen=True, kw_only=True, tag="key"):
    """One key version."""

    key: KeyInfo


class Keys(Result, frozen=True, kw_only=True, tag="keys"):
    """One page of key versions, ordered by algorithm, then version."""

    keys: tuple[KeyInfo, ...]
    total: int
    """How many there are on all pages."""
    has_more: bool = False
    """Whether there are keys behind this page."""


class Rotated(Result, frozen=True, kw_only=True, tag="rotated"):
    """The new active key, and the version that is retired now."""

    key: KeyInfo
    old_version: SomeVersion


class Idempotency(Struct, frozen=True, array_like=True):
    """A client's Idempotency-Key: for a day, a repeated request gets the first result again."""

    key: Annotated[bytes, Meta(min_length=32, max_length=32)]
    """SHA-256 of the client's key and its owner."""
    request: Annotated[bytes, Meta(min_length=32, max_length=32)]
    """SHA-256 of the request: the same key with another request is refused."""


class GenerateKey(KeyRequest[Key], frozen=True, kw_only=True, tag="generate-key"):
    """Generate a key where none is active.

    Errors: KEY_EXISTS, KEY_QUOTA_REACHED, IDEMPOTENCY_KEY_REUSED.
    """

    operation: ClassVar = Operation.GENERATE_KEY
    algorithm: Algorithm
    quota: int | None
    """How many active keys the tenant may have over all algorithms; None: any number."""
    idempotency: Idempotency | None = None


class RotateKey(KeyRequest[Rotated], frozen=True, kw_only=True, tag="rotate-key"):
    """Retire the active key and generate its successor, in one step.

    Errors: IDEMPOTENCY_KEY_REUSED.
    """

    operation: ClassVar = Operation.ROTATE_KEY
    algorithm: Algorithm
    idempotency: Idempotency | None = None


class RetireKey(KeyRequest[Key], frozen=True, kw_only=True, tag="retire-key"):
    """Retire a key version. Errors: KEY_STATUS if it is archived."""

    operation: ClassVar = Operation.RETIRE_KEY
    algorithm: Algorithm
    version: SomeVersion


class ArchiveKey(KeyRequest[Key], frozen=True, kw_only=True, tag="archive-key"):
    """Destroy the private half of a retired key version. Errors: KEY_STATUS if not retired."""

    operation: ClassVar = Operation.ARCHIVE_KEY
    algorithm: Algorithm
    version: SomeVersion


MAX_KEYS_LISTED = 500
"""Keys on one page: the largest public keys fit into a frame."""


class KeyPosition(Struct, frozen=True, array_like=True):
    """A place in the list of a tenant's keys."""

    algorithm: Algorithm
    version: SomeVersion


class ListKeys(KeyRequest[Keys], frozen=True, kw_only=True, tag="list-keys"):
    """List a tenant's keys; None means any algorithm, any status."""

    operation: ClassVar = Operation.LIST_KEYS
    algorithm: Algorithm | None
    status: KeyStatus | None
    after: KeyPosition | None = None
    """The last key of the page before."""
    limit: Annotated[int, Meta(ge=1, le=MAX_KEYS_LISTED)] = MAX_KEYS_LISTED


class GetKey(KeyRequest[Key], frozen=True, kw_only=True, tag="get-key"):
    """Return one key version, whatever its status."""

    operation: ClassVar = Operation.GET_KEY
    algorithm: Algorithm
    version: SomeVersion


class GetActiveKey(KeyRequest[Key], frozen=True, kw_only=True, tag="get-active-key"):
    """Return the active key."""

    operation: ClassVar = Operation.GET_ACTIVE_KEY
    algorithm: Algorithm


AnyRequest = (
    Encrypt
    | Decrypt
    | Encapsulate
    | Decapsulate
    | Wrap
    | Unwrap
    | Sign
    | Verify
    | SignHash
    | VerifyHash
    | GenerateKey
    | RotateKey
    | RetireKey
    | ArchiveKey
    | ListKeys
    | GetKey
    | GetActiveKey
)
AnyResult = (
    Encrypted
    | Decrypted
    | Encapsulated
    | Decapsulated
    | Wrapped
    | Unwrapped
    | Signed
    | Verified
    | Key
    | Keys
    | Rotated
)


class KeyService(Protocol):
    """The key service as its clients see it."""

    async def execute(self, request: Request[R_co], attribution: Attribution, /) -> R_co:
        """Execute one request. Raises KeyServiceError."""
        ...
