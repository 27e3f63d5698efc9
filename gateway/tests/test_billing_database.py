"""Contracts and invoice lines in a real database, with several gateways on it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING
from uuid import uuid4

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from pqkeep_gateway.access.entitlements import Plan, Subscription, Tier
from pqkeep_gateway.access.idempotency import IdempotencyKey, IdempotencyKeyReusedError
from pqkeep_gateway.audit_events import AuditDelivery, event
from pqkeep_gateway.storage.billing import SqlBilling
from pqkeep_gateway.storage.tenants import SqlTenants
from pqkeep_gateway.tenancy.billing import (
    BuiltInBilling,
    ContractChangedError,
    DuplicateNoticeError,
    NotSubscribedError,
)
from pqkeep_gateway.tenancy.contracts import (
    AlreadySubscribedError,
    Change,
    Contract,
    ContractStatus,
    Invoice,
    apply_notice,
    buy,
)
from pqkeep_gateway.tenancy.tenants import Tenant, TenantChange, TenantStatus
from pqkeep_gateway.unavailable import UnavailableError
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
class World:
    """A tenant on free, several gateways, and the time, which a test moves."""

    engine: AsyncEngine
    audit_delivery: AuditDelivery
    tenant: Tenant
    now: datetime = NOW
    announced: int = 0
    store: SqlBilling = field(init=False)

    def __post_init__(self) -> None:
        self.store = SqlBilling(self.engine)

    def gateway(self) -> BuiltInBilling:
        """Return the billing of one more gateway."""
        sold = frozenset(Tier) - {Tier.FREE}
        return BuiltInBilling(
            self.store, PRICES, sold, self._announce, self.audit_delivery, self._clock
        )

    def _clock(self) -> float:
        return self.now.timestamp()

    async def _announce(self) -> None:
        self.announced += 1

    async def plan(self) -> Plan:
        """Return what is in force."""
        return (await SqlTenants(self.engine).get(self.tenant.id)).entitlements.plan

    async def lines(self) -> list[int]:
        """Return the amounts of the lines, the oldest first."""
        return [
            each.amount_cents for each in reversed(await self.store.list_invoices(self.tenant.id))
        ]

    async def buy(self, tier: Tier, key: IdempotencyKey | None = None) -> Contract:
        """Buy a tier; return the contract."""
        answer = await self.gateway().check_out(self.tenant.id, tier, ATTRIBUTION, key)
        assert answer.contract is not None
        return answer.contract

    async def cancel(self) -> None:
        """Cancel."""
        await self.gateway().cancel(self.tenant.id, ATTRIBUTION, None)


@pytest.fixture
async def world(
    engine: AsyncEngine, audit_delivery: AuditDelivery, new_tenant: Callable[..., Tenant]
) -> World:
    """Nothing is bought yet."""
    tenant = new_tenant()
    await SqlTenants(engine).add(tenant, event(ATTRIBUTION, tenant.id, AuditEvent.CREATE_TENANT))
    return World(engine, audit_delivery, tenant)


def _key(text: str, request: str = "the same") -> IdempotencyKey:
    return IdempotencyKey(text, Idempotency(text.encode().ljust(32), request.encode().ljust(32)))


async def test_a_contract_comes_back_as_it_was(world: World) -> None:
    """Every field of a contract and its line survives, and its tier is in force."""
    bought = await world.buy(Tier.STARTER)
    assert await world.store.find_running(world.tenant.id) == bought
    (line,) = await world.store.list_invoices(world.tenant.id)
    assert (line.tier, line.amount_cents, line.currency) == (Tier.STARTER, 100, "usd")
    assert (line.period_start, line.period_end) == (bought.period_start, bought.period_end)
    assert await world.plan() is Plan.STARTER
    assert world.announced == 1


async def test_of_the_same_checkouts_at_once_one_buys(world: World, log: FakeAuditLog) -> None:
    """Of sixteen checkouts of one tier at once one buys it, with one line and one event."""
    outcomes = await asyncio.gather(
        *(world.buy(Tier.GROWTH) for _ in range(16)), return_exceptions=True
    )
    assert sum(isinstance(each, Contract) for each in outcomes) == 1
    assert sum(isinstance(each, AlreadySubscribedError) for each in outcomes) == 15
    assert len(await world.lines()) == 1
    assert log.operations.count("subscribe-growth") == 1


async def test_different_checkouts_at_once_add_up(world: World) -> None:
    """Of checkouts of different tiers at once each is billed on what was there before it."""
    tiers = [Tier.STARTER, Tier.GROWTH, Tier.PROFESSIONAL, Tier.ENTERPRISE]
    await asyncio.gather(*(world.buy(each) for each in tiers))
    contract = await world.store.find_running(world.tenant.id)
    assert contract is not None
    assert sum(await world.lines()) == PRICES[contract.tier]


async def test_the_first_answer_is_given_again(world: World, log: FakeAuditLog) -> None:
    """With an Idempotency-Key the same checkout, also eight at once, is one; another is refused."""
    made = await asyncio.gather(*(world.buy(Tier.STARTER, _key("1")) for _ in range(8)))
    assert len(set(made)) == 1
    await world.buy(Tier.GROWTH)
    assert await world.buy(Tier.STARTER, _key("1")) == made[0]
    assert len(await world.lines()) == 2
    with pytest.raises(IdempotencyKeyReusedError):
        await world.buy(Tier.STARTER, _key("1", "another"))


async def test_a_period_is_renewed_once(world: World, log: FakeAuditLog) -> None:
    """Of several gateways that find a period over at once, one renews it, with one line."""
    bought = await world.buy(Tier.STARTER)
    world.now = bought.period_end
    for _ in range(3):
        await asyncio.gather(*(world.gateway().settle_due() for _ in range(GATEWAYS)))
    await world.audit_delivery.deliver()
    assert await world.lines() == [100, 100]
    assert log.operations.count("renew-subscription") == 1
    assert await world.plan() is Plan.STARTER


async def test_before_its_end_a_period_goes_on(world: World) -> None:
    """A microsecond before its end nothing happens to a period."""
    bought = await world.buy(Tier.STARTER)
    await world.cancel()
    world.now = bought.period_end - timedelta(milliseconds=1)
    await world.gateway().settle_due()
    assert await world.plan() is Plan.STARTER


async def test_after_a_long_silence_one_period_is_billed(world: World) -> None:
    """When no gateway ran for half a year, the period that holds now is billed, and only it."""
    await world.buy(Tier.STARTER)
    world.now = NOW + 6 * MONTH
    await asyncio.gather(*(world.gateway().settle_due() for _ in range(GATEWAYS)))
    contract = await world.store.find_running(world.tenant.id)
    assert contract is not None
    assert contract.period_start <= world.now < contract.period_end
    assert await world.lines() == [100, 100]


async def test_a_cancelled_contract_ends_once(world: World, log: FakeAuditLog) -> None:
    """After its period the plan is free, by one of several gateways; it can be bought again."""
    bought = await world.buy(Tier.PROFESSIONAL)
    await asyncio.gather(*(world.cancel() for _ in range(GATEWAYS)))
    assert log.operations.count("cancel-subscription") == 1
    assert await world.plan() is Plan.PROFESSIONAL
    world.now, announced = bought.period_end, world.announced
    await asyncio.gather(*(world.gateway().settle_due() for _ in range(GATEWAYS)))
    await world.audit_delivery.deliver()
    assert log.operations.count("end-subscription") == 1
    assert world.announced > announced
    assert await world.plan() is Plan.FREE
    assert await world.store.find_running(world.tenant.id) is None
    with pytest.raises(NotSubscribedError):
        await world.cancel()
    again = await world.buy(Tier.STARTER)
    assert again.id != bought.id
    assert await world.lines() == [300, 100]


async def test_what_is_over_is_settled_before_anything_else(world: World) -> None:
    """A change after the end of a period that nobody settled yet comes to the next period."""
    await world.buy(Tier.STARTER)
    world.now = NOW + MONTH
    await world.buy(Tier.GROWTH)
    assert len(await world.lines()) == 3
    await world.cancel()
    world.now += 2 * MONTH
    with pytest.raises(NotSubscribedError):
        await world.cancel()
    assert await world.plan() is Plan.FREE


async def test_a_suspended_tenant_is_not_billed(world: World) -> None:
    """While it is suspended nothing is renewed; afterwards the period that holds then is."""
    await world.buy(Tier.STARTER)
    tenants = SqlTenants(world.engine)
    suspended = TenantChange(status=TenantStatus.SUSPENDED)
    await tenants.save_change(world.tenant.id, suspended, NOW, ())
    world.now = NOW + 4 * MONTH
    await world.gateway().settle_due()
    assert await world.lines() == [100]
    await tenants.save_change(world.tenant.id, TenantChange(status=TenantStatus.ACTIVE), NOW, ())
    await world.gateway().settle_due()
    assert await world.lines() == [100, 100]


@pytest.mark.parametrize(
    ("change", "plan"),
    [
        (TenantChange(tier=Tier.ENTERPRISE, subscription=Subscription.ACTIVE), Plan.ENTERPRISE),
        (TenantChange(subscription=Subscription.ENDED), Plan.FREE),
        (TenantChange(subscription=Subscription.ACTIVE), Plan.STARTER),
    ],
)
async def test_the_operator_s_word_ends_a_contract(
    world: World, change: TenantChange, plan: Plan
) -> None:
    """After the operator changed tier or subscription nothing is renewed or ended any more."""
    await world.buy(Tier.STARTER)
    await SqlTenants(world.engine).save_change(world.tenant.id, change, NOW, ())
    world.now = NOW + 2 * MONTH
    await world.gateway().settle_due()
    assert await world.plan() is plan
    assert await world.lines() == [100]


async def test_other_changes_by_the_operator_end_nothing(world: World) -> None:
    """A rate limit or a suspension leaves the contract as it is."""
    bought = await world.buy(Tier.STARTER)
    change = TenantChange(requests_per_minute=7, status=TenantStatus.SUSPENDED)
    await SqlTenants(world.engine).save_change(world.tenant.id, change, NOW, ())
    assert await world.store.find_running(world.tenant.id) == bought


async def test_operator_and_tenant_at_once(world: World) -> None:
    """Many checkouts and many changes by the operator at once: nobody waits for ever, or fails."""
    tiers = [Tier.STARTER, Tier.GROWTH] * 6
    tenants = SqlTenants(world.engine)
    change = TenantChange(tier=Tier.ENTERPRISE, subscription=Subscription.ACTIVE)
    outcomes = await asyncio.gather(
        *(world.buy(each) for each in tiers),
        *(tenants.save_change(world.tenant.id, change, NOW, ()) for _ in range(12)),
        return_exceptions=True,
    )
    failed = [each for each in outcomes if isinstance(each, Exception)]
    assert all(isinstance(each, AlreadySubscribedError) for each in failed)
    contract = await world.store.find_running(world.tenant.id)
    expected = Plan.ENTERPRISE
    if contract is not None:
        expected = Plan.STARTER if contract.tier is Tier.STARTER else Plan.PROFESSIONAL
    assert await world.plan() is expected


async def test_without_the_log_an_answer_is_kept(world: World, log: FakeAuditLog) -> None:
    """While the log is away a checkout is no success; asked again it is the first answer."""
    log.is_unavailable = True
    with pytest.raises(UnavailableError):
        await world.buy(Tier.STARTER, _key("1"))
    log.is_unavailable = False
    await world.buy(Tier.STARTER, _key("1"))
    assert await world.lines() == [100]
    assert log.operations == ["create-tenant", "subscribe-starter"]


def _elsewhere(world: World, number: int = 1, **changes: object) -> Contract:
    """Return what is said of a contract that is billed elsewhere."""
    bought = buy(None, world.tenant.id, Tier.STARTER, PRICES, NOW).new
    return replace(bought, external_id=f"sub_{number}", **changes)  # type: ignore[arg-type] # its fields


async def _apply(world: World, change: Change | None, notice: str) -> None:
    assert change is not None
    made = event(ATTRIBUTION, world.tenant.id, change.operation)
    await world.store.save_change(change, made, notice=notice)


async def test_a_notice_is_heard_once(world: World, log: FakeAuditLog) -> None:
    """Of one notice that comes sixteen times at once, one is applied, with one event."""
    said = _elsewhere(world)
    outcomes = await asyncio.gather(
        *(_apply(world, apply_notice(None, None, said), "evt_1") for _ in range(16)),
        return_exceptions=True,
    )
    assert outcomes.count(None) == 1
    assert sum(isinstance(each, DuplicateNoticeError) for each in outcomes) == 15
    await world.audit_delivery.deliver()
    assert log.operations.count("subscribe-starter") == 1


async def test_a_notice_that_failed_is_heard_later(world: World) -> None:
    """A notice whose change came too late is forgotten with it, and can come again."""
    said = _elsewhere(world)
    await _apply(world, apply_notice(None, None, said), "evt_1")
    known = await world.store.find_by_external_id("sub_1")
    assert known is not None
    stale = replace(known, revision=known.revision + 5)
    with pytest.raises(ContractChangedError):
        await _apply(world, Change(stale, known, AuditEvent.RENEW_SUBSCRIPTION), "evt_2")
    await _apply(world, apply_notice(known, known, replace(said, as_of=NOW + MONTH)), "evt_2")


async def test_what_has_ended_before_it_began_never_runs(world: World) -> None:
    """An end that came first is kept, and leaves what the tenant has as it is."""
    await world.buy(Tier.GROWTH)
    await _apply(
        world, apply_notice(None, None, _elsewhere(world, status=ContractStatus.ENDED)), "evt_1"
    )
    assert await world.plan() is Plan.PROFESSIONAL
    known = await world.store.find_by_external_id("sub_1")
    assert apply_notice(known, None, _elsewhere(world, as_of=NOW + MONTH)) is None


async def test_a_newer_contract_takes_the_place_of_another(world: World) -> None:
    """The older one has ended then, and its tier is not in force any more."""
    bought = await world.buy(Tier.GROWTH)
    await _apply(world, apply_notice(None, bought, _elsewhere(world)), "evt_1")
    assert await world.plan() is Plan.STARTER
    running = await world.store.find_running(world.tenant.id)
    assert running is not None
    assert running.external_id == "sub_1"
    world.now = NOW + 2 * MONTH
    await world.gateway().settle_due()
    assert await world.store.find_running(world.tenant.id) == running


async def test_an_invoice_is_kept_once(world: World) -> None:
    """One that comes twice, by one notice or two, is one line."""
    line = Invoice(uuid4(), world.tenant.id, Tier.STARTER, 7, "eur", NOW, NOW + MONTH, NOW, "in_1")
    made = event(ATTRIBUTION, world.tenant.id, AuditEvent.RECORD_INVOICE)
    await world.store.add_invoice(line, made, "evt_1")
    for notice in ("evt_1", "evt_2"):
        with pytest.raises(DuplicateNoticeError):
            await world.store.add_invoice(replace(line, id=uuid4()), made, notice)
    assert await world.store.list_invoices(world.tenant.id) == (line,)
