"""Pending password resets in SQL."""

from datetime import datetime

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncEngine

from pqkeep_gateway.access.principals import UserId
from pqkeep_gateway.audit_events import event
from pqkeep_gateway.outgoing_mail import MailKind, OutgoingMail, new_mail
from pqkeep_gateway.storage.audit_outbox import add_audit_event
from pqkeep_gateway.storage.database import microseconds, read_transaction, transaction
from pqkeep_gateway.storage.known_networks import remember_network
from pqkeep_gateway.storage.outgoing_mail import add_mail
from pqkeep_gateway.storage.row_mac import authentic_row, is_authentic
from pqkeep_gateway.storage.schema import PASSWORD_RESETS, USERS
from pqkeep_gateway.storage.users import email_key, save_password
from pqkeep_protocol.audit import Event
from pqkeep_protocol.audit_events import AuditEvent
from pqkeep_protocol.keys import TenantId
from pqkeep_protocol.messages import Attribution


class InvalidPasswordResetTokenError(Exception):
    """The password reset of the token is unknown, expired or used."""


class SqlPasswordResets:
    """Pending password resets in the database. All methods raise UnavailableError."""

    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine

    async def add(self, email: str, digest: bytes, mail: OutgoingMail, audit_event: Event) -> None:
        """Store a reset with its mail; remove expired ones. Earlier resets remain valid."""
        is_expired = PASSWORD_RESETS.c.expires_at_us <= microseconds(mail.created_at)
        row = {
            "digest": digest,
            "email_key": email_key(email),
            "expires_at_us": microseconds(mail.expires_at),
        }
        async with transaction(self._engine) as connection:
            await connection.execute(sa.delete(PASSWORD_RESETS).where(is_expired))
            await connection.execute(sa.insert(PASSWORD_RESETS), row)
            await add_mail(connection, mail)
            await add_audit_event(connection, audit_event)

    async def find(self, digest: bytes, now: datetime) -> str | None:
        """Return the address of the pending reset with a token digest, or None."""
        query = sa.select(PASSWORD_RESETS).where(_is_pending(digest, now))
        async with read_transaction(self._engine) as connection:
            row = await authentic_row(connection, PASSWORD_RESETS, query)
        return None if row is None else str(row.email_key)

    async def complete(
        self,
        digest: bytes,
        password_hash: str,
        network: bytes,
        now: datetime,
        attribution: Attribution,
    ) -> None:
        """Use a token once, store the password and the known network, and end all sessions.

        The user is locked before the reset, in the same order as a change of password. Raises
        InvalidPasswordResetTokenError.
        """
        is_pending = _is_pending(digest, now)
        key = sa.select(PASSWORD_RESETS.c.email_key).where(is_pending).scalar_subquery()
        lock = sa.select(USERS).where(USERS.c.email_key == key).with_for_update()
        use_up = sa.delete(PASSWORD_RESETS).where(is_pending).returning(PASSWORD_RESETS)
        async with transaction(self._engine) as connection:
            user = (await connection.execute(lock)).one_or_none()
            reset = (await connection.execute(use_up)).one_or_none()
            if user is None or reset is None:
                raise InvalidPasswordResetTokenError
            if not (
                is_authentic(connection, PASSWORD_RESETS, reset)
                and is_authentic(connection, USERS, user)
            ):
                raise InvalidPasswordResetTokenError
            await save_password(connection, UserId(user.id), user.email, password_hash)
            await remember_network(connection, UserId(user.id), network, now)
            await add_mail(connection, new_mail(MailKind.PASSWORD_CHANGED, user.email, now))
            who = attribution.by(f"user:{user.id}")
            done = event(who, TenantId(user.tenant_id), AuditEvent.RESET_PASSWORD)
            await add_audit_event(connection, done)


def _is_pending(digest: bytes, now: datetime) -> sa.ColumnElement[bool]:
    is_valid = PASSWORD_RESETS.c.expires_at_us > microseconds(now)
    return sa.and_(PASSWORD_RESETS.c.digest == digest, is_valid)
