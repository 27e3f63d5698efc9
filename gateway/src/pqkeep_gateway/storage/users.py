"""Users in SQL."""

from typing import Any

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from pqkeep_gateway.access.principals import SessionPrincipal, UserId
from pqkeep_gateway.access.roles import Role
from pqkeep_gateway.mail.outgoing_mail import OutgoingMail
from pqkeep_gateway.people.users import Account, User, UserNotFoundError, email_key
from pqkeep_gateway.storage.audit_outbox import add_audit_event
from pqkeep_gateway.storage.database import microseconds, read_transaction, time_of, transaction
from pqkeep_gateway.storage.outgoing_mail import add_mail
from pqkeep_gateway.storage.row_mac import MAC, is_authentic, mac_after
from pqkeep_gateway.storage.schema import CHALLENGES, PASSWORD_RESETS, SESSIONS, TENANTS, USERS
from pqkeep_gateway.storage.sessions import end_other_sessions, end_sessions
from pqkeep_gateway.storage.tenants import MFA_REQUIREMENT, requires_mfa
from pqkeep_protocol.audit import Event
from pqkeep_protocol.keys import TenantId


class SqlUsers:
    """A UserStore."""

    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine

    async def find_by_email(self, email: str) -> Account | None:
        """Return who has an e-mail address, ignoring case."""
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
        """Replace the hash of an unchanged password; False if the stored one is another."""
        is_unchanged = sa.and_(
            USERS.c.id == account.user.id, USERS.c.password_hash == account.password_hash
        )
        update = sa.update(USERS).where(is_unchanged).values(password_hash=password_hash)
        async with transaction(self._engine) as connection:
            return (await connection.execute(update)).rowcount == 1

    async def save_password(
        self, user: UserId, password_hash: str, mail: OutgoingMail, audit_event: Event
    ) -> None:
        """Store a new password and end every session, challenge and password reset of the user."""
        async with transaction(self._engine) as connection:
            await save_password(connection, user, mail.to, password_hash)
            await add_mail(connection, mail)
            await add_audit_event(connection, audit_event)

    async def save_email_codes(
        self, principal: SessionPrincipal, mail: OutgoingMail, audit_event: Event, *, wanted: bool
    ) -> None:
        """Store whether the user is sent a code at each sign-in; end their other sessions."""
        user = principal.user
        update = sa.update(USERS).where(USERS.c.id == user).values(email_codes=wanted)
        async with transaction(self._engine) as connection:
            await connection.execute(update)
            await end_other_sessions(connection, user, principal.session)
            await add_mail(connection, mail)
            await add_audit_event(connection, audit_event)

    async def _find(self, condition: sa.ColumnElement[bool]) -> Account | None:
        async with read_transaction(self._engine) as connection:
            row = (await connection.execute(ACCOUNTS.where(condition))).one_or_none()
            is_found = row is not None and is_authentic(connection, USERS, row)
        return account_of(row) if row is not None and is_found else None


ACCOUNTS = sa.select(USERS, *MFA_REQUIREMENT).join(TENANTS, TENANTS.c.id == USERS.c.tenant_id)
"""Rows for ``account_of``."""


async def add_user(connection: AsyncConnection, user: User, password_hash: str | None) -> None:
    """Insert a user. An address that is taken raises sqlalchemy.exc.IntegrityError."""
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
    """Store a new password, and end whatever the old one, or mail sent before, gives access to."""
    update = sa.update(USERS).where(USERS.c.id == user).values(password_hash=password_hash)
    await connection.execute(update)
    await end_sessions(connection, SESSIONS.c.user_id == user)
    await connection.execute(sa.delete(CHALLENGES).where(CHALLENGES.c.user_id == user))
    resets = PASSWORD_RESETS.c.email_key == email_key(email)
    await connection.execute(sa.delete(PASSWORD_RESETS).where(resets))


async def save_role(connection: AsyncConnection, user: UserId, role: Role) -> None:
    """Change the role of a user who is locked. Raises UserNotFoundError."""
    is_user = USERS.c.id == user
    row = (await connection.execute(sa.select(USERS).where(is_user))).one_or_none()
    if row is None or not is_authentic(connection, USERS, row):
        raise UserNotFoundError
    mac = mac_after(connection, USERS, row, {"role": role})
    await connection.execute(sa.update(USERS).where(is_user).values({"role": role, MAC: mac}))


async def lock_user(connection: AsyncConnection, user: UserId) -> None:
    """Prevent the user's removal until the transaction ends. Raises UserNotFoundError."""
    query = sa.select(USERS.c.id).where(USERS.c.id == user).with_for_update()
    if (await connection.execute(query)).one_or_none() is None:
        raise UserNotFoundError


def user_of(row: Any) -> User:
    """Return the user in a row of USERS."""
    return User(
        UserId(row.id),
        TenantId(row.tenant_id),
        row.email,
        Role(row.role),
        time_of(row.created_at_us),
    )


def account_of(row: sa.Row[Any]) -> Account:
    """Return the account in a row of ACCOUNTS."""
    return Account(
        user_of(row),
        row.password_hash,
        row.totp_salt,
        has_mfa=bool(row.has_mfa),
        email_codes=bool(row.email_codes),
        must_have_mfa=requires_mfa(row),
    )
