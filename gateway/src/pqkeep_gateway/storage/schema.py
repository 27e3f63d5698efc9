"""The tables of the accounts database. Migrations bring them about."""

from sqlalchemy import (
    BigInteger,
    Column,
    ForeignKey,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    Uuid,
)

METADATA = MetaData()

TENANTS = Table(
    "tenants",
    METADATA,
    Column("id", Uuid, primary_key=True),
    Column("name", String(255), nullable=False, unique=True),
    Column("tier", String(32), nullable=False),
    Column("subscription", String(16), nullable=False),
    Column("requests_per_minute", Integer, nullable=True),
    Column("status", String(16), nullable=False),
    Column("created_at_us", BigInteger, nullable=False),
    Column("updated_at_us", BigInteger, nullable=False),
)

API_KEYS = Table(
    "api_keys",
    METADATA,
    Column("tenant_id", Uuid, ForeignKey("tenants.id"), primary_key=True),
    Column("version", Integer, primary_key=True, autoincrement=False),
    Column("digest", LargeBinary(32), nullable=False, unique=True),
    Column("last4", String(4), nullable=False),
    Column("status", String(16), nullable=False),
    Column("created_at_us", BigInteger, nullable=False),
    Column("revoked_at_us", BigInteger, nullable=True),
    Column("accepted_until_us", BigInteger, nullable=True),
)
"""``accepted_until_us``: of a key that was rotated, the end of its overlap with the new one."""

USAGE = Table(
    "usage",
    METADATA,
    Column("tenant_id", Uuid, ForeignKey("tenants.id"), primary_key=True),
    Column("month", String(7), primary_key=True),
    Column("operations", Integer, nullable=False),
)
"""Operations that succeeded, of the tenants that have an allowance; ``month``: 2026-01, UTC."""

IDEMPOTENCY_KEYS = Table(
    "idempotency_keys",
    METADATA,
    Column("key", LargeBinary(32), primary_key=True),
    Column("request", LargeBinary(32), nullable=False),
    Column("tenant_id", Uuid, ForeignKey("tenants.id"), nullable=False),
    Column("api_key_version", Integer, nullable=True),
    Column("revoked_version", Integer, nullable=True),
    Column("salt", LargeBinary(16), nullable=True),
    Column("made_at_us", BigInteger, nullable=False, index=True),
)
"""What a client's Idempotency-Key made: a tenant, or an API key, which its ``salt`` makes again."""

OUTBOX = Table(
    "outbox",
    METADATA,
    Column("id", String(36), primary_key=True),
    Column("at_us", BigInteger, nullable=False, index=True),
    Column("event", LargeBinary, nullable=False),
)
"""Events on their way into the audit log, as msgpack; see pqkeep_protocol.audit.Event."""
