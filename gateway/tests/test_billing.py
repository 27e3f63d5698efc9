"""Contracts and invoice lines in a real database, with several gateways on it."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING
from uuid import uuid4

import pytest
from gateway.tests.world import new_tenant
from sqlalchemy.ext.asyncio import AsyncEngine

from pqkeep_gateway.access.entitlements import Plan, Subscription, TenantStatus, Tier
from pqkeep_gateway.access.idempotency import IdempotencyKey, IdempotencyKeyReusedError
from pqkeep_gateway.audit_delivery import AuditDelivery
from pqkeep_gateway.audit_events import event
from pqkeep_gateway.storage.billing import (
    Change,
    Contract,
    ContractChangedError,
    ContractStatus,
    DuplicateNoticeError,
    Invoice,
    SqlBilling,
)
from pqkeep_gateway.storage.tenants import SqlTenants, Tenant, TenantChange
from pqkeep_gateway.tenancy.billing import BuiltInBilling, NotSubscribedError
from pqkeep_gateway.tenancy.contracts import AlreadySubscribedError, apply_notice, buy
from pqkeep_protocol.audit_events import AuditEvent
from pqkeep_protocol.messages import Attribution, Idempotency

if TYPE_CHECKING:
    from gateway.tests.world import FakeAuditLog

pytestmark = pytest.mark.parametrize("backend", ["sqlite", "postgresql"], indirect=True)

ATTRIBUTION = Attribution("request-1", "user:1", "192.0.2.7")
PRICES = {tier: 100 * number for number, tier in enumerate(Tier)}
NOW = datetime(2027, 1, 31, 12, tzinfo=UTC)
MONTH = timedelta(days=31)
GATEWAYS = 4


@dataclass
class Billing:
    """A tenant on free, several gateways, and a settable clock."""

    engine: AsyncEngine
    audit_delivery: AuditDelivery
    tenant: Tenant
    now: datetime = NOW
    announced: int = 0
    store: SqlBilling = field(init=False)

    def __post_init__(self) -> None:
        self.store = SqlBilling(self.engine)

    def gateway(self) -> BuiltInBilling:
        """Return the billing of another gateway."""
        sold = frozenset(Tier) - {Tier.FREE}
        return BuiltInBilling(
            self.store, PRICES, sold, self._announce, self.audit_delivery, self._clock
        )

    def _clock(self) -> float:
        return self.now.timestamp()

    async def _announce(self) -> None:
        self.announced += 1

    async def plan(self) -> Plan:
        """Return the plan in force."""
        return (await SqlTenants(self.engine).get(self.tenant.id)).entitlements.plan

    async def lines(self) -> list[int]:
        """Return the amounts of the invoices, oldest first."""
        return [
            invoice.amount_cents
            for invoice in reversed(await self.store.list_invoices(self.tenant.id))
        ]

    async def buy(self, tier: Tier, key: IdempotencyKey | None = None) -> Contract:
        """Buy a tier; return the contract."""
        response = await self.gateway().check_out(self.tenant.id, tier, ATTRIBUTION, key)
        assert response.contract is not None
        return response.contract

    async def cancel(self) -> None:
        """Cancel the running contract."""
        await self.gateway().cancel(self.tenant.id, ATTRIBUTION, None)


@pytest.fixture
async def billing(engine: AsyncEngine, audit_delivery: AuditDelivery) -> Billing:
    """A tenant without a contract."""
    tenant = new_tenant()
    await SqlTenants(engine).add(tenant, event(ATTRIBUTION, tenant.id, AuditEvent.CREATE_TENANT))
    return Billing(engine, audit_delivery, tenant)


def _key(text: str, request: str = "the same") -> IdempotencyKey:
    return IdempotencyKey(text, Idempotency(text.encode().ljust(32), request.encode().ljust(32)))


async def test_a_contract_comes_back_as_it_was(billing: Billing) -> None:
    """A contract and its invoice line are read back as stored, and its tier applies."""
    bought = await billing.buy(Tier.STARTER)
    assert await billing.store.find_running(billing.tenant.id) == bought
    (line,) = await billing.store.list_invoices(billing.tenant.id)
    assert (line.tier, line.amount_cents, line.currency) == (Tier.STARTER, 100, "usd")
    assert (line.period_start, line.period_end) == (bought.period_start, bought.period_end)
    assert await billing.plan() is Plan.STARTER
    assert billing.announced == 1


async def test_of_the_same_checkouts_at_once_one_buys(billing: Billing, log: FakeAuditLog) -> None:
    """If one tier is bought sixteen times at once, one purchase, invoice line and event remain."""
    outcomes = await asyncio.gather(
        *(billing.buy(Tier.GROWTH) for _ in range(16)), return_exceptions=True
    )
    assert sum(isinstance(outcome, Contract) for outcome in outcomes) == 1
    assert sum(isinstance(outcome, AlreadySubscribedError) for outcome in outcomes) == 15
    assert len(await billing.lines()) == 1
    assert log.operations.count("subscribe-growth") == 1


async def test_different_checkouts_at_once_add_up(billing: Billing) -> None:
    """If different tiers are bought at once, the invoice lines add up to the last tier's price."""
    tiers = [Tier.STARTER, Tier.GROWTH, Tier.PROFESSIONAL, Tier.ENTERPRISE]
    await asyncio.gather(*(billing.buy(tier) for tier in tiers))
    contract = await billing.store.find_running(billing.tenant.id)
    assert contract is not None
    assert sum(await billing.lines()) == PRICES[contract.tier]


async def test_an_idempotency_key_returns_the_first_result(
    billing: Billing, log: FakeAuditLog
) -> None:
    """Eight equal concurrent checkouts with one Idempotency-Key are one; another is refused."""
    results = await asyncio.gather(*(billing.buy(Tier.STARTER, _key("1")) for _ in range(8)))
    assert len(set(results)) == 1
    await billing.buy(Tier.GROWTH)
    assert await billing.buy(Tier.STARTER, _key("1")) == results[0]
    assert len(await billing.lines()) == 2
    with pytest.raises(IdempotencyKeyReusedError):
        await billing.buy(Tier.STARTER, _key("1", "another"))


async def test_a_period_is_renewed_once(billing: Billing, log: FakeAuditLog) -> None:
    """If several gateways find an ended period concurrently, it is renewed once, with one line."""
    bought = await billing.buy(Tier.STARTER)
    billing.now = bought.period_end
    for _ in range(3):
        await asyncio.gather(*(billing.gateway().settle_due() for _ in range(GATEWAYS)))
    await billing.audit_delivery.deliver()
    assert await billing.lines() == [100, 100]
    assert log.operations.count("renew-subscription") == 1
    assert await billing.plan() is Plan.STARTER


async def test_nothing_is_settled_before_the_end_of_a_period(billing: Billing) -> None:
    """A microsecond before its end a period is not renewed."""
    bought = await billing.buy(Tier.STARTER)
    await billing.cancel()
    billing.now = bought.period_end - timedelta(milliseconds=1)
    await billing.gateway().settle_due()
    assert await billing.plan() is Plan.STARTER


async def test_after_an_outage_one_period_is_billed(billing: Billing) -> None:
    """After half a year without a gateway, only the current period is billed."""
    await billing.buy(Tier.STARTER)
    billing.now = NOW + 6 * MONTH
    await asyncio.gather(*(billing.gateway().settle_due() for _ in range(GATEWAYS)))
    contract = await billing.store.find_running(billing.tenant.id)
    assert contract is not None
    assert contract.period_start <= billing.now < contract.period_end
    assert await billing.lines() == [100, 100]


async def test_a_cancelled_contract_ends_once(billing: Billing, log: FakeAuditLog) -> None:
    """After a cancelled period one gateway sets the plan to free; it can be bought again."""
    bought = await billing.buy(Tier.PROFESSIONAL)
    await asyncio.gather(*(billing.cancel() for _ in range(GATEWAYS)))
    assert log.operations.count("cancel-subscription") == 1
    assert await billing.plan() is Plan.PROFESSIONAL
    billing.now, announced = bought.period_end, billing.announced
    await asyncio.gather(*(billing.gateway().settle_due() for _ in range(GATEWAYS)))
    await billing.audit_delivery.deliver()
    assert log.operations.count("end-subscription") == 1
    assert billing.announced > announced
    assert await billing.plan() is Plan.FREE
    assert await billing.store.find_running(billing.tenant.id) is None
    with pytest.raises(NotSubscribedError):
        await billing.cancel()
    again = await billing.buy(Tier.STARTER)
    assert again.id != bought.id
    assert await billing.lines() == [300, 100]


async def test_a_period_that_is_over_is_settled_first(billing: Billing) -> None:
    """A change after an unsettled period counts in the next period."""
    await billing.buy(Tier.STARTER)
    billing.now = NOW + MONTH
    await billing.buy(Tier.GROWTH)
    assert len(await billing.lines()) == 3
    await billing.cancel()
    billing.now += 2 * MONTH
    with pytest.raises(NotSubscribedError):
        await billing.cancel()
    assert await billing.plan() is Plan.FREE


async def test_a_suspended_tenant_is_not_billed(billing: Billing) -> None:
    """A suspended tenant is not renewed; after its suspension the current period is."""
    await billing.buy(Tier.STARTER)
    tenants = SqlTenants(billing.engine)
    suspended = TenantChange(status=TenantStatus.SUSPENDED)
    await tenants.save_change(billing.tenant.id, suspended, NOW, ())
    billing.now = NOW + 4 * MONTH
    await billing.gateway().settle_due()
    assert await billing.lines() == [100]
    await tenants.save_change(billing.tenant.id, TenantChange(status=TenantStatus.ACTIVE), NOW, ())
    await billing.gateway().settle_due()
    assert await billing.lines() == [100, 100]


@pytest.mark.parametrize(
    ("change", "plan"),
    [
        (TenantChange(tier=Tier.ENTERPRISE, subscription=Subscription.ACTIVE), Plan.ENTERPRISE),
        (TenantChange(subscription=Subscription.ENDED), Plan.FREE),
        (TenantChange(subscription=Subscription.ACTIVE), Plan.STARTER),
    ],
)
async def test_a_change_by_the_operator_ends_a_contract(
    billing: Billing, change: TenantChange, plan: Plan
) -> None:
    """After the operator changed tier or subscription nothing is renewed or ended any more."""
    await billing.buy(Tier.STARTER)
    await SqlTenants(billing.engine).save_change(billing.tenant.id, change, NOW, ())
    billing.now = NOW + 2 * MONTH
    await billing.gateway().settle_due()
    assert await billing.plan() is plan
    assert await billing.lines() == [100]


async def test_other_changes_by_the_operator_end_nothing(billing: Billing) -> None:
    """A rate limit or a suspension does not change the contract."""
    bought = await billing.buy(Tier.STARTER)
    change = TenantChange(requests_per_minute=7, status=TenantStatus.SUSPENDED)
    await SqlTenants(billing.engine).save_change(billing.tenant.id, change, NOW, ())
    assert await billing.store.find_running(billing.tenant.id) == bought


async def test_concurrent_changes_by_operator_and_tenant(billing: Billing) -> None:
    """Many concurrent checkouts and operator changes cause no deadlock and no failure."""
    tiers = [Tier.STARTER, Tier.GROWTH] * 6
    tenants = SqlTenants(billing.engine)
    change = TenantChange(tier=Tier.ENTERPRISE, subscription=Subscription.ACTIVE)
    outcomes = await asyncio.gather(
        *(billing.buy(tier) for tier in tiers),
        *(tenants.save_change(billing.tenant.id, change, NOW, ()) for _ in range(12)),
        return_exceptions=True,
    )
    failed = [outcome for outcome in outcomes if isinstance(outcome, Exception)]
    assert all(isinstance(item, AlreadySubscribedError) for item in failed)
    contract = await billing.store.find_running(billing.tenant.id)
    expected = Plan.ENTERPRISE
    if contract is not None:
        expected = Plan.STARTER if contract.tier is Tier.STARTER else Plan.PROFESSIONAL
    assert await billing.plan() is expected


async def test_without_the_log_a_result_is_stored(billing: Billing, log: FakeAuditLog) -> None:
    """Without the audit log a checkout succeeds; repeated it returns the first result."""
    log.is_unavailable = True
    await billing.buy(Tier.STARTER, _key("1"))
    log.is_unavailable = False
    await billing.buy(Tier.STARTER, _key("1"))
    assert await billing.lines() == [100]
    await billing.audit_delivery.empty()
    assert log.operations == ["create-tenant", "subscribe-starter"]


def _elsewhere(billing: Billing, number: int = 1, **changes: object) -> Contract:
    """Return a report of an external provider's contract."""
    bought = buy(None, billing.tenant.id, Tier.STARTER, PRICES, NOW).new
    return replace(bought, external_id=f"sub_{number}", **changes)  # type: ignore[arg-type] # its fields


async def _apply(billing: Billing, change: Change | None, notice: str) -> None:
    assert change is not None
    changed = event(ATTRIBUTION, billing.tenant.id, change.operation)
    await billing.store.save_change(change, changed, notice=notice)


async def test_a_notice_is_applied_once(billing: Billing, log: FakeAuditLog) -> None:
    """A notice that arrives sixteen times concurrently is applied once, with one event."""
    said = _elsewhere(billing)
    outcomes = await asyncio.gather(
        *(_apply(billing, apply_notice(None, None, said), "evt_1") for _ in range(16)),
        return_exceptions=True,
    )
    assert outcomes.count(None) == 1
    assert sum(isinstance(outcome, DuplicateNoticeError) for outcome in outcomes) == 15
    await billing.audit_delivery.deliver()
    assert log.operations.count("subscribe-starter") == 1


async def test_a_failed_notice_can_be_repeated(billing: Billing) -> None:
    """A notice with a refused change is not stored, and is applied when it is repeated."""
    said = _elsewhere(billing)
    await _apply(billing, apply_notice(None, None, said), "evt_1")
    known = await billing.store.find_by_external_id("sub_1")
    assert known is not None
    stale = replace(known, revision=known.revision + 5)
    with pytest.raises(ContractChangedError):
        await _apply(billing, Change(stale, known, AuditEvent.RENEW_SUBSCRIPTION), "evt_2")
    await _apply(billing, apply_notice(known, known, replace(said, as_of=NOW + MONTH)), "evt_2")


async def test_an_ended_contract_is_never_started(billing: Billing) -> None:
    """An end that is reported first is stored, and does not change the tenant's tier."""
    await billing.buy(Tier.GROWTH)
    await _apply(
        billing, apply_notice(None, None, _elsewhere(billing, status=ContractStatus.ENDED)), "evt_1"
    )
    assert await billing.plan() is Plan.PROFESSIONAL
    known = await billing.store.find_by_external_id("sub_1")
    assert apply_notice(known, None, _elsewhere(billing, as_of=NOW + MONTH)) is None


async def test_a_newer_contract_replaces_the_running_one(billing: Billing) -> None:
    """The older one has ended then, and its tier is not in force any more."""
    bought = await billing.buy(Tier.GROWTH)
    await _apply(billing, apply_notice(None, bought, _elsewhere(billing)), "evt_1")
    assert await billing.plan() is Plan.STARTER
    running = await billing.store.find_running(billing.tenant.id)
    assert running is not None
    assert running.external_id == "sub_1"
    billing.now = NOW + 2 * MONTH
    await billing.gateway().settle_due()
    assert await billing.store.find_running(billing.tenant.id) == running


async def test_an_invoice_is_stored_once(billing: Billing) -> None:
    """An invoice that is reported twice, in one notice or in two, is stored once."""
    line = Invoice(
        uuid4(), billing.tenant.id, Tier.STARTER, 7, "eur", NOW, NOW + MONTH, NOW, "in_1"
    )
    changed = event(ATTRIBUTION, billing.tenant.id, AuditEvent.RECORD_INVOICE)
    await billing.store.add_invoice(line, changed, "evt_1")
    for notice in ("evt_1", "evt_2"):
        with pytest.raises(DuplicateNoticeError):
            await billing.store.add_invoice(replace(line, id=uuid4()), changed, notice)
    assert await billing.store.list_invoices(billing.tenant.id) == (line,)
