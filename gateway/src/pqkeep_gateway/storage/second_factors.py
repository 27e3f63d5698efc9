"""Authenticators and recovery codes in SQL."""

from collections.abc import Sequence
from datetime import datetime

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncEngine

from pqkeep_gateway.access.principals import SessionPrincipal, UserId
from pqkeep_gateway.notices import Details, NoticeKind
from pqkeep_gateway.outgoing_mail import OutgoingMail
from pqkeep_gateway.storage.audit_outbox import add_audit_event
from pqkeep_gateway.storage.database import microseconds, read_transaction, transaction
from pqkeep_gateway.storage.known_networks import MAX_NETWORKS
from pqkeep_gateway.storage.notices import close_notices, open_notice
from pqkeep_gateway.storage.outgoing_mail import add_mail
from pqkeep_gateway.storage.passkeys import save_recovery_codes
from pqkeep_gateway.storage.row_mac import authentic_row
from pqkeep_gateway.storage.schema import CHALLENGES, KNOWN_NETWORKS, RECOVERY_CODES, USERS
from pqkeep_gateway.storage.users import (
    Account,
    AccountChangedError,
    change_user,
    end_other_sessions,
    person_subject,
    require_other_factor,
)
from pqkeep_protocol.audit import Event


class AlreadyEnrolledError(Exception):
    """The account already has an authenticator."""


class SqlSecondFactors:
    """Second factors in the database. All methods raise UnavailableError."""

    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine

    async def save_enrollment(self, user: UserId, salt: bytes) -> None:
        """Store the salt of an unconfirmed authenticator. Raises AlreadyEnrolledError."""
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
        """Put the authenticator with this salt into force, with the digests of recovery codes.

        They replace earlier ones. Ends other sessions of the user. Returns False if another authenticator is to be confirmed.
        """
        user = principal.user
        is_enrolled = sa.and_(
            USERS.c.id == user, USERS.c.has_mfa.is_(False), USERS.c.totp_salt == salt
        )
        lock = sa.select(USERS.c.id).where(is_enrolled).with_for_update()
        async with transaction(self._engine) as connection:
            if (await connection.execute(lock)).one_or_none() is None:
                return False
            await change_user(connection, user, has_mfa=True)
            await save_recovery_codes(connection, user, recovery_codes, mail.created_at)
            await end_other_sessions(connection, user, principal.session)
            await add_mail(connection, mail)
            await close_notices(
                connection,
                principal.tenant,
                mail.created_at,
                subject=person_subject(user),
                kind=NoticeKind.FACTOR_REMOVED,
            )
            await add_audit_event(connection, audit_event)
        return True

    async def remove(
        self, principal: SessionPrincipal, mail: OutgoingMail, audit_event: Event
    ) -> None:
        """Remove the authenticator; end other sessions. Recovery codes go with the last factor.

        Raises LastFactorError, UserNotFoundError.
        """
        user = principal.user
        disabled = {"has_mfa": False, "totp_salt": None, "last_totp_step": None}
        async with transaction(self._engine) as connection:
            await change_user(connection, user, **disabled)
            await require_other_factor(connection, user)
            await end_other_sessions(connection, user, principal.session)
            await add_mail(connection, mail)
            now = mail.created_at
            await open_notice(
                connection,
                principal.tenant,
                NoticeKind.FACTOR_REMOVED,
                person_subject(user),
                Details(names=(mail.to,), at=now, source_address=audit_event.source_address),
                now,
            )
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
        """Remove a recovery code; return whether it existed."""
        delete = sa.delete(RECOVERY_CODES).where(
            RECOVERY_CODES.c.user_id == user, RECOVERY_CODES.c.digest == digest
        )
        async with transaction(self._engine) as connection:
            if (await connection.execute(delete)).rowcount == 0:
                return False
            await add_mail(connection, mail)
            await add_audit_event(connection, audit_event)
        return True


MAX_CHALLENGES = 2 * MAX_NETWORKS
"""Challenges per person, one for each network. Beyond it, the oldest one from an unknown network is
removed. So an attacker with the password cannot end a sign-in from a known network."""


class SqlChallenges:
    """Challenges in the database, with the last code sent. All methods raise UnavailableError."""

    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine

    async def add(
        self, account: Account, digest: bytes, network: bytes, now: datetime, expires_at: datetime
    ) -> None:
        """Store a challenge, replacing the user's earlier one from the same network (32 bytes).

        Raises AccountChangedError unless the stored password is the account's.
        """
        user = account.user.id
        is_unchanged = sa.and_(USERS.c.id == user, USERS.c.password_hash == account.password_hash)
        lock = sa.select(USERS.c.id).where(is_unchanged).with_for_update()
        row = {
            "digest": digest,
            "user_id": user,
            "expires_at_us": microseconds(expires_at),
            "network": network,
        }
        is_users = CHALLENGES.c.user_id == user
        is_known = sa.exists().where(
            KNOWN_NETWORKS.c.digest == CHALLENGES.c.network, KNOWN_NETWORKS.c.user_id == user
        )
        order = (is_known.desc(), CHALLENGES.c.expires_at_us.desc(), CHALLENGES.c.digest)
        kept = sa.select(CHALLENGES.c.digest).where(is_users).order_by(*order)
        is_over = sa.or_(
            CHALLENGES.c.network == network,
            CHALLENGES.c.expires_at_us <= microseconds(now),
            CHALLENGES.c.digest.not_in(kept.limit(MAX_CHALLENGES - 1)),
        )
        async with transaction(self._engine) as connection:
            if (await connection.execute(lock)).one_or_none() is None:
                raise AccountChangedError
            await connection.execute(sa.delete(CHALLENGES).where(is_users, is_over))
            await connection.execute(sa.insert(CHALLENGES), row)

    async def find(self, digest: bytes, now: datetime) -> UserId | None:
        """Return the user of a pending challenge, or None."""
        query = sa.select(CHALLENGES).where(_is_pending(digest, now))
        async with read_transaction(self._engine) as connection:
            row = await authentic_row(connection, CHALLENGES, query)
        return None if row is None else UserId(row.user_id)

    async def remove(self, digest: bytes) -> bool:
        """Remove a challenge; return whether it existed."""
        delete = sa.delete(CHALLENGES).where(CHALLENGES.c.digest == digest)
        async with transaction(self._engine) as connection:
            return (await connection.execute(delete)).rowcount == 1

    async def save_email_code(
        self, challenge: bytes, code: bytes, mail: OutgoingMail, audit_event: Event
    ) -> bool:
        """Store a code's digest with its mail; return False if the challenge is not pending.

        It replaces an earlier code, and the challenge expires with the mail.
        """
        update = (
            sa.update(CHALLENGES)
            .where(_is_pending(challenge, mail.created_at))
            .values(
                email_code_digest=code,
                email_code_attempts=0,
                expires_at_us=microseconds(mail.expires_at),
            )
        )
        async with transaction(self._engine) as connection:
            if (await connection.execute(update)).rowcount == 0:
                return False
            await add_mail(connection, mail)
            await add_audit_event(connection, audit_event)
        return True

    async def use_email_code(
        self, challenge: bytes, code: bytes, now: datetime, max_attempts: int
    ) -> bool:
        """Count an attempt; remove the challenge and return True if the code is correct.

        The attempt is counted first, so that concurrent guesses cannot exceed the limit.
        """
        count = (
            sa.update(CHALLENGES)
            .where(_is_pending(challenge, now), CHALLENGES.c.email_code_attempts < max_attempts)
            .values(email_code_attempts=CHALLENGES.c.email_code_attempts + 1)
        )
        use_up = sa.delete(CHALLENGES).where(
            CHALLENGES.c.digest == challenge, CHALLENGES.c.email_code_digest == code
        )
        async with transaction(self._engine) as connection:
            if (await connection.execute(count)).rowcount == 0:
                return False
            return (await connection.execute(use_up)).rowcount == 1


def _is_pending(digest: bytes, now: datetime) -> sa.ColumnElement[bool]:
    is_valid = CHALLENGES.c.expires_at_us > microseconds(now)
    return sa.and_(CHALLENGES.c.digest == digest, is_valid)
