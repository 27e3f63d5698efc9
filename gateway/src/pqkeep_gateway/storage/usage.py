"""The month's usage in SQL."""

from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.ext.asyncio import AsyncEngine

from pqkeep_gateway.storage.database import transaction
from pqkeep_gateway.storage.schema import USAGE
from pqkeep_protocol.keys import TenantId


class SqlUsage:
    """A Usage."""

    def __init__(self, engine: AsyncEngine) -> None:
        """Use an open database."""
        self._engine = engine

    async def take(self, tenant: TenantId, month: str, allowance: int) -> bool:
        """Count one operation, in one step, unless the allowance is used up."""
        row = {"tenant_id": tenant, "month": month, "operations": 0}
        take = _of(tenant, month).where(USAGE.c.operations < allowance)
        async with transaction(self._engine) as connection:
            taken = await connection.execute(take.values(operations=USAGE.c.operations + 1))
            if taken.rowcount == 0:
                await connection.execute(_insert(connection.dialect).values(row))
                taken = await connection.execute(take.values(operations=USAGE.c.operations + 1))
        return taken.rowcount == 1

    async def give_back(self, tenant: TenantId, month: str) -> None:
        """Count one operation less: it did not succeed."""
        give_back = _of(tenant, month).where(USAGE.c.operations > 0)
        async with transaction(self._engine) as connection:
            await connection.execute(give_back.values(operations=USAGE.c.operations - 1))


def _of(tenant: TenantId, month: str) -> sa.Update:
    return sa.update(USAGE).where(USAGE.c.tenant_id == tenant, USAGE.c.month == month)


def _insert(dialect: sa.Dialect) -> Any:
    """Return an insert that does nothing where the row is there already."""
    kind = {"sqlite": sqlite, "postgresql": postgresql}[dialect.name]
    return kind.insert(USAGE).on_conflict_do_nothing()
