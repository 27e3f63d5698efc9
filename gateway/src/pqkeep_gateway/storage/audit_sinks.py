"""What of the audit log each sink has, in SQL."""

from datetime import datetime
from uuid import UUID

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncEngine

from pqkeep_gateway.storage.database import insert_if_absent, microseconds, transaction
from pqkeep_gateway.storage.schema import AUDIT_SINKS


class SqlCursors:
    """Cursors in the database, one for each sink. All methods raise UnavailableError."""

    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine

    async def claim(self, sink: str, holder: UUID, now: datetime, until: datetime) -> int | None:
        """Take or renew the lease; return the last record the sink has. None: another has it."""
        columns = AUDIT_SINKS.c
        row = {"sink": sink, "record": 0, "holder": holder, "held_until_us": 0}
        is_free = sa.or_(columns.holder == holder, columns.held_until_us <= microseconds(now))
        claim = (
            sa.update(AUDIT_SINKS)
            .where(columns.sink == sink, is_free)
            .values(holder=holder, held_until_us=microseconds(until))
            .returning(columns.record)
        )
        async with transaction(self._engine) as connection:
            await insert_if_absent(connection, AUDIT_SINKS, row)
            found: int | None = (await connection.execute(claim)).scalar_one_or_none()
        return found

    async def release(self, sink: str, holder: UUID) -> None:
        """End the lease, if it is the holder's."""
        is_ours = sa.and_(AUDIT_SINKS.c.sink == sink, AUDIT_SINKS.c.holder == holder)
        async with transaction(self._engine) as connection:
            await connection.execute(sa.update(AUDIT_SINKS).where(is_ours).values(held_until_us=0))

    async def save(self, sink: str, holder: UUID, record: int, until: datetime) -> bool:
        """Store the last record that the sink has; False if the lease is another's now."""
        is_ours = sa.and_(AUDIT_SINKS.c.sink == sink, AUDIT_SINKS.c.holder == holder)
        save = sa.update(AUDIT_SINKS).where(is_ours)
        values = {"record": record, "held_until_us": microseconds(until)}
        async with transaction(self._engine) as connection:
            return (await connection.execute(save.values(values))).rowcount == 1
