"""Operators in SQL."""

from dataclasses import dataclass, field
from datetime import datetime, timedelta

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from pqkeep_gateway.storage.audit_outbox import add_audit_event
from pqkeep_gateway.storage.database import microseconds, read_transaction, time_of, transaction
from pqkeep_gateway.storage.row_mac import MAC, authentic_row, is_authentic, mac_of
from pqkeep_gateway.storage.schema import OPERATOR_SESSIONS, OPERATORS
from pqkeep_protocol.audit import Event


@dataclass(frozen=True, slots=True)
class Operator:
    """The metadata of an operator."""

    name: str
    added_at: datetime
    rotated_at: datetime
    """The start of the credential's validity."""
    last_used_at: datetime | None = None
    """The last use of the operator's credential."""
    last_used_from: str | None = None


class SqlOperators:
    """Operators in the database. All methods raise UnavailableError."""

    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine

    async def find(self, digest: bytes) -> str | None:
        """Return the name of the operator with a credential digest, or None."""
        query = sa.select(OPERATORS).where(OPERATORS.c.digest == digest)
        async with read_transaction(self._engine) as connection:
            row = await authentic_row(connection, OPERATORS, query)
        return None if row is None else str(row.name)

    async def list(self) -> tuple[Operator, ...]:
        """Return all operators by name."""
        query = sa.select(OPERATORS).order_by(OPERATORS.c.name)
        async with read_transaction(self._engine) as connection:
            return tuple(
                Operator(
                    row.name,
                    time_of(row.added_at_us),
                    time_of(row.rotated_at_us),
                    None if row.last_used_at_us is None else time_of(row.last_used_at_us),
                    row.last_used_from,
                )
                for row in await connection.execute(query)
            )

    async def add(
        self, name: str, digest: bytes, now: datetime, most: int, audit_event: Event
    ) -> bool:
        """Store an operator; return False if the name is taken, or there are already ``most``."""
        row = {
            "name": name,
            "digest": digest,
            "added_at_us": microseconds(now),
            "rotated_at_us": microseconds(now),
        }
        try:
            async with transaction(self._engine) as connection:
                await _lock(connection)
                count = sa.select(sa.func.count()).select_from(OPERATORS)
                if (await connection.execute(count)).scalar_one() >= most:
                    return False
                await connection.execute(sa.insert(OPERATORS), row)
                await add_audit_event(connection, audit_event)
        except sa.exc.IntegrityError:
            return False
        return True

    async def rotate(self, name: str, digest: bytes, now: datetime, audit_event: Event) -> bool:
        """Replace an operator's credential digest; return False if there is no such operator."""
        async with transaction(self._engine) as connection:
            values = {
                "digest": digest,
                "rotated_at_us": microseconds(now),
                MAC: mac_of(connection, OPERATORS, {"name": name, "digest": digest}),
            }
            change = sa.update(OPERATORS).values(values)
            return await _change(connection, change, name, audit_event)

    async def remove(self, name: str, audit_event: Event) -> bool:
        """Delete an operator; return False if there is no such operator."""
        async with transaction(self._engine) as connection:
            return await _change(connection, sa.delete(OPERATORS), name, audit_event)


async def _change(
    connection: AsyncConnection, change: sa.Update | sa.Delete, name: str, audit_event: Event
) -> bool:
    changed = await connection.execute(change.where(OPERATORS.c.name == name))
    if changed.rowcount == 1:
        await add_audit_event(connection, audit_event)
    return changed.rowcount == 1


async def _lock(connection: AsyncConnection) -> None:
    """Let only one transaction at a time add operators.

    A writing SQLite transaction is always alone.
    """
    if connection.dialect.name == "postgresql":
        await connection.execute(sa.text("LOCK TABLE operators IN SHARE ROW EXCLUSIVE MODE"))


SESSION_LIFETIME = timedelta(hours=8)
SESSION_IDLE = timedelta(minutes=30)
"""The longest time of a session without a request."""


@dataclass(frozen=True, slots=True)
class OperatorSession:
    """A stored session."""

    operator_digest: bytes = field(repr=False)
    """The digest of the credential that began it (32 bytes)."""
    created_at: datetime
    last_seen_at: datetime
    source_address: str
    name: str | None = None
    """The operator with that credential; None: it belongs to no named operator."""


class SqlOperatorSessions:
    """Sessions in the database, by token digest. All methods raise UnavailableError."""

    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine

    async def add(self, digest: bytes, session: OperatorSession, audit_event: Event) -> None:
        """Store a new session; remove expired ones."""
        now = session.created_at
        is_over = sa.or_(
            OPERATOR_SESSIONS.c.created_at_us <= microseconds(now - SESSION_LIFETIME),
            OPERATOR_SESSIONS.c.last_seen_at_us <= microseconds(now - SESSION_IDLE),
        )
        row = {
            "digest": digest,
            "operator_digest": session.operator_digest,
            "created_at_us": microseconds(now),
            "last_seen_at_us": microseconds(session.last_seen_at),
            "source_address": session.source_address,
        }
        async with transaction(self._engine) as connection:
            await connection.execute(sa.delete(OPERATOR_SESSIONS).where(is_over))
            await connection.execute(sa.insert(OPERATOR_SESSIONS), row)
            await add_audit_event(connection, audit_event)

    async def find(self, digest: bytes) -> OperatorSession | None:
        """Return a session with the name of the operator who now has its credential."""
        is_theirs = OPERATORS.c.digest == OPERATOR_SESSIONS.c.operator_digest
        query = (
            sa.select(OPERATOR_SESSIONS, OPERATORS)
            .outerjoin(OPERATORS, is_theirs)
            .where(OPERATOR_SESSIONS.c.digest == digest)
        )
        async with read_transaction(self._engine) as connection:
            row = await authentic_row(connection, OPERATOR_SESSIONS, query)
            if row is None:
                return None
            is_named = row.name is not None and is_authentic(connection, OPERATORS, row)
        return OperatorSession(
            row.operator_digest,
            time_of(row.created_at_us),
            time_of(row.last_seen_at_us),
            row.source_address,
            row.name if is_named else None,
        )

    async def see(self, digest: bytes, now: datetime) -> None:
        """Store the use of a session, if it exists."""
        update = sa.update(OPERATOR_SESSIONS).where(OPERATOR_SESSIONS.c.digest == digest)
        async with transaction(self._engine) as connection:
            await connection.execute(update.values(last_seen_at_us=microseconds(now)))

    async def remove(self, digest: bytes, audit_event: Event) -> None:
        """End a session, if it exists."""
        delete = sa.delete(OPERATOR_SESSIONS).where(OPERATOR_SESSIONS.c.digest == digest)
        async with transaction(self._engine) as connection:
            if (await connection.execute(delete)).rowcount == 1:
                await add_audit_event(connection, audit_event)
