"""Checks of the accounts database for operators: whether it is writable, and its backlog."""

from dataclasses import dataclass

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncEngine

from pqkeep_gateway.access.entitlements import TenantStatus
from pqkeep_gateway.storage.audit_outbox import IS_UNSEEN, require_open
from pqkeep_gateway.storage.database import commits_of, read_transaction, transaction
from pqkeep_gateway.storage.schema import AUDIT_OUTBOX, METADATA, OUTGOING_MAIL, TENANTS
from pqkeep_protocol.commits import probe_statements


@dataclass(frozen=True, slots=True)
class Backlog:
    """Waiting entries in the accounts database. Times are microseconds since 1970; 0: no entry."""

    events_waiting: int
    events_refused: int
    oldest_event_us: int
    mail_waiting: int
    oldest_mail_us: int


@dataclass(frozen=True, slots=True)
class Accounts:
    """Counts of the accounts database."""

    backlog: Backlog
    mail_attempted: int
    """Waiting messages with a failed attempt."""
    tenants: int
    suspended: int
    scheduled: int
    """Suspended tenants with a scheduled deletion."""


_INSERTED = tuple(table.name for table in METADATA.sorted_tables)
_UPDATED = {table.name: table.columns[0].name for table in METADATA.sorted_tables}
_DELETED = (AUDIT_OUTBOX.name,)
"""The rights that a probe needs."""


async def check(engine: AsyncEngine) -> None:
    """Check that a commit is possible, by the last commit or by a probe.

    Raises UnavailableError.
    """
    if not commits_of(engine).require_probe():
        return
    async with transaction(engine) as connection:
        for statement in probe_statements(connection.dialect.name, _INSERTED, _UPDATED, _DELETED):
            await connection.exec_driver_sql(statement)
    commits_of(engine).succeeded()


async def require_open_log(engine: AsyncEngine) -> None:
    """Raise UnavailableError if an event has waited so long that changes are refused."""
    async with read_transaction(engine) as connection:
        await require_open(connection)


async def find_accounts(engine: AsyncEngine) -> Accounts:
    """Return the counts for operators. Raises UnavailableError."""
    is_suspended = TENANTS.c.status == TenantStatus.SUSPENDED
    tenants = sa.select(
        sa.func.count().filter(TENANTS.c.status != TenantStatus.DELETED),
        sa.func.count().filter(is_suspended),
        sa.func.count().filter(is_suspended, TENANTS.c.deletion_at_us.is_not(None)),
    ).select_from(TENANTS)
    attempted = (
        sa.select(sa.func.count()).select_from(OUTGOING_MAIL).where(OUTGOING_MAIL.c.attempts > 0)
    )
    async with read_transaction(engine) as connection:
        total, suspended, scheduled = (await connection.execute(tenants)).one()
        mail_attempted = (await connection.execute(attempted)).scalar_one()
    return Accounts(
        backlog=await find_backlog(engine),
        mail_attempted=mail_attempted,
        tenants=total,
        suspended=suspended,
        scheduled=scheduled,
    )


async def find_backlog(engine: AsyncEngine) -> Backlog:
    """Return the numbers of waiting events and mails. Raises UnavailableError."""
    waits = AUDIT_OUTBOX.c.refusal.is_(None)
    events = sa.select(
        sa.func.count().filter(waits),
        sa.func.count().filter(IS_UNSEEN),
        sa.func.min(AUDIT_OUTBOX.c.at_us).filter(waits),
    ).select_from(AUDIT_OUTBOX)
    mail = sa.select(sa.func.count(), sa.func.min(OUTGOING_MAIL.c.created_at_us)).select_from(
        OUTGOING_MAIL
    )
    async with read_transaction(engine) as connection:
        waiting, refused, oldest_event = (await connection.execute(events)).one()
        mail_waiting, oldest_mail = (await connection.execute(mail)).one()
    return Backlog(waiting, refused, oldest_event or 0, mail_waiting, oldest_mail or 0)
