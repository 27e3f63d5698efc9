"""Letters, and what is confirmed by them: addresses, new passwords, codes."""

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"


def upgrade() -> None:
    """Create their tables and columns."""
    op.create_table(
        "registrations",
        sa.Column("digest", sa.LargeBinary(32), primary_key=True),
        sa.Column("email", sa.String(254), nullable=False),
        sa.Column("email_key", sa.String(254), nullable=False, index=True),
        sa.Column("until_us", sa.BigInteger, nullable=False),
    )
    op.create_table(
        "password_resets",
        sa.Column("digest", sa.LargeBinary(32), primary_key=True),
        sa.Column("email_key", sa.String(254), nullable=False, index=True),
        sa.Column("until_us", sa.BigInteger, nullable=False),
    )
    op.create_table(
        "letters",
        sa.Column("id", sa.Uuid, primary_key=True),
        sa.Column("kind", sa.String(32), nullable=False),
        sa.Column("recipient", sa.String(254), nullable=False),
        sa.Column("by", sa.String(254), nullable=False),
        sa.Column("salt", sa.LargeBinary(16), nullable=False),
        sa.Column("written_at_us", sa.BigInteger, nullable=False),
        sa.Column("until_us", sa.BigInteger, nullable=False),
        sa.Column("due_us", sa.BigInteger, nullable=False, index=True),
        sa.Column("tries", sa.Integer, nullable=False),
    )
    for table, name in (("users", "email_codes"), ("sessions", "by_code")):
        op.add_column(table, sa.Column(name, sa.Boolean, nullable=False, server_default=sa.false()))
    op.add_column("challenges", sa.Column("code", sa.LargeBinary(32), nullable=True))
    op.add_column(
        "challenges", sa.Column("code_tries", sa.Integer, nullable=False, server_default="0")
    )
