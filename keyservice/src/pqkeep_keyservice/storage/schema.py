"""The tables of the key service's database. Migrations bring them about."""

from sqlalchemy import (
    BigInteger,
    Column,
    ForeignKeyConstraint,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    UniqueConstraint,
    Uuid,
)

METADATA = MetaData()
_COUNTER = BigInteger().with_variant(Integer, "sqlite")  # where only INTEGER counts by itself

ROOT_KEYS = Table(
    "root_keys",
    METADATA,
    Column("id", Integer, primary_key=True, autoincrement=False),
    Column("check_value", LargeBinary, nullable=False),
)

KEYRINGS = Table(
    "keyrings",
    METADATA,
    Column("tenant_id", Uuid, primary_key=True),
    Column("algorithm", String(32), primary_key=True),
    Column("revision", Integer, nullable=False),
    Column("versions", Integer, nullable=False),
)
"""``versions`` counts the keys, so that a row that is gone is missed."""

KEYS = Table(
    "keys",
    METADATA,
    Column("tenant_id", Uuid, primary_key=True),
    Column("algorithm", String(32), primary_key=True),
    Column("version", Integer, primary_key=True, autoincrement=False),
    Column("status", String(16), nullable=False),
    Column("public_key", LargeBinary, nullable=False),
    Column("sealed_seed", LargeBinary, nullable=True),
    Column("created_at_us", BigInteger, nullable=False),
    ForeignKeyConstraint(["tenant_id", "algorithm"], ["keyrings.tenant_id", "keyrings.algorithm"]),
)
"""``one_active_key``, a unique partial index, says that no keyring has two active keys."""

IDEMPOTENCY_KEYS = Table(
    "idempotency_keys",
    METADATA,
    Column("tenant_id", Uuid, primary_key=True),
    Column("key", LargeBinary(32), primary_key=True),
    Column("request", LargeBinary(32), nullable=False),
    Column("key_version", Integer, nullable=False),
    Column("made_at_us", BigInteger, nullable=False, index=True),
)
"""Which key version a client's Idempotency-Key made; see pqkeep_protocol.messages.Once."""

AUDIT_RECORDS = Table(
    "audit_records",
    METADATA,
    Column("id", BigInteger().with_variant(Integer, "sqlite"), primary_key=True),
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
    UniqueConstraint("tenant_id", "number"),
)
"""``id`` counts all records from 1, ``number`` a tenant's own; see records.py.

``one_event``, a unique partial index, says that no event is recorded twice.
"""

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
    Column("root", LargeBinary(32), nullable=False),
    Column("at_us", BigInteger, nullable=False),
    Column("key_version", Integer, nullable=False),
    Column("signature", LargeBinary, nullable=False),
)

AUDIT_LOG = Table(
    "audit_log",
    METADATA,
    Column("log_id", String(36), primary_key=True),
    Column("used_until", BigInteger, nullable=False),
)
"""One row: which log this is, and up to which record ``key_usage`` counts."""

KEY_USAGE = Table(
    "key_usage",
    METADATA,
    Column("tenant_id", String(36), primary_key=True),
    Column("algorithm", String(32), primary_key=True),
    Column("key_version", Integer, primary_key=True, autoincrement=False),
    Column("uses", BigInteger, nullable=False),
    Column("last_used_us", BigInteger, nullable=False),
)
