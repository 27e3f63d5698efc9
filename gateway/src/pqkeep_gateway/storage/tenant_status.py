"""The lock of a tenant: its row."""

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from pqkeep_gateway.access.entitlements import TenantNotFoundError, TenantStatus
from pqkeep_gateway.storage.schema import TENANTS
from pqkeep_protocol.keys import TenantId


async def lock_tenant(connection: AsyncConnection, tenant: TenantId) -> None:
    """Let one transaction at a time change what belongs to a tenant.

    Inserting rows that refer to the tenant does not wait for it (``FOR NO KEY UPDATE``).
    """
    query = sa.select(TENANTS.c.id).where(TENANTS.c.id == tenant)
    await connection.execute(query.with_for_update(key_share=True))


async def lock_tenant_to_add(connection: AsyncConnection, tenant: TenantId) -> None:
    """Lock a tenant that gets something new. Raises TenantNotFoundError where it was deleted meanwhile."""
    await lock_tenant(connection, tenant)
    query = sa.select(TENANTS.c.status).where(TENANTS.c.id == tenant)
    status = (await connection.execute(query)).scalar_one_or_none()
    if status in {None, TenantStatus.DELETED}:
        raise TenantNotFoundError
