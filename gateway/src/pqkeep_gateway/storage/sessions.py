"""Sessions in SQL."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from pqkeep_gateway.access.callers import Role
from pqkeep_gateway.access.entitlements import TenantStatus
from pqkeep_gateway.access.principals import SessionId, SessionPrincipal, UserId
from pqkeep_gateway.access.rate_limit import MINUTE, Limit, TooManyAttemptsError
from pqkeep_gateway.audit_events import event
from pqkeep_gateway.notices import Details, NoticeKind
from pqkeep_gateway.storage.audit_outbox import add_audit_event
from pqkeep_gateway.storage.database import (
    MICROSECOND,
    microseconds,
    read_transaction,
    time_of,
    transaction,
)
from pqkeep_gateway.storage.known_networks import remember_network
from pqkeep_gateway.storage.notices import open_notice
from pqkeep_gateway.storage.pages import WHOLE, Order, Page, Part, read_page
from pqkeep_gateway.storage.row_mac import MAC, authentic_row, is_authentic, mac_after
from pqkeep_gateway.storage.schema import (
    SESSIONS,
    SPENT_REFRESH_TOKENS,
    TENANTS,
    USERS,
)
from pqkeep_gateway.storage.shards import PLACEMENT, placement_of
from pqkeep_gateway.storage.tenants import MFA_REQUIREMENT, entitlements_of, requires_mfa
from pqkeep_gateway.storage.users import (
    Account,
    AccountChangedError,
    end_sessions,
    person_subject,
)
from pqkeep_protocol.audit import Event
from pqkeep_protocol.audit_events import AuditEvent
from pqkeep_protocol.keys import TenantId
from pqkeep_protocol.messages import Attribution

EXCHANGES = Limit(60, 15 * MINUTE)
"""Refresh tokens per session. Each is kept for a week, to detect its reuse."""


GRACE = timedelta(seconds=10)
"""The time in which a client may repeat an exchange and get the same response."""


class SessionNotFoundError(Exception):
    """The user has no such session."""


class InvalidRefreshTokenError(Exception):
    """The session of the refresh token is unknown or has ended."""


class RefreshTokenReusedError(InvalidRefreshTokenError):
    """The refresh token was exchanged before, so its session has been ended."""


@dataclass(frozen=True, slots=True)
class TokenDigests:
    """The stored digests of both tokens, with their expiry."""

    access: bytes = field(repr=False)
    access_expires_at: datetime
    refresh: bytes = field(repr=False)
    refresh_expires_at: datetime


@dataclass(frozen=True, slots=True)
class Exchange:
    """A client's exchange of a refresh token for two tokens derived from it and a salt."""

    spent: bytes = field(repr=False)
    client: bytes = field(repr=False)
    """32 bytes: a digest of the client's network and user agent."""
    salt: bytes = field(repr=False)
    """The salt of the two tokens (16 bytes)."""
    digests: TokenDigests
    attribution: Attribution


@dataclass(frozen=True, slots=True)
class Session:
    """A session, as its person sees it."""

    id: SessionId
    user: UserId
    created_at: datetime
    refreshed_at: datetime
    source_address: str
    used_second_factor: bool = False
    user_agent: str = ""
    """The printable part of the client's User-Agent at the sign-in."""


MAX_SESSIONS = 100
"""Sessions per person. One more ends the session with the oldest refresh."""
SECOND = 1_000_000
"""The number of microseconds in a second."""


class SqlSessions:
    """Sessions in the database. All methods raise UnavailableError."""

    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine

    async def add(
        self,
        session: Session,
        digests: TokenDigests,
        account: Account,
        network: bytes,
        audit_events: Sequence[Event],
    ) -> None:
        """Store a new session with its known network; remove expired ones of the same user.

        Raises AccountChangedError unless the stored password and second factors are the account's.
        """
        now = microseconds(session.created_at)
        is_unchanged = sa.and_(
            USERS.c.id == session.user,
            USERS.c.password_hash == account.password_hash,
            USERS.c.has_mfa.is_(account.has_mfa),
            USERS.c.email_codes.is_(account.email_codes),
            USERS.c.passkeys == account.passkeys,
        )
        sign_in = sa.update(USERS).where(is_unchanged).values(last_sign_in_at_us=now)
        is_users = SESSIONS.c.user_id == session.user
        latest = (SESSIONS.c.refreshed_at_us.desc(), SESSIONS.c.id)
        kept = sa.select(SESSIONS.c.id).where(is_users).order_by(*latest).limit(MAX_SESSIONS - 1)
        is_over = sa.or_(SESSIONS.c.refresh_expires_at_us <= now, SESSIONS.c.id.not_in(kept))
        row = {
            "id": session.id,
            "user_id": session.user,
            "created_at_us": now,
            "refreshed_at_us": microseconds(session.refreshed_at),
            "source_address": session.source_address,
            "used_second_factor": session.used_second_factor,
            "user_agent": session.user_agent,
            **_digest_columns(digests),
            **_expiry_columns(digests),
        }
        async with transaction(self._engine) as connection:
            if (await connection.execute(sign_in)).rowcount == 0:
                raise AccountChangedError
            await end_sessions(connection, sa.and_(is_users, is_over))
            await connection.execute(sa.insert(SESSIONS), row)
            await remember_network(connection, session.user, network, session.created_at)
            await add_audit_event(connection, *audit_events)

    async def find(self, access: bytes, now: datetime) -> SessionPrincipal | None:
        """Return the principal of an access token's digest, or None."""
        query = (
            sa.select(
                SESSIONS,
                SESSIONS.c.id.label("session_id"),
                USERS,
                TENANTS.c.status,
                *MFA_REQUIREMENT,
                *PLACEMENT,
            )
            .join(USERS, USERS.c.id == SESSIONS.c.user_id)
            .join(TENANTS, TENANTS.c.id == USERS.c.tenant_id)
            .where(
                SESSIONS.c.access_digest == access,
                SESSIONS.c.access_expires_at_us > microseconds(now),
            )
        )
        async with read_transaction(self._engine) as connection:
            row = (await connection.execute(query)).one_or_none()
            if row is None or not (
                is_authentic(connection, SESSIONS, row) and is_authentic(connection, USERS, row)
            ):
                return None
        return SessionPrincipal(
            tenant=TenantId(row.tenant_id),
            entitlements=entitlements_of(row),
            user=UserId(row.user_id),
            role=Role(row.role),
            session=SessionId(row.session_id),
            suspended=row.status != TenantStatus.ACTIVE,
            must_enroll=requires_mfa(connection, row)
            and not (row.has_mfa or row.passkeys or row.used_second_factor),
            placement=placement_of(row),
            language=row.language,
        )

    async def refresh(self, exchange: Exchange, now: datetime, lifetime: timedelta) -> bytes:
        """Replace both tokens of the session with this refresh token, in one conditional UPDATE.

        Returns the salt of the exchange in force: this one, or the latest one if the same client
        exchanged the same token within GRACE. No token outlives the session's lifetime. Raises
        InvalidRefreshTokenError, TooManyAttemptsError; RefreshTokenReusedError after ending the
        session.
        """
        now_us, digests = microseconds(now), exchange.digests
        ends_at_us = SESSIONS.c.created_at_us + lifetime // MICROSECOND
        values = {
            **_digest_columns(digests),
            "refreshed_at_us": now_us,
            "exchanged_digest": exchange.spent,
            "exchange_client": exchange.client,
            "exchange_salt": exchange.salt,
        }
        is_spent = SESSIONS.c.refresh_digest == exchange.spent
        is_valid = sa.and_(SESSIONS.c.refresh_expires_at_us > now_us, ends_at_us > now_us)
        current = sa.select(SESSIONS).where(is_spent, is_valid)
        repeated = sa.select(SESSIONS.c.exchange_salt).where(
            SESSIONS.c.exchanged_digest == exchange.spent,
            SESSIONS.c.exchange_client == exchange.client,
            SESSIONS.c.refreshed_at_us > microseconds(now - GRACE),
            ends_at_us > now_us,
        )
        async with transaction(self._engine) as connection:
            row = await authentic_row(connection, SESSIONS, current)
            if row is not None:
                end_us = row.created_at_us + lifetime // MICROSECOND
                values |= {
                    name: min(at_us, end_us) for name, at_us in _expiry_columns(digests).items()
                }
                values[MAC] = mac_after(connection, SESSIONS, row, values)
                replace = sa.update(SESSIONS).where(SESSIONS.c.id == row.id, is_spent, is_valid)
                if (await connection.execute(replace.values(values))).rowcount == 1:
                    await _require_seldom(connection, SessionId(row.id), exchange)
                    await _save_spent(connection, SessionId(row.id), exchange, now_us)
                    return exchange.salt
            salt: bytes | None = (await connection.execute(repeated)).scalar()
            if salt is not None:
                return salt
            was_reused = await _end_session_of_spent(connection, exchange, now)
        raise RefreshTokenReusedError if was_reused else InvalidRefreshTokenError

    async def list(self, user: UserId, now: datetime, part: Part = WHOLE) -> Page[Session]:
        """Return a user's sessions, newest first. Raises PositionNotFoundError."""
        is_valid = SESSIONS.c.refresh_expires_at_us > microseconds(now)
        query = sa.select(SESSIONS).where(SESSIONS.c.user_id == user, is_valid)
        order = Order(SESSIONS.c.created_at_us, SESSIONS.c.id, newest_first=True)
        async with read_transaction(self._engine) as connection:
            return await read_page(connection, query, order, part, _session)

    async def remove(self, user: UserId, session: SessionId, audit_events: Sequence[Event]) -> None:
        """End one of a user's sessions. Raises SessionNotFoundError."""
        condition = sa.and_(SESSIONS.c.user_id == user, SESSIONS.c.id == session)
        async with transaction(self._engine) as connection:
            if not await end_sessions(connection, condition):
                raise SessionNotFoundError
            await add_audit_event(connection, *audit_events)


async def _require_seldom(
    connection: AsyncConnection, session: SessionId, exchange: Exchange
) -> None:
    """Raise TooManyAttemptsError if a session has had too many exchanges recently.

    The error rolls the exchange back.
    """
    since_us = microseconds(exchange.digests.refresh_expires_at) - EXCHANGES.seconds * SECOND
    recent = sa.select(sa.func.count(), sa.func.min(SPENT_REFRESH_TOKENS.c.expires_at_us)).where(
        SPENT_REFRESH_TOKENS.c.session_id == session,
        SPENT_REFRESH_TOKENS.c.expires_at_us > since_us,
    )
    count, first_us = (await connection.execute(recent)).one()
    if count >= EXCHANGES.events:
        raise TooManyAttemptsError(EXCHANGES, (first_us - since_us) / SECOND)


async def _save_spent(
    connection: AsyncConnection, session: SessionId, exchange: Exchange, now_us: int
) -> None:
    """Store an exchanged refresh token, and remove expired ones."""
    row = {
        "digest": exchange.spent,
        "session_id": session,
        "expires_at_us": microseconds(exchange.digests.refresh_expires_at),
    }
    is_expired = sa.and_(
        SPENT_REFRESH_TOKENS.c.session_id == session,
        SPENT_REFRESH_TOKENS.c.expires_at_us <= now_us,
    )
    await connection.execute(sa.delete(SPENT_REFRESH_TOKENS).where(is_expired))
    await connection.execute(sa.insert(SPENT_REFRESH_TOKENS), row)


async def _end_session_of_spent(
    connection: AsyncConnection, exchange: Exchange, now: datetime
) -> bool:
    """End the session of an exchanged refresh token; return whether it existed."""
    query = (
        sa.select(SESSIONS.c.id, USERS.c.id.label("user_id"), USERS.c.tenant_id, USERS.c.email)
        .join(SPENT_REFRESH_TOKENS, SPENT_REFRESH_TOKENS.c.session_id == SESSIONS.c.id)
        .join(USERS, USERS.c.id == SESSIONS.c.user_id)
        .where(SPENT_REFRESH_TOKENS.c.digest == exchange.spent)
    )
    row = (await connection.execute(query)).one_or_none()
    if row is None or not await end_sessions(connection, SESSIONS.c.id == row.id):
        return False
    reused = event(
        exchange.attribution.by(f"user:{row.user_id}"),
        TenantId(row.tenant_id),
        AuditEvent.REFRESH_TOKEN_REUSED,
        outcome="ERR_AUTH_001",
    )
    await add_audit_event(connection, reused)
    source = exchange.attribution.source_address
    await open_notice(
        connection,
        TenantId(row.tenant_id),
        NoticeKind.REFRESH_TOKEN_REUSED,
        person_subject(UserId(row.user_id)),
        Details(names=(row.email,), at=now, source_address=source),
        now,
    )
    return True


def _digest_columns(digests: TokenDigests) -> dict[str, bytes]:
    return {"access_digest": digests.access, "refresh_digest": digests.refresh}


def _expiry_columns(digests: TokenDigests) -> dict[str, int]:
    return {
        "access_expires_at_us": microseconds(digests.access_expires_at),
        "refresh_expires_at_us": microseconds(digests.refresh_expires_at),
    }


def _session(row: sa.Row[Any]) -> Session:
    return Session(
        SessionId(row.id),
        UserId(row.user_id),
        time_of(row.created_at_us),
        time_of(row.refreshed_at_us),
        row.source_address,
        used_second_factor=bool(row.used_second_factor),
        user_agent=row.user_agent,
    )
