"""Operators in SQL."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from pqkeep_gateway.access.callers import OperatorRole
from pqkeep_gateway.access.principals import OperatorPerson, OperatorPrincipal
from pqkeep_gateway.storage.audit_outbox import add_audit_event
from pqkeep_gateway.storage.database import microseconds, read_transaction, time_of, transaction
from pqkeep_gateway.storage.identities import use_up
from pqkeep_gateway.storage.row_mac import MAC, authentic_row, is_authentic, mac_after
from pqkeep_gateway.storage.schema import OPERATOR_SESSIONS, OPERATORS
from pqkeep_gateway.storage.step_up_tokens import Grant
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
    role: OperatorRole = OperatorRole.ADMIN


class SqlOperators:
    """Operators in the database. All methods raise UnavailableError."""

    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine

    async def find(self, digest: bytes) -> OperatorPrincipal | None:
        """Return the operator with a credential digest, or None."""
        query = sa.select(OPERATORS).where(OPERATORS.c.digest == digest)
        async with read_transaction(self._engine) as connection:
            row = await authentic_row(connection, OPERATORS, query)
        return None if row is None else OperatorPrincipal(row.name, role=OperatorRole(row.role))

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
                    OperatorRole(row.role),
                )
                for row in await connection.execute(query)
            )

    async def add(
        self,
        operator: Operator,
        digest: bytes,
        most: int,
        audit_event: Event,
    ) -> bool:
        """Store an operator; return False if the name is taken, or there are already ``most``."""
        row = {
            "name": operator.name,
            "digest": digest,
            "added_at_us": microseconds(operator.added_at),
            "rotated_at_us": microseconds(operator.rotated_at),
            "role": operator.role,
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
        query = sa.select(OPERATORS).where(OPERATORS.c.name == name)
        async with transaction(self._engine) as connection:
            await _lock(connection)
            row = await authentic_row(connection, OPERATORS, query)
            if row is None:
                return False
            values = {
                "digest": digest,
                "rotated_at_us": microseconds(now),
                MAC: mac_after(connection, OPERATORS, row, {"digest": digest}),
            }
            change = sa.update(OPERATORS).values(values)
            return await _change(connection, change, name, audit_event)

    async def remove(self, name: str, audit_event: Event) -> bool:
        """Delete an operator; return False if there is no such operator."""
        async with transaction(self._engine) as connection:
            return await _change(connection, sa.delete(OPERATORS), name, audit_event)

    async def list_sessions(self, now: datetime) -> Sequence["OperatorSession"]:
        """Return the sessions that have not expired, the newest first."""
        return await SqlOperatorSessions(self._engine).list(now)

    async def end_sessions(self, audit_event: Event) -> int:
        """End all sessions; return their number."""
        async with transaction(self._engine) as connection:
            count = await _end(connection, sa.true())
            await add_audit_event(connection, audit_event)
        return count


async def _change(
    connection: AsyncConnection, change: sa.Update | sa.Delete, name: str, audit_event: Event
) -> bool:
    changed = await connection.execute(change.where(OPERATORS.c.name == name))
    if changed.rowcount == 1:
        await add_audit_event(connection, audit_event)
    return changed.rowcount == 1


async def _lock(connection: AsyncConnection) -> None:
    """Let only one transaction at a time add or rotate operators.

    A writing SQLite transaction is always alone.
    """
    if connection.dialect.name == "postgresql":
        await connection.execute(sa.text("LOCK TABLE operators IN SHARE ROW EXCLUSIVE MODE"))


SESSION_LIFETIME = timedelta(hours=8)
SESSION_IDLE = timedelta(minutes=30)
"""The longest time of a session without a request."""
PERSON_LIFETIME = timedelta(hours=1)
"""The lifetime of a session that began at a provider. The provider is not asked during a session, so
a person who was removed from a group keeps access for at most this time."""


@dataclass(frozen=True, slots=True)
class OperatorSession:
    """A stored session."""

    operator_digest: bytes = field(repr=False)
    """The digest of the credential, or of the provider's settings (32 bytes)."""
    created_at: datetime
    last_seen_at: datetime
    source_address: str
    operator: OperatorPrincipal | None = None
    """The person or the operator with the credential. None if no named operator has it."""
    digest: bytes = field(default=b"", repr=False)
    """The digest of the stored session's token (32 bytes)."""

    @property
    def lifetime(self) -> timedelta:
        """The longest time of this session."""
        is_persons = self.operator is not None and self.operator.person is not None
        return PERSON_LIFETIME if is_persons else SESSION_LIFETIME


@dataclass(frozen=True, slots=True)
class UsedState:
    """The state of a sign-in, which can be used only once."""

    digest: bytes = field(repr=False)
    expires_at: datetime


class SqlOperatorSessions:
    """Sessions in the database, by token digest. All methods raise UnavailableError."""

    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine

    async def add(
        self,
        digest: bytes,
        session: OperatorSession,
        audit_event: Event,
        state: UsedState | None = None,
    ) -> None:
        """Store a new session; remove expired ones.

        A person's sessions with another role end. Raises RefusedError if the state was used.
        """
        now = session.created_at
        row: dict[str, object] = {
            "digest": digest,
            "operator_digest": session.operator_digest,
            "created_at_us": microseconds(now),
            "last_seen_at_us": microseconds(session.last_seen_at),
            "source_address": session.source_address,
        }
        async with transaction(self._engine) as connection:
            if state is not None:
                await use_up(connection, state.digest, state.expires_at, now)
            await connection.execute(sa.delete(OPERATOR_SESSIONS).where(_is_over(now)))
            if session.operator is not None and session.operator.person is not None:
                person, role = session.operator.person, session.operator.role
                row |= {
                    "provider": person.provider,
                    "subject": person.subject,
                    "email": person.email,
                    "role": role,
                }
                await _end(connection, _is_of(person) & (OPERATOR_SESSIONS.c.role != role))
            await connection.execute(sa.insert(OPERATOR_SESSIONS), row)
            await add_audit_event(connection, audit_event)

    async def find(self, digest: bytes) -> OperatorSession | None:
        """Return a session with its person, or the operator who now has its credential."""
        query = _SESSIONS.where(OPERATOR_SESSIONS.c.digest == digest)
        async with read_transaction(self._engine) as connection:
            row = await authentic_row(connection, OPERATOR_SESSIONS, query)
            return None if row is None else _session_of(connection, row)

    async def list(self, now: datetime) -> Sequence[OperatorSession]:
        """Return the sessions that have not expired, the newest first."""
        query = _SESSIONS.where(~_is_over(now)).order_by(OPERATOR_SESSIONS.c.created_at_us.desc())
        async with read_transaction(self._engine) as connection:
            return tuple(
                _session_of(connection, row)
                for row in await connection.execute(query)
                if is_authentic(connection, OPERATOR_SESSIONS, row)
            )

    async def see(self, digest: bytes, now: datetime) -> None:
        """Store the use of a session, if it exists."""
        update = sa.update(OPERATOR_SESSIONS).where(OPERATOR_SESSIONS.c.digest == digest)
        async with transaction(self._engine) as connection:
            await connection.execute(update.values(last_seen_at_us=microseconds(now)))

    async def remove(self, digest: bytes, audit_event: Event) -> bool:
        """End a session; return False if it does not exist."""
        async with transaction(self._engine) as connection:
            exists = await _end(connection, OPERATOR_SESSIONS.c.digest == digest) > 0
            if exists:
                await add_audit_event(connection, audit_event)
        return exists

    async def remove_person(self, person: OperatorPerson) -> None:
        """End all sessions of a person."""
        async with transaction(self._engine) as connection:
            await _end(connection, _is_of(person))

    async def save_reauthentication(
        self,
        session: bytes,
        principal: OperatorPrincipal,
        granted: Grant,
        state: UsedState,
        now: datetime,
        audit_event: Event,
    ) -> bool:
        """Store a session's reauthentication; return False if the person has no such session.

        A session of the person with another role ends. Raises RefusedError if the state was used.
        """
        if principal.person is None:
            return False
        is_theirs = sa.and_(OPERATOR_SESSIONS.c.digest == session, _is_of(principal.person))
        has_role = OPERATOR_SESSIONS.c.role == principal.role
        grant = (
            sa.update(OPERATOR_SESSIONS)
            .where(is_theirs, has_role, ~_is_over(now))
            .values(
                reauthenticated_until_us=microseconds(granted.until),
                reauthentication_digest=granted.digest,
            )
        )
        async with transaction(self._engine) as connection:
            await use_up(connection, state.digest, state.expires_at, now)
            await _end(connection, sa.and_(is_theirs, ~has_role))
            if (await connection.execute(grant)).rowcount == 0:
                return False
            await add_audit_event(connection, audit_event)
        return True

    async def find_reauthentication(self, session: bytes) -> Grant | None:
        """Return a session's last reauthentication."""
        query = sa.select(
            OPERATOR_SESSIONS.c.reauthentication_digest,
            OPERATOR_SESSIONS.c.reauthenticated_until_us,
        ).where(OPERATOR_SESSIONS.c.digest == session)
        async with read_transaction(self._engine) as connection:
            row = (await connection.execute(query)).one_or_none()
        if row is None or row.reauthentication_digest is None:
            return None
        return Grant(row.reauthentication_digest, time_of(row.reauthenticated_until_us))

    async def replace_reauthentication(self, session: bytes, old: bytes, new: bytes) -> bool:
        """Replace the digest of a session's reauthentication; return False if it is another one."""
        update = (
            sa.update(OPERATOR_SESSIONS)
            .where(
                OPERATOR_SESSIONS.c.digest == session,
                OPERATOR_SESSIONS.c.reauthentication_digest == old,
            )
            .values(reauthentication_digest=new)
        )
        async with transaction(self._engine) as connection:
            return (await connection.execute(update)).rowcount == 1


_SESSIONS = sa.select(OPERATOR_SESSIONS, OPERATORS).outerjoin(
    OPERATORS, OPERATORS.c.digest == OPERATOR_SESSIONS.c.operator_digest
)
"""Sessions with the operator who now has their credential."""


def _session_of(connection: AsyncConnection, row: sa.Row[Any]) -> OperatorSession:
    """Return the session of an authentic row of ``_SESSIONS``."""
    digest: bytes = row._mapping[OPERATOR_SESSIONS.c.digest]  # noqa: SLF001 - the public name of it
    return OperatorSession(
        row.operator_digest,
        time_of(row.created_at_us),
        time_of(row.last_seen_at_us),
        row.source_address,
        _operator_of(connection, row, digest),
        digest,
    )


def _operator_of(
    connection: AsyncConnection, row: sa.Row[Any], session: bytes
) -> OperatorPrincipal | None:
    columns = row._mapping  # noqa: SLF001 - the public name of it
    if row.provider is not None:
        role = OperatorRole(columns[OPERATOR_SESSIONS.c.role])
        person = OperatorPerson(row.provider, row.subject, row.email)
        return OperatorPrincipal(None, is_read_only=True, role=role, person=person, session=session)
    if row.name is None or not is_authentic(connection, OPERATORS, row):
        return None
    role = OperatorRole(columns[OPERATORS.c.role])
    return OperatorPrincipal(row.name, is_read_only=True, role=role, session=session)


def _is_of(person: OperatorPerson) -> sa.ColumnElement[bool]:
    columns = OPERATOR_SESSIONS.c
    return sa.and_(columns.provider == person.provider, columns.subject == person.subject)


def _is_over(now: datetime) -> sa.ColumnElement[bool]:
    columns = OPERATOR_SESSIONS.c
    return sa.or_(
        columns.created_at_us <= microseconds(now - SESSION_LIFETIME),
        columns.last_seen_at_us <= microseconds(now - SESSION_IDLE),
        sa.and_(
            columns.provider.is_not(None),
            columns.created_at_us <= microseconds(now - PERSON_LIFETIME),
        ),
    )


async def _end(connection: AsyncConnection, condition: sa.ColumnElement[bool]) -> int:
    return (await connection.execute(sa.delete(OPERATOR_SESSIONS).where(condition))).rowcount
