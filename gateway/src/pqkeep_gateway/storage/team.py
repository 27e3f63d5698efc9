"""Teams in SQL."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from pqkeep_gateway.access.principals import UserId
from pqkeep_gateway.access.roles import Role
from pqkeep_gateway.people.team import (
    Administrator,
    InvitationId,
    InvitationNotFoundError,
    Member,
    MemberStatus,
    PendingInvitation,
    Team,
)
from pqkeep_gateway.storage.database import microseconds, time_of, transaction
from pqkeep_gateway.storage.outbox import put
from pqkeep_gateway.storage.people import REQUIRES_MFA, end_sessions, must_enroll, user_of
from pqkeep_gateway.storage.schema import INVITATIONS, OF_A_USER, SESSIONS, TENANTS, USERS
from pqkeep_protocol.audit import Event
from pqkeep_protocol.keys import TenantId


class SqlTeam:
    """A TeamStore."""

    def __init__(self, engine: AsyncEngine) -> None:
        """Use an open database."""
        self._engine = engine

    async def members(self, tenant: TenantId) -> tuple[Member, ...]:
        """Return everybody, whoever came first first."""
        query = _MEMBERS.where(USERS.c.tenant_id == tenant)
        async with transaction(self._engine) as connection:
            rows = await connection.execute(query.order_by(USERS.c.created_at_us, USERS.c.id))
            return tuple(_member(row) for row in rows)

    async def change_role(
        self,
        tenant: TenantId,
        member: UserId,
        role: Role,
        by: Administrator,
        events: Sequence[Event],
    ) -> Member:
        """Give somebody a role. Raises what Team.require_change raises."""
        this = USERS.c.id == member
        async with transaction(self._engine) as connection:
            team = await _locked(connection, tenant)
            team.require_change(by, member, role)
            await connection.execute(sa.update(USERS).where(this).values(role=role))
            await put(connection, events)
            return _member((await connection.execute(_MEMBERS.where(this))).one())

    async def remove(
        self, tenant: TenantId, member: UserId, by: Administrator, events: Sequence[Event]
    ) -> None:
        """Forget somebody. Raises what Team.require_change raises."""
        async with transaction(self._engine) as connection:
            team = await _locked(connection, tenant)
            team.require_change(by, member, None)
            await end_sessions(connection, SESSIONS.c.user_id == member)
            for table in OF_A_USER:
                await connection.execute(sa.delete(table).where(table.c.user_id == member))
            await connection.execute(sa.delete(USERS).where(USERS.c.id == member))
            await put(connection, events)

    async def invitations(self, tenant: TenantId, now: datetime) -> tuple[PendingInvitation, ...]:
        """Return the invitations that can be accepted, the one that ends first first."""
        query = (
            sa.select(INVITATIONS)
            .where(
                INVITATIONS.c.tenant_id == tenant,
                INVITATIONS.c.expires_at_us > microseconds(now),
            )
            .order_by(INVITATIONS.c.expires_at_us, INVITATIONS.c.id)
        )
        async with transaction(self._engine) as connection:
            return tuple(_invitation(row) for row in await connection.execute(query))

    async def withdraw(
        self, tenant: TenantId, invitation: InvitationId, by: Administrator, withdrawn: Event
    ) -> None:
        """Forget an invitation.

        Raises InvitationNotFoundError, and what Team.require_say raises.
        """
        forget = (
            sa.delete(INVITATIONS)
            .where(INVITATIONS.c.tenant_id == tenant, INVITATIONS.c.id == invitation)
            .returning(INVITATIONS.c.role)
        )
        async with transaction(self._engine) as connection:
            team = await _locked(connection, tenant)
            role = (await connection.execute(forget)).scalar()
            if role is None:
                raise InvitationNotFoundError
            team.require_say(by, Role(role))
            await put(connection, (withdrawn,))


_MEMBERS = sa.select(USERS, *REQUIRES_MFA).join(TENANTS, TENANTS.c.id == USERS.c.tenant_id)


async def _locked(connection: AsyncConnection, tenant: TenantId) -> Team:
    """Return a team that stays as it is until the transaction is over, but for newcomers."""
    query = (
        sa.select(USERS.c.id, USERS.c.role)
        .where(USERS.c.tenant_id == tenant)
        .order_by(USERS.c.id)
        .with_for_update()
    )
    return Team({UserId(row.id): Role(row.role) for row in await connection.execute(query)})


def _member(row: sa.Row[Any]) -> Member:
    signed_in = row.last_sign_in_at_us
    return Member(
        user_of(row),
        MemberStatus.MUST_ENROLL if must_enroll(row) else MemberStatus.ACTIVE,
        bool(row.has_mfa),
        None if signed_in is None else time_of(signed_in),
    )


def _invitation(row: sa.Row[Any]) -> PendingInvitation:
    return PendingInvitation(
        InvitationId(row.id), row.email, Role(row.role), time_of(row.expires_at_us)
    )
