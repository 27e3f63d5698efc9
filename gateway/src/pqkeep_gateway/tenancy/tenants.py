"""Tenants: the organisations that own keys."""

import uuid
from collections.abc import Awaitable, Callable, Iterator, Mapping
from datetime import UTC, datetime

from pqkeep_gateway.access.entitlements import Entitlements, Subscription, TenantStatus, Tier
from pqkeep_gateway.access.idempotency import IdempotencyKey, idempotency_of
from pqkeep_gateway.audit_delivery import AuditDelivery
from pqkeep_gateway.audit_events import event
from pqkeep_gateway.storage.tenants import (
    SqlTenants,
    Tenant,
    TenantChange,
)
from pqkeep_protocol.audit_events import AuditEvent
from pqkeep_protocol.keys import TenantId
from pqkeep_protocol.messages import Attribution


class Tenants:
    """Creates and changes tenants, and invalidates the gateways' caches."""

    def __init__(
        self,
        store: SqlTenants,
        announce_change: Callable[[], Awaitable[None]],
        audit_delivery: AuditDelivery,
    ) -> None:
        """Take the function to call after each change."""
        self._store = store
        self._announce_change = announce_change
        self._audit_delivery = audit_delivery

    async def create(
        self,
        name: str,
        tier: Tier,
        attribution: Attribution,
        idempotency_key: IdempotencyKey | None = None,
        shard: str | None = None,
    ) -> Tenant:
        """Create a tenant in a shard; None: the one with the fewest tenants.

        Raises NameTakenError, IdempotencyKeyReusedError, ShardNotFoundError, ShardFullError.
        """
        tenant = new_tenant(name, tier)
        created = event(attribution, tenant.id, AuditEvent.CREATE_TENANT)
        stored = await self._store.add(tenant, created, idempotency_of(idempotency_key), shard)
        await self._audit_delivery.deliver()
        return stored

    async def require_mfa(
        self, tenant: TenantId, attribution: Attribution, *, required: bool
    ) -> None:
        """Require a second factor for a tenant's people, or stop requiring it, immediately."""
        changed = event(
            attribution,
            tenant,
            AuditEvent.REQUIRE_MFA if required else AuditEvent.DO_NOT_REQUIRE_MFA,
        )
        await self._store.save_mfa_requirement(tenant, changed, required=required)
        await self._audit_delivery.deliver()

    async def change(
        self, tenant: TenantId, change: TenantChange, attribution: Attribution
    ) -> Tenant:
        """Change a tenant, immediately and in all gateways.

        Raises TenantNotFoundError, DeletionScheduledError.
        """
        if change == TenantChange():
            return await self._store.get(tenant)
        events = [
            event(attribution, tenant, operation, policy=policy)
            for operation, policy in _events(change)
        ]
        try:
            changed = await self._store.save_change(tenant, change, datetime.now(UTC), events)
        finally:
            await self._announce_change()
        await self._audit_delivery.deliver()
        return changed


def new_tenant(name: str, tier: Tier = Tier.FREE) -> Tenant:
    """Return a tenant that is not stored yet."""
    now = datetime.now(UTC)
    return Tenant(
        id=TenantId(uuid.uuid4()),
        name=name,
        entitlements=Entitlements(tier),
        status=TenantStatus.ACTIVE,
        created_at=now,
        updated_at=now,
    )


_SET_TIER: Mapping[Tier, AuditEvent] = {
    Tier.FREE: AuditEvent.SET_TIER_FREE,
    Tier.STARTER: AuditEvent.SET_TIER_STARTER,
    Tier.GROWTH: AuditEvent.SET_TIER_GROWTH,
    Tier.PROFESSIONAL: AuditEvent.SET_TIER_PROFESSIONAL,
    Tier.ENTERPRISE: AuditEvent.SET_TIER_ENTERPRISE,
    Tier.ENTERPRISE_PLUS: AuditEvent.SET_TIER_ENTERPRISE_PLUS,
}


def _events(change: TenantChange) -> Iterator[tuple[AuditEvent, str]]:
    """Yield the audit events of a change, each with the policy that takes effect."""
    if change.tier is not None:
        yield _SET_TIER[change.tier], ""
    if change.subscription is Subscription.ENDED:
        yield AuditEvent.END_SUBSCRIPTION, ""
    if change.status is not None:
        is_suspension = change.status is TenantStatus.SUSPENDED
        yield AuditEvent.SUSPEND_TENANT if is_suspension else AuditEvent.RESUME_TENANT, ""
    if change.requests_per_minute is not None:
        yield AuditEvent.SET_RATE_LIMIT, f"requests-per-minute-{change.requests_per_minute}"
    if change.subscription is Subscription.ACTIVE and change.tier is None:
        yield AuditEvent.RENEW_SUBSCRIPTION, ""
