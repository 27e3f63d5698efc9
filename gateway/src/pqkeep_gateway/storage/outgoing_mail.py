"""Letters on their way, in SQL."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from pqkeep_gateway.mail.outgoing_mail import MailKind, OutgoingMail
from pqkeep_gateway.storage.database import microseconds, time_of, transaction
from pqkeep_gateway.storage.schema import LETTERS


class SqlOutgoingMail:
    """A MailOutbox."""

    def __init__(self, engine: AsyncEngine) -> None:
        """Use an open database."""
        self._engine = engine

    async def claim(self, limit: int, now: datetime, lease: datetime) -> Sequence[OutgoingMail]:
        """Return letters that are due, and make them wait until the lease ends."""
        is_due = LETTERS.c.due_us <= microseconds(now)
        oldest = sa.select(LETTERS.c.id).where(is_due).order_by(LETTERS.c.due_us).limit(limit)
        claim = (
            sa.update(LETTERS)
            .where(LETTERS.c.id.in_(oldest), is_due)
            .values(due_us=microseconds(lease), tries=LETTERS.c.tries + 1)
            .returning(LETTERS)
        )
        async with transaction(self._engine) as connection:
            return [_letter(row) for row in await connection.execute(claim)]

    async def put_off(self, mail: OutgoingMail, until: datetime) -> None:
        """Make a letter wait."""
        put_off = sa.update(LETTERS).where(LETTERS.c.id == mail.id)
        async with transaction(self._engine) as connection:
            await connection.execute(put_off.values(due_us=microseconds(until)))

    async def remove(self, mail: OutgoingMail) -> None:
        """Forget a letter."""
        async with transaction(self._engine) as connection:
            await connection.execute(sa.delete(LETTERS).where(LETTERS.c.id == mail.id))


async def post(connection: AsyncConnection, mail: OutgoingMail) -> None:
    """Write a letter, in the transaction of what it tells of."""
    row = {
        "id": mail.id,
        "kind": mail.kind,
        "recipient": mail.to,
        "by": mail.by,
        "salt": mail.salt,
        "written_at_us": microseconds(mail.written_at),
        "until_us": microseconds(mail.until),
        "due_us": microseconds(mail.written_at),
        "tries": mail.tries,
    }
    await connection.execute(sa.insert(LETTERS), row)


def _letter(row: sa.Row[Any]) -> OutgoingMail:
    return OutgoingMail(
        id=row.id,
        kind=MailKind(row.kind),
        to=row.recipient,
        written_at=time_of(row.written_at_us),
        until=time_of(row.until_us),
        salt=row.salt,
        by=row.by,
        tries=row.tries,
    )
