"""Keyrings, keys, root-key check values, audit records."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    """Create the first tables."""
    op.create_table(
        "root_keys",
        sa.Column("id", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("check_value", sa.LargeBinary, nullable=False),
    )
    op.create_table(
        "keyrings",
        sa.Column("tenant_id", sa.Uuid, primary_key=True),
        sa.Column("algorithm", sa.String(32), primary_key=True),
        sa.Column("revision", sa.Integer, nullable=False),
        sa.Column("versions", sa.Integer, nullable=False),
    )
    op.create_table(
        "keys",
        sa.Column("tenant_id", sa.Uuid, primary_key=True),
        sa.Column("algorithm", sa.String(32), primary_key=True),
        sa.Column("version", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("status", sa.String(16), nullable=False),
        sa.Column("public_key", sa.LargeBinary, nullable=False),
        sa.Column("sealed_seed", sa.LargeBinary, nullable=True),
        sa.Column("created_at_us", sa.BigInteger, nullable=False),
        sa.ForeignKeyConstraint(
            ["tenant_id", "algorithm"], ["keyrings.tenant_id", "keyrings.algorithm"]
        ),
    )
    op.create_index(
        "one_active_key",
        "keys",
        ["tenant_id", "algorithm"],
        unique=True,
        sqlite_where=sa.text("status = 'active'"),
        postgresql_where=sa.text("status = 'active'"),
    )
    counter = sa.BigInteger().with_variant(sa.Integer, "sqlite")
    op.create_table(
        "audit_records",
        sa.Column("sequence", counter, primary_key=True, autoincrement=True),
        sa.Column("recorded_at_us", sa.BigInteger, nullable=False),
        sa.Column("tenant_id", sa.String(36), nullable=False),
        sa.Column("principal", sa.String(128), nullable=False),
        sa.Column("operation", sa.String(32), nullable=False),
        sa.Column("algorithm", sa.String(32), nullable=True),
        sa.Column("key_version", sa.Integer, nullable=True),
        sa.Column("outcome", sa.String(32), nullable=False),
        sa.Column("request_id", sa.String(128), nullable=False),
        sa.Column("source_address", sa.String(64), nullable=False),
        sa.Column("policy", sa.String(128), nullable=False),
    )
