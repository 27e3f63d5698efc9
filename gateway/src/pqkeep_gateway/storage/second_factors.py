"""Authenticators and recovery codes in SQL."""

from collections.abc import Sequence

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncEngine

from pqkeep_gateway.access.principals import SessionPrincipal, UserId
from pqkeep_gateway.outgoing_mail import OutgoingMail
from pqkeep_gateway.storage.audit_outbox import add_audit_event
from pqkeep_gateway.storage.database import transaction
from pqkeep_gateway.storage.outgoing_mail import add_mail
from pqkeep_gateway.storage.schema import RECOVERY_CODES, USERS
from pqkeep_gateway.storage.users import end_other_sessions
from pqkeep_protocol.audit import Event


class AlreadyEnrolledError(Exception):
    """The account has an authenticator."""


class SqlSecondFactors:
    """Second factors in the database. All methods raise UnavailableError."""

    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine

    async def save_enrollment(self, user: UserId, salt: bytes) -> None:
        """Store the salt of an authenticator to be confirmed. Raises AlreadyEnrolledError."""
        begin = (
            sa.update(USERS)
            .where(USERS.c.id == user, USERS.c.has_mfa.is_(False))
            .values(totp_salt=salt, last_totp_step=None)
        )
        async with transaction(self._engine) as connection:
            if (await connection.execute(begin)).rowcount == 0:
                raise AlreadyEnrolledError

    async def confirm(
        self,
        principal: SessionPrincipal,
        salt: bytes,
        recovery_codes: Sequence[bytes],
        mail: OutgoingMail,
        audit_event: Event,
    ) -> bool:
        """Put the authenticator with this salt into force, with recovery codes' digests.

        Ends other sessions of the user.

        Returns False if it is not the one that waits to be confirmed.
        """
        user = principal.user
        is_enrolled = sa.and_(
            USERS.c.id == user, USERS.c.has_mfa.is_(False), USERS.c.totp_salt == salt
        )
        confirm = sa.update(USERS).where(is_enrolled).values(has_mfa=True)
        rows = [{"digest": each, "user_id": user} for each in recovery_codes]
        async with transaction(self._engine) as connection:
            if (await connection.execute(confirm)).rowcount == 0:
                return False
            await connection.execute(sa.insert(RECOVERY_CODES), rows)
            await end_other_sessions(connection, user, principal.session)
            await add_mail(connection, mail)
            await add_audit_event(connection, audit_event)
        return True

    async def remove(
        self, principal: SessionPrincipal, mail: OutgoingMail, audit_event: Event
    ) -> None:
        """Remove the authenticator and its recovery codes; end other sessions."""
        user = principal.user
        disable = (
            sa.update(USERS)
            .where(USERS.c.id == user)
            .values(has_mfa=False, totp_salt=None, last_totp_step=None)
        )
        delete = sa.delete(RECOVERY_CODES).where(RECOVERY_CODES.c.user_id == user)
        async with transaction(self._engine) as connection:
            await connection.execute(disable)
            await connection.execute(delete)
            await end_other_sessions(connection, user, principal.session)
            await add_mail(connection, mail)
            await add_audit_event(connection, audit_event)

    async def save_totp_step(self, user: UserId, salt: bytes, step: int) -> bool:
        """Store the last accepted time step, in one conditional UPDATE.

        Returns False if it is not later than the stored one.
        """
        is_later = sa.or_(USERS.c.last_totp_step.is_(None), USERS.c.last_totp_step < step)
        update = (
            sa.update(USERS)
            .where(USERS.c.id == user, USERS.c.totp_salt == salt, is_later)
            .values(last_totp_step=step)
        )
        async with transaction(self._engine) as connection:
            return (await connection.execute(update)).rowcount == 1

    async def remove_recovery_code(
        self, user: UserId, digest: bytes, mail: OutgoingMail, audit_event: Event
    ) -> bool:
        """Remove a recovery code; return whether it was there."""
        delete = sa.delete(RECOVERY_CODES).where(
            RECOVERY_CODES.c.user_id == user, RECOVERY_CODES.c.digest == digest
        )
        async with transaction(self._engine) as connection:
            if (await connection.execute(delete)).rowcount == 0:
                return False
            await add_mail(connection, mail)
            await add_audit_event(connection, audit_event)
        return True
