"""Second factors, challenges and step-up tokens."""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"


def upgrade() -> None:
    """Create their tables and columns."""
    op.add_column("users", sa.Column("totp_salt", sa.LargeBinary(16), nullable=True))
    op.add_column("users", sa.Column("totp_step", sa.BigInteger, nullable=True))
    op.add_column(
        "users", sa.Column("has_mfa", sa.Boolean, nullable=False, server_default=sa.false())
    )
    op.add_column(
        "tenants", sa.Column("requires_mfa", sa.Boolean, nullable=False, server_default=sa.false())
    )
    for name in ("recovery_codes", "challenges", "step_up_tokens"):
        op.create_table(
            name,
            sa.Column("digest", sa.LargeBinary(32), primary_key=True),
            sa.Column("user_id", sa.Uuid, sa.ForeignKey("users.id"), nullable=False, index=True),
            *_OTHERS.get(name, ()),
        )


_OTHERS = {
    "challenges": (sa.Column("until_us", sa.BigInteger, nullable=False),),
    "step_up_tokens": (
        sa.Column("until_us", sa.BigInteger, nullable=False),
        sa.Column("is_reserved", sa.Boolean, nullable=False),
    ),
}
