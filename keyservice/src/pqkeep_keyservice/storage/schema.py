"""The tables of keys. Migrations create them; the audit log's are in ``ledger/schema.py``."""

from sqlalchemy import (
    BigInteger,
    Column,
    ForeignKeyConstraint,
    Index,
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
    Column("mac", LargeBinary, nullable=False),
)
"""``mac`` is over everything that is stored of a keyring but for the sealed seeds."""

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
    Column("idempotency_key", LargeBinary(32), nullable=True),
    Column("idempotency_request", LargeBinary(32), nullable=True),
    ForeignKeyConstraint(["tenant_id", "algorithm"], ["keyrings.tenant_id", "keyrings.algorithm"]),
    Index("ix_keys_idempotency_key", "tenant_id", "idempotency_key"),
    Index("ix_keys_status", "algorithm", "status"),
)
"""``one_active_key``, a unique partial index, says that no keyring has two active keys.

The Idempotency-Key of the request that generated a key is that of
pqkeep_protocol.messages.Idempotency.
"""
