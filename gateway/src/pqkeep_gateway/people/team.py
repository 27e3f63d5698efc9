"""Teams: the members of a tenant, their roles, and who may change them.

Every change is decided under a lock on all members' rows: of two owners who remove each other
concurrently one stays, and a member who was just demoted changes nothing any more.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Protocol

from pqkeep_gateway.access.callers import Permission, may
from pqkeep_gateway.access.principals import Principal, UserId
from pqkeep_gateway.access.roles import Role
from pqkeep_gateway.audit_events import AuditDelivery, event
from pqkeep_gateway.people.pages import WHOLE, Page, Part
from pqkeep_gateway.people.users import User
from pqkeep_protocol.audit import Event
from pqkeep_protocol.audit_events import AuditEvent
from pqkeep_protocol.keys import TenantId
from pqkeep_protocol.messages import Attribution

ROLE_IS: Mapping[Role, AuditEvent] = {
    Role.OWNER: AuditEvent.ROLE_IS_OWNER,
    Role.ADMIN: AuditEvent.ROLE_IS_ADMIN,
    Role.DEVELOPER: AuditEvent.ROLE_IS_DEVELOPER,
    Role.VIEWER: AuditEvent.ROLE_IS_VIEWER,
}
"""What is recorded of a member who is given a role."""


class MemberNotFoundError(Exception):
    """The team has no such member."""


class NotPermittedError(Exception):
    """The principal's role does not allow this."""


class OwnersOnlyError(Exception):
    """Only owners and the operator decide about owners."""


class LastOwnerError(Exception):
    """The team would have no owner left."""


class MemberStatus(StrEnum):
    """Whether a member can do anything but enroll a second factor."""

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
class Team:
    """Every member's role, at one moment."""

    roles: Mapping[UserId, Role]

    def require_authority(self, by: Principal, *roles: Role | None) -> None:
        """Raise unless a principal may decide about members with these roles, old and new.

        Raises NotPermittedError, OwnersOnlyError.
        """
        caller = by.caller if by.user is None else self.roles.get(by.user)
        if not may(caller, Permission.MANAGE_TEAM):
            raise NotPermittedError
        if Role.OWNER in roles and not may(caller, Permission.MANAGE_OWNERS):
            raise OwnersOnlyError

    def require_change(self, by: Principal, member: UserId, to: Role | None) -> None:
        """Raise unless a member may be given a role, or removed (None). Everybody may leave.

        Raises what ``require_authority`` raises, MemberNotFoundError, LastOwnerError.
        """
        role = self.roles.get(member)
        is_leaving = by.user == member and to is None
        if not is_leaving:
            self.require_authority(by, role, to)
        if role is None:
            raise MemberNotFoundError
        if to is not Role.OWNER and self.is_last_owner(member):
            raise LastOwnerError

    def is_last_owner(self, member: UserId) -> bool:
        """Return whether the team would have no owner without a member."""
        return [each for each, role in self.roles.items() if role is Role.OWNER] == [member]


class TeamStore(Protocol):
    """Teams in the database. All methods raise UnavailableError."""

    async def list_members(
        self, tenant: TenantId, part: Part = WHOLE, email: str | None = None
    ) -> Page[Member]:
        """Return members, the first to join first; with a part of their e-mail address, if given.

        Raises PositionNotFoundError.
        """
        ...

    async def save_role(
        self,
        tenant: TenantId,
        member: UserId,
        role: Role,
        by: Principal,
        audit_events: Sequence[Event],
    ) -> Member:
        """Change a member's role, under the team's lock. Raises what Team.require_change raises."""
        ...

    async def remove_member(
        self, tenant: TenantId, member: UserId, by: Principal, audit_events: Sequence[Event]
    ) -> None:
        """Delete a user with everything of theirs, under the team's lock.

        Raises what Team.require_change raises.
        """
        ...


class TeamMembers:
    """Lists the members of teams and changes them."""

    def __init__(self, store: TeamStore, audit_delivery: AuditDelivery) -> None:
        self._store = store
        self._audit_delivery = audit_delivery

    async def list(
        self, tenant: TenantId, part: Part = WHOLE, email: str | None = None
    ) -> Page[Member]:
        """Return members, the first to join first; with a part of their e-mail address, if given.

        Raises PositionNotFoundError.
        """
        return await self._store.list_members(tenant, part, email)

    async def change_role(
        self,
        tenant: TenantId,
        member: UserId,
        role: Role,
        by: Principal,
        attribution: Attribution,
    ) -> Member:
        """Change a member's role, from their next request on.

        Raises what Team.require_change raises.
        """
        events = _events(attribution, tenant, member, AuditEvent.CHANGE_ROLE, ROLE_IS[role])
        changed = await self._store.save_role(tenant, member, role, by, events)
        await self._audit_delivery.deliver()
        return changed

    async def remove(
        self, tenant: TenantId, member: UserId, by: Principal, attribution: Attribution
    ) -> None:
        """Remove a member, and end their sessions at once.

        Raises what Team.require_change raises.
        """
        events = _events(
            attribution, tenant, member, AuditEvent.REMOVE_MEMBER, AuditEvent.MEMBERSHIP_ENDED
        )
        await self._store.remove_member(tenant, member, by, events)
        await self._audit_delivery.deliver()


def _events(
    attribution: Attribution,
    tenant: TenantId,
    member: UserId,
    action: AuditEvent,
    effect: AuditEvent,
) -> Sequence[Event]:
    """Return two events, since a record names one person: who acted, and whom it affected."""
    affected = attribution.by(f"user:{member}")
    return event(attribution, tenant, action), event(affected, tenant, effect)
