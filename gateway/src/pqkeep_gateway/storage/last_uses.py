"""Last uses of credentials in SQL: columns of the credentials' tables."""

from collections.abc import Mapping

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncEngine

from pqkeep_gateway.access.clock import date_of
from pqkeep_gateway.access.last_uses import LastUse
from pqkeep_gateway.storage.database import microseconds, transaction
from pqkeep_gateway.storage.schema import API_KEYS, OPERATORS


class SqlLastUses:
    """Last uses of API keys and operators' credentials in the database."""

    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine

    async def save(self, uses: Mapping[bytes, LastUse]) -> None:
        """Store uses by credential digest, but never over newer ones. Raises UnavailableError."""
        rows = [
            {
                "of": digest,
                "at": microseconds(date_of(use.at)),
                "source_address": use.source_address,
            }
            for digest, use in uses.items()
        ]
        async with transaction(self._engine) as connection:
            for table in (API_KEYS, OPERATORS):
                await connection.execute(_update(table), rows)


def _update(table: sa.Table) -> sa.Update:
    """Return the update for a credential ``of``, which is in one of the tables or in none."""
    at = sa.bindparam("at", type_=sa.BigInteger)
    stored = table.c.last_used_at_us
    return (
        sa.update(table)
        .where(table.c.digest == sa.bindparam("of"), sa.or_(stored.is_(None), stored < at))
        .values(last_used_at_us=at, last_used_from=sa.bindparam("source_address"))
    )
