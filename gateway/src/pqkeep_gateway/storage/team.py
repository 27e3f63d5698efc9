"""Teams in SQL."""

from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from pqkeep_gateway.access.principals import Principal, UserId
from pqkeep_gateway.access.roles import Role
from pqkeep_gateway.people.pages import WHOLE, Page, Part
from pqkeep_gateway.people.team import Member, MemberStatus, Team
from pqkeep_gateway.people.users import email_key
from pqkeep_gateway.storage.audit_outbox import add_audit_event
from pqkeep_gateway.storage.database import read_transaction, time_of, transaction
from pqkeep_gateway.storage.pages import Order, read_page
from pqkeep_gateway.storage.schema import SESSIONS, TABLES_OF_USER, TENANTS, USERS
from pqkeep_gateway.storage.sessions import end_sessions
from pqkeep_gateway.storage.tenants import MFA_REQUIREMENT, requires_mfa
from pqkeep_gateway.storage.users import save_role, user_of
from pqkeep_protocol.audit import Event
from pqkeep_protocol.keys import TenantId


class SqlTeam:
    """A TeamStore."""

    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine

    async def list_members(
        self, tenant: TenantId, part: Part = WHOLE, email: str | None = None
    ) -> Page[Member]:
        """Return members, the first to join first. Raises PositionNotFoundError."""
        query = _MEMBERS.where(USERS.c.tenant_id == tenant)
        if email is not None:
            query = query.where(USERS.c.email_key.contains(email_key(email), autoescape=True))
        async with read_transaction(self._engine) as connection:
            return await read_page(connection, query, _BY_JOINING, part, _member)

    async def save_role(
        self,
        tenant: TenantId,
        member: UserId,
        role: Role,
        by: Principal,
        audit_events: Sequence[Event],
    ) -> Member:
        """Change a member's role. Raises what Team.require_change raises."""
        is_member = USERS.c.id == member
        async with transaction(self._engine) as connection:
            team = await lock_team(connection, tenant)
            team.require_change(by, member, role)
            await save_role(connection, member, role)
            await add_audit_event(connection, *audit_events)
            return _member((await connection.execute(_MEMBERS.where(is_member))).one())

    async def remove_member(
        self, tenant: TenantId, member: UserId, by: Principal, audit_events: Sequence[Event]
    ) -> None:
        """Delete a user with everything of theirs. Raises what Team.require_change raises."""
        async with transaction(self._engine) as connection:
            team = await lock_team(connection, tenant)
            team.require_change(by, member, None)
            await end_sessions(connection, SESSIONS.c.user_id == member)
            for table in TABLES_OF_USER:
                await connection.execute(sa.delete(table).where(table.c.user_id == member))
            await connection.execute(sa.delete(USERS).where(USERS.c.id == member))
            await add_audit_event(connection, *audit_events)


_BY_JOINING = Order(USERS.c.created_at_us, USERS.c.id)
_MEMBERS = sa.select(USERS, *MFA_REQUIREMENT).join(TENANTS, TENANTS.c.id == USERS.c.tenant_id)


async def lock_team(connection: AsyncConnection, tenant: TenantId) -> Team:
    """Return a team whose present members cannot change until the transaction ends."""
    query = (
        sa.select(USERS.c.id, USERS.c.role)
        .where(USERS.c.tenant_id == tenant)
        .order_by(USERS.c.id)
        .with_for_update()
    )
    return Team({UserId(row.id): Role(row.role) for row in await connection.execute(query)})


def _member(row: sa.Row[Any]) -> Member:
    signed_in = row.last_sign_in_at_us
    must_enroll = requires_mfa(row) and not row.has_mfa
    return Member(
        user_of(row),
        MemberStatus.MUST_ENROLL if must_enroll else MemberStatus.ACTIVE,
        bool(row.has_mfa),
        None if signed_in is None else time_of(signed_in),
    )
