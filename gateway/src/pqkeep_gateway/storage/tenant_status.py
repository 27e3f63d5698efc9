"""The lock of a tenant: its row."""

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from pqkeep_gateway.access.entitlements import TenantNotFoundError, TenantStatus
from pqkeep_gateway.storage.schema import TENANTS
from pqkeep_protocol.keys import TenantId


async def lock_tenant(connection: AsyncConnection, tenant: TenantId) -> None:
    """Allow only one transaction at a time to change a tenant's data.

    Inserts of rows that refer to the tenant do not wait (``FOR NO KEY UPDATE``).
    """
    query = sa.select(TENANTS.c.id).where(TENANTS.c.id == tenant)
    await connection.execute(query.with_for_update(key_share=True))


async def lock_tenant_to_add(connection: AsyncConnection, tenant: TenantId) -> None:
    """Lock a tenant before an addition. Raises TenantNotFoundError if it was deleted."""
    await lock_tenant(connection, tenant)
    query = sa.select(TENANTS.c.status).where(TENANTS.c.id == tenant)
    status = (await connection.execute(query)).scalar_one_or_none()
    if status in {None, TenantStatus.DELETED}:
        raise TenantNotFoundError
