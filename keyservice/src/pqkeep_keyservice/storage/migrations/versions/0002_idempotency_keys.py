"""Idempotency keys."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    """Create their table."""
    op.create_table(
        "idempotency_keys",
        sa.Column("tenant_id", sa.Uuid, primary_key=True),
        sa.Column("key", sa.LargeBinary(32), primary_key=True),
        sa.Column("request", sa.LargeBinary(32), nullable=False),
        sa.Column("key_version", sa.Integer, nullable=False),
        sa.Column("made_at_us", sa.BigInteger, nullable=False),
    )
    op.create_index("ix_idempotency_keys_made_at_us", "idempotency_keys", ["made_at_us"])
