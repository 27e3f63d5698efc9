"""Idempotency keys."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    """Create their table."""
    op.create_table(
        "idempotency_keys",
        sa.Column("key", sa.LargeBinary(32), primary_key=True),
        sa.Column("request", sa.LargeBinary(32), nullable=False),
        sa.Column("tenant_id", sa.Uuid, sa.ForeignKey("tenants.id"), nullable=False),
        sa.Column("api_key_version", sa.Integer, nullable=True),
        sa.Column("revoked_version", sa.Integer, nullable=True),
        sa.Column("salt", sa.LargeBinary(16), nullable=True),
        sa.Column("made_at_us", sa.BigInteger, nullable=False),
    )
    op.create_index("ix_idempotency_keys_made_at_us", "idempotency_keys", ["made_at_us"])
