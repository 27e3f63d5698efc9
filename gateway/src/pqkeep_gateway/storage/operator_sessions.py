"""Sessions of operators in SQL."""

from dataclasses import dataclass, field
from datetime import datetime, timedelta

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncEngine

from pqkeep_gateway.storage.audit_outbox import add_audit_event
from pqkeep_gateway.storage.database import microseconds, read_transaction, time_of, transaction
from pqkeep_gateway.storage.row_mac import is_authentic
from pqkeep_gateway.storage.schema import OPERATOR_SESSIONS, OPERATORS
from pqkeep_protocol.audit import Event

LIFETIME = timedelta(hours=8)
IDLE = timedelta(minutes=30)
"""For how long a session lasts without a request."""


@dataclass(frozen=True, slots=True)
class OperatorSession:
    """A session as it is stored."""

    operator_digest: bytes = field(repr=False)
    """32 bytes: of the credential that began it."""
    created_at: datetime
    last_seen_at: datetime
    source_address: str
    name: str | None = None
    """Whose credential that is; None: no named operator's, any more or ever."""


class SqlOperatorSessions:
    """Sessions in the database, by the digests of their tokens. All methods raise UnavailableError."""

    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine

    async def add(self, digest: bytes, session: OperatorSession, audit_event: Event) -> None:
        """Store a new session; remove those that were over when it began."""
        now = session.created_at
        is_over = sa.or_(
            OPERATOR_SESSIONS.c.created_at_us <= microseconds(now - LIFETIME),
            OPERATOR_SESSIONS.c.last_seen_at_us <= microseconds(now - IDLE),
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
        """Return a session with the name of the operator who has its credential now."""
        is_theirs = OPERATORS.c.digest == OPERATOR_SESSIONS.c.operator_digest
        query = (
            sa.select(OPERATOR_SESSIONS, OPERATORS)
            .outerjoin(OPERATORS, is_theirs)
            .where(OPERATOR_SESSIONS.c.digest == digest)
        )
        async with read_transaction(self._engine) as connection:
            row = (await connection.execute(query)).one_or_none()
            if row is None or not is_authentic(connection, OPERATOR_SESSIONS, row):
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
        """Store that a session is being used, if it is there."""
        update = sa.update(OPERATOR_SESSIONS).where(OPERATOR_SESSIONS.c.digest == digest)
        async with transaction(self._engine) as connection:
            await connection.execute(update.values(last_seen_at_us=microseconds(now)))

    async def remove(self, digest: bytes, audit_event: Event) -> None:
        """End a session, if it is there."""
        delete = sa.delete(OPERATOR_SESSIONS).where(OPERATOR_SESSIONS.c.digest == digest)
        async with transaction(self._engine) as connection:
            if (await connection.execute(delete)).rowcount == 1:
                await add_audit_event(connection, audit_event)
