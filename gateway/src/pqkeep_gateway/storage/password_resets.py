"""Who may choose another password, in SQL."""

from datetime import datetime

import sqlalchemy as sa

from pqkeep_gateway.access.principals import UserId
from pqkeep_gateway.audit_events import event
from pqkeep_gateway.mail.outgoing_mail import MailKind, OutgoingMail, mail
from pqkeep_gateway.people.password_resets import InvalidPasswordResetTokenError
from pqkeep_gateway.people.users import email_key
from pqkeep_gateway.storage.database import microseconds, transaction
from pqkeep_gateway.storage.outbox import put
from pqkeep_gateway.storage.outgoing_mail import post
from pqkeep_gateway.storage.people import SqlPeople, set_password
from pqkeep_gateway.storage.schema import PASSWORD_RESETS, USERS
from pqkeep_protocol.audit import Event
from pqkeep_protocol.audit_events import AuditEvent
from pqkeep_protocol.keys import TenantId
from pqkeep_protocol.messages import Attribution


class SqlPasswordResets(SqlPeople):
    """A PasswordResetStore."""

    async def begin(self, email: str, digest: bytes, mail: OutgoingMail, asked: Event) -> None:
        """Keep an address, instead of earlier ones that are the same or over, and the letter."""
        key = email_key(email)
        is_over = PASSWORD_RESETS.c.until_us <= microseconds(mail.written_at)
        same_or_over = sa.or_(PASSWORD_RESETS.c.email_key == key, is_over)
        row = {"digest": digest, "email_key": key, "until_us": microseconds(mail.until)}
        async with transaction(self._engine) as connection:
            await connection.execute(sa.delete(PASSWORD_RESETS).where(same_or_over))
            await connection.execute(sa.insert(PASSWORD_RESETS), row)
            await post(connection, mail)
            await put(connection, (asked,))

    async def is_open(self, digest: bytes, now: datetime) -> bool:
        """Return whether a password can be chosen."""
        query = sa.select(PASSWORD_RESETS.c.digest).where(_open(digest, now))
        async with transaction(self._engine) as connection:
            return (await connection.execute(query)).one_or_none() is not None

    async def complete(
        self, digest: bytes, password_hash: str, now: datetime, attribution: Attribution
    ) -> None:
        """Use a letter's token up, keep the password and end every session.

        Raises InvalidPasswordResetTokenError.
        """
        use_up = (
            sa.delete(PASSWORD_RESETS)
            .where(_open(digest, now))
            .returning(PASSWORD_RESETS.c.email_key)
        )
        async with transaction(self._engine) as connection:
            key = (await connection.execute(use_up)).scalar()
            whose = sa.select(USERS).where(USERS.c.email_key == key).with_for_update()
            user = (await connection.execute(whose)).one_or_none()
            if user is None:
                raise InvalidPasswordResetTokenError
            await set_password(connection, UserId(user.id), user.email, password_hash)
            await post(connection, mail(MailKind.PASSWORD_CHANGED, user.email, now))
            who = attribution.by(f"user:{user.id}")
            await put(
                connection, (event(who, TenantId(user.tenant_id), AuditEvent.RESET_PASSWORD),)
            )


def _open(digest: bytes, now: datetime) -> sa.ColumnElement[bool]:
    is_valid = PASSWORD_RESETS.c.until_us > microseconds(now)
    return sa.and_(PASSWORD_RESETS.c.digest == digest, is_valid)
