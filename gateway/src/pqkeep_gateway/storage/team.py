"""Teams in SQL."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from functools import partial
from typing import Any

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from pqkeep_gateway.access.callers import Permission, Role, may
from pqkeep_gateway.access.principals import Principal, UserId
from pqkeep_gateway.storage.audit_outbox import add_audit_event
from pqkeep_gateway.storage.database import read_transaction, time_of, transaction
from pqkeep_gateway.storage.notices import close_notices
from pqkeep_gateway.storage.pages import (
    WHOLE,
    Order,
    Page,
    Part,
    Sorted,
    order_of,
    read_page,
    read_sorted,
)
from pqkeep_gateway.storage.row_mac import authentic_row
from pqkeep_gateway.storage.schema import SESSIONS, TABLES_OF_USER, TENANTS, USERS
from pqkeep_gateway.storage.tenant_status import REQUIREMENTS, requirements_of
from pqkeep_gateway.storage.tenants import requires_mfa
from pqkeep_gateway.storage.users import (
    ACCOUNTS,
    HAS_SECOND_FACTOR,
    User,
    change_user,
    email_key,
    end_sessions,
    person_subject,
    user_of,
)
from pqkeep_protocol.audit import Event
from pqkeep_protocol.audit_events import AuditEvent
from pqkeep_protocol.keys import TenantId

ROLE_IS: Mapping[Role, AuditEvent] = {
    Role.OWNER: AuditEvent.ROLE_IS_OWNER,
    Role.ADMIN: AuditEvent.ROLE_IS_ADMIN,
    Role.DEVELOPER: AuditEvent.ROLE_IS_DEVELOPER,
    Role.VIEWER: AuditEvent.ROLE_IS_VIEWER,
}
"""The audit event of a member's new role."""


class MemberNotFoundError(Exception):
    """The team has no such member."""


class NotPermittedError(Exception):
    """The principal's role does not allow this."""


class OwnersOnlyError(Exception):
    """Only owners and operators can change owners."""


class LastOwnerError(Exception):
    """The team would have no owner left."""


MIN_OWNERS = 2
"""The owners of a tenant that requires approval. Changes of owners need two."""


class TooFewOwnersError(Exception):
    """A tenant that requires approval would have fewer than MIN_OWNERS owners."""


class MemberStatus(StrEnum):
    """Whether a member has full access, or must enroll a second factor first."""

    ACTIVE = "active"
    MUST_ENROLL = "must_enroll"
    """The tenant requires a second factor that the member does not have yet."""


@dataclass(frozen=True, slots=True)
class Member:
    """A person, as administrators see them."""

    user: User
    status: MemberStatus
    has_mfa: bool
    """Whether the person has an authenticator app or a passkey."""
    last_sign_in_at: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberFilter:
    """The requested members. Times are in microseconds since 1970; None: no condition."""

    email: str | None = None
    """A part of the address, in any case."""
    roles: tuple[Role, ...] = ()
    """The accepted roles. Empty: every role."""
    has_mfa: bool | None = None
    signed_in_since_us: int | None = None
    not_signed_in_since_us: int | None = None
    """Without a sign-in since then, or at any time."""
    joined_before_us: int | None = None
    joined_since_us: int | None = None


EVERY_MEMBER = MemberFilter()


@dataclass(frozen=True, slots=True)
class Team:
    """The roles of all members at one moment."""

    roles: Mapping[UserId, Role]
    requires_approval: bool = False
    """Whether a second person must approve changes of owners. It then keeps MIN_OWNERS owners."""

    def require_authority(self, by: Principal, *roles: Role | None) -> None:
        """Raise unless a principal may change members with these roles, old and new.

        Raises NotPermittedError, OwnersOnlyError.
        """
        caller = by.caller if by.user is None else self.roles.get(by.user)
        if not may(caller, Permission.MANAGE_TEAM):
            raise NotPermittedError
        if Role.OWNER in roles and not may(caller, Permission.MANAGE_OWNERS):
            raise OwnersOnlyError

    def require_change(self, by: Principal, member: UserId, to: Role | None) -> None:
        """Raise unless a member may get a role, or be removed (None). Every member may leave.

        Raises the errors of ``require_authority``, MemberNotFoundError, LastOwnerError, and
        TooFewOwnersError unless an operator does it.
        """
        role = self.roles.get(member)
        is_leaving = by.user == member and to is None
        if not is_leaving:
            self.require_authority(by, role, to)
        if role is None:
            raise MemberNotFoundError
        if to is not Role.OWNER and self.is_last_owner(member):
            raise LastOwnerError
        ends = role is Role.OWNER and to is not Role.OWNER
        if ends and self.requires_approval and by.user and self.count_owners() <= MIN_OWNERS:
            raise TooFewOwnersError

    def count_owners(self) -> int:
        """Return the number of owners."""
        return list(self.roles.values()).count(Role.OWNER)

    def is_last_owner(self, member: UserId) -> bool:
        """Return whether the member is the only owner."""
        return [user for user, role in self.roles.items() if role is Role.OWNER] == [member]


class SqlTeam:
    """Teams in the database. All methods raise UnavailableError."""

    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine

    async def list_members(
        self, tenant: TenantId, part: Part = WHOLE, only: MemberFilter = EVERY_MEMBER
    ) -> Page[Member]:
        """Return the members that match every condition, by joining date.

        Raises PositionNotFoundError.
        """
        query = ACCOUNTS.where(USERS.c.tenant_id == tenant, *_conditions(only))
        async with read_transaction(self._engine) as connection:
            return await read_page(
                connection, query, _BY_JOINING, part, partial(_member, connection)
            )

    async def get(self, tenant: TenantId, member: UserId) -> User | None:
        """Return a member; None if the team has no such member."""
        query = sa.select(USERS).where(USERS.c.tenant_id == tenant, USERS.c.id == member)
        async with read_transaction(self._engine) as connection:
            row = await authentic_row(connection, USERS, query)
        return None if row is None else user_of(row)

    async def list_sorted(self, tenant: TenantId, only: MemberFilter, part: Sorted) -> Page[Member]:
        """Return a part of a tenant's members that match every condition."""
        query = ACCOUNTS.where(USERS.c.tenant_id == tenant, *_conditions(only))
        order = order_of(part.sort, MEMBER_SORTS, USERS.c.id)
        async with read_transaction(self._engine) as connection:
            return await read_sorted(connection, query, order, part, partial(_member, connection))

    async def save_role(
        self,
        tenant: TenantId,
        member: UserId,
        role: Role,
        by: Principal,
        audit_events: Sequence[Event],
    ) -> Member:
        """Change a member's role, under the team's lock.

        Raises the errors of Team.require_change.
        """
        is_member = USERS.c.id == member
        async with transaction(self._engine) as connection:
            team = await lock_team(connection, tenant)
            team.require_change(by, member, role)
            await change_user(connection, member, role=role)
            await add_audit_event(connection, *audit_events)
            row = (await connection.execute(ACCOUNTS.where(is_member))).one()
            return _member(connection, row)

    async def remove_member(
        self, tenant: TenantId, member: UserId, by: Principal, audit_events: Sequence[Event]
    ) -> None:
        """Delete a user with all of their data, under the team's lock.

        Raises the errors of Team.require_change.
        """
        async with transaction(self._engine) as connection:
            team = await lock_team(connection, tenant)
            team.require_change(by, member, None)
            await end_sessions(connection, SESSIONS.c.user_id == member)
            for table in TABLES_OF_USER:
                await connection.execute(sa.delete(table).where(table.c.user_id == member))
            await close_notices(
                connection, tenant, datetime.now(UTC), subject=person_subject(member)
            )
            await connection.execute(sa.delete(USERS).where(USERS.c.id == member))
            await add_audit_event(connection, *audit_events)


ROLE_ORDER: Mapping[str, int] = {role: place for place, role in enumerate(Role)}
MEMBER_SORTS: Mapping[str, sa.ColumnElement[Any]] = {
    "email": USERS.c.email_key,
    "role": sa.case(ROLE_ORDER, value=USERS.c.role),
    "mfa": sa.case((HAS_SECOND_FACTOR, 1), else_=0),
    "last-sign-in": USERS.c.last_sign_in_at_us,
    "joined": USERS.c.created_at_us,
}
"""The orders of the list; by role, owners come first."""


def _conditions(only: MemberFilter) -> Iterator[sa.ColumnElement[bool]]:
    of = USERS.c
    if only.email is not None:
        yield of.email_key.contains(email_key(only.email), autoescape=True)
    if only.roles:
        yield of.role.in_(only.roles)
    if only.has_mfa is not None:
        yield HAS_SECOND_FACTOR if only.has_mfa else sa.not_(HAS_SECOND_FACTOR)
    if only.signed_in_since_us is not None:
        yield of.last_sign_in_at_us >= only.signed_in_since_us
    if (since := only.not_signed_in_since_us) is not None:
        yield sa.or_(of.last_sign_in_at_us.is_(None), of.last_sign_in_at_us < since)
    if only.joined_before_us is not None:
        yield of.created_at_us < only.joined_before_us
    if only.joined_since_us is not None:
        yield of.created_at_us >= only.joined_since_us


_BY_JOINING = Order(USERS.c.created_at_us, USERS.c.id)


async def lock_team(connection: AsyncConnection, tenant: TenantId) -> Team:
    """Return a team. Its current members cannot change until the transaction ends."""
    query = (
        sa.select(USERS.c.id, USERS.c.role)
        .where(USERS.c.tenant_id == tenant)
        .order_by(USERS.c.id)
        .with_for_update()
    )
    roles = {UserId(row.id): Role(row.role) for row in await connection.execute(query)}
    requirements = sa.select(*REQUIREMENTS).where(TENANTS.c.id == tenant)
    row = (await connection.execute(requirements)).one_or_none()
    return Team(roles, row is not None and requirements_of(connection, row).approval)


def _member(connection: AsyncConnection, row: sa.Row[Any]) -> Member:
    signed_in = row.last_sign_in_at_us
    has_mfa = bool(row.has_mfa or row.passkeys)
    must_enroll = requires_mfa(connection, row) and not has_mfa
    return Member(
        user_of(row),
        MemberStatus.MUST_ENROLL if must_enroll else MemberStatus.ACTIVE,
        has_mfa,
        None if signed_in is None else time_of(signed_in),
    )
