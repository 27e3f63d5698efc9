"""Contracts, invoice lines and notices of billing; the answers that Idempotency-Keys give again."""

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"


def upgrade() -> None:
    """Create their tables and column."""
    op.create_table(
        "contracts",
        sa.Column("id", sa.Uuid, primary_key=True),
        sa.Column("tenant_id", sa.Uuid, sa.ForeignKey("tenants.id"), nullable=False),
        sa.Column("tier", sa.String(32), nullable=False),
        sa.Column("status", sa.String(16), nullable=False),
        sa.Column("begun_at_us", sa.BigInteger, nullable=False),
        sa.Column("period_start_us", sa.BigInteger, nullable=False),
        sa.Column("period_end_us", sa.BigInteger, nullable=False, index=True),
        sa.Column("as_of_us", sa.BigInteger, nullable=False),
        sa.Column("price_cents", sa.BigInteger, nullable=False),
        sa.Column("cancel_at_period_end", sa.Boolean, nullable=False),
        sa.Column("external_id", sa.String(255), nullable=True, unique=True),
        sa.Column("revision", sa.Integer, nullable=False),
    )
    runs = sa.text("status != 'ended'")
    op.create_index(
        "ix_contracts_running",
        "contracts",
        ["tenant_id"],
        unique=True,
        sqlite_where=runs,
        postgresql_where=runs,
    )
    op.create_table(
        "invoices",
        sa.Column("id", sa.Uuid, primary_key=True),
        sa.Column("tenant_id", sa.Uuid, sa.ForeignKey("tenants.id"), nullable=False, index=True),
        sa.Column("tier", sa.String(32), nullable=False),
        sa.Column("amount_cents", sa.BigInteger, nullable=False),
        sa.Column("currency", sa.String(3), nullable=False),
        sa.Column("period_start_us", sa.BigInteger, nullable=False),
        sa.Column("period_end_us", sa.BigInteger, nullable=False),
        sa.Column("created_at_us", sa.BigInteger, nullable=False),
        sa.Column("external_id", sa.String(255), nullable=True, unique=True),
    )
    op.create_table(
        "billing_notices",
        sa.Column("id", sa.String(255), primary_key=True),
        sa.Column("heard_at_us", sa.BigInteger, nullable=False, index=True),
    )
    op.add_column("idempotency_keys", sa.Column("answer", sa.LargeBinary, nullable=True))
