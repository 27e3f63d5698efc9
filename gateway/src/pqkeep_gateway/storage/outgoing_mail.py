"""Undelivered mail in SQL."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from pqkeep_gateway.access.callers import Role
from pqkeep_gateway.outgoing_mail import MailKind, OutgoingMail, new_mail
from pqkeep_gateway.storage.database import commits_of, microseconds, time_of, transaction
from pqkeep_gateway.storage.schema import OUTGOING_MAIL, USERS
from pqkeep_protocol.keys import TenantId
from pqkeep_protocol.startup.logs import logger

_LOG = logger(__name__)


class SqlMailOutbox:
    """Outgoing mail in the database. All methods raise UnavailableError."""

    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine
        self.commits = commits_of(engine)

    async def claim(self, limit: int, now: datetime, lease: datetime) -> Sequence[OutgoingMail]:
        """Return due mail, oldest first, and postpone it until the lease ends.

        Each return counts as an attempt. No two callers get the same mail. Mail of an unknown kind
        is left to gateways of a later version. An unreadable row is kept.
        """
        is_due = sa.and_(
            OUTGOING_MAIL.c.next_attempt_at_us <= microseconds(now),
            OUTGOING_MAIL.c.kind.in_(MailKind),  # other kinds belong to a later version
        )
        oldest = (
            sa.select(OUTGOING_MAIL.c.id)
            .where(is_due)
            .order_by(OUTGOING_MAIL.c.next_attempt_at_us)
            .limit(limit)
        )
        claim = (
            sa.update(OUTGOING_MAIL)
            .where(OUTGOING_MAIL.c.id.in_(oldest), is_due)
            .values(next_attempt_at_us=microseconds(lease), attempts=OUTGOING_MAIL.c.attempts + 1)
            .returning(OUTGOING_MAIL)
        )
        async with transaction(self._engine) as connection:
            rows = await connection.execute(claim)
            found = [_next_mail(rows) for _ in range(limit)]
        return [mail for mail in found if mail is not None]

    async def postpone(self, mail: OutgoingMail, until: datetime) -> None:
        """Set the time of the next attempt."""
        update = sa.update(OUTGOING_MAIL).where(OUTGOING_MAIL.c.id == mail.id)
        async with transaction(self._engine) as connection:
            await connection.execute(update.values(next_attempt_at_us=microseconds(until)))

    async def remove(self, mail: OutgoingMail) -> None:
        """Remove a mail."""
        delete = sa.delete(OUTGOING_MAIL).where(OUTGOING_MAIL.c.id == mail.id)
        async with transaction(self._engine) as connection:
            await connection.execute(delete)

    async def tell_owners(self, tenant: TenantId, about: str, now: datetime) -> None:
        """Store a mail to each owner of a tenant about the destruction of keys."""
        async with transaction(self._engine) as connection:
            await add_mail_to_owners(connection, tenant, about, now)


async def add_mail_to_owners(
    connection: AsyncConnection,
    tenant: TenantId,
    about: str,
    now: datetime,
    kind: MailKind = MailKind.DESTRUCTION_SCHEDULED,
) -> None:
    """Store a mail to each owner of a tenant."""
    owners = sa.select(USERS.c.email).where(USERS.c.tenant_id == tenant, USERS.c.role == Role.OWNER)
    for email in (await connection.execute(owners.order_by(USERS.c.id))).scalars().all():
        mail = new_mail(kind, email, now, about=about)
        await add_mail(connection, mail)


async def add_mail(connection: AsyncConnection, mail: OutgoingMail) -> None:
    """Store a mail in the transaction of its cause, in the language of its recipient."""
    language = sa.select(USERS.c.language).where(USERS.c.email_key == mail.to.lower())
    row = {
        "id": mail.id,
        "kind": mail.kind,
        "recipient": mail.to,
        "inviter": mail.inviter,
        "about": mail.about,
        "language": sa.func.coalesce(language.scalar_subquery(), mail.language),
        "salt": mail.salt,
        "created_at_us": microseconds(mail.created_at),
        "expires_at_us": microseconds(mail.expires_at),
        "next_attempt_at_us": microseconds(mail.created_at),
        "attempts": mail.attempts,
    }
    await connection.execute(sa.insert(OUTGOING_MAIL).values(row))


def _next_mail(rows: sa.CursorResult[Any]) -> OutgoingMail | None:
    """Return the mail in the next row; None at the end, or for an unreadable row."""
    try:
        row = rows.fetchone()
        return None if row is None else _mail(row)
    except (TypeError, ValueError, OverflowError):
        _LOG.error("a mail that waits cannot be read, and is kept")
        return None


def _mail(row: sa.Row[Any]) -> OutgoingMail:
    return OutgoingMail(
        id=row.id,
        kind=MailKind(row.kind),
        to=row.recipient,
        created_at=time_of(row.created_at_us),
        expires_at=time_of(row.expires_at_us),
        salt=row.salt,
        inviter=row.inviter,
        about=row.about,
        language=row.language,
        attempts=row.attempts,
    )
