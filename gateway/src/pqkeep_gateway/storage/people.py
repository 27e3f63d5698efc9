"""People, their sessions and invitations in SQL."""

from collections.abc import Collection, Sequence
from datetime import datetime
from typing import Any
from uuid import uuid4

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from pqkeep_gateway.access.entitlements import WITH_REQUIRED_MFA
from pqkeep_gateway.access.principals import SessionId, SessionPrincipal, UserId
from pqkeep_gateway.access.roles import Role
from pqkeep_gateway.audit_events import event
from pqkeep_gateway.mail.outgoing_mail import OutgoingMail
from pqkeep_gateway.people.sessions import NoSessionError, Pair, RefreshTokenReusedError, Session
from pqkeep_gateway.people.sign_in import InvalidInvitationTokenError, Invitation
from pqkeep_gateway.people.team import OwnersOnlyError
from pqkeep_gateway.people.users import (
    Account,
    EmailTakenError,
    User,
    UserNotFoundError,
    email_key,
)
from pqkeep_gateway.storage.database import microseconds, time_of, transaction
from pqkeep_gateway.storage.outbox import put
from pqkeep_gateway.storage.outgoing_mail import post
from pqkeep_gateway.storage.schema import (
    CHALLENGES,
    INVITATIONS,
    PASSWORD_RESETS,
    SESSIONS,
    SPENT_TOKENS,
    TENANTS,
    USERS,
)
from pqkeep_gateway.storage.tenancy import STANDING, standing_of
from pqkeep_gateway.tenancy.tenants import TenantStatus
from pqkeep_protocol.audit import Event
from pqkeep_protocol.audit_events import AuditEvent
from pqkeep_protocol.keys import TenantId
from pqkeep_protocol.messages import Attribution


class SqlPeople:
    """An EntryStore."""

    def __init__(self, engine: AsyncEngine) -> None:
        """Use an open database."""
        self._engine = engine

    async def find(self, email: str) -> Account | None:
        """Return who has an address."""
        if not email.isascii():
            return None
        return await self._one(USERS.c.email_key == email_key(email))

    async def get(self, user: UserId) -> Account:
        """Return a person. Raises UserNotFoundError."""
        account = await self._one(USERS.c.id == user)
        if account is None:
            raise UserNotFoundError
        return account

    async def invite(
        self,
        invitation: Invitation,
        digest: bytes,
        mail: OutgoingMail,
        made: Event,
        decides: Collection[Role],
    ) -> None:
        """Keep an invitation instead of any earlier one to the same address, and the letter.

        Raises OwnersOnlyError if an earlier one is to another role than these.
        """
        key = email_key(invitation.email)
        row = {
            "digest": digest,
            "tenant_id": invitation.tenant,
            "email": invitation.email,
            "email_key": key,
            "role": invitation.role,
            "expires_at_us": microseconds(invitation.expires_at),
            "id": invitation.id,
        }
        replace = (
            sa.delete(INVITATIONS)
            .where(INVITATIONS.c.email_key == key, INVITATIONS.c.tenant_id == invitation.tenant)
            .returning(INVITATIONS.c.role, INVITATIONS.c.expires_at_us)
        )
        now = microseconds(mail.written_at)
        async with transaction(self._engine) as connection:
            replaced = (await connection.execute(replace)).all()
            if any(row.expires_at_us > now and row.role not in decides for row in replaced):
                raise OwnersOnlyError
            await connection.execute(sa.insert(INVITATIONS), row)
            await post(connection, mail)
            await put(connection, (made,))

    async def invited(self, digest: bytes, now: datetime) -> bool:
        """Return whether an invitation can be accepted."""
        query = sa.select(INVITATIONS.c.role).where(_open(digest, now))
        async with transaction(self._engine) as connection:
            return (await connection.execute(query)).one_or_none() is not None

    async def accept(
        self, digest: bytes, password_hash: str, now: datetime, attribution: Attribution
    ) -> Account:
        """Use an invitation up and keep the person. Raises InvalidInvitationTokenError, EmailTakenError."""
        use_up = sa.delete(INVITATIONS).where(_open(digest, now)).returning(INVITATIONS)
        try:
            async with transaction(self._engine) as connection:
                row = (await connection.execute(use_up)).one_or_none()
                if row is None:
                    raise InvalidInvitationTokenError
                user = User(
                    UserId(uuid4()), TenantId(row.tenant_id), row.email, Role(row.role), now
                )
                account = Account(user, password_hash)
                await connection.execute(sa.insert(USERS), user_row(account))
                joined = event(attribution.by(str(user)), user.tenant, AuditEvent.ACCEPT_INVITATION)
                await put(connection, (joined,))
        except sa.exc.IntegrityError:
            raise EmailTakenError from None
        return account

    async def renew_hash(self, account: Account, password_hash: str) -> bool:
        """Keep another hash of the same password, unless the hash is another by now."""
        same = sa.and_(
            USERS.c.id == account.user.id, USERS.c.password_hash == account.password_hash
        )
        renew = sa.update(USERS).where(same).values(password_hash=password_hash)
        async with transaction(self._engine) as connection:
            return (await connection.execute(renew)).rowcount == 1

    async def change_password(
        self, user: UserId, password_hash: str, mail: OutgoingMail, changed: Event
    ) -> None:
        """Keep another password, and end what the old one began."""
        async with transaction(self._engine) as connection:
            await set_password(connection, user, mail.to, password_hash)
            await post(connection, mail)
            await put(connection, (changed,))

    async def _one(self, which: sa.ColumnElement[bool]) -> Account | None:
        query = (
            sa.select(USERS, *REQUIRES_MFA)
            .join(TENANTS, TENANTS.c.id == USERS.c.tenant_id)
            .where(which)
        )
        async with transaction(self._engine) as connection:
            row = (await connection.execute(query)).one_or_none()
        return None if row is None else _account(row)


class SqlSessions:
    """A SessionStore."""

    def __init__(self, engine: AsyncEngine) -> None:
        """Use an open database."""
        self._engine = engine

    async def add(
        self, session: Session, pair: Pair, password_hash: str, events: Sequence[Event]
    ) -> None:
        """Keep a new session and when it began, and forget the person's that have expired."""
        now = microseconds(session.created_at)
        same = sa.and_(USERS.c.id == session.user, USERS.c.password_hash == password_hash)
        enter = sa.update(USERS).where(same).values(last_sign_in_at_us=now)
        over = sa.and_(SESSIONS.c.user_id == session.user, SESSIONS.c.refresh_until_us <= now)
        row = {
            "id": session.id,
            "user_id": session.user,
            "created_at_us": now,
            "refreshed_at_us": microseconds(session.refreshed_at),
            "source_address": session.source_address,
            "by_code": session.by_code,
            **_pair_row(pair),
        }
        async with transaction(self._engine) as connection:
            if (await connection.execute(enter)).rowcount == 0:
                raise NoSessionError
            await end_sessions(connection, over)
            await connection.execute(sa.insert(SESSIONS), row)
            await put(connection, events)

    async def find(self, access: bytes, now: datetime) -> SessionPrincipal | None:
        """Return whose session an access token's digest opens."""
        query = (
            sa.select(
                SESSIONS.c.id.label("session_id"),
                USERS.c.id.label("user_id"),
                USERS.c.role,
                TENANTS.c.id.label("tenant_id"),
                TENANTS.c.status,
                USERS.c.has_mfa,
                SESSIONS.c.by_code,
                *REQUIRES_MFA,
            )
            .join(USERS, USERS.c.id == SESSIONS.c.user_id)
            .join(TENANTS, TENANTS.c.id == USERS.c.tenant_id)
            .where(SESSIONS.c.access == access, SESSIONS.c.access_until_us > microseconds(now))
        )
        async with transaction(self._engine) as connection:
            row = (await connection.execute(query)).one_or_none()
        if row is None:
            return None
        return SessionPrincipal(
            tenant=TenantId(row.tenant_id),
            entitlements=standing_of(row),
            user=UserId(row.user_id),
            role=Role(row.role),
            session=SessionId(row.session_id),
            suspended=row.status != TenantStatus.ACTIVE,
            must_enroll=must_enroll(row) and not row.by_code,
        )

    async def refresh(
        self, spent: bytes, pair: Pair, now: datetime, attribution: Attribution
    ) -> None:
        """Put a pair in the place of the one with this refresh token. Raises NoSessionError."""
        now_us = microseconds(now)
        exchange = (
            sa.update(SESSIONS)
            .where(SESSIONS.c.refresh == spent, SESSIONS.c.refresh_until_us > now_us)
            .values(refreshed_at_us=now_us, **_pair_row(pair))
            .returning(SESSIONS.c.id)
        )
        async with transaction(self._engine) as connection:
            session = (await connection.execute(exchange)).scalar()
            if session is not None:
                row = {
                    "digest": spent,
                    "session_id": session,
                    "until_us": microseconds(pair.refresh_until),
                }
                old = sa.and_(
                    SPENT_TOKENS.c.session_id == session, SPENT_TOKENS.c.until_us <= now_us
                )
                await connection.execute(sa.delete(SPENT_TOKENS).where(old))
                await connection.execute(sa.insert(SPENT_TOKENS), row)
                return
            was_copied = await _end_copied(connection, spent, attribution)
        raise RefreshTokenReusedError if was_copied else NoSessionError

    async def list(self, user: UserId, now: datetime) -> tuple[Session, ...]:
        """Return a person's sessions, the newest first."""
        query = (
            sa.select(SESSIONS)
            .where(SESSIONS.c.user_id == user, SESSIONS.c.refresh_until_us > microseconds(now))
            .order_by(SESSIONS.c.created_at_us.desc(), SESSIONS.c.id)
        )
        async with transaction(self._engine) as connection:
            return tuple(_session(row) for row in await connection.execute(query))

    async def end(self, user: UserId, session: SessionId, events: Sequence[Event]) -> None:
        """End a session of a person's. Raises NoSessionError."""
        async with transaction(self._engine) as connection:
            this = sa.and_(SESSIONS.c.user_id == user, SESSIONS.c.id == session)
            if not await end_sessions(connection, this):
                raise NoSessionError
            await put(connection, events)


async def end_sessions(connection: AsyncConnection, which: sa.ColumnElement[bool]) -> bool:
    """End sessions, with what is remembered of their tokens; return whether there were any."""
    found = (
        await connection.execute(sa.select(SESSIONS.c.id).where(which).with_for_update())
    ).scalars()
    ids = list(found)
    if ids:
        await connection.execute(sa.delete(SPENT_TOKENS).where(SPENT_TOKENS.c.session_id.in_(ids)))
        await connection.execute(sa.delete(SESSIONS).where(SESSIONS.c.id.in_(ids)))
    return bool(ids)


async def _end_copied(connection: AsyncConnection, spent: bytes, attribution: Attribution) -> bool:
    """End the session of a token that was spent before: somebody else has it too."""
    query = (
        sa.select(SESSIONS.c.id, USERS.c.id.label("user_id"), USERS.c.tenant_id)
        .join(SPENT_TOKENS, SPENT_TOKENS.c.session_id == SESSIONS.c.id)
        .join(USERS, USERS.c.id == SESSIONS.c.user_id)
        .where(SPENT_TOKENS.c.digest == spent)
    )
    row = (await connection.execute(query)).one_or_none()
    if row is None or not await end_sessions(connection, SESSIONS.c.id == row.id):
        return False
    told = event(
        attribution.by(f"user:{row.user_id}"),
        TenantId(row.tenant_id),
        AuditEvent.REFRESH_TOKEN_REUSED,
        outcome="ERR_AUTH_001",
    )
    await put(connection, (told,))
    return True


async def set_password(
    connection: AsyncConnection, user: UserId, email: str, password_hash: str
) -> None:
    """Keep another password, and end what the old one began, and what could change it again."""
    change = sa.update(USERS).where(USERS.c.id == user).values(password_hash=password_hash)
    await connection.execute(change)
    await end_sessions(connection, SESSIONS.c.user_id == user)
    await connection.execute(sa.delete(CHALLENGES).where(CHALLENGES.c.user_id == user))
    resets = PASSWORD_RESETS.c.email_key == email_key(email)
    await connection.execute(sa.delete(PASSWORD_RESETS).where(resets))


async def lock_user(connection: AsyncConnection, user: UserId) -> None:
    """Let nobody remove a person before the transaction is over. Raises UserNotFoundError."""
    query = sa.select(USERS.c.id).where(USERS.c.id == user).with_for_update()
    if (await connection.execute(query)).one_or_none() is None:
        raise UserNotFoundError


REQUIRES_MFA = (TENANTS.c.requires_mfa, *STANDING)


def must_enroll(row: Any) -> bool:
    """Return whether somebody owes a second factor: ``has_mfa``, and the columns REQUIRES_MFA."""
    return must_have_mfa(row) and not row.has_mfa


def must_have_mfa(row: Any) -> bool:
    """Return whether somebody's tenant requires a second factor, by the columns REQUIRES_MFA."""
    return bool(row.requires_mfa) and standing_of(row).plan in WITH_REQUIRED_MFA


def _open(digest: bytes, now: datetime) -> sa.ColumnElement[bool]:
    is_valid = INVITATIONS.c.expires_at_us > microseconds(now)
    return sa.and_(INVITATIONS.c.digest == digest, is_valid)


def _pair_row(pair: Pair) -> dict[str, object]:
    return {
        "access": pair.access,
        "access_until_us": microseconds(pair.access_until),
        "refresh": pair.refresh,
        "refresh_until_us": microseconds(pair.refresh_until),
    }


def user_row(account: Account) -> dict[str, object]:
    """Return a person as they are stored."""
    user = account.user
    return {
        "id": user.id,
        "tenant_id": user.tenant,
        "email": user.email,
        "email_key": email_key(user.email),
        "password_hash": account.password_hash,
        "role": user.role,
        "created_at_us": microseconds(user.created_at),
    }


def _account(row: sa.Row[Any]) -> Account:
    return Account(
        user_of(row),
        row.password_hash,
        row.totp_salt,
        bool(row.has_mfa),
        bool(row.email_codes),
        must_have_mfa(row),
    )


def user_of(row: Any) -> User:
    """Return the person that a row of USERS is about."""
    return User(
        UserId(row.id),
        TenantId(row.tenant_id),
        row.email,
        Role(row.role),
        time_of(row.created_at_us),
    )


def _session(row: sa.Row[Any]) -> Session:
    return Session(
        SessionId(row.id),
        UserId(row.user_id),
        time_of(row.created_at_us),
        time_of(row.refreshed_at_us),
        row.source_address,
    )
