"""The tables of keys. Migrations create them; the audit log's are in ``ledger/schema.py``."""

from sqlalchemy import (
    BigInteger,
    Column,
    ForeignKeyConstraint,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    Uuid,
)

METADATA = MetaData()

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
"""Which key version a client's Idempotency-Key made; see pqkeep_protocol.messages.Idempotency."""
