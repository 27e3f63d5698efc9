"""Operations per tenant and month in SQL."""

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncEngine

from pqkeep_gateway.storage.database import insert_if_absent, read_transaction, transaction
from pqkeep_gateway.storage.schema import USAGE
from pqkeep_protocol.keys import TenantId


class SqlUsage:
    """Counts each tenant's operations in a month. All methods raise UnavailableError."""

    def __init__(self, engine: AsyncEngine) -> None:
        """Take an open database."""
        self._engine = engine

    async def reserve(
        self, tenant: TenantId, month: str, quota: int, operations: int
    ) -> int | None:
        """Count operations, all or none, in one step; return how many the month has then.

        Returns None if the quota has fewer left.
        """
        row = {"tenant_id": tenant, "month": month, "operations": 0}
        more = (
            _of(tenant, month)
            .where(USAGE.c.operations <= quota - operations)
            .values(operations=USAGE.c.operations + operations)
            .returning(USAGE.c.operations)
        )
        async with transaction(self._engine) as connection:
            used: int | None = (await connection.execute(more)).scalar()
            if used is None:
                await insert_if_absent(connection, USAGE, row)
                used = (await connection.execute(more)).scalar()
        return used

    async def release(self, tenant: TenantId, month: str, operations: int) -> None:
        """Subtract failed operations."""
        release = _of(tenant, month).where(USAGE.c.operations >= operations)
        async with transaction(self._engine) as connection:
            await connection.execute(release.values(operations=USAGE.c.operations - operations))

    async def used(self, tenant: TenantId, month: str) -> int:
        """Return the number of counted operations."""
        query = sa.select(USAGE.c.operations).where(
            USAGE.c.tenant_id == tenant, USAGE.c.month == month
        )
        async with read_transaction(self._engine) as connection:
            return (await connection.execute(query)).scalar() or 0


def _of(tenant: TenantId, month: str) -> sa.Update:
    return sa.update(USAGE).where(USAGE.c.tenant_id == tenant, USAGE.c.month == month)
