"""Events that are not in the audit log yet, in SQL."""

import time
from collections.abc import Sequence

import msgspec
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from pqkeep_gateway.audit_events import MAX_DELAY
from pqkeep_gateway.storage.database import MICROSECOND, read_transaction, transaction
from pqkeep_gateway.storage.schema import AUDIT_OUTBOX
from pqkeep_gateway.unavailable import UnavailableError
from pqkeep_protocol.audit import Event

_ENCODER = msgspec.msgpack.Encoder()
_DECODER = msgspec.msgpack.Decoder(Event)


class SqlAuditOutbox:
    """An AuditOutbox."""

    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine

    async def add(self, event: Event) -> None:
        """Store an event that belongs to no other transaction, unless one waits for MAX_DELAY."""
        async with transaction(self._engine) as connection:
            await add_audit_event(connection, event)

    async def require_open(self) -> None:
        """Raise UnavailableError if an event waits for MAX_DELAY."""
        async with read_transaction(self._engine) as connection:
            await _require_open(connection)

    async def list_oldest(self, limit: int) -> Sequence[Event]:
        """Return the oldest events."""
        query = (
            sa.select(AUDIT_OUTBOX.c.event)
            .order_by(AUDIT_OUTBOX.c.at_us, AUDIT_OUTBOX.c.id)
            .limit(limit)
        )
        async with read_transaction(self._engine) as connection:
            found = (await connection.execute(query)).scalars()
            return [_DECODER.decode(event) for event in found]

    async def remove(self, events: Sequence[Event]) -> None:
        """Remove events that are in the log."""
        ids = [str(event.id) for event in events]
        async with transaction(self._engine) as connection:
            await connection.execute(sa.delete(AUDIT_OUTBOX).where(AUDIT_OUTBOX.c.id.in_(ids)))


async def add_audit_event(connection: AsyncConnection, *events: Event) -> None:
    """Store events in the transaction of what they record.

    Raises UnavailableError, which undoes the transaction, if an event waits for MAX_DELAY.
    """
    rows = [
        {"id": str(event.id), "at_us": event.at_us, "event": _ENCODER.encode(event)}
        for event in events
    ]
    if rows:
        await _require_open(connection)
        await connection.execute(sa.insert(AUDIT_OUTBOX), rows)


async def _require_open(connection: AsyncConnection) -> None:
    oldest = (await connection.execute(sa.select(sa.func.min(AUDIT_OUTBOX.c.at_us)))).scalar()
    if oldest is not None and time.time_ns() // 1000 - oldest >= MAX_DELAY // MICROSECOND:
        raise UnavailableError
