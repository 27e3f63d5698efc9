"""Step-up tokens in SQL."""

from datetime import datetime
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncEngine

from pqkeep_gateway.access.idempotency import IdempotencyKeyReusedError
from pqkeep_gateway.access.principals import SessionId, SessionPrincipal, UserId
from pqkeep_gateway.storage.audit_outbox import add_audit_event
from pqkeep_gateway.storage.database import microseconds, read_transaction, time_of, transaction
from pqkeep_gateway.storage.row_mac import authentic_row
from pqkeep_gateway.storage.schema import SESSIONS, STEP_UP_TOKENS
from pqkeep_gateway.storage.users import lock_user
from pqkeep_protocol.audit import Event
from pqkeep_protocol.messages import Idempotency


class Grant(NamedTuple):
    """A session's proof, or its reauthentication at the provider."""

    digest: bytes
    """32 bytes. It covers ``until``, so a row with another end is invalid."""
    until: datetime


class SqlStepUpTokens:
    """Step-up tokens in the database. All methods raise UnavailableError."""

    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine

    async def add(
        self,
        principal: SessionPrincipal,
        digest: bytes,
        proof: bytes | None,
        expires_at: datetime,
        factor_at: datetime | None,
        audit_event: Event,
    ) -> None:
        """Store a token and, if given, the session's proof.

        ``factor_at``: when the factor was added; None for a password or a provider. Removes the user's expired tokens. Raises UserNotFoundError.
        """
        user = principal.user
        is_expired = sa.and_(
            STEP_UP_TOKENS.c.user_id == user, STEP_UP_TOKENS.c.expires_at_us <= audit_event.at_us
        )
        row = {
            "digest": digest,
            "user_id": user,
            "expires_at_us": microseconds(expires_at),
            "is_reserved": False,
            "factor_at_us": 0 if factor_at is None else microseconds(factor_at),
        }
        keep = (
            sa.update(SESSIONS)
            .where(SESSIONS.c.id == principal.session, SESSIONS.c.user_id == user)
            .values(proof_until_us=microseconds(expires_at))
        )
        async with transaction(self._engine) as connection:
            await lock_user(connection, user)
            await connection.execute(sa.delete(STEP_UP_TOKENS).where(is_expired))
            await connection.execute(sa.insert(STEP_UP_TOKENS), row)
            if proof is not None:
                await connection.execute(keep.values(proof_digest=proof))
            await add_audit_event(connection, audit_event)

    async def find_proof(self, session: SessionId) -> Grant | None:
        """Return a session's proof, which can be expired, or None."""
        return await self._grant(session, SESSIONS.c.proof_digest, SESSIONS.c.proof_until_us)

    async def find_reauthentication(self, session: SessionId) -> Grant | None:
        """Return a session's reauthentication at its provider, which can be expired, or None."""
        columns = SESSIONS.c.reauthentication_digest, SESSIONS.c.reauthenticated_until_us
        return await self._grant(session, *columns)

    async def _grant(
        self, session: SessionId, digest: sa.Column[Any], until_us: sa.Column[Any]
    ) -> Grant | None:
        is_there = sa.and_(digest.is_not(None), until_us.is_not(None))
        query = sa.select(digest, until_us).where(SESSIONS.c.id == session, is_there)
        async with read_transaction(self._engine) as connection:
            row = (await connection.execute(query)).one_or_none()
        return None if row is None else Grant(row[0], time_of(row[1]))

    async def use_reauthentication(self, session: SessionId, digest: bytes, now: datetime) -> bool:
        """Use up a session's reauthentication in one conditional UPDATE.

        Return False if the session had none with this digest.
        """
        use_up = (
            sa.update(SESSIONS)
            .where(
                SESSIONS.c.id == session,
                SESSIONS.c.reauthentication_digest == digest,
                SESSIONS.c.reauthenticated_until_us > microseconds(now),
            )
            .values(reauthenticated_until_us=None, reauthentication_digest=None)
        )
        async with transaction(self._engine) as connection:
            return (await connection.execute(use_up)).rowcount == 1

    async def reserve(self, user: UserId, digest: bytes, now: datetime) -> bool:
        """Reserve a user's token, in one conditional UPDATE; return whether it was free."""
        reserve = (
            sa.update(STEP_UP_TOKENS)
            .where(
                STEP_UP_TOKENS.c.digest == digest,
                STEP_UP_TOKENS.c.user_id == user,
                STEP_UP_TOKENS.c.expires_at_us > microseconds(now),
                STEP_UP_TOKENS.c.is_reserved.is_(False),
            )
            .values(is_reserved=True)
            .returning(STEP_UP_TOKENS)
        )
        async with transaction(self._engine) as connection:
            return await authentic_row(connection, STEP_UP_TOKENS, reserve) is not None

    async def factor_at(self, user: UserId, digest: bytes) -> datetime | None:
        """Return when the factor behind a user's token was added; None without the token."""
        query = sa.select(STEP_UP_TOKENS).where(
            STEP_UP_TOKENS.c.digest == digest, STEP_UP_TOKENS.c.user_id == user
        )
        async with read_transaction(self._engine) as connection:
            row = await authentic_row(connection, STEP_UP_TOKENS, query)
        return None if row is None else time_of(row.factor_at_us)

    async def release(self, digest: bytes) -> None:
        """Undo a reservation."""
        release = sa.update(STEP_UP_TOKENS).where(STEP_UP_TOKENS.c.digest == digest)
        async with transaction(self._engine) as connection:
            await connection.execute(release.values(is_reserved=False))

    async def use_up(self, digest: bytes, idempotency: Idempotency | None) -> None:
        """Remove a token. If the request can be repeated, keep the token until it expires."""
        is_token = STEP_UP_TOKENS.c.digest == digest
        statement: sa.Update | sa.Delete = sa.delete(STEP_UP_TOKENS).where(is_token)
        if idempotency is not None:
            statement = (
                sa.update(STEP_UP_TOKENS)
                .where(is_token)
                .values(used_by_key=idempotency.key, used_by_request=idempotency.request)
            )
        async with transaction(self._engine) as connection:
            await connection.execute(statement)

    async def was_used_by(
        self, user: UserId, digest: bytes, idempotency: Idempotency, now: datetime
    ) -> bool:
        """Return whether a request used a user's token, which has not expired.

        Raises IdempotencyKeyReusedError for another request with the same Idempotency-Key.
        """
        query = sa.select(STEP_UP_TOKENS).where(
            STEP_UP_TOKENS.c.digest == digest,
            STEP_UP_TOKENS.c.user_id == user,
            STEP_UP_TOKENS.c.expires_at_us > microseconds(now),
            STEP_UP_TOKENS.c.used_by_key == idempotency.key,
        )
        async with read_transaction(self._engine) as connection:
            row = await authentic_row(connection, STEP_UP_TOKENS, query)
            if row is None:
                return False
        if row.used_by_request != idempotency.request:
            raise IdempotencyKeyReusedError
        return True
