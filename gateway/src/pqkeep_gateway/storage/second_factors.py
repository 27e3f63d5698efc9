"""Second factors, challenges and their codes, and step-up tokens in SQL."""

from collections.abc import Sequence
from datetime import datetime

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncEngine

from pqkeep_gateway.access.principals import UserId
from pqkeep_gateway.mail.outgoing_mail import OutgoingMail
from pqkeep_gateway.people.second_factors import AlreadyEnrolledError
from pqkeep_gateway.storage.database import microseconds, transaction
from pqkeep_gateway.storage.outbox import put
from pqkeep_gateway.storage.outgoing_mail import post
from pqkeep_gateway.storage.people import SqlPeople, lock_user
from pqkeep_gateway.storage.schema import CHALLENGES, RECOVERY_CODES, STEP_UP_TOKENS, USERS
from pqkeep_protocol.audit import Event


class SqlSecondFactors(SqlPeople):
    """A SecondFactorStore."""

    async def enroll(self, user: UserId, salt: bytes) -> None:
        """Keep the salt of a factor to confirm. Raises AlreadyEnrolledError."""
        begin = (
            sa.update(USERS)
            .where(USERS.c.id == user, USERS.c.has_mfa.is_(False))
            .values(totp_salt=salt, totp_step=None)
        )
        async with transaction(self._engine) as connection:
            if (await connection.execute(begin)).rowcount == 0:
                raise AlreadyEnrolledError

    async def confirm(
        self, user: UserId, codes: Sequence[bytes], mail: OutgoingMail, made: Event
    ) -> bool:
        """Let the factor hold from now on, with recovery codes' digests."""
        confirm = (
            sa.update(USERS)
            .where(USERS.c.id == user, USERS.c.has_mfa.is_(False), USERS.c.totp_salt.is_not(None))
            .values(has_mfa=True)
        )
        rows = [{"digest": each, "user_id": user} for each in codes]
        async with transaction(self._engine) as connection:
            if (await connection.execute(confirm)).rowcount == 0:
                return False
            await connection.execute(sa.insert(RECOVERY_CODES), rows)
            await post(connection, mail)
            await put(connection, (made,))
        return True

    async def disable(self, user: UserId, mail: OutgoingMail, made: Event) -> None:
        """Forget factor and recovery codes."""
        disable = (
            sa.update(USERS)
            .where(USERS.c.id == user)
            .values(has_mfa=False, totp_salt=None, totp_step=None)
        )
        async with transaction(self._engine) as connection:
            await connection.execute(disable)
            await connection.execute(
                sa.delete(RECOVERY_CODES).where(RECOVERY_CODES.c.user_id == user)
            )
            await post(connection, mail)
            await put(connection, (made,))

    async def accept_step(self, user: UserId, salt: bytes, step: int) -> bool:
        """Remember a step as the last one accepted, if it is later than the last."""
        is_later = sa.or_(USERS.c.totp_step.is_(None), USERS.c.totp_step < step)
        accept = (
            sa.update(USERS)
            .where(USERS.c.id == user, USERS.c.totp_salt == salt, is_later)
            .values(totp_step=step)
        )
        async with transaction(self._engine) as connection:
            return (await connection.execute(accept)).rowcount == 1

    async def use_recovery_code(
        self, user: UserId, digest: bytes, mail: OutgoingMail, used: Event
    ) -> bool:
        """Use a recovery code up, if it is there."""
        use = sa.delete(RECOVERY_CODES).where(
            RECOVERY_CODES.c.user_id == user, RECOVERY_CODES.c.digest == digest
        )
        async with transaction(self._engine) as connection:
            if (await connection.execute(use)).rowcount == 0:
                return False
            await post(connection, mail)
            await put(connection, (used,))
        return True

    async def challenge(self, user: UserId, digest: bytes, until: datetime) -> None:
        """Keep a challenge instead of the person's earlier one. Raises UserNotFoundError."""
        row = {"digest": digest, "user_id": user, "until_us": microseconds(until)}
        async with transaction(self._engine) as connection:
            await lock_user(connection, user)
            await connection.execute(sa.delete(CHALLENGES).where(CHALLENGES.c.user_id == user))
            await connection.execute(sa.insert(CHALLENGES), row)

    async def challenged(self, digest: bytes, now: datetime) -> UserId | None:
        """Return who was challenged."""
        query = sa.select(CHALLENGES.c.user_id).where(
            CHALLENGES.c.digest == digest, CHALLENGES.c.until_us > microseconds(now)
        )
        async with transaction(self._engine) as connection:
            user = (await connection.execute(query)).scalar()
        return None if user is None else UserId(user)

    async def answered(self, digest: bytes) -> bool:
        """Use a challenge up, if it is there."""
        answered = sa.delete(CHALLENGES).where(CHALLENGES.c.digest == digest)
        async with transaction(self._engine) as connection:
            return (await connection.execute(answered)).rowcount == 1

    async def add_code(
        self, challenge: bytes, code: bytes, mail: OutgoingMail, sent: Event
    ) -> bool:
        """Keep a code instead of an earlier one, if its challenge is open, and the letter."""
        is_open = CHALLENGES.c.until_us > microseconds(mail.written_at)
        add = (
            sa.update(CHALLENGES)
            .where(CHALLENGES.c.digest == challenge, is_open)
            .values(code=code, code_tries=0, until_us=microseconds(mail.until))
        )
        async with transaction(self._engine) as connection:
            if (await connection.execute(add)).rowcount == 0:
                return False
            await post(connection, mail)
            await put(connection, (sent,))
        return True

    async def use_code(self, challenge: bytes, code: bytes, now: datetime, at_most: int) -> bool:
        """Count a try, and use challenge and code up if it is the right one and not one too many.

        The try is counted first: so many guesses at once are not more than one after the other.
        """
        this = CHALLENGES.c.digest == challenge
        is_open = sa.and_(
            CHALLENGES.c.until_us > microseconds(now), CHALLENGES.c.code_tries < at_most
        )
        count = (
            sa.update(CHALLENGES)
            .where(this, is_open)
            .values(code_tries=CHALLENGES.c.code_tries + 1)
        )
        use_up = sa.delete(CHALLENGES).where(this, CHALLENGES.c.code == code)
        async with transaction(self._engine) as connection:
            if (await connection.execute(count)).rowcount == 0:
                return False
            return (await connection.execute(use_up)).rowcount == 1

    async def choose_codes(
        self, user: UserId, mail: OutgoingMail, chosen: Event, *, wanted: bool
    ) -> None:
        """Keep whether somebody wants codes, with the letter."""
        choose = sa.update(USERS).where(USERS.c.id == user).values(email_codes=wanted)
        async with transaction(self._engine) as connection:
            await connection.execute(choose)
            await post(connection, mail)
            await put(connection, (chosen,))


class SqlStepUps:
    """A StepUpStore."""

    def __init__(self, engine: AsyncEngine) -> None:
        """Use an open database."""
        self._engine = engine

    async def add(self, user: UserId, digest: bytes, until: datetime, made: Event) -> None:
        """Keep a token, and forget the person's that are over by its event's time.

        Raises UserNotFoundError.
        """
        over = sa.and_(STEP_UP_TOKENS.c.user_id == user, STEP_UP_TOKENS.c.until_us <= made.at_us)
        row = {
            "digest": digest,
            "user_id": user,
            "until_us": microseconds(until),
            "is_reserved": False,
        }
        async with transaction(self._engine) as connection:
            await lock_user(connection, user)
            await connection.execute(sa.delete(STEP_UP_TOKENS).where(over))
            await connection.execute(sa.insert(STEP_UP_TOKENS), row)
            await put(connection, (made,))

    async def reserve(self, user: UserId, digest: bytes, now: datetime) -> bool:
        """Reserve a token of a person's, if it is free and not over."""
        reserve = (
            sa.update(STEP_UP_TOKENS)
            .where(
                STEP_UP_TOKENS.c.digest == digest,
                STEP_UP_TOKENS.c.user_id == user,
                STEP_UP_TOKENS.c.until_us > microseconds(now),
                STEP_UP_TOKENS.c.is_reserved.is_(False),
            )
            .values(is_reserved=True)
        )
        async with transaction(self._engine) as connection:
            return (await connection.execute(reserve)).rowcount == 1

    async def release(self, digest: bytes) -> None:
        """Give a token back."""
        release = sa.update(STEP_UP_TOKENS).where(STEP_UP_TOKENS.c.digest == digest)
        async with transaction(self._engine) as connection:
            await connection.execute(release.values(is_reserved=False))

    async def consume(self, digest: bytes) -> None:
        """Forget a token."""
        async with transaction(self._engine) as connection:
            await connection.execute(
                sa.delete(STEP_UP_TOKENS).where(STEP_UP_TOKENS.c.digest == digest)
            )
