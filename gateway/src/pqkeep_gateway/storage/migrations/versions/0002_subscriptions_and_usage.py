"""Subscriptions to tiers, rate limits of a tenant's own, and the month's usage."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    """Turn each tenant's plan into a running subscription to the tier of the same name."""
    op.add_column(
        "tenants",
        sa.Column("subscription", sa.String(16), nullable=False, server_default="active"),
    )
    op.add_column("tenants", sa.Column("requests_per_minute", sa.Integer, nullable=True))
    op.execute("ALTER TABLE tenants RENAME COLUMN plan TO tier")
    op.create_table(
        "usage",
        sa.Column("tenant_id", sa.Uuid, sa.ForeignKey("tenants.id"), primary_key=True),
        sa.Column("month", sa.String(7), primary_key=True),
        sa.Column("operations", sa.Integer, nullable=False),
    )
