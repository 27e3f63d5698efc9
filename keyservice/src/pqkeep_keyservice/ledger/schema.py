"""The audit log's tables. Migrations in ``storage`` create them."""

from sqlalchemy import (
    BigInteger,
    Column,
    ColumnElement,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    PrimaryKeyConstraint,
    SmallInteger,
    String,
    Table,
    UniqueConstraint,
    select,
    text,
)

from pqkeep_protocol.keys import MAX_KEYRING_NAME, MAX_RECORDED_NAME, TenantId

METADATA = MetaData()

KEYRING_TEXT = String(MAX_KEYRING_NAME).with_variant(
    String(MAX_KEYRING_NAME, collation="C"), "postgresql"
)
"""The type of keyring names. Their order is that of their bytes, in SQLite and in PostgreSQL."""

AUDIT_RECORDS = Table(
    "audit_records",
    METADATA,
    Column("id", BigInteger().with_variant(Integer, "sqlite"), primary_key=True),
    Column("format", SmallInteger, nullable=False),
    Column("tenant_id", String(36), nullable=False),
    Column("number", BigInteger, nullable=False),
    Column("recorded_at_us", BigInteger, nullable=False),
    Column("nonce", LargeBinary(16), nullable=False),
    Column("principal", String(128), nullable=False),
    Column("operation", String(32), nullable=False),
    Column("algorithm", String(32), nullable=True),
    Column("key_version", Integer, nullable=True),
    Column("outcome", String(32), nullable=False),
    Column("request_id", String(128), nullable=False),
    Column("source_address", String(64), nullable=False),
    Column("policy", String(128), nullable=False),
    Column("event_id", String(36), nullable=True),
    Column("happened_at_us", BigInteger, nullable=True),
    Column("public_key_sha256", LargeBinary(32), nullable=True),
    Column("keyring_revision", Integer, nullable=True),
    Column("keyring", KEYRING_TEXT, nullable=True),
    Column("target", String(192), nullable=True),
    Column("rule", String(MAX_RECORDED_NAME), nullable=True),
    Column("campaign", String(MAX_RECORDED_NAME), nullable=True),
    UniqueConstraint("tenant_id", "number"),
)
"""``id`` counts all records from 1, ``number`` a tenant's own; see records.py.

The unique partial index ``one_event`` ensures that no event is recorded twice.
"""

IS_SUCCESSION = text("operation = 'continue-log'")
"""The condition for records that link the log to a predecessor. The partial index ``successions``
needs this exact text, without parameters."""

IS_MOVE = text("operation IN ('tenant-moved-out', 'tenant-moved-in') AND keyring IS NULL")
"""The condition for records of a departure or arrival. The partial index ``moves`` needs this exact
text, without parameters."""

COMMON_OPERATIONS = (
    "encrypt",
    "decrypt",
    "encapsulate",
    "decapsulate",
    "sign",
    "verify",
    "wrap",
    "unwrap",
    "sign-hash",
    "verify-hash",
    "sign-mu",
    "verify-mu",
    "sign-jws",
    "re-encrypt",
    "generate-data-key",
    "compute-mac",
    "verify-mac",
)
"""The operations of most records. The index ``rare_operations`` excludes them, so do not change
them."""

RARE = {
    "operation": text(
        " AND ".join(f"operation <> '{operation}'" for operation in COMMON_OPERATIONS)
    ),
    "outcome": text("outcome <> 'success'"),
    "refused": text(
        "outcome NOT IN ('success', 'begun', 'handed-out', 'completed', 'cancelled',"
        " 'verification-failed')"
    ),
    "rule": text("rule IS NOT NULL"),
    "campaign": text("campaign IS NOT NULL"),
}
"""Conditions for rare records. The partial indexes ``rare_operations``, ``rare_outcomes``,
``refusals``, ``rules`` and ``campaigns`` need these exact texts, without parameters. For other
records they cost one comparison."""

AUDIT_TILES = Table(
    "audit_tiles",
    METADATA,
    Column("level", Integer, primary_key=True, autoincrement=False),
    Column("position", BigInteger, primary_key=True, autoincrement=False),
    Column("hash", LargeBinary(32), nullable=False),
)
"""Every eighth level of the tree over the records; see merkle.py."""

AUDIT_CHECKPOINTS = Table(
    "audit_checkpoints",
    METADATA,
    Column("size", BigInteger, primary_key=True, autoincrement=False),
    Column("algorithm", String(32), primary_key=True),
    Column("log_id", String(36), nullable=False),
    Column("root", LargeBinary(32), nullable=False),
    Column("at_us", BigInteger, nullable=False),
    Column("key_version", Integer, nullable=False),
    Column("signature", LargeBinary, nullable=False),
    Index("checkpoints_by_algorithm", "algorithm", "size"),
)

AUDIT_COSIGNATURES = Table(
    "audit_cosignatures",
    METADATA,
    Column("witness", String(128), primary_key=True),
    Column("size", BigInteger, primary_key=True, autoincrement=False),
    Column("origin", String(128), nullable=False),
    Column("signature", LargeBinary, nullable=False),
    Index("cosignatures_by_size", "size"),
)
"""Cosignatures of Dilithium3 checkpoints: key id, time and signature; see signed_notes.py."""

AUDIT_LOG = Table(
    "audit_log",
    METADATA,
    Column("log_id", String(36), primary_key=True),
    Column("counted_until", BigInteger, nullable=False),
)
"""One row: the log's id, and the last record that the tables of counts include."""

IS_UNCOUNTED = AUDIT_RECORDS.c.id > select(AUDIT_LOG.c.counted_until).scalar_subquery()
"""The condition for records after the newest checkpoint."""


def is_uncounted_of(tenant: TenantId) -> ColumnElement[bool]:
    """Return the condition for uncounted records of a tenant.

    It avoids comparing the plain column. Otherwise SQLite would use the column's index and read all
    records of the tenant, instead of the few uncounted ones.
    """
    return AUDIT_RECORDS.c.tenant_id.concat("") == str(tenant)


KEY_USAGE = Table(
    "key_usage",
    METADATA,
    Column("tenant_id", String(36), primary_key=True),
    Column("keyring", KEYRING_TEXT, primary_key=True),
    Column("algorithm", String(32), primary_key=True),
    Column("key_version", Integer, primary_key=True, autoincrement=False),
    Column("principal", String(128), primary_key=True),
    Column("operation", String(32), primary_key=True),
    Column("uses", BigInteger, nullable=False),
    Column("first_used_us", BigInteger, nullable=False),
    Column("last_used_us", BigInteger, nullable=False),
    Index("key_usage_by_principal", "tenant_id", "principal"),
)
"""All uses; see uses.py."""

KEY_TOTALS = Table(
    "key_totals",
    METADATA,
    Column("tenant_id", String(36), primary_key=True),
    Column("keyring", KEYRING_TEXT, primary_key=True),
    Column("algorithm", String(32), primary_key=True),
    Column("key_version", Integer, primary_key=True, autoincrement=False),
    Column("uses", BigInteger, nullable=False),
    Column("first_used_us", BigInteger, nullable=False),
    Column("last_used_us", BigInteger, nullable=False),
)
"""All uses of each key version. So lists sort by use without adding up KEY_USAGE."""

USES = Table(
    "uses",
    METADATA,
    Column("tenant_id", String(36), nullable=False),
    Column("keyring", KEYRING_TEXT, nullable=False),
    Column("algorithm", String(32), nullable=False),
    Column("key_version", Integer, nullable=False),
    Column("principal", String(128), nullable=False),
    Column("operation", String(32), nullable=False),
    Column("day", Integer, nullable=False),
    Column("uses", BigInteger, nullable=False),
    Column("first_used_us", BigInteger, nullable=False),
    Column("last_used_us", BigInteger, nullable=False),
    PrimaryKeyConstraint(
        *("tenant_id", "keyring", "algorithm", "key_version", "day", "principal", "operation")
    ),
    Index("uses_by_day", "day"),
    Index("uses_of_tenant_by_day", "tenant_id", "day"),
)
"""The uses by day. ``day`` counts from 1970; an old month has its first day."""

USE_PRINCIPALS = Table(
    "use_principals",
    METADATA,
    Column("month", Integer, primary_key=True, autoincrement=False),
    Column("tenant_id", String(36), primary_key=True),
    Column("principal", String(128), primary_key=True),
)
"""The principals that are counted by themselves in a month. Past months are dropped. The month
``uses.EVER`` has all principals of KEY_USAGE, to search their names."""

CAMPAIGN_MOVES = Table(
    "campaign_moves",
    METADATA,
    Column("tenant_id", String(36), primary_key=True),
    Column("campaign", String(MAX_RECORDED_NAME), primary_key=True),
    Column("keyring", KEYRING_TEXT, primary_key=True),
    Column("algorithm", String(32), primary_key=True),
    Column("key_version", Integer, primary_key=True, autoincrement=False),
    Column("target", String(192), primary_key=True),
    Column("count", BigInteger, nullable=False),
    Column("first_us", BigInteger, nullable=False),
    Column("last_us", BigInteger, nullable=False),
)
"""The re-encryptions of campaigns, from each source version to each target; see campaigns.py."""

OPERATION_COUNTS = Table(
    "operation_counts",
    METADATA,
    Column("tenant_id", String(36), primary_key=True),
    Column("hour", Integer, primary_key=True, autoincrement=False),
    Column("operation", String(32), primary_key=True),
    Column("count", BigInteger, nullable=False),
    Index("operation_counts_by_hour", "hour"),
)
"""``hour`` counts from 1970; see key_usage.py."""
