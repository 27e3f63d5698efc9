"""All requests to the key service, and their results.

A request names its result in its base class, so ``await keys.execute(Encrypt(...))`` is typed.
On the wire each message is an array that starts with its tag (see ``codec``).
"""

from datetime import datetime
from enum import StrEnum
from typing import Annotated, Any, ClassVar, Generic, Literal, Protocol, TypeVar
from uuid import UUID

from msgspec import Meta, Struct

from pqkeep_protocol.algorithms import (
    MAX_ASSOCIATED_DATA,
    MAX_CONTEXT,
    MAX_DERIVATION_CONTEXT,
    MAX_GIVEN_KEY,
    MAX_GIVEN_MESSAGE,
    MAX_GIVEN_SIGNATURE,
    MAX_RANDOM,
    MU_SIZE,
    RESERVED_CONTEXT,
    Algorithm,
    GivenKeyAlgorithm,
    HashAlgorithm,
    HashFunction,
    Operation,
)
from pqkeep_protocol.errors import ErrorKind
from pqkeep_protocol.keyrings import (
    ALL_PURPOSES,
    DERIVED_PURPOSES,
    MAX_KEYRINGS,
    Days,
    Description,
    FirstVersion,
    KeyringInfo,
    KeyringPatterns,
    LabelChanges,
    Labels,
    MinimumVersion,
    Purposes,
    TransitType,
)
from pqkeep_protocol.keys import (
    DEFAULT_KEYRING,
    MAX_ARCHIVE_DAYS,
    PRINTABLE,
    Destruction,
    KeyInfo,
    KeyringName,
    KeyStatus,
    RecordedName,
    SomeVersion,
    TenantId,
)
from pqkeep_protocol.rules import MAX_RULES, Rule, RuleName, RuleNotice

R_co = TypeVar("R_co", covariant=True)


class Attribution(Struct, frozen=True, array_like=True):
    """The sender of a request, as the audit log records it."""

    request_id: Annotated[str, Meta(max_length=128, pattern=PRINTABLE)]
    principal: Annotated[str, Meta(max_length=128, pattern=PRINTABLE)]
    """Kind and identity, e.g. ``api-key:3``."""
    source_address: Annotated[str, Meta(max_length=64, pattern=PRINTABLE)]
    policy: Annotated[str, Meta(max_length=128, pattern=PRINTABLE)] = ""
    """The policy that allowed the request."""

    def under(self, policy: str) -> "Attribution":
        """Return the attribution with another policy."""
        return Attribution(self.request_id, self.principal, self.source_address, policy)

    def by(self, principal: str) -> "Attribution":
        """Return the attribution with another principal."""
        return Attribution(self.request_id, principal, self.source_address, self.policy)


class RedactedRepr:
    """A mixin: repr is the type's name, because fields can be secret."""

    __slots__ = ()

    def __repr__(self) -> str:
        return f"<{type(self).__name__}>"

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        return []


class Request(RedactedRepr, Struct, Generic[R_co], frozen=True, array_like=True, kw_only=True):
    """Base of all requests; ``R_co`` is the type of the result."""

    tenant: TenantId


class KeyRequest(Request[R_co], Generic[R_co], frozen=True, kw_only=True):
    """Base of all requests that use or change keys. Each adds one record to the log."""

    operation: ClassVar[Operation]
    keyring: KeyringName = DEFAULT_KEYRING


class Result(RedactedRepr, Struct, frozen=True, array_like=True, kw_only=True):
    """Base of all results."""


class KeyResult(Result, frozen=True, kw_only=True):
    """Base of the results of key requests."""

    notice: RuleNotice | None = None
    """The rule that warns the caller, if the operation made new data or a new key."""


AssociatedData = Annotated[bytes, Meta(max_length=MAX_ASSOCIATED_DATA)]
"""Data that a ciphertext is bound to beside its key; empty for none."""

DerivationContext = Annotated[bytes, Meta(max_length=MAX_DERIVATION_CONTEXT)]
"""The context of a derived key; empty for none. Keyrings with derived keys require a context, and
others refuse it: CONTEXT_REQUIRED and CONTEXT_REFUSED."""

Context = Annotated[bytes, Meta(max_length=MAX_CONTEXT)]
"""Data that a signature is bound to beside its message; empty for none."""

Mu = Annotated[bytes, Meta(min_length=MU_SIZE, max_length=MU_SIZE)]
"""FIPS 204, algorithm 7: SHAKE256 of the public key's hash, the context and the message."""


SuppliedKey = Annotated[bytes, Meta(max_length=4096)]
"""A public key from the caller, in its standard's encoding. If it belongs to a key version of the
tenant, that version's status and purposes apply, and the record names that version."""


class CiphertextFormat(StrEnum):
    """The key information that a ciphertext carries."""

    CIPHERTEXT = "ciphertext"
    """The ciphertext carries no key information."""
    ENVELOPE = "envelope"
    """A header with keyring, algorithm and version. The ciphertext is bound to it."""


class Encrypted(KeyResult, frozen=True, kw_only=True, tag="encrypted"):
    """``ciphertext``: KEM ciphertext, nonce (12), AES-GCM ciphertext, tag (16)."""

    ciphertext: bytes
    version: SomeVersion | None
    """The key's version. None for a supplied key."""


class Encrypt(KeyRequest[Encrypted], frozen=True, kw_only=True, tag="encrypt"):
    """Encrypt under a key version, the active key (``version`` is None) or a supplied key.

    Errors: INVALID_PUBLIC_KEY.
    """

    operation: ClassVar = Operation.ENCRYPT
    algorithm: Algorithm
    version: SomeVersion | None
    plaintext: bytes
    associated_data: AssociatedData = b""
    format: CiphertextFormat = CiphertextFormat.CIPHERTEXT
    """With ENVELOPE the result is the part after the header."""
    public_key: SuppliedKey | None = None
    within: KeyringPatterns | None = None
    """The keyrings that may supply a key, if it is the tenant's own; None allows all."""
    context: DerivationContext = b""

    def __post_init__(self) -> None:
        """Raise ValueError on a supplied key with a version, an envelope or a context."""
        if self.public_key is not None and (
            self.version is not None or self.context or self.format is CiphertextFormat.ENVELOPE
        ):
            raise ValueError("a supplied key has no version, no envelope and no context")


class Decrypted(KeyResult, frozen=True, kw_only=True, tag="decrypted"):
    """The decrypted plaintext."""

    plaintext: bytes


class Decrypt(KeyRequest[Decrypted], frozen=True, kw_only=True, tag="decrypt"):
    """Decrypt a result of Encrypt. Errors: DECRYPTION_FAILED, ALGORITHM_MISMATCH."""

    operation: ClassVar = Operation.DECRYPT
    algorithm: Algorithm
    version: SomeVersion
    ciphertext: bytes
    associated_data: AssociatedData = b""
    probe: tuple[Algorithm, ...] | None = None
    """Other algorithms to try after a failure, to report ALGORITHM_MISMATCH; None tries all. An
    envelope names its algorithm, so no other is tried."""
    format: CiphertextFormat = CiphertextFormat.CIPHERTEXT
    context: DerivationContext = b""


class Encapsulated(KeyResult, frozen=True, kw_only=True, tag="encapsulated"):
    """A fresh shared secret (32 bytes) and the KEM ciphertext that carries it."""

    kem_ciphertext: bytes
    shared_secret: bytes


class Encapsulate(KeyRequest[Encapsulated], frozen=True, kw_only=True, tag="encapsulate"):
    """Encapsulate a fresh shared secret to a key version or a supplied key.

    Errors: INVALID_PUBLIC_KEY.
    """

    operation: ClassVar = Operation.ENCAPSULATE
    algorithm: Algorithm
    version: SomeVersion | None
    public_key: SuppliedKey | None = None
    within: KeyringPatterns | None = None
    """The keyrings that may supply a key, if it is the tenant's own; None allows all."""

    def __post_init__(self) -> None:
        """Raise ValueError unless there is either a version or a public key."""
        _require_one_key(self.version, self.public_key)


class Decapsulated(KeyResult, frozen=True, kw_only=True, tag="decapsulated"):
    """The shared secret (32 bytes)."""

    shared_secret: bytes


class Decapsulate(KeyRequest[Decapsulated], frozen=True, kw_only=True, tag="decapsulate"):
    """Recover a shared secret. Errors: DECRYPTION_FAILED on a wrong size."""

    operation: ClassVar = Operation.DECAPSULATE
    algorithm: Algorithm
    version: SomeVersion
    kem_ciphertext: bytes


class Wrapped(KeyResult, frozen=True, kw_only=True, tag="wrapped"):
    """``wrapped_key``: like a ciphertext, but bound to wrapping."""

    wrapped_key: bytes


class Wrap(KeyRequest[Wrapped], frozen=True, kw_only=True, tag="wrap"):
    """Encrypt a symmetric key of SYMMETRIC_KEY_SIZES bytes, and wipe it afterwards."""

    operation: ClassVar = Operation.WRAP
    algorithm: Algorithm
    version: SomeVersion
    symmetric_key: bytearray
    associated_data: AssociatedData = b""


class Unwrapped(KeyResult, frozen=True, kw_only=True, tag="unwrapped"):
    """The unwrapped symmetric key."""

    symmetric_key: bytes


class Unwrap(KeyRequest[Unwrapped], frozen=True, kw_only=True, tag="unwrap"):
    """Decrypt a wrapped key. Errors: DECRYPTION_FAILED, ALGORITHM_MISMATCH."""

    operation: ClassVar = Operation.UNWRAP
    algorithm: Algorithm
    version: SomeVersion
    wrapped_key: bytes
    associated_data: AssociatedData = b""
    probe: tuple[Algorithm, ...] | None = None
    """Other algorithms to try after a failure, to report ALGORITHM_MISMATCH; None tries all. An
    envelope names its algorithm, so no other is tried."""


class Target(Struct, frozen=True, array_like=True):
    """The target of a re-encryption: the active key of an algorithm in a keyring."""

    algorithm: Algorithm
    keyring: KeyringName = DEFAULT_KEYRING
    associated_data: AssociatedData = b""
    format: CiphertextFormat = CiphertextFormat.CIPHERTEXT
    context: DerivationContext = b""


class ReEncrypted(KeyResult, frozen=True, kw_only=True, tag="re-encrypted"):
    """A ciphertext or wrapped key, and its target key version."""

    ciphertext: bytes
    version: SomeVersion
    moved: bool = True
    """False if the source was already this: it is returned unchanged."""


class ReEncrypt(KeyRequest[ReEncrypted], frozen=True, kw_only=True, tag="re-encrypt"):
    """Decrypt a ciphertext or wrapped key, and encrypt its content to a target.

    Errors: DECRYPTION_FAILED, ALGORITHM_MISMATCH, TARGET_NOT_FOUND.
    """

    operation: ClassVar = Operation.RE_ENCRYPT
    algorithm: Algorithm
    version: SomeVersion
    ciphertext: bytes
    is_wrapped_key: bool
    target: Target
    associated_data: AssociatedData = b""
    probe: tuple[Algorithm, ...] | None = None
    """Other algorithms to try after a failure, to report ALGORITHM_MISMATCH; None tries all. An
    envelope names its algorithm, so no other is tried."""
    format: CiphertextFormat = CiphertextFormat.CIPHERTEXT
    """The format of the ciphertext; unused for a wrapped key."""
    context: DerivationContext = b""
    campaign: RecordedName | None = None
    """The campaign that counts it, if there is one."""


DataKeySize = Literal[16, 32, 64]
"""Bytes of the data keys that the key service makes."""


class DataKey(KeyResult, frozen=True, kw_only=True, tag="data-key"):
    """A new data key: encrypted, and in the clear if the request wants that."""

    encrypted: bytes
    """A wrapped key, a ciphertext, or the part of an envelope after its header."""
    version: SomeVersion
    plaintext: bytes = b""


class GenerateDataKey(KeyRequest[DataKey], frozen=True, kw_only=True, tag="generate-data-key"):
    """Make a random data key, and encrypt it with a key version or the active key.

    Errors: UNSUPPORTED if it is to be wrapped and the algorithm does not wrap; PURPOSE_DENIED.
    """

    operation: ClassVar = Operation.GENERATE_DATA_KEY
    algorithm: Algorithm
    version: SomeVersion | None
    size: DataKeySize
    plaintext: bool
    """Whether the result has the data key in the clear too."""
    associated_data: AssociatedData = b""
    format: CiphertextFormat | None = None
    """None: a result of Wrap. Otherwise a result of Encrypt in this format."""
    context: DerivationContext = b""

    def __post_init__(self) -> None:
        """Raise ValueError on a context for a result of Wrap."""
        if self.context and self.format is None:
            raise ValueError("a wrapped key has no context")


class Mac(KeyResult, frozen=True, kw_only=True, tag="mac"):
    """A MAC, and the version of its key."""

    mac: bytes
    version: SomeVersion


class ComputeMac(KeyRequest[Mac], frozen=True, kw_only=True, tag="compute-mac"):
    """Compute a message's MAC with a key version, or with the active key."""

    operation: ClassVar = Operation.COMPUTE_MAC
    algorithm: Algorithm
    version: SomeVersion | None
    message: bytes


class Signed(KeyResult, frozen=True, kw_only=True, tag="signed"):
    """A signature, and the version of its key."""

    signature: bytes
    version: SomeVersion


class Sign(KeyRequest[Signed], frozen=True, kw_only=True, tag="sign"):
    """Sign with a key version, or with the active key (``version`` is None)."""

    operation: ClassVar = Operation.SIGN
    algorithm: Algorithm
    version: SomeVersion | None
    message: bytes
    context: Context = b""

    def __post_init__(self) -> None:
        """Raise ValueError on a reserved context."""
        _refuse_reserved(self.context)


class Verified(KeyResult, frozen=True, kw_only=True, tag="verified"):
    """The signature is valid. An invalid one is refused with VERIFICATION_FAILED."""


class Verify(KeyRequest[Verified], frozen=True, kw_only=True, tag="verify"):
    """Verify a signature with a key version, or with a supplied key.

    Errors: VERIFICATION_FAILED, INVALID_PUBLIC_KEY.
    """

    operation: ClassVar = Operation.VERIFY
    algorithm: Algorithm
    version: SomeVersion | None
    message: bytes
    signature: bytes
    context: Context = b""
    public_key: SuppliedKey | None = None
    within: KeyringPatterns | None = None
    """The keyrings that may supply a key, if it is the tenant's own; None allows all."""

    def __post_init__(self) -> None:
        """Raise ValueError on a reserved context, or unless there is one key."""
        _refuse_reserved(self.context)
        _require_one_key(self.version, self.public_key)


class SignHash(KeyRequest[Signed], frozen=True, kw_only=True, tag="sign-hash"):
    """Sign a digest of DIGEST_SIZE bytes from the caller."""

    operation: ClassVar = Operation.SIGN_HASH
    algorithm: Algorithm
    version: SomeVersion | None
    hash_algorithm: HashAlgorithm
    digest: bytes


class VerifyHash(KeyRequest[Verified], frozen=True, kw_only=True, tag="verify-hash"):
    """Verify a signature over a digest with a key version, or with a supplied key.

    Errors: VERIFICATION_FAILED, INVALID_PUBLIC_KEY.
    """

    operation: ClassVar = Operation.VERIFY_HASH
    algorithm: Algorithm
    version: SomeVersion | None
    hash_algorithm: HashAlgorithm
    digest: bytes
    signature: bytes
    public_key: SuppliedKey | None = None
    within: KeyringPatterns | None = None
    """The keyrings that may supply a key, if it is the tenant's own; None allows all."""

    def __post_init__(self) -> None:
        """Raise ValueError unless there is either a version or a public key."""
        _require_one_key(self.version, self.public_key)


class Jws(KeyResult, frozen=True, kw_only=True, tag="jws"):
    """A JWS in compact form, and the version of its key."""

    jws: str
    version: SomeVersion


JWS_TYPE = r"^[A-Za-z0-9!#$&^_.+-]+(/[A-Za-z0-9!#$&^_.+-]+)?\Z"
"""The form of a media type, of which JWS omits ``application/`` (RFC 6838, section 4.2)."""
MAX_JWS_TYPE = 127


class SignJws(KeyRequest[Jws], frozen=True, kw_only=True, tag="sign-jws"):
    """Sign a payload as JWS (RFC 7515). With ``detached`` the JWS omits it (appendix F)."""

    operation: ClassVar = Operation.SIGN_JWS
    algorithm: Algorithm
    version: SomeVersion | None
    payload: bytes
    detached: bool
    typ: Annotated[str, Meta(max_length=MAX_JWS_TYPE, pattern=JWS_TYPE)] | None = None
    """The header's ``typ`` (section 4.1.9)."""


class SignMu(KeyRequest[Signed], frozen=True, kw_only=True, tag="sign-mu"):
    """Sign an external mu with ML-DSA. The result is a signature over the mu's message."""

    operation: ClassVar = Operation.SIGN_MU
    algorithm: Algorithm
    version: SomeVersion | None
    mu: Mu


class VerifyMu(KeyRequest[Verified], frozen=True, kw_only=True, tag="verify-mu"):
    """Verify an ML-DSA signature by its mu with a key version, or with a supplied key.

    Errors: VERIFICATION_FAILED, INVALID_PUBLIC_KEY.
    """

    operation: ClassVar = Operation.VERIFY_MU
    algorithm: Algorithm
    version: SomeVersion | None
    mu: Mu
    signature: bytes
    public_key: SuppliedKey | None = None
    within: KeyringPatterns | None = None
    """The keyrings that may supply a key, if it is the tenant's own; None allows all."""

    def __post_init__(self) -> None:
        """Raise ValueError unless there is either a version or a public key."""
        _require_one_key(self.version, self.public_key)


class VerifyMac(KeyRequest[Verified], frozen=True, kw_only=True, tag="verify-mac"):
    """Verify a message's MAC with a key version. Errors: VERIFICATION_FAILED."""

    operation: ClassVar = Operation.VERIFY_MAC
    algorithm: Algorithm
    version: SomeVersion
    message: bytes
    mac: bytes


class Hashed(Result, frozen=True, kw_only=True, tag="hashed"):
    """The digest of some data."""

    digest: bytes


class HashData(Request[Hashed], frozen=True, kw_only=True, tag="hash"):
    """Hash data. No key takes part, so there is no record."""

    function: HashFunction
    data: bytes


class RandomBytes(Result, frozen=True, kw_only=True, tag="random-bytes"):
    """Random bytes of the operating system."""

    data: bytes


class GenerateRandom(Request[RandomBytes], frozen=True, kw_only=True, tag="generate-random"):
    """Make random bytes. No key takes part, so there is no record."""

    size: Annotated[int, Meta(ge=1, le=MAX_RANDOM)]


class SignatureVerified(Result, frozen=True, kw_only=True, tag="signature-verified"):
    """The signature is valid."""


class VerifySignature(
    Request[SignatureVerified], frozen=True, kw_only=True, tag="verify-signature"
):
    """Verify a signature under a given public key. No stored key takes part: there is no record.

    Errors: INVALID_PUBLIC_KEY, VERIFICATION_FAILED.
    """

    algorithm: GivenKeyAlgorithm
    public_key: Annotated[bytes, Meta(max_length=MAX_GIVEN_KEY)]
    """SubjectPublicKeyInfo in DER."""
    message: Annotated[bytes, Meta(max_length=MAX_GIVEN_MESSAGE)]
    signature: Annotated[bytes, Meta(max_length=MAX_GIVEN_SIGNATURE)]
    """The signature. With ECDSA: in DER, or r || s."""


class Library(Struct, frozen=True, array_like=True):
    """A cryptographic library of the key service."""

    name: Annotated[str, Meta(min_length=1, max_length=64, pattern=PRINTABLE)]
    version: Annotated[str, Meta(min_length=1, max_length=64, pattern=PRINTABLE)]


class Libraries(Result, frozen=True, kw_only=True, tag="libraries"):
    """Cryptographic libraries, by name."""

    libraries: tuple[Library, ...]


class ListLibraries(Request[Libraries], frozen=True, kw_only=True, tag="list-libraries"):
    """List the libraries that compute with keys. No key takes part, so there is no record."""


class Key(KeyResult, frozen=True, kw_only=True, tag="key"):
    """One key version."""

    key: KeyInfo
    existed: bool = False
    """Whether GenerateKey with ``if_absent`` returned an existing key, or ScheduleArchive kept an
    earlier time."""


class Keys(KeyResult, frozen=True, kw_only=True, tag="keys"):
    """One page of key versions, ordered by keyring, algorithm and version."""

    keys: tuple[KeyInfo, ...]
    total: int
    """The number on all pages."""
    has_more: bool = False
    """Whether more keys follow this page."""


class Rotated(KeyResult, frozen=True, kw_only=True, tag="rotated"):
    """The new active key, and the retired version."""

    key: KeyInfo
    old_version: SomeVersion


class Idempotency(Struct, frozen=True, array_like=True):
    """A client's Idempotency-Key. For a day, a repeated request returns the first result."""

    key: Annotated[bytes, Meta(min_length=32, max_length=32)]
    """SHA-256 of the client's key and its principal."""
    request: Annotated[bytes, Meta(min_length=32, max_length=32)]
    """SHA-256 of the request. The same key with another request is refused."""


class GenerateKey(KeyRequest[Key], frozen=True, kw_only=True, tag="generate-key"):
    """Generate a key for an algorithm without an active key.

    Errors: KEY_EXISTS, KEY_QUOTA_REACHED, VERSION_LIMIT_REACHED, IDEMPOTENCY_KEY_REUSED.
    """

    operation: ClassVar = Operation.GENERATE_KEY
    algorithm: Algorithm
    quota: int | None
    """The most active keys that the tenant may have over all keyrings; None for no limit."""
    idempotency: Idempotency | None = None
    if_absent: bool = False
    """Return an active key instead of KEY_EXISTS."""


IMPORT_KEY_SECONDS = 600
"""The lifetime of an import key."""


class ImportKey(KeyResult, frozen=True, kw_only=True, tag="import-key"):
    """A public key (ML-KEM-1024, 1568 bytes) that wraps one private key, and the HPKE info."""

    id: UUID
    public_key: bytes
    info: bytes
    seconds: int
    """The lifetime of the import key."""


class GetImportKey(KeyRequest[ImportKey], frozen=True, kw_only=True, tag="get-import-key"):
    """Make an import key for one private key of an algorithm, for a keyring."""

    operation: ClassVar = Operation.GET_IMPORT_KEY
    algorithm: Algorithm


class ImportPrivateKey(KeyRequest[Key], frozen=True, kw_only=True, tag="import-private-key"):
    """Unwrap a private key with its import key, and make it the active one.

    Errors: IMPORT_KEY_NOT_FOUND, DECRYPTION_FAILED if it does not unwrap or is not a private key of
    the algorithm, KEY_EXISTS, KEY_QUOTA_REACHED, VERSION_LIMIT_REACHED, IDEMPOTENCY_KEY_REUSED.
    """

    operation: ClassVar = Operation.IMPORT_KEY
    algorithm: Algorithm
    import_key_id: UUID
    wrapped_private_key: bytes
    quota: int | None
    idempotency: Idempotency | None = None


class RotateKey(KeyRequest[Rotated], frozen=True, kw_only=True, tag="rotate-key"):
    """Retire the active key and generate its successor, in one step.

    Errors: VERSION_LIMIT_REACHED, IDEMPOTENCY_KEY_REUSED.
    """

    operation: ClassVar = Operation.ROTATE_KEY
    algorithm: Algorithm
    idempotency: Idempotency | None = None


class RetireKey(KeyRequest[Key], frozen=True, kw_only=True, tag="retire-key"):
    """Retire a key version. Errors: KEY_STATUS if it is archived."""

    operation: ClassVar = Operation.RETIRE_KEY
    algorithm: Algorithm
    version: SomeVersion


class DisableKey(KeyRequest[Key], frozen=True, kw_only=True, tag="disable-key"):
    """Refuse every use of a key version until it is enabled.

    Errors: KEY_STATUS if it is archived, or ``until`` is more than MAX_DISABLED_DAYS ahead.
    """

    operation: ClassVar = Operation.DISABLE_KEY
    algorithm: Algorithm
    version: SomeVersion
    until: datetime | None = None
    """When it is enabled again; None: only by a request. A version that was disabled without a time
    stays disabled."""


class EnableKey(KeyRequest[Key], frozen=True, kw_only=True, tag="enable-key"):
    """Restore the earlier status of a disabled key version. Errors: KEY_STATUS if archived."""

    operation: ClassVar = Operation.ENABLE_KEY
    algorithm: Algorithm
    version: SomeVersion
    until: datetime | None = None
    """Only if the version is disabled until this time; None: in any case."""


class ScheduleArchive(KeyRequest[Key], frozen=True, kw_only=True, tag="schedule-archive"):
    """Destroy the private half of a retired key version after a delay.

    The delay is ``days`` or the key service's own setting, whichever is longer; without a delay the
    version is archived at once. Until then every use of the version is refused. An already set time
    does not change. Errors: KEY_STATUS if the version is active or archived.
    """

    operation: ClassVar = Operation.SCHEDULE_ARCHIVE
    algorithm: Algorithm
    version: SomeVersion
    days: Annotated[int, Meta(ge=0, le=MAX_ARCHIVE_DAYS)]


class CancelArchive(KeyRequest[Key], frozen=True, kw_only=True, tag="cancel-archive"):
    """Cancel the scheduled archiving of a key version. Errors: KEY_STATUS if it is archived."""

    operation: ClassVar = Operation.CANCEL_ARCHIVE
    algorithm: Algorithm
    version: SomeVersion


MAX_KEYS_LISTED = 500
"""Keys on one page. The largest public keys fit into a frame."""


class KeyPosition(Struct, frozen=True, array_like=True):
    """A place in a list of keys."""

    algorithm: Algorithm
    version: SomeVersion
    keyring: KeyringName = DEFAULT_KEYRING


class ListKeys(KeyRequest[Keys], frozen=True, kw_only=True, tag="list-keys"):
    """List a keyring's keys. None stands for any algorithm or status."""

    operation: ClassVar = Operation.LIST_KEYS
    algorithm: Algorithm | None
    status: KeyStatus | None
    after: KeyPosition | None = None
    """The last key of the previous page."""
    limit: Annotated[int, Meta(ge=1, le=MAX_KEYS_LISTED)] = MAX_KEYS_LISTED
    all_keyrings: bool = False
    """List the keys of all the tenant's keyrings, and ignore ``keyring``."""
    scheduled: bool = False
    """List only key versions with scheduled archiving."""
    legacy: bool = False
    """List legacy keys too. A legacy ``algorithm`` lists its keys in any case."""


class ListPublicKeys(KeyRequest[Keys], frozen=True, kw_only=True, tag="list-public-keys"):
    """List a keyring's public keys of some algorithms, for verifiers."""

    operation: ClassVar = Operation.LIST_PUBLIC_KEYS
    algorithm: ClassVar[Algorithm | None] = None
    status: ClassVar[KeyStatus | None] = None
    algorithms: Annotated[tuple[Algorithm, ...], Meta(min_length=1, max_length=len(Algorithm))]
    after: KeyPosition | None = None
    """The last key of the previous page."""
    limit: Annotated[int, Meta(ge=1, le=MAX_KEYS_LISTED)] = MAX_KEYS_LISTED


class GetKey(KeyRequest[Key], frozen=True, kw_only=True, tag="get-key"):
    """Return one key version of any status."""

    operation: ClassVar = Operation.GET_KEY
    algorithm: Algorithm
    version: SomeVersion


class GetActiveKey(KeyRequest[Key], frozen=True, kw_only=True, tag="get-active-key"):
    """Return the active key."""

    operation: ClassVar = Operation.GET_ACTIVE_KEY
    algorithm: Algorithm


class KeyringFound(KeyResult, frozen=True, kw_only=True, tag="keyring"):
    """One keyring."""

    keyring: KeyringInfo


class KeyringsFound(KeyResult, frozen=True, kw_only=True, tag="keyrings"):
    """One page of keyrings, by name."""

    keyrings: tuple[KeyringInfo, ...]
    total: int
    """The number on all pages."""
    has_more: bool
    last_used_us: tuple[int, ...] = ()
    """The last use of each keyring's keys up to the newest checkpoint; 0 without one. Empty unless
    the request has ``counts_uses``."""


class CreateKeyring(KeyRequest[KeyringFound], frozen=True, kw_only=True, tag="create-keyring"):
    """Create the keyring that ``keyring`` names.

    The key versions of an earlier keyring with this name are kept, archived, and version numbers
    continue after them. Errors: KEYRING_EXISTS, KEYRING_DELETED, KEYRING_QUOTA_REACHED.
    """

    operation: ClassVar = Operation.CREATE_KEYRING
    algorithm: ClassVar[Algorithm | None] = None
    description: Description = ""
    labels: Labels = {}
    purposes: Purposes = ALL_PURPOSES
    rotation_days: Days = 0
    archive_after_days: Days = 0
    minimum_decryption_version: MinimumVersion = 0
    minimum_encryption_version: MinimumVersion = 0
    transit_type: TransitType = ""
    derived: bool = False
    first_version: FirstVersion = 1
    """The lowest version number of its keys."""
    deletion_allowed: bool = False
    retired_public_keys_allowed: bool = False
    quota: Annotated[int, Meta(ge=1, le=MAX_KEYRINGS)] = MAX_KEYRINGS
    """The most keyrings that the tenant may have, including ``default``."""

    def __post_init__(self) -> None:
        """Raise ValueError on purposes that derived keys do not have."""
        if self.derived and not set(self.purposes) <= set(DERIVED_PURPOSES):
            raise ValueError("derived keys only encrypt and decrypt")


class UpdateKeyring(KeyRequest[KeyringFound], frozen=True, kw_only=True, tag="update-keyring"):
    """Change a keyring. None keeps a value.

    ``label_changes`` apply after ``labels``. Errors: KEYRING_NOT_FOUND, LABEL_LIMIT_REACHED, and
    PURPOSE_DENIED for purposes that derived keys do not have.
    """

    operation: ClassVar = Operation.UPDATE_KEYRING
    algorithm: ClassVar[Algorithm | None] = None
    description: Description | None = None
    labels: Labels | None = None
    label_changes: LabelChanges | None = None
    purposes: Purposes | None = None
    rotation_days: Days | None = None
    archive_after_days: Days | None = None
    minimum_decryption_version: MinimumVersion | None = None
    minimum_encryption_version: MinimumVersion | None = None
    deletion_allowed: bool | None = None
    retired_public_keys_allowed: bool | None = None


class DeleteKeyring(KeyRequest[KeyringFound], frozen=True, kw_only=True, tag="delete-keyring"):
    """Hide a keyring and refuse its keys; destroy its private keys after a delay.

    The delay is ``days`` or the key service's own setting, whichever is longer. Until then the
    keyring can be restored. Errors: KEYRING_NOT_FOUND,
    DELETION_DENIED, KEYRING_PROTECTED.
    """

    operation: ClassVar = Operation.DELETE_KEYRING
    algorithm: ClassVar[Algorithm | None] = None
    days: Annotated[int, Meta(ge=0, le=MAX_ARCHIVE_DAYS)]
    only_if_allowed: bool
    """Whether the keyring's ``deletion_allowed`` decides. False for people."""

    def __post_init__(self) -> None:
        """Raise ValueError on the default keyring: every tenant has it."""
        _refuse_default(self.keyring)


class RestoreKeyring(KeyRequest[KeyringFound], frozen=True, kw_only=True, tag="restore-keyring"):
    """Restore a deleted keyring with its keys. An existing keyring does not change.

    Errors: KEYRING_NOT_FOUND, also once the destruction of its private keys has begun.
    """

    operation: ClassVar = Operation.RESTORE_KEYRING
    algorithm: ClassVar[Algorithm | None] = None


class GetKeyring(KeyRequest[KeyringFound], frozen=True, kw_only=True, tag="get-keyring"):
    """Return a keyring. Errors: KEYRING_NOT_FOUND."""

    operation: ClassVar = Operation.GET_KEYRING
    algorithm: ClassVar[Algorithm | None] = None


MAX_KEYRINGS_LISTED = 100
"""Keyrings on one page. The longest descriptions and labels fit into a frame."""
MAX_KEYRINGS_NAMED = 128
MAX_KEYRINGS_OFFSET = 1_000_000
MAX_WORDS = 16
"""Words of a search in names."""
Word = Annotated[str, Meta(min_length=1, max_length=128, pattern=PRINTABLE)]
_Time = Annotated[int, Meta(ge=0)]
"""A time in microseconds since 1970."""
KEYRING_PREFIX = r"\A[A-Za-z0-9_.-]{0,128}\Z"


class KeyringSort(StrEnum):
    """The orders of keyrings. Keyrings that are equal or have no value are ordered by name."""

    NAME = "name"
    CREATED = "created"
    LAST_USED = "last-used"
    ROTATION = "rotation"
    """By the days after which keys are rotated automatically."""


class ListKeyrings(KeyRequest[KeyringsFound], frozen=True, kw_only=True, tag="list-keyrings"):
    """List a tenant's keyrings; ``keyring`` is ignored."""

    operation: ClassVar = Operation.LIST_KEYRINGS
    algorithm: ClassVar[Algorithm | None] = None
    after: KeyringName | None = None
    """The last keyring of the previous page."""
    label: tuple[str, str] | None = None
    """Only keyrings with a label of this name and value."""
    prefix: Annotated[str, Meta(pattern=KEYRING_PREFIX)] = ""
    """Only keyrings with names that begin with this text."""
    names: Annotated[tuple[KeyringName, ...], Meta(max_length=MAX_KEYRINGS_NAMED)] | None = None
    """Only these keyrings; names without a keyring are ignored; None for all."""
    deleted: bool = False
    """Only deleted keyrings that can be restored; False excludes them."""
    words: Annotated[tuple[Word, ...], Meta(max_length=MAX_WORDS)] = ()
    """Each must be a part of the name. Case does not matter."""
    algorithms: Annotated[tuple[Algorithm, ...], Meta(max_length=64)] = ()
    """Only keyrings with a key of one of these; empty for all."""
    created_before_us: _Time | None = None
    created_since_us: _Time | None = None
    used_since_us: _Time | None = None
    """Only keyrings with a key that was used since then."""
    unused_since_us: _Time | None = None
    """Only keyrings without a use since then. Keyrings that were never used are included."""
    is_rotated: bool | None = None
    """Whether keys are rotated automatically; None: both."""
    counts_uses: bool = False
    """Whether the response has the last uses."""
    sort: KeyringSort = KeyringSort.NAME
    is_descending: bool = False
    offset: Annotated[int, Meta(ge=0, le=MAX_KEYRINGS_OFFSET)] = 0
    """The number of keyrings before the page."""
    limit: Annotated[int, Meta(ge=1, le=MAX_KEYRINGS_LISTED)] = MAX_KEYRINGS_LISTED

    @property
    def is_search(self) -> bool:
        """Whether it selects or orders by more than the beginning of the name and a label."""
        times = self.created_before_us, self.created_since_us, self.used_since_us
        return bool(
            self.words
            or self.algorithms
            or self.offset
            or self.is_descending
            or self.sort is not KeyringSort.NAME
            or any(time is not None for time in (*times, self.unused_since_us))
            or self.is_rotated is not None
        )

    def __post_init__(self) -> None:
        """Raise ValueError on a position beside an order or a filter of a search."""
        if self.after is not None and self.is_search:
            raise ValueError("give a position only in the order of names, without other filters")


class TenantDestruction(KeyResult, frozen=True, kw_only=True, tag="tenant-destruction"):
    """The destruction of all of a tenant's private keys; None if it is not scheduled."""

    destruction: Destruction | None


class ScheduleDestruction(
    KeyRequest[TenantDestruction], frozen=True, kw_only=True, tag="schedule-destruction"
):
    """Schedule the destruction of all of a tenant's private keys.

    The key service's own settings can set a later time than ``at``. An already set time does not
    change.
    """

    operation: ClassVar = Operation.SCHEDULE_DESTRUCTION
    algorithm: ClassVar[Algorithm | None] = None
    at: Annotated[datetime, Meta(tz=True)]
    renews: bool = True
    """Whether a cancelled destruction is scheduled again. Otherwise it stays cancelled."""

    def __post_init__(self) -> None:
        """Raise ValueError on any keyring but the default: the request covers all keyrings."""
        _require_default(self.keyring)


class CancelDestruction(
    KeyRequest[TenantDestruction], frozen=True, kw_only=True, tag="cancel-destruction"
):
    """Cancel the scheduled destruction of a tenant's private keys.

    Errors: KEY_STATUS if the destruction has begun.
    """

    operation: ClassVar = Operation.CANCEL_DESTRUCTION
    algorithm: ClassVar[Algorithm | None] = None

    def __post_init__(self) -> None:
        """Raise ValueError on any keyring but the default: the request covers all keyrings."""
        _require_default(self.keyring)


class Rules(KeyResult, frozen=True, kw_only=True, tag="rules"):
    """All rules of a tenant, by name."""

    rules: Annotated[tuple[Rule, ...], Meta(max_length=MAX_RULES)]
    revision: Annotated[int, Meta(ge=0)]
    """Counts the changes. The record of a change has it as ``keyring_revision``."""
    sha256: Annotated[bytes, Meta(min_length=32, max_length=32)]
    """SHA-256 of ``rules_text``. The record of a change has it as ``public_key_sha256``."""


class ListRules(KeyRequest[Rules], frozen=True, kw_only=True, tag="list-rules"):
    """Return a tenant's rules."""

    operation: ClassVar = Operation.LIST_RULES
    algorithm: ClassVar[Algorithm | None] = None

    def __post_init__(self) -> None:
        """Raise ValueError on any keyring but the default: the request covers all keyrings."""
        _require_default(self.keyring)


class PutRule(KeyRequest[Rules], frozen=True, kw_only=True, tag="put-rule"):
    """Add rules, or replace rules of the same names by rules that are at least as strict.

    All rules are stored, or no rule is. Errors: RULE_WEAKENED, RULE_LIMIT_REACHED.
    """

    operation: ClassVar = Operation.PUT_RULE
    algorithm: ClassVar[Algorithm | None] = None
    name: RuleName
    """The name of the one rule, or of the profile. The record has it."""
    rules: Annotated[tuple[Rule, ...], Meta(min_length=1, max_length=MAX_RULES)]
    """Their names are the name, or begin with it and a dot."""

    def __post_init__(self) -> None:
        """Raise ValueError on another keyring than the default, or on rules of other names."""
        _require_default(self.keyring)
        _require_names(self.rules, self.name)


def _require_names(rules: tuple[Rule, ...], name: RuleName | None) -> None:
    names = {rule.name for rule in rules}
    if len(names) < len(rules):
        raise ValueError("rules must not have a name twice")
    if name is not None and not all(
        other == name or other.startswith(f"{name}.") for other in names
    ):
        raise ValueError("rules must have the name, or begin with it and a dot")


class DeleteRule(KeyRequest[Rules], frozen=True, kw_only=True, tag="delete-rule"):
    """Delete a rule that has no dates, or that another rule covers.

    Errors: RULE_WEAKENED, RULE_NOT_FOUND.
    """

    operation: ClassVar = Operation.DELETE_RULE
    algorithm: ClassVar[Algorithm | None] = None
    name: RuleName

    def __post_init__(self) -> None:
        """Raise ValueError on any keyring but the default: the request covers all keyrings."""
        _require_default(self.keyring)


class OverrideRule(KeyRequest[Rules], frozen=True, kw_only=True, tag="override-rule"):
    """Put rules or delete one, even if that weakens them. Only the operator's socket accepts it.

    All are put, or none is. Errors: RULE_NOT_FOUND, RULE_LIMIT_REACHED.
    """

    operation: ClassVar = Operation.OVERRIDE_RULE
    algorithm: ClassVar[Algorithm | None] = None
    name: RuleName | None
    """The name of the one rule, or of the profile. The record has it. None: several names."""
    rules: Annotated[tuple[Rule, ...], Meta(max_length=MAX_RULES)]
    """The new rules. Empty: the rule with the name is deleted."""
    discards_damaged: bool = False
    """Whether damaged rules of the tenant are discarded first. Otherwise: UNAVAILABLE."""

    def __post_init__(self) -> None:
        """Raise ValueError on another keyring than the default, or rules of other names."""
        _require_default(self.keyring)
        _require_names(self.rules, self.name)
        if self.name is None and not self.rules:
            raise ValueError("name must be given to delete a rule")


MAX_DESTRUCTIONS_LISTED = 500


class ScheduledDestruction(Struct, frozen=True, array_like=True):
    """The destruction of private keys: all of a tenant, or those of a deleted keyring."""

    tenant: TenantId
    destruction: Destruction
    keyring: KeyringName = DEFAULT_KEYRING
    """The deleted keyring; the default keyring stands for all the tenant's private keys."""


class Destructions(Result, frozen=True, kw_only=True, tag="destructions"):
    """One page of destructions, by tenant."""

    destructions: tuple[ScheduledDestruction, ...]
    has_more: bool


class ListDestructions(Request[Destructions], frozen=True, kw_only=True, tag="list-destructions"):
    """List the tenants with a destruction of their private keys.

    For INSTALLATION: all that are not completed. For a tenant: its own, even if completed.
    """

    after: TenantId | None = None
    """The last tenant of the previous page."""
    keyrings: bool = False
    """Whether to list deleted keyrings and no tenants. Only for INSTALLATION."""
    after_keyring: KeyringName | None = None
    """With ``keyrings``: the last keyring of the previous page."""


AnyRequest = (
    Encrypt
    | Decrypt
    | Encapsulate
    | Decapsulate
    | Wrap
    | Unwrap
    | ReEncrypt
    | Sign
    | Verify
    | SignHash
    | VerifyHash
    | SignJws
    | SignMu
    | VerifyMu
    | GenerateDataKey
    | ComputeMac
    | VerifyMac
    | GenerateKey
    | GetImportKey
    | ImportPrivateKey
    | RotateKey
    | RetireKey
    | DisableKey
    | EnableKey
    | ScheduleArchive
    | CancelArchive
    | ListKeys
    | ListPublicKeys
    | GetKey
    | GetActiveKey
    | CreateKeyring
    | UpdateKeyring
    | DeleteKeyring
    | RestoreKeyring
    | GetKeyring
    | ListKeyrings
    | ScheduleDestruction
    | CancelDestruction
    | ListRules
    | PutRule
    | DeleteRule
    | OverrideRule
)
AnyResult = (
    Encrypted
    | Decrypted
    | Encapsulated
    | Decapsulated
    | Wrapped
    | Unwrapped
    | ReEncrypted
    | Signed
    | Verified
    | DataKey
    | Mac
    | Jws
    | Key
    | Keys
    | Rotated
    | KeyringFound
    | KeyringsFound
    | ImportKey
    | TenantDestruction
    | Rules
)

AnyKeylessRequest = HashData | GenerateRandom | VerifySignature | ListLibraries
AnyKeylessResult = Hashed | RandomBytes | SignatureVerified | Libraries

MAX_ITEMS = 128
"""Requests in one batch. That many of the largest signatures fit into a frame."""

ItemRequest = (
    Encrypt
    | Decrypt
    | Encapsulate
    | Decapsulate
    | Wrap
    | Unwrap
    | ReEncrypt
    | Sign
    | Verify
    | SignHash
    | VerifyHash
    | SignMu
    | VerifyMu
    | GenerateDataKey
    | ComputeMac
    | VerifyMac
)
"""Requests that a batch can hold: they use keys, and change none."""
ItemResult = (
    Encrypted
    | Decrypted
    | Encapsulated
    | Decapsulated
    | Wrapped
    | Unwrapped
    | ReEncrypted
    | Signed
    | Verified
    | DataKey
    | Mac
)


class Item(RedactedRepr, Struct, frozen=True, array_like=True):
    """One request of a batch, and the policy that allowed it."""

    request: ItemRequest
    policy: Annotated[str, Meta(max_length=128, pattern=PRINTABLE)] = ""


class Refused(Result, frozen=True, kw_only=True, tag="refused"):
    """Why a request of a batch has no result."""

    kind: ErrorKind
    notice: RuleNotice | None = None
    """The rule that refused, if ``kind`` is RULE_DENIED."""


class BatchResults(Result, frozen=True, kw_only=True, tag="batch-results"):
    """The results of a batch, in the order of its requests."""

    results: tuple[ItemResult | Refused, ...]


class Batch(Request[BatchResults], frozen=True, kw_only=True, tag="batch"):
    """Requests of one tenant, with one response for all. Each adds one record to the log."""

    items: Annotated[tuple[Item, ...], Meta(min_length=1, max_length=MAX_ITEMS)]


class KeyService(Protocol):
    """The key service as its clients see it."""

    async def execute(self, request: Request[R_co], attribution: Attribution, /) -> R_co:
        """Execute one request. Raises KeyServiceError."""
        ...


def _refuse_reserved(context: bytes) -> None:
    if context.startswith(RESERVED_CONTEXT):
        raise ValueError("a context must not begin with pqkeep's reserved prefix")


def _require_default(keyring: KeyringName) -> None:
    if keyring != DEFAULT_KEYRING:
        raise ValueError("a request for all keyrings must name the default keyring")


def _refuse_default(keyring: KeyringName) -> None:
    if keyring == DEFAULT_KEYRING:
        raise ValueError("the default keyring cannot be deleted")


def _require_one_key(version: int | None, public_key: bytes | None) -> None:
    if (version is None) is (public_key is None):
        raise ValueError("give either a version or a public key")
