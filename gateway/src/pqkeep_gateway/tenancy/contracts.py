"""The rules of a subscription's lifecycle, without I/O.

A contract is renewed at the end of each period until it is cancelled, and then ends with its
period. Each rule takes a contract and returns a Change: the next value, and its invoice.
"""

from calendar import monthrange
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from uuid import uuid4

from pqkeep_gateway.access.entitlements import Tier
from pqkeep_gateway.storage.billing import (
    BilledElsewhereError,
    Change,
    Contract,
    ContractStatus,
    Invoice,
)
from pqkeep_protocol.audit_events import AuditEvent
from pqkeep_protocol.keys import TenantId

CURRENCY = "usd"
"""The currency of the prices in the plans file."""

SUBSCRIBE: Mapping[Tier, AuditEvent] = {
    Tier.STARTER: AuditEvent.SUBSCRIBE_STARTER,
    Tier.GROWTH: AuditEvent.SUBSCRIBE_GROWTH,
    Tier.PROFESSIONAL: AuditEvent.SUBSCRIBE_PROFESSIONAL,
    Tier.ENTERPRISE: AuditEvent.SUBSCRIBE_ENTERPRISE,
    Tier.ENTERPRISE_PLUS: AuditEvent.SUBSCRIBE_ENTERPRISE_PLUS,
}
"""The audit event of subscribing to each tier on sale."""

Prices = Mapping[Tier, int]
"""The monthly price of each tier, in cents."""


class AlreadySubscribedError(Exception):
    """The tenant already has this tier."""


def buy(
    old: Contract | None, tenant: TenantId, tier: Tier, prices: Prices, now: datetime
) -> Change:
    """Subscribe to a tier, change the tier, or undo a cancellation.

    Raises AlreadySubscribedError, BilledElsewhereError.
    """
    if old is None:
        return _begin(tenant, tier, prices[tier], now)
    _require_billed_here(old)
    if old.tier is not tier:
        return _change_tier(old, tier, prices[tier], now)
    if not old.cancel_at_period_end:
        raise AlreadySubscribedError
    new = replace(_next(old, now), cancel_at_period_end=False)
    return Change(old, new, AuditEvent.RESUME_SUBSCRIPTION)


def cancel(old: Contract, now: datetime) -> Change:
    """Cancel a contract at the end of its period. Raises BilledElsewhereError."""
    _require_billed_here(old)
    return Change(
        old, replace(_next(old, now), cancel_at_period_end=True), AuditEvent.CANCEL_SUBSCRIPTION
    )


def settle(old: Contract, prices: Prices, now: datetime) -> Change:
    """End a cancelled contract, or begin the period that contains the present.

    Complete periods of an outage of all gateways are not billed.
    """
    if old.cancel_at_period_end:
        return Change(
            old, replace(_next(old, now), status=ContractStatus.ENDED), AuditEvent.END_SUBSCRIPTION
        )
    start, end = old.period_start, old.period_end
    while end <= now:
        start, end = end, month_after(end, old.started_at.day)
    price = prices[old.tier]
    new = replace(_next(old, now), period_start=start, period_end=end, price_cents=price)
    return Change(old, new, AuditEvent.RENEW_SUBSCRIPTION, _invoice(new, price, start, now))


def apply_notice(
    known: Contract | None, running: Contract | None, reported: Contract
) -> Change | None:
    """Apply an external provider's report of a contract; None: it changes nothing.

    ``known`` is the stored value of the same contract, ``running`` the tenant's running one. An
    ended contract remains ended, and a report older than the last one is ignored. A newer contract
    replaces the running one, an older one does not.
    """
    if known is None:
        if reported.status is ContractStatus.ENDED:
            # Stored, so that a late and older report cannot start it.
            return Change(None, reported, AuditEvent.END_SUBSCRIPTION)
        if running is not None and running.external_id and running.started_at > reported.started_at:
            return None
        return Change(running, reported, SUBSCRIBE[reported.tier])
    has_ended = known.status is ContractStatus.ENDED
    if has_ended or known.tenant != reported.tenant or reported.as_of < known.as_of:
        return None
    new = replace(reported, id=known.id, revision=known.revision + 1)
    return Change(known, new, _difference(known, new))


def month_after(when: datetime, day: int) -> datetime:
    """Return the same time on a day of the next month, or on its last day if it is shorter."""
    first = when.replace(day=1) + timedelta(days=monthrange(when.year, when.month)[1])
    return first.replace(day=min(day, monthrange(first.year, first.month)[1]))


def _begin(tenant: TenantId, tier: Tier, price: int, now: datetime) -> Change:
    new = Contract(
        id=uuid4(),
        tenant=tenant,
        tier=tier,
        status=ContractStatus.ACTIVE,
        started_at=now,
        period_start=now,
        period_end=month_after(now, now.day),
        as_of=now,
        price_cents=price,
    )
    return Change(None, new, SUBSCRIBE[tier], _invoice(new, price, now, now))


def _change_tier(old: Contract, tier: Tier, price: int, now: datetime) -> Change:
    """Change immediately; invoice the pro-rata difference for the period, rounded down."""
    new = replace(_next(old, now), tier=tier, price_cents=price, cancel_at_period_end=False)
    left, whole = old.period_end - now, old.period_end - old.period_start
    difference = (price - old.price_cents) * left // whole
    return Change(old, new, SUBSCRIBE[tier], _invoice(new, difference, now, now))


def _next(old: Contract, now: datetime) -> Contract:
    return replace(old, as_of=now, revision=old.revision + 1)


def _difference(old: Contract, new: Contract) -> AuditEvent:
    """Return the audit event of a change reported by an external provider."""
    if new.status is ContractStatus.ENDED:
        return AuditEvent.END_SUBSCRIPTION
    if new.status is not old.status:
        return (
            AuditEvent.SUSPEND_SUBSCRIPTION
            if new.status is ContractStatus.UNPAID
            else AuditEvent.RENEW_SUBSCRIPTION
        )
    if new.tier is not old.tier:
        return SUBSCRIBE[new.tier]
    if new.cancel_at_period_end is not old.cancel_at_period_end:
        return (
            AuditEvent.CANCEL_SUBSCRIPTION
            if new.cancel_at_period_end
            else AuditEvent.RESUME_SUBSCRIPTION
        )
    return AuditEvent.RENEW_SUBSCRIPTION


def _invoice(contract: Contract, cents: int, start: datetime, now: datetime) -> Invoice:
    return Invoice(
        id=uuid4(),
        tenant=contract.tenant,
        tier=contract.tier,
        amount_cents=cents,
        currency=CURRENCY,
        period_start=start,
        period_end=contract.period_end,
        created_at=now,
    )


def _require_billed_here(contract: Contract) -> None:
    if contract.external_id is not None:
        raise BilledElsewhereError
