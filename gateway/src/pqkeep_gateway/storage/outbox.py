"""The outbox in SQL."""

from collections.abc import Sequence

import msgspec
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from pqkeep_gateway.storage.database import transaction
from pqkeep_gateway.storage.schema import OUTBOX
from pqkeep_protocol.audit import Event

_ENCODER = msgspec.msgpack.Encoder()
_DECODER = msgspec.msgpack.Decoder(Event)


class SqlOutbox:
    """An Outbox."""

    def __init__(self, engine: AsyncEngine) -> None:
        """Use an open database."""
        self._engine = engine

    async def keep(self, event: Event) -> None:
        """Keep an event that no transaction has written."""
        async with transaction(self._engine) as connection:
            await put(connection, (event,))

    async def waiting(self, limit: int) -> Sequence[Event]:
        """Return the oldest events."""
        query = sa.select(OUTBOX.c.event).order_by(OUTBOX.c.at_us, OUTBOX.c.id).limit(limit)
        async with transaction(self._engine) as connection:
            found = (await connection.execute(query)).scalars()
            return [_DECODER.decode(event) for event in found]

    async def remove(self, events: Sequence[Event]) -> None:
        """Remove events that are in the log."""
        ids = [str(event.id) for event in events]
        async with transaction(self._engine) as connection:
            await connection.execute(sa.delete(OUTBOX).where(OUTBOX.c.id.in_(ids)))


async def put(connection: AsyncConnection, events: Sequence[Event]) -> None:
    """Write events, in the transaction of what they tell of."""
    rows = [
        {"id": str(event.id), "at_us": event.at_us, "event": _ENCODER.encode(event)}
        for event in events
    ]
    if rows:
        await connection.execute(sa.insert(OUTBOX), rows)
