"""What a tenant has bought: the rules of a subscription's life, without I/O.

A contract runs from period to period until it is cancelled, and then to the end of its period.
Each rule takes a contract and hands back a Change: the next value, and the invoice line that goes
with it.
"""

from calendar import monthrange
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum
from uuid import UUID, uuid4

from pqkeep_gateway.access.entitlements import Subscription, Tier
from pqkeep_protocol.audit_events import AuditEvent
from pqkeep_protocol.keys import TenantId

CURRENCY = "usd"
"""Of the prices in the plans file."""

SUBSCRIBE: Mapping[Tier, AuditEvent] = {
    Tier.STARTER: AuditEvent.SUBSCRIBE_STARTER,
    Tier.GROWTH: AuditEvent.SUBSCRIBE_GROWTH,
    Tier.PROFESSIONAL: AuditEvent.SUBSCRIBE_PROFESSIONAL,
    Tier.ENTERPRISE: AuditEvent.SUBSCRIBE_ENTERPRISE,
    Tier.ENTERPRISE_PLUS: AuditEvent.SUBSCRIBE_ENTERPRISE_PLUS,
}
"""What the audit log calls a subscription to each tier that is sold."""

Prices = Mapping[Tier, int]
"""What a month of each tier costs, in cents."""


class ContractStatus(StrEnum):
    """Whether the tier is in force."""

    ACTIVE = "active"
    UNPAID = "unpaid"
    """Not for now: it was not paid for. It is in force again when it is."""
    ENDED = "ended"
    """For ever. Nothing leads back from here."""


@dataclass(frozen=True, slots=True)
class Contract:
    """One subscription that was bought. A tenant has at most one that has not ended."""

    id: UUID
    tenant: TenantId
    tier: Tier
    status: ContractStatus
    begun_at: datetime
    period_start: datetime
    period_end: datetime
    as_of: datetime
    """When it was last said how it is."""
    price_cents: int = 0
    """Of this period; of what is billed elsewhere, unknown here."""
    cancel_at_period_end: bool = False
    external_id: str | None = None
    """Where it is billed elsewhere, its identifier there."""
    revision: int = 1

    @property
    def subscription(self) -> Subscription:
        """What that makes of the tenant's standing."""
        is_in_force = self.status is ContractStatus.ACTIVE
        return Subscription.ACTIVE if is_in_force else Subscription.ENDED


@dataclass(frozen=True, slots=True)
class Invoice:
    """One line of what is owed, or with a negative amount given back, for a period."""

    id: UUID
    tenant: TenantId
    tier: Tier
    amount_cents: int
    currency: str
    period_start: datetime
    period_end: datetime
    created_at: datetime
    external_id: str | None = None
    """Where it was billed elsewhere, its identifier there."""


@dataclass(frozen=True, slots=True)
class Change:
    """What becomes of a contract; ``operation`` is what the audit log calls it."""

    old: Contract | None
    new: Contract
    operation: AuditEvent
    invoice: Invoice | None = None


class AlreadySubscribedError(Exception):
    """The tier has been bought already."""


class BilledElsewhereError(Exception):
    """The contract is not billed here, and cannot be changed here."""


def buy(
    old: Contract | None, tenant: TenantId, tier: Tier, prices: Prices, now: datetime
) -> Change:
    """Subscribe to a tier, change to it, or go on with what was cancelled.

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
    """Let a contract end with its period. Raises BilledElsewhereError."""
    _require_billed_here(old)
    return Change(
        old, replace(_next(old, now), cancel_at_period_end=True), AuditEvent.CANCEL_SUBSCRIPTION
    )


def settle(old: Contract, prices: Prices, now: datetime) -> Change:
    """Do what the end of a period brings: the contract ends, or the next period begins.

    That is the period which holds now. Whole periods that went by while nobody could use or
    cancel anything are not billed.
    """
    if old.cancel_at_period_end:
        return Change(
            old, replace(_next(old, now), status=ContractStatus.ENDED), AuditEvent.END_SUBSCRIPTION
        )
    start, end = old.period_start, old.period_end
    while end <= now:
        start, end = end, month_after(end, old.begun_at.day)
    price = prices[old.tier]
    new = replace(_next(old, now), period_start=start, period_end=end, price_cents=price)
    return Change(old, new, AuditEvent.RENEW_SUBSCRIPTION, _invoice(new, price, start, now))


def apply_notice(known: Contract | None, running: Contract | None, said: Contract) -> Change | None:
    """Believe what is said, where it is billed, of a contract; None: it changes nothing.

    ``known`` is what was known of it, ``running`` what its tenant has now. What has ended has
    ended, and news that are older than what is known are none. A newer contract takes the place
    of what is running, and an older one does not.
    """
    if known is None:
        if said.status is ContractStatus.ENDED:
            return Change(
                None, said, AuditEvent.END_SUBSCRIPTION
            )  # kept, lest older news make it run
        if running is not None and running.external_id and running.begun_at > said.begun_at:
            return None
        return Change(running, said, SUBSCRIBE[said.tier])
    is_over = known.status is ContractStatus.ENDED
    if is_over or known.tenant != said.tenant or said.as_of < known.as_of:
        return None
    new = replace(said, id=known.id, revision=known.revision + 1)
    return Change(known, new, _difference(known, new))


def month_after(when: datetime, day: int) -> datetime:
    """Return the same time of the next month, on a day of it, or on its last if it is shorter."""
    first = when.replace(day=1) + timedelta(days=monthrange(when.year, when.month)[1])
    return first.replace(day=min(day, monthrange(first.year, first.month)[1]))


def _begin(tenant: TenantId, tier: Tier, price: int, now: datetime) -> Change:
    new = Contract(
        id=uuid4(),
        tenant=tenant,
        tier=tier,
        status=ContractStatus.ACTIVE,
        begun_at=now,
        period_start=now,
        period_end=month_after(now, now.day),
        as_of=now,
        price_cents=price,
    )
    return Change(None, new, SUBSCRIBE[tier], _invoice(new, price, now, now))


def _change_tier(old: Contract, tier: Tier, price: int, now: datetime) -> Change:
    """Change at once; the line is the difference for what is left of the period, rounded down."""
    new = replace(_next(old, now), tier=tier, price_cents=price, cancel_at_period_end=False)
    left, whole = old.period_end - now, old.period_end - old.period_start
    difference = (price - old.price_cents) * left // whole
    return Change(old, new, SUBSCRIBE[tier], _invoice(new, difference, now, now))


def _next(old: Contract, now: datetime) -> Contract:
    return replace(old, as_of=now, revision=old.revision + 1)


def _difference(old: Contract, new: Contract) -> AuditEvent:
    """Return what the audit log calls a change that was made elsewhere."""
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
