"""Teams: who is in a tenant and as what, who may change that, and who is invited.

Every change is decided under a lock on the whole team: two owners who remove each other at the
same time are one owner in the end, and whoever was demoted a moment ago changes nothing.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import NewType, Protocol
from uuid import UUID

from pqkeep_gateway.access.callers import Permission, may
from pqkeep_gateway.access.clock import Clock, date_of
from pqkeep_gateway.access.principals import OperatorPrincipal, SessionPrincipal, UserId
from pqkeep_gateway.access.roles import Role
from pqkeep_gateway.audit_events import AuditDelivery, event
from pqkeep_gateway.people.users import User
from pqkeep_protocol.audit import Event
from pqkeep_protocol.audit_events import AuditEvent
from pqkeep_protocol.keys import TenantId
from pqkeep_protocol.messages import Attribution

InvitationId = NewType("InvitationId", UUID)
Administrator = SessionPrincipal | OperatorPrincipal
"""Who can have a say about a team; a program cannot."""


class MemberNotFoundError(Exception):
    """Nobody of that identifier is in the team."""


class InvitationNotFoundError(Exception):
    """No such invitation waits."""


class NotPermittedError(Exception):
    """The role of whoever asks does not allow it."""


class OwnersOnlyError(Exception):
    """Only owners decide about owners."""


class LastOwnerError(Exception):
    """The team would have no owner."""


class MemberStatus(StrEnum):
    """Whether somebody can work."""

    ACTIVE = "active"
    MUST_ENROLL = "must_enroll"
    """The tenant requires a second factor that they do not have yet."""


@dataclass(frozen=True, slots=True)
class Member:
    """One person, as administrators see them."""

    user: User
    status: MemberStatus
    has_mfa: bool
    last_sign_in_at: datetime | None


@dataclass(frozen=True, slots=True)
class PendingInvitation:
    """An invitation that nobody has accepted yet, without its token."""

    id: InvitationId
    email: str
    role: Role
    expires_at: datetime


@dataclass(frozen=True, slots=True)
class Team:
    """Everybody's role, at one moment."""

    roles: Mapping[UserId, Role]

    def require_say(self, by: Administrator, *roles: Role | None) -> None:
        """Refuse whoever has no say about somebody who has, gets or was offered these roles.

        Raises NotPermittedError, OwnersOnlyError.
        """
        caller = by.caller if by.user is None else self.roles.get(by.user)
        if not may(caller, Permission.MANAGE_TEAM):
            raise NotPermittedError
        if Role.OWNER in roles and not may(caller, Permission.MANAGE_OWNERS):
            raise OwnersOnlyError

    def require_change(self, by: Administrator, member: UserId, to: Role | None) -> None:
        """Refuse what may not be: a member gets a role, or goes (None). Everybody may leave.

        Raises what ``require_say`` raises, MemberNotFoundError, LastOwnerError.
        """
        now = self.roles.get(member)
        is_leaving = by.user == member and to is None
        if not is_leaving:
            self.require_say(by, now, to)
        if now is None:
            raise MemberNotFoundError
        owners = sum(role is Role.OWNER for role in self.roles.values())
        if now is Role.OWNER and to is not Role.OWNER and owners == 1:
            raise LastOwnerError


class TeamStore(Protocol):
    """Where teams are kept. All raise UnavailableError."""

    async def members(self, tenant: TenantId) -> tuple[Member, ...]:
        """Return everybody, whoever came first first."""
        ...

    async def change_role(
        self,
        tenant: TenantId,
        member: UserId,
        role: Role,
        by: Administrator,
        events: Sequence[Event],
    ) -> Member:
        """Give somebody a role, in one step. Raises what Team.require_change raises."""
        ...

    async def remove(
        self, tenant: TenantId, member: UserId, by: Administrator, events: Sequence[Event]
    ) -> None:
        """Forget somebody and everything that lets them in, in one step.

        Raises what Team.require_change raises.
        """
        ...

    async def invitations(self, tenant: TenantId, now: datetime) -> tuple[PendingInvitation, ...]:
        """Return the invitations that can be accepted, the one that ends first first."""
        ...

    async def withdraw(
        self, tenant: TenantId, invitation: InvitationId, by: Administrator, withdrawn: Event
    ) -> None:
        """Forget an invitation, in one step.

        Raises InvitationNotFoundError, and what Team.require_say raises.
        """
        ...


class TeamMembers:
    """Shows teams and changes them."""

    def __init__(self, store: TeamStore, audit_delivery: AuditDelivery, clock: Clock) -> None:
        """Keep teams in a store."""
        self._store = store
        self._courier = audit_delivery
        self._clock = clock

    async def members(self, tenant: TenantId) -> tuple[Member, ...]:
        """Return everybody, whoever came first first."""
        return await self._store.members(tenant)

    async def change_role(
        self,
        tenant: TenantId,
        member: UserId,
        role: Role,
        by: Administrator,
        attribution: Attribution,
    ) -> Member:
        """Give somebody a role, from their next request on.

        Raises what Team.require_change raises.
        """
        events = _told(attribution, tenant, member, AuditEvent.CHANGE_ROLE, _ROLE_IS[role])
        changed = await self._store.change_role(tenant, member, role, by, events)
        await self._courier.deliver()
        return changed

    async def remove(
        self, tenant: TenantId, member: UserId, by: Administrator, attribution: Attribution
    ) -> None:
        """Remove somebody, and end their sessions at once.

        Raises what Team.require_change raises.
        """
        events = _told(
            attribution, tenant, member, AuditEvent.REMOVE_MEMBER, AuditEvent.MEMBERSHIP_ENDED
        )
        await self._store.remove(tenant, member, by, events)
        await self._courier.deliver()

    async def invitations(self, tenant: TenantId) -> tuple[PendingInvitation, ...]:
        """Return the invitations that can be accepted, the one that ends first first."""
        return await self._store.invitations(tenant, date_of(self._clock()))

    async def withdraw(
        self,
        tenant: TenantId,
        invitation: InvitationId,
        by: Administrator,
        attribution: Attribution,
    ) -> None:
        """Withdraw an invitation.

        Raises InvitationNotFoundError, and what Team.require_say raises.
        """
        withdrawn = event(attribution, tenant, AuditEvent.WITHDRAW_INVITATION)
        await self._store.withdraw(tenant, invitation, by, withdrawn)
        await self._courier.deliver()


def _told(
    attribution: Attribution,
    tenant: TenantId,
    member: UserId,
    done: AuditEvent,
    happened: AuditEvent,
) -> Sequence[Event]:
    """Return what somebody does, and what happens to somebody by it: a record has one person."""
    whose = attribution.by(f"user:{member}")
    return event(attribution, tenant, done), event(whose, tenant, happened)


_ROLE_IS: Mapping[Role, AuditEvent] = {
    Role.OWNER: AuditEvent.ROLE_IS_OWNER,
    Role.ADMIN: AuditEvent.ROLE_IS_ADMIN,
    Role.DEVELOPER: AuditEvent.ROLE_IS_DEVELOPER,
    Role.VIEWER: AuditEvent.ROLE_IS_VIEWER,
}
