"""What the service returns. A repr shows neither secrets nor long byte strings.

Times are aware, in UTC. Identifiers are UUIDs as text.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Generic, TypeVar

from pqkeep.errors import MalformedResponseError

R_co = TypeVar("R_co", covariant=True)
INFO_LINES = 5
"""Of an import key's info: what it is, its id, the algorithm, the keyring, and the end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ciphertext:
    """Encrypted data. Keep all three: decryption needs them."""

    ciphertext: bytes = field(repr=False)
    key_version: int
    algorithm: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Envelope:
    """Encrypted data that says which key it is for. Keep the text: decryption needs nothing else."""

    envelope: str = field(repr=False)
    key_version: int
    algorithm: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedSecret:
    """A new shared secret (32 bytes), and what the owner of a public key recovers it from."""

    kem_ciphertext: bytes = field(repr=False)
    shared_secret: bytes = field(repr=False)
    algorithm: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Encapsulation:
    """A new shared secret (32 bytes), and what the key's owner recovers it from."""

    kem_ciphertext: bytes = field(repr=False)
    shared_secret: bytes = field(repr=False)
    key_version: int
    algorithm: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WrappedKey:
    """A wrapped symmetric key. Keep the first three: unwrapping needs them."""

    wrapped_key: bytes = field(repr=False)
    key_version: int
    algorithm: str
    wrapping_method: str
    """``KEM-DEM``; for a symmetric key ``XAES-256-GCM``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DataKey:
    """A new data key: encrypted in one of three forms, and in the clear if it was asked for."""

    plaintext: bytes | None = field(repr=False)
    wrapped_key: bytes | None = field(repr=False)
    """For ``kem.unwrap``."""
    ciphertext: bytes | None = field(repr=False)
    """For ``kem.decrypt``."""
    envelope: str | None = field(repr=False)
    """For ``kem.decrypt_envelope``."""
    key_version: int
    algorithm: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Mac:
    """A MAC. Keep all three: verification needs them."""

    mac: bytes = field(repr=False)
    key_version: int
    algorithm: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ReEncrypted:
    """What was re-encrypted, in one of three forms, and the key that it is under now."""

    ciphertext: bytes | None = field(repr=False)
    envelope: str | None = field(repr=False)
    wrapped_key: bytes | None = field(repr=False)
    key_version: int
    algorithm: str
    keyring: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Signature:
    """A signature. Keep all three: verification needs them."""

    signature: bytes = field(repr=False)
    key_version: int
    algorithm: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Jws:
    """A JSON Web Signature in compact form. It names its key itself, by the thumbprint."""

    jws: str
    key_version: int
    algorithm: str


@dataclass(frozen=True, slots=True, kw_only=True)
class HashSignature:
    """A signature over a hash. Keep all four: verification needs them."""

    signature: bytes = field(repr=False)
    key_version: int
    algorithm: str
    hash_algorithm: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """One version of a key: its public half and its state."""

    key_version: int
    algorithm: str
    status: str
    """``active``, ``retired``, ``disabled`` or ``archived``."""
    public_key: bytes = field(repr=False)
    """Empty for a symmetric key."""
    created_at: datetime
    archive_at: datetime | None = None
    """When the private key is destroyed, if that is scheduled: until then nothing can use it."""
    imported: bool = False
    """Whether the private key was made elsewhere, and may be known there."""
    keyring: str | None = None
    """Its keyring, where one was named or the keys of all were asked for."""
    fingerprint: str | None = None
    """Of a symmetric key: its check value in hexadecimal. None for other keys."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportKey:
    """A public key to wrap one private key to, for one import; see ``pqkeep.key_import``."""

    import_key_id: str
    public_key: bytes = field(repr=False)
    """ML-KEM-1024."""
    suite: str
    info: bytes = field(repr=False)
    algorithm: str
    """Of the private key."""
    expires_at: datetime

    @property
    def keyring(self) -> str:
        """The keyring that it was made for, which ``info`` binds. Raises MalformedResponseError."""
        lines = self.info.split(b"\n")
        if len(lines) != INFO_LINES or not lines[3].isascii():
            raise MalformedResponseError("the import key's info names no keyring")
        return lines[3].decode("ascii")


@dataclass(frozen=True, slots=True, kw_only=True)
class Keyring:
    """A keyring: a named set of keys, one for each algorithm."""

    name: str
    description: str
    labels: dict[str, str]
    purposes: tuple[str, ...]
    """What its keys may be used for."""
    rotation_days: int | None
    """After how many days an active key is rotated by itself; None: never."""
    archive_after_days: int | None
    """How many days after it was retired a version is archived by itself; None: never."""
    created_at: datetime | None
    """None for ``default``."""
    minimum_decryption_version: int = 0
    """The lowest key version that decrypts, unwraps, decapsulates and verifies; 0: every version."""
    minimum_encryption_version: int = 0
    """The lowest key version that encrypts, wraps, encapsulates and signs; 0: every version."""
    first_version: int = 1
    """The lowest version number of its keys."""
    archive_at: datetime | None = None
    """When the private keys of a deleted keyring are destroyed; None: it is not deleted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PublicKey:
    """A public key in one format."""

    format: str
    """``raw``, ``pem``, ``der`` or ``jwk``."""
    public_key: bytes | str | dict[str, str] = field(repr=False)
    """Bytes of raw and der, the text of pem, the members of jwk."""
    key_version: int
    algorithm: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Rotation:
    """A new active key, and the version that it replaced."""

    public_key: bytes = field(repr=False)
    key_version: int
    algorithm: str
    old_key_version: int
    fingerprint: str | None = None
    """Of a symmetric key: its check value in hexadecimal. None for other keys."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyUsage:
    """How much one version of a key is in use."""

    key_version: int
    algorithm: str
    uses: int
    """Operations that used it, and succeeded."""
    last_used_at: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageBucket:
    """What was done in one hour, or on one day (UTC)."""

    start: datetime
    operations: dict[str, int]
    """How often each operation succeeded; what was not done is left out."""
    succeeded: int
    """All of them together."""
    refused: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BusyApiKey:
    """An API key that sent requests, in this minute and the one before."""

    version: int
    name: str | None
    requests: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """What was done in a period, and what is allowed."""

    period: str
    """``24h`` or ``30d``."""
    buckets: tuple[UsageBucket, ...]
    """The oldest first; the last is the current one."""
    total: int
    """Operations that succeeded, in all buckets."""
    operations_used: int | None
    """In this month. None without a quota."""
    operations_per_month: int | None
    """None: any number."""
    requests_per_minute: int | None
    """None for the usage of all tenants."""
    busiest_api_keys: tuple[BusyApiKey, ...] = ()
    """Those that sent the most requests of late, the most first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tenant:
    """One organisation. The last four are told to the operator only, and not by create."""

    id: str
    name: str
    plan: str
    status: str
    """``active`` or ``suspended``; to the operator also ``deleting`` or ``deleted``."""
    created_at: datetime
    updated_at: datetime
    tier: str | None
    subscription: str | None
    """``active`` or ``ended``."""
    requests_per_minute: int | None
    """None also where the plan says it."""
    deletion_at: datetime | None
    """When the tenant is, or was, deleted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """What an API key may do. None: all."""

    operations: tuple[str, ...] | None = None
    """Names of operations and groups, such as ``use``; docs/api.md has them all."""
    keyrings: tuple[str, ...] | None = None
    """Names of keyrings, or how names begin, followed by ``*``: ``payments.*``."""
    algorithms: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiKey:
    """The properties of an API key, without the key itself."""

    key_last4: str
    version: int
    status: str
    """``active`` or ``revoked``."""
    created_at: datetime
    revoked_at: datetime | None
    last_used_at: datetime | None = None
    """This and what follows only where details were asked for; this one up to 30 seconds late."""
    last_used_from: str | None = None
    """The source address of the last use."""
    overlap_ends_at: datetime | None = None
    """Until when a key that was rotated is still accepted."""
    name: str | None = None
    scopes: tuple[Scope, ...] | None = None
    """None: it may do all that an API key may."""
    expires_at: datetime | None = None
    allowed_addresses: tuple[str, ...] | None = None
    """The networks that it is accepted from."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnApiKey:
    """The API key that a client uses."""

    tenant_id: str
    version: int
    name: str | None
    scopes: tuple[Scope, ...] | None
    """None: everything that an API key may do."""
    expires_at: datetime | None
    allowed_addresses: tuple[str, ...] | None
    """The networks from which it is accepted; None: all networks."""
    rotated: bool
    """Whether a new API key has replaced it, and its overlap runs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NewApiKey:
    """An API key, shown this once. The last four say what was asked for, and else nothing."""

    api_key: str = field(repr=False)
    key_last4: str
    version: int
    status: str
    created_at: datetime
    name: str | None = None
    scopes: tuple[Scope, ...] | None = None
    expires_at: datetime | None = None
    allowed_addresses: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiKeyRotation:
    """A new API key, and the version whose place it takes."""

    new_key: NewApiKey
    revoked_version: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditRecord:
    """What the audit log says about one operation, action or refusal."""

    format: int
    """Which format the record has: docs/audit.md."""
    id: int
    """Counts all records of the log, from 1."""
    number: int
    """Counts the tenant's own records, from 1."""
    tenant_id: str
    operation: str
    outcome: str
    """``success``, or the code of the refusal."""
    algorithm: str | None
    key_version: int | None
    principal: str
    policy: str
    request_id: str
    source_address: str
    recorded_at: datetime
    event_id: str | None
    happened_at: datetime | None
    nonce: str
    public_key_sha256: str | None
    """The fingerprint of the key that was generated or brought by the caller, in hexadecimal."""
    keyring_revision: int | None
    """How often the key or the keyring had been changed, with this change."""
    keyring: str | None = None
    """None for what concerns no keyring."""
    target: str | None = None
    """Of a re-encryption: keyring, algorithm and version of the key that it encrypted to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """What the whole audit log was at a time, signed."""

    log_id: str
    size: int
    """How many records it covers."""
    root: bytes = field(repr=False)
    at: datetime
    algorithm: str
    key_version: int
    signature: bytes = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class InclusionProof:
    """A record, its place in the log's tree, and what leads from it to the signed root."""

    record: AuditRecord
    leaf_index: int
    size: int
    path: tuple[bytes, ...] = field(repr=False)
    """Hashes of 32 bytes, from the leaf's sibling up."""
    checkpoint: Checkpoint


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsistencyProof:
    """What shows that the log of one size grew into that of another."""

    first: int
    second: int
    path: tuple[bytes, ...] = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditKey:
    """A key that checkpoints are verified with."""

    algorithm: str
    key_version: int
    public_key: bytes = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditKeys:
    """All keys that ever signed checkpoints of a log."""

    log_id: str
    keys: tuple[AuditKey, ...]
    note_key: str | None
    """What verifies notes; None before the first checkpoint."""
    logs: tuple[str, ...] = ()
    """The ids of all logs with the tenant's records, the first one first, where there are several."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Health:
    """The service is ready for requests."""

    status: str
    """``ok``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InstallationPart:
    """A part of the installation, and why it is not ready, if it is not."""

    name: str
    is_ready: bool
    reason: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Installation:
    """The state of an installation."""

    version: str
    parts: tuple[InstallationPart, ...]
    facts: Mapping[str, Mapping[str, object] | None]
    """``log``, ``root_key``, ``mail``, ``backups`` and ``tenants``, as the API has them."""
    certificates: Mapping[str, datetime]
    """Until when each is valid."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Operator:
    """A named operator of the installation."""

    name: str
    created_at: datetime
    last_used_at: datetime | None
    last_used_from: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ListPage(Generic[R_co]):
    """A part of a list, and what ``after`` is for the next part; None at the end."""

    items: tuple[R_co, ...]
    next: int | str | None
