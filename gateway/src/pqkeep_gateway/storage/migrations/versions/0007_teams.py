"""Names for invitations, and when somebody signed in last."""

from uuid import uuid4

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"

_INVITATIONS = sa.table("invitations", sa.column("digest"), sa.column("id", sa.Uuid))


def upgrade() -> None:
    """Add a column each; invitations that wait get their names now."""
    op.add_column("users", sa.Column("last_sign_in_at_us", sa.BigInteger, nullable=True))
    op.add_column("invitations", sa.Column("id", sa.Uuid, nullable=True))
    connection = op.get_bind()
    for digest in list(connection.execute(sa.select(_INVITATIONS.c.digest)).scalars()):
        name = sa.update(_INVITATIONS).where(_INVITATIONS.c.digest == digest)
        connection.execute(name.values(id=uuid4()))
    with op.batch_alter_table("invitations") as invitations:
        invitations.alter_column("id", existing_type=sa.Uuid(), nullable=False)
        invitations.create_index("ix_invitations_id", ["id"], unique=True)
