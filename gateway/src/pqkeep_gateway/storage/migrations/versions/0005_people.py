"""People, their sessions, and invitations."""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    """Create their tables."""
    op.create_table(
        "users",
        sa.Column("id", sa.Uuid, primary_key=True),
        sa.Column("tenant_id", sa.Uuid, sa.ForeignKey("tenants.id"), nullable=False, index=True),
        sa.Column("email", sa.String(254), nullable=False),
        sa.Column("email_key", sa.String(254), nullable=False, unique=True),
        sa.Column("password_hash", sa.String(255), nullable=False),
        sa.Column("role", sa.String(16), nullable=False),
        sa.Column("created_at_us", sa.BigInteger, nullable=False),
    )
    op.create_table(
        "sessions",
        sa.Column("id", sa.Uuid, primary_key=True),
        sa.Column("user_id", sa.Uuid, sa.ForeignKey("users.id"), nullable=False, index=True),
        sa.Column("access", sa.LargeBinary(32), nullable=False, unique=True),
        sa.Column("access_until_us", sa.BigInteger, nullable=False),
        sa.Column("refresh", sa.LargeBinary(32), nullable=False, unique=True),
        sa.Column("refresh_until_us", sa.BigInteger, nullable=False),
        sa.Column("created_at_us", sa.BigInteger, nullable=False),
        sa.Column("refreshed_at_us", sa.BigInteger, nullable=False),
        sa.Column("source_address", sa.String(64), nullable=False),
    )
    op.create_table(
        "spent_tokens",
        sa.Column("digest", sa.LargeBinary(32), primary_key=True),
        sa.Column("session_id", sa.Uuid, sa.ForeignKey("sessions.id"), nullable=False, index=True),
        sa.Column("until_us", sa.BigInteger, nullable=False),
    )
    op.create_table(
        "invitations",
        sa.Column("digest", sa.LargeBinary(32), primary_key=True),
        sa.Column("tenant_id", sa.Uuid, sa.ForeignKey("tenants.id"), nullable=False),
        sa.Column("email", sa.String(254), nullable=False),
        sa.Column("email_key", sa.String(254), nullable=False, index=True),
        sa.Column("role", sa.String(16), nullable=False),
        sa.Column("expires_at_us", sa.BigInteger, nullable=False),
    )
