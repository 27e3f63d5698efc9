"""Records get their places in a tree; checkpoints and usage are kept."""

import uuid

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"

NONCE = {"sqlite": "randomblob(16)", "postgresql": "uuid_send(gen_random_uuid())"}

RECORDS = """
INSERT INTO audit_records
SELECT
    row_number() OVER (ORDER BY sequence),
    tenant_id,
    row_number() OVER (PARTITION BY tenant_id ORDER BY sequence),
    max(recorded_at_us) OVER (ORDER BY sequence),
    {nonce},
    principal, operation, algorithm, key_version, outcome, request_id, source_address, policy,
    NULL, NULL
FROM audit_records_before
"""


def upgrade() -> None:
    """Carry the records over, in their order."""
    op.rename_table("audit_records", "audit_records_before")
    op.create_table(
        "audit_records",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer, "sqlite"), primary_key=True),
        sa.Column("tenant_id", sa.String(36), nullable=False),
        sa.Column("number", sa.BigInteger, nullable=False),
        sa.Column("recorded_at_us", sa.BigInteger, nullable=False),
        sa.Column("nonce", sa.LargeBinary(16), nullable=False),
        sa.Column("principal", sa.String(128), nullable=False),
        sa.Column("operation", sa.String(32), nullable=False),
        sa.Column("algorithm", sa.String(32), nullable=True),
        sa.Column("key_version", sa.Integer, nullable=True),
        sa.Column("outcome", sa.String(32), nullable=False),
        sa.Column("request_id", sa.String(128), nullable=False),
        sa.Column("source_address", sa.String(64), nullable=False),
        sa.Column("policy", sa.String(128), nullable=False),
        sa.Column("event_id", sa.String(36), nullable=True),
        sa.Column("happened_at_us", sa.BigInteger, nullable=True),
        sa.UniqueConstraint("tenant_id", "number"),
    )
    op.create_index(
        "one_event",
        "audit_records",
        ["event_id"],
        unique=True,
        sqlite_where=sa.text("event_id IS NOT NULL"),
        postgresql_where=sa.text("event_id IS NOT NULL"),
    )
    op.execute(RECORDS.format(nonce=NONCE[op.get_context().dialect.name]))
    op.drop_table("audit_records_before")
    op.create_table(
        "audit_tiles",
        sa.Column("level", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("position", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("hash", sa.LargeBinary(32), nullable=False),
    )
    op.create_table(
        "audit_checkpoints",
        sa.Column("size", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("algorithm", sa.String(32), primary_key=True),
        sa.Column("root", sa.LargeBinary(32), nullable=False),
        sa.Column("at_us", sa.BigInteger, nullable=False),
        sa.Column("key_version", sa.Integer, nullable=False),
        sa.Column("signature", sa.LargeBinary, nullable=False),
    )
    log = op.create_table(
        "audit_log",
        sa.Column("log_id", sa.String(36), primary_key=True),
        sa.Column("used_until", sa.BigInteger, nullable=False),
    )
    op.bulk_insert(log, [{"log_id": str(uuid.uuid4()), "used_until": 0}])
    op.create_table(
        "key_usage",
        sa.Column("tenant_id", sa.String(36), primary_key=True),
        sa.Column("algorithm", sa.String(32), primary_key=True),
        sa.Column("key_version", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("uses", sa.BigInteger, nullable=False),
        sa.Column("last_used_us", sa.BigInteger, nullable=False),
    )
