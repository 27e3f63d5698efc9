"""What the service returns. A repr shows neither secrets nor long byte strings.

Times are aware, in UTC. Identifiers are UUIDs as text.
"""

from dataclasses import dataclass, field
from datetime import datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Ciphertext:
    """Encrypted data. Keep all three: decryption needs them."""

    ciphertext: bytes = field(repr=False)
    key_version: int
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
    """``KEM-DEM``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Signature:
    """A signature. Keep all three: verification needs them."""

    signature: bytes = field(repr=False)
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
    """``active``, ``retired`` or ``archived``."""
    public_key: bytes = field(repr=False)
    created_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Rotation:
    """A new active key, and the version that it replaced."""

    public_key: bytes = field(repr=False)
    key_version: int
    algorithm: str
    old_key_version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyUsage:
    """How much one version of a key is in use."""

    key_version: int
    algorithm: str
    uses: int
    """Operations that used it, and succeeded."""
    last_used_at: datetime | None


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
class ApiKey:
    """What can be told of an API key."""

    key_last4: str
    version: int
    status: str
    """``active`` or ``revoked``."""
    created_at: datetime
    revoked_at: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class NewApiKey:
    """An API key, shown this once."""

    api_key: str = field(repr=False)
    key_last4: str
    version: int
    status: str
    created_at: datetime


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
    """The fingerprint of the key that was generated, in hexadecimal."""
    keyring_revision: int | None
    """How often the tenant's keys of the algorithm had been changed, with this change."""


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Health:
    """Requests would be answered."""

    status: str
    """``ok``."""
