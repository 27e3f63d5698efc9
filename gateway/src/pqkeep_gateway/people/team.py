"""Teams: the members of a tenant, and their roles.

Every change is decided under a lock on all members' rows. If two owners remove each other
concurrently, one stays. A member who was just demoted cannot change anything.
"""

from collections.abc import Sequence

from pqkeep_gateway.access.callers import Role
from pqkeep_gateway.access.principals import Principal, UserId
from pqkeep_gateway.audit_delivery import AuditDelivery
from pqkeep_gateway.audit_events import event
from pqkeep_gateway.storage.team import ROLE_IS, Member, SqlTeam
from pqkeep_protocol.audit import Event
from pqkeep_protocol.audit_events import AuditEvent
from pqkeep_protocol.keys import TenantId
from pqkeep_protocol.messages import Attribution


class TeamMembers:
    """Lists the members of teams and changes them."""

    def __init__(self, store: SqlTeam, audit_delivery: AuditDelivery) -> None:
        self._store = store
        self._audit_delivery = audit_delivery

    async def change_role(
        self,
        tenant: TenantId,
        member: UserId,
        role: Role,
        by: Principal,
        attribution: Attribution,
    ) -> Member:
        """Change a member's role, from their next request on.

        Raises the errors of Team.require_change.
        """
        events = _events(attribution, tenant, member, AuditEvent.CHANGE_ROLE, ROLE_IS[role])
        changed = await self._store.save_role(tenant, member, role, by, events)
        await self._audit_delivery.deliver()
        return changed

    async def remove(
        self, tenant: TenantId, member: UserId, by: Principal, attribution: Attribution
    ) -> None:
        """Remove a member, and end their sessions at once.

        Raises the errors of Team.require_change.
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
    """Return two events, because a record names one person: the actor, and the affected member."""
    affected = attribution.by(f"user:{member}")
    return event(attribution, tenant, action), event(affected, tenant, effect)
