"""Users in SQL."""

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from pqkeep_gateway.access.callers import Role
from pqkeep_gateway.access.principals import SessionId, SessionPrincipal, UserId
from pqkeep_gateway.outgoing_mail import OutgoingMail
from pqkeep_gateway.storage.audit_outbox import add_audit_event
from pqkeep_gateway.storage.database import microseconds, read_transaction, time_of, transaction
from pqkeep_gateway.storage.outgoing_mail import add_mail
from pqkeep_gateway.storage.row_mac import MAC, authentic_row, mac_after
from pqkeep_gateway.storage.schema import (
    CHALLENGES,
    PASSKEYS,
    PASSWORD_RESETS,
    RECOVERY_CODES,
    SESSIONS,
    SPENT_REFRESH_TOKENS,
    STEP_UP_TOKENS,
    TENANTS,
    USERS,
)
from pqkeep_gateway.storage.tenants import MFA_REQUIREMENT, requires_mfa
from pqkeep_protocol.audit import Event
from pqkeep_protocol.audit_events import PERSON
from pqkeep_protocol.keys import TenantId


class AccountChangedError(Exception):
    """The password, a second factor or the user changed since the password was checked."""


class EmailTakenError(Exception):
    """Another user has this e-mail address."""


class LastFactorError(Exception):
    """The tenant requires a second factor, and this is the user's last one."""


class UserNotFoundError(Exception):
    """The user does not exist."""


@dataclass(frozen=True, slots=True)
class User:
    """One person."""

    id: UserId
    tenant: TenantId
    email: str
    role: Role
    created_at: datetime

    def __str__(self) -> str:
        return f"{PERSON}{self.id}"


@dataclass(frozen=True, slots=True)
class Account:
    """A user with the data for their authentication."""

    user: User
    password_hash: str | None = field(repr=False)
    """None: the user has never had a password, and signs in through a provider."""
    totp_salt: bytes | None = field(default=None, repr=False)
    has_mfa: bool = False
    """Whether an authenticator app is enrolled and confirmed."""
    email_codes: bool = False
    """Whether the user chose a code by e-mail at each sign-in; without effect with an app."""
    must_have_mfa: bool = False
    """Whether the user's tenant requires a second factor."""
    first_day_dismissed: bool = False
    """Whether the user dismissed the list of the first day."""
    checkpoint_kept: bool = False
    """Whether the user said that a checkpoint of the audit log is kept elsewhere."""
    passkeys: int = 0
    """The number of the user's passkeys."""
    codes_at: datetime | None = None
    """The time of the recovery codes, and of the authenticator app; None without codes."""
    language: str | None = None
    """The language of the last page of the portal; None if there was no page."""

    @property
    def has_second_factor(self) -> bool:
        """Whether the user has an authenticator app or a passkey, and recovery codes."""
        return self.has_mfa or self.passkeys > 0


def email_key(email: str) -> str:
    """Return the form in which e-mail addresses are compared."""
    return email.lower()


class SqlUsers:
    """Users in the database. All methods raise UnavailableError."""

    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine

    async def find_by_email(self, email: str) -> Account | None:
        """Return the account with an e-mail address, ignoring case, or None."""
        if not email.isascii():
            return None
        return await self._find(USERS.c.email_key == email_key(email))

    async def get(self, user: UserId) -> Account:
        """Return a user. Raises UserNotFoundError."""
        account = await self._find(USERS.c.id == user)
        if account is None:
            raise UserNotFoundError
        return account

    async def save_rehashed_password(self, account: Account, password_hash: str) -> bool:
        """Replace the hash of an unchanged password, in one conditional UPDATE.

        Returns False if the stored hash is no longer the account's.
        """
        is_unchanged = sa.and_(
            USERS.c.id == account.user.id, USERS.c.password_hash == account.password_hash
        )
        update = sa.update(USERS).where(is_unchanged).values(password_hash=password_hash)
        async with transaction(self._engine) as connection:
            return (await connection.execute(update)).rowcount == 1

    async def save_password(
        self, user: UserId, password_hash: str, mail: OutgoingMail, audit_event: Event
    ) -> None:
        """Store a new password; end all sessions, challenges and password resets of the user."""
        async with transaction(self._engine) as connection:
            await save_password(connection, user, mail.to, password_hash)
            await add_mail(connection, mail)
            await add_audit_event(connection, audit_event)

    async def save_email_codes(
        self, principal: SessionPrincipal, mail: OutgoingMail, audit_event: Event, *, wanted: bool
    ) -> None:
        """Store whether the user gets a code at each sign-in; end their other sessions."""
        user = principal.user
        async with transaction(self._engine) as connection:
            await change_user(connection, user, email_codes=wanted)
            await end_other_sessions(connection, user, principal.session)
            await add_mail(connection, mail)
            await add_audit_event(connection, audit_event)

    async def save_first_day(
        self, user: UserId, *, dismissed: bool | None, checkpoint_kept: bool | None
    ) -> None:
        """Store the user's choice about the list of first steps. None keeps a value."""
        stated = {"first_day_dismissed": dismissed, "checkpoint_kept": checkpoint_kept}
        values = {name: value for name, value in stated.items() if value is not None}
        if not values:
            return
        async with transaction(self._engine) as connection:
            await connection.execute(sa.update(USERS).where(USERS.c.id == user).values(values))

    async def save_language(self, user: UserId, language: str) -> None:
        """Store the language of the last page that a user read."""
        update = sa.update(USERS).where(USERS.c.id == user).values(language=language)
        async with transaction(self._engine) as connection:
            await connection.execute(update)

    async def _find(self, condition: sa.ColumnElement[bool]) -> Account | None:
        async with read_transaction(self._engine) as connection:
            row = await authentic_row(connection, USERS, ACCOUNTS.where(condition))
            return None if row is None else account_of(connection, row)


HAS_SECOND_FACTOR = sa.or_(USERS.c.has_mfa, USERS.c.passkeys > 0)
"""Whether a user has an authenticator app or a passkey, in a query of USERS."""
ACCOUNTS = sa.select(USERS, *MFA_REQUIREMENT).join(TENANTS, TENANTS.c.id == USERS.c.tenant_id)
"""The query of the rows for ``account_of``."""


async def add_user(connection: AsyncConnection, user: User, password_hash: str | None) -> None:
    """Insert a user. A taken address raises sqlalchemy.exc.IntegrityError."""
    row = {
        "id": user.id,
        "tenant_id": user.tenant,
        "email": user.email,
        "email_key": email_key(user.email),
        "password_hash": password_hash,
        "role": user.role,
        "created_at_us": microseconds(user.created_at),
    }
    await connection.execute(sa.insert(USERS), row)


async def save_password(
    connection: AsyncConnection, user: UserId, email: str, password_hash: str
) -> None:
    """Store a new password, and end sessions, sign-ins and resets that depend on the old one."""
    update = sa.update(USERS).where(USERS.c.id == user).values(password_hash=password_hash)
    await connection.execute(update)
    await end_sessions(connection, SESSIONS.c.user_id == user)
    await connection.execute(sa.delete(CHALLENGES).where(CHALLENGES.c.user_id == user))
    resets = PASSWORD_RESETS.c.email_key == email_key(email)
    await connection.execute(sa.delete(PASSWORD_RESETS).where(resets))


async def change_user(connection: AsyncConnection, user: UserId, **changes: object) -> None:
    """Change columns of a user that the MAC covers. Raises UserNotFoundError."""
    is_user = USERS.c.id == user
    query = sa.select(USERS).where(is_user).with_for_update()
    row = await authentic_row(connection, USERS, query)
    if row is None:
        raise UserNotFoundError
    mac = mac_after(connection, USERS, row, changes)
    await connection.execute(sa.update(USERS).where(is_user).values({**changes, MAC: mac}))


async def count_passkeys(connection: AsyncConnection, user: UserId) -> None:
    """Store the number of a locked user's passkeys. Raises UserNotFoundError."""
    query = sa.select(sa.func.count()).where(PASSKEYS.c.user_id == user)
    number: int = (await connection.execute(query)).scalar_one()
    await change_user(connection, user, passkeys=number)


def person_subject(user: UserId) -> str:
    """Return the subject of notices about a person."""
    return f"{PERSON}{user}"


async def lock_user(connection: AsyncConnection, user: UserId) -> None:
    """Prevent the user's removal until the transaction ends. Raises UserNotFoundError."""
    query = sa.select(USERS.c.id).where(USERS.c.id == user).with_for_update()
    if (await connection.execute(query)).one_or_none() is None:
        raise UserNotFoundError


async def require_other_factor(connection: AsyncConnection, user: UserId) -> None:
    """Check a locked user after the removal of a factor. Without another, remove recovery codes.

    Raises LastFactorError if the tenant requires a second factor.
    """
    row = (await connection.execute(ACCOUNTS.where(USERS.c.id == user))).one()
    account = account_of(connection, row)
    if account.has_second_factor:
        return
    if account.must_have_mfa:
        raise LastFactorError
    await connection.execute(sa.delete(RECOVERY_CODES).where(RECOVERY_CODES.c.user_id == user))
    forget = sa.update(USERS).where(USERS.c.id == user).values(codes_at_us=None)
    await connection.execute(forget)


def user_of(row: Any) -> User:
    """Return the user in a row of USERS."""
    return User(
        UserId(row.id),
        TenantId(row.tenant_id),
        row.email,
        Role(row.role),
        time_of(row.created_at_us),
    )


def account_of(connection: AsyncConnection, row: sa.Row[Any]) -> Account:
    """Return the account in a row of ACCOUNTS."""
    return Account(
        user_of(row),
        row.password_hash,
        row.totp_salt,
        has_mfa=bool(row.has_mfa),
        email_codes=bool(row.email_codes),
        first_day_dismissed=bool(row.first_day_dismissed),
        checkpoint_kept=bool(row.checkpoint_kept),
        must_have_mfa=requires_mfa(connection, row),
        passkeys=row.passkeys,
        codes_at=None if row.codes_at_us is None else time_of(row.codes_at_us),
        language=row.language,
    )


AT_ONCE = 1_000
"""Sessions per statement: a server limits the number of parameters."""


async def end_sessions(connection: AsyncConnection, condition: sa.ColumnElement[bool]) -> bool:
    """Delete sessions with their exchanged tokens; return whether there were any."""
    query = sa.select(SESSIONS.c.id).where(condition).with_for_update()
    ids = list((await connection.execute(query)).scalars())
    for first in range(0, len(ids), AT_ONCE):
        some = ids[first : first + AT_ONCE]
        of_sessions = SPENT_REFRESH_TOKENS.c.session_id.in_(some)
        await connection.execute(sa.delete(SPENT_REFRESH_TOKENS).where(of_sessions))
        await connection.execute(sa.delete(SESSIONS).where(SESSIONS.c.id.in_(some)))
    return bool(ids)


async def end_other_sessions(connection: AsyncConnection, user: UserId, session: SessionId) -> None:
    """End all sessions of a user but one, and step-ups by factors that may be gone."""
    await end_sessions(connection, sa.and_(SESSIONS.c.user_id == user, SESSIONS.c.id != session))
    is_session = SESSIONS.c.id == session
    forget = (
        sa.update(SESSIONS)
        .where(is_session)
        .values(reauthenticated_until_us=None, proof_until_us=None)
    )
    await connection.execute(forget)
    is_free = sa.and_(STEP_UP_TOKENS.c.user_id == user, STEP_UP_TOKENS.c.is_reserved.is_(False))
    await connection.execute(sa.delete(STEP_UP_TOKENS).where(is_free))
