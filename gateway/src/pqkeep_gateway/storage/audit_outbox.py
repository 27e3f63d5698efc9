"""The outbox in SQL: events that are not in the audit log yet."""

import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from uuid import UUID

import msgspec
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from pqkeep_gateway.storage.database import (
    MICROSECOND,
    insert_if_absent,
    microseconds,
    read_transaction,
    transaction,
)
from pqkeep_gateway.storage.schema import AUDIT_OUTBOX, AUDIT_SINKS, TENANTS
from pqkeep_gateway.unavailable import UnavailableError
from pqkeep_protocol.audit import Event
from pqkeep_protocol.commits import WriteProblem
from pqkeep_protocol.keys import DEFAULT_SHARD, TenantId
from pqkeep_protocol.startup.logs import logger

MAX_DELAY = timedelta(minutes=5)
"""The longest wait of an event before the outbox accepts no more."""


@dataclass(frozen=True, slots=True)
class WaitingEvent:
    """A waiting event, and the shard of its log."""

    shard: str
    event: Event


@dataclass(frozen=True, slots=True)
class RefusedEvent:
    """An event that is kept because the audit log refused it."""

    id: str
    at_us: int
    """The event's own time, in microseconds since 1970. It can be the reason for the refusal."""
    reason: str
    event: Event | None
    """The event. None if it cannot be read."""


_ENCODER = msgspec.msgpack.Encoder()
_DECODER = msgspec.msgpack.Decoder(Event)
_LOG = logger(__name__)
MAX_LISTED = 1000
_WAITS = AUDIT_OUTBOX.c.refusal.is_(None)
IS_UNSEEN = AUDIT_OUTBOX.c.refusal.is_not(None) & AUDIT_OUTBOX.c.acknowledged_at_us.is_(None)
"""Selects events that the log refused and no operator has acknowledged."""

UNREADABLE = "unreadable"
"""The reason of an event that does not decode, or violates a limit."""


class SqlAuditOutbox:
    """Events in the database that are not in the log yet. All methods raise UnavailableError."""

    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine

    async def add(self, event: Event, refusal: str | None = None) -> None:
        """Store an event without another transaction.

        ``refusal``: the log's reason, if it refused the event. Raises UnavailableError if an event
        of the same shard has waited for MAX_DELAY.
        """
        async with transaction(self._engine) as connection:
            await add_audit_event(connection, event)
            if refusal is not None:
                await _save_refusal(connection, str(event.id), refusal)

    async def require_open(self, tenant: TenantId) -> None:
        """Raise UnavailableError if an event of the tenant's shard has waited for MAX_DELAY."""
        async with read_transaction(self._engine) as connection:
            shards = await _find_shards(connection, [tenant])
            await require_open(connection, shards.values())

    async def list_oldest(
        self, limit: int, *, only: str | None = None, without: Collection[str] = ()
    ) -> Sequence[WaitingEvent]:
        """Return the oldest waiting events, without refused and unreadable ones.

        ``only``: events of this shard; ``without``: not those of these shards.
        """
        columns = AUDIT_OUTBOX.c
        query = sa.select(columns.id, columns.event, columns.shard).where(_WAITS)
        if only is not None:
            query = query.where(columns.shard == only)
        if without:
            query = query.where(columns.shard.not_in(without))
        query = query.order_by(columns.at_us, columns.id).limit(limit)
        async with read_transaction(self._engine) as connection:
            rows = (await connection.execute(query)).all()
        events = []
        for row in rows:
            try:
                events.append(WaitingEvent(row.shard, _DECODER.decode(row.event)))
            except msgspec.MsgspecError:
                _LOG.error("an event in the outbox cannot be read, and is kept", event_id=row.id)
                async with transaction(self._engine) as connection:
                    await _save_refusal(connection, row.id, UNREADABLE)
        return events

    async def settle(self, delivered: Sequence[Event], refusals: Mapping[UUID, str]) -> None:
        """Remove delivered events, and mark those that the log refused."""
        ids = [str(event.id) for event in delivered if event.id not in refusals]
        async with transaction(self._engine) as connection:
            await connection.execute(sa.delete(AUDIT_OUTBOX).where(AUDIT_OUTBOX.c.id.in_(ids)))
            for refused, reason in refusals.items():
                await _save_refusal(connection, str(refused), reason)

    async def count_refused(self) -> int:
        """Return the number of refused or unreadable events that are not acknowledged."""
        query = sa.select(sa.func.count()).select_from(AUDIT_OUTBOX).where(IS_UNSEEN)
        async with read_transaction(self._engine) as connection:
            return (await connection.execute(query)).scalar_one()

    async def list_refused(self, *, acknowledged: bool = False) -> tuple[RefusedEvent, ...]:
        """Return refused or unreadable events, at most MAX_LISTED.

        ``acknowledged``: include acknowledged ones.
        """
        query = (
            sa.select(AUDIT_OUTBOX)
            .where(~_WAITS if acknowledged else IS_UNSEEN)
            .order_by(AUDIT_OUTBOX.c.at_us, AUDIT_OUTBOX.c.id)
            .limit(MAX_LISTED)
        )
        async with read_transaction(self._engine) as connection:
            rows = (await connection.execute(query)).all()
        return tuple(RefusedEvent(row.id, row.at_us, row.refusal, _read(row.event)) for row in rows)

    async def acknowledge_refused(self, seen: Sequence[str], event: Event) -> None:
        """Mark refused events, by id, as seen; record the event if there was any."""
        update = (
            sa.update(AUDIT_OUTBOX)
            .where(IS_UNSEEN, AUDIT_OUTBOX.c.id.in_(seen))
            .values(acknowledged_at_us=time.time_ns() // 1000)
        )
        async with transaction(self._engine) as connection:
            if (await connection.execute(update)).rowcount:
                await add_audit_event(connection, event)


def _read(stored: bytes) -> Event | None:
    try:
        return _DECODER.decode(stored)
    except msgspec.MsgspecError:
        return None


async def add_audit_event(connection: AsyncConnection, *events: Event) -> None:
    """Store events in the transaction of the recorded change.

    Raises UnavailableError, which rolls the transaction back, if an event has waited for MAX_DELAY.
    """
    if not events:
        return
    shards = await _find_shards(connection, {event.tenant for event in events})
    await require_open(connection, shards.values())
    rows = [
        {
            "id": str(event.id),
            "at_us": event.at_us,
            "event": _ENCODER.encode(event),
            "shard": shards[event.tenant],
        }
        for event in events
    ]
    await connection.execute(sa.insert(AUDIT_OUTBOX), rows)


async def _find_shards(
    connection: AsyncConnection, tenants: Iterable[TenantId]
) -> Mapping[TenantId, str]:
    """Return the shard of each tenant's log; ``default`` for an id without a tenant."""
    shards = dict.fromkeys(tenants, DEFAULT_SHARD)
    query = sa.select(TENANTS.c.id, TENANTS.c.shard).where(TENANTS.c.id.in_(shards))
    rows = await connection.execute(query)
    return shards | {TenantId(row.id): row.shard for row in rows}


async def require_open(connection: AsyncConnection, shards: Iterable[str] | None = None) -> None:
    """Raise UnavailableError if an event of these shards, or of any, has waited for MAX_DELAY."""
    query = sa.select(sa.func.min(AUDIT_OUTBOX.c.at_us)).where(_WAITS)
    if shards is not None:
        query = query.where(AUDIT_OUTBOX.c.shard.in_(set(shards)))
    oldest = (await connection.execute(query)).scalar()
    if oldest is not None and time.time_ns() // 1000 - oldest >= MAX_DELAY // MICROSECOND:
        raise UnavailableError(WriteProblem.FAILED)


async def _save_refusal(connection: AsyncConnection, event: str, reason: str) -> None:
    update = sa.update(AUDIT_OUTBOX).where(AUDIT_OUTBOX.c.id == event).values(refusal=reason)
    await connection.execute(update)


class SqlCursors:
    """Cursors in the database, one for each sink. All methods raise UnavailableError."""

    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine

    async def claim(self, sink: str, holder: UUID, now: datetime, until: datetime) -> int | None:
        """Take or renew the lease; return the sink's last record.

        Returns None if another gateway has the lease.
        """
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
        """End the lease if this holder has it."""
        is_ours = sa.and_(AUDIT_SINKS.c.sink == sink, AUDIT_SINKS.c.holder == holder)
        async with transaction(self._engine) as connection:
            await connection.execute(sa.update(AUDIT_SINKS).where(is_ours).values(held_until_us=0))

    async def save(self, sink: str, holder: UUID, record: int, until: datetime) -> bool:
        """Store the sink's last record; return False if another holder has the lease."""
        is_ours = sa.and_(AUDIT_SINKS.c.sink == sink, AUDIT_SINKS.c.holder == holder)
        save = sa.update(AUDIT_SINKS).where(is_ours)
        values = {"record": record, "held_until_us": microseconds(until)}
        async with transaction(self._engine) as connection:
            return (await connection.execute(save.values(values))).rowcount == 1
