"""The gateway's events reach the audit log exactly once, in spite of failures."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import msgspec
import pytest
import sqlalchemy as sa
from gateway.tests.world import one_shard
from msgspec.structs import replace
from sqlalchemy.ext.asyncio import AsyncEngine
from tests.patience import PATIENCE

from pqkeep_gateway.access.credential_lookups import CredentialLookups
from pqkeep_gateway.access.credentials import Pepper
from pqkeep_gateway.access.entitlements import Subscription, TenantNotFoundError, TenantStatus, Tier
from pqkeep_gateway.audit_delivery import AuditDelivery
from pqkeep_gateway.audit_events import event
from pqkeep_gateway.storage.api_keys import QuotaReachedError, SqlApiKeys
from pqkeep_gateway.storage.audit_outbox import (
    UNREADABLE,
    RefusedEvent,
    SqlAuditOutbox,
    add_audit_event,
)
from pqkeep_gateway.storage.database import transaction
from pqkeep_gateway.storage.schema import AUDIT_OUTBOX
from pqkeep_gateway.storage.tenants import NameTakenError, SqlTenants, Tenant, TenantChange
from pqkeep_gateway.tenancy import plans
from pqkeep_gateway.tenancy.api_keys import ApiKeys
from pqkeep_gateway.tenancy.tenants import Tenants
from pqkeep_gateway.unavailable import UnavailableError
from pqkeep_protocol.algorithms import Operation
from pqkeep_protocol.audit import MAX_PAGE, Event
from pqkeep_protocol.keys import KeyVersion, TenantId
from pqkeep_protocol.messages import Attribution

if TYPE_CHECKING:
    from gateway.tests.world import FakeAuditLog

pytestmark = pytest.mark.parametrize("backend", ["sqlite", "postgresql"], indirect=True)

ATTRIBUTION = Attribution("request-1", "operator", "192.0.2.7")
CLOCK = 1_769_860_800.0


async def _nobody_to_tell() -> None:
    """Announce nothing, because the tests have no caches."""


@pytest.fixture
def tenants(engine: AsyncEngine, audit_delivery: AuditDelivery) -> Tenants:
    """The store of tenants."""
    return Tenants(SqlTenants(engine), _nobody_to_tell, audit_delivery)


@pytest.fixture
def api_keys(engine: AsyncEngine, audit_delivery: AuditDelivery, pepper: Pepper) -> ApiKeys:
    """The store of API keys."""
    return ApiKeys(
        SqlApiKeys(engine),
        plans.read(),
        pepper,
        CredentialLookups(lambda: CLOCK),
        _nobody_to_tell,
        audit_delivery,
        timedelta(seconds=30),
        lambda: CLOCK,
    )


@pytest.fixture
def outbox(engine: AsyncEngine) -> SqlAuditOutbox:
    """Events that are not in the log yet."""
    return SqlAuditOutbox(engine)


async def events_of(outbox: SqlAuditOutbox) -> list[Event]:
    """Return the pending events."""
    return [waiting.event for waiting in await outbox.list_oldest(MAX_PAGE)]


async def waiting(outbox: SqlAuditOutbox) -> list[str]:
    """Return the operations of the pending events."""
    return [stored.operation for stored in await events_of(outbox)]


@pytest.mark.threat("stolen-operator-credential")
async def test_an_action_is_in_the_log_before_its_answer(
    tenants: Tenants, api_keys: ApiKeys, log: FakeAuditLog, outbox: SqlAuditOutbox
) -> None:
    """Every administrative action is one event with its principal, and the outbox is empty."""
    tenant = await tenants.create("one", Tier.FREE, ATTRIBUTION)
    new_key = await api_keys.create(tenant, ATTRIBUTION)
    rotated, _ = await api_keys.rotate(tenant.id, new_key.metadata.version, ATTRIBUTION)
    await api_keys.revoke(tenant.id, rotated.metadata.version, ATTRIBUTION)
    assert [(e.operation, e.key_version) for e in log.recorded.values()] == [
        ("create-tenant", None),
        ("create-api-key", 1),
        ("rotate-api-key", 2),
        ("revoke-api-key", 2),
    ]
    for logged in log.recorded.values():
        assert (logged.tenant, logged.outcome) == (tenant.id, "success")
        assert (
            Attribution(logged.request_id, logged.principal, logged.source_address) == ATTRIBUTION
        )
    assert await waiting(outbox) == []


CHANGES: dict[str, tuple[TenantChange, list[str]]] = {
    "nothing": (TenantChange(), []),
    "tier": (TenantChange(tier=Tier.GROWTH), ["set-tier-growth"]),
    "long tier": (
        TenantChange(tier=Tier.ENTERPRISE_PLUS, subscription=Subscription.ACTIVE),
        ["set-tier-enterprise-plus"],
    ),
    "end": (TenantChange(subscription=Subscription.ENDED), ["end-subscription"]),
    "renewal": (TenantChange(subscription=Subscription.ACTIVE), ["renew-subscription"]),
    "suspension": (TenantChange(status=TenantStatus.SUSPENDED), ["suspend-tenant"]),
    "resumption": (TenantChange(status=TenantStatus.ACTIVE), ["resume-tenant"]),
    "rate": (
        TenantChange(requests_per_minute=1_000_000),
        ["set-rate-limit requests-per-minute-1000000"],
    ),
    "rate of the plan": (
        TenantChange(requests_per_minute="plan"),
        ["set-rate-limit requests-per-minute-plan"],
    ),
    "renewal and rate": (
        TenantChange(subscription=Subscription.ACTIVE, requests_per_minute=7),
        ["renew-subscription", "set-rate-limit requests-per-minute-7"],
    ),
    "everything": (
        TenantChange(Tier.STARTER, Subscription.ENDED, TenantStatus.SUSPENDED, 7),
        [
            "end-subscription",
            "set-rate-limit requests-per-minute-7",
            "set-tier-starter",
            "suspend-tenant",
        ],
    ),
}


@pytest.mark.parametrize(("change", "names"), CHANGES.values(), ids=CHANGES.keys())
async def test_a_change_says_all_that_it_does(
    change: TenantChange, names: list[str], tenants: Tenants, log: FakeAuditLog
) -> None:
    """Each effect of a change is a separate event; a rate limit's event has the limit."""
    tenant = await tenants.create("one", Tier.FREE, ATTRIBUTION)
    await tenants.change(tenant.id, change, ATTRIBUTION)
    _, *events = log.recorded.values()
    assert sorted(f"{sent.operation} {sent.policy}".strip() for sent in events) == names


Action = Callable[[Tenants, ApiKeys, Tenant], Awaitable[Any]]
ACTIONS: dict[str, Action] = {
    "create-tenant": lambda tenants, _, __: tenants.create("two", Tier.FREE, ATTRIBUTION),
    "suspend-tenant": lambda tenants, _, tenant: tenants.change(
        tenant.id, TenantChange(status=TenantStatus.SUSPENDED), ATTRIBUTION
    ),
    "create-api-key": lambda _, api_keys, tenant: api_keys.create(tenant, ATTRIBUTION),
    "rotate-api-key": lambda _, api_keys, tenant: api_keys.rotate(tenant.id, 1, ATTRIBUTION),
    "revoke-api-key": lambda _, api_keys, tenant: api_keys.revoke(tenant.id, 1, ATTRIBUTION),
}


@pytest.mark.parametrize(("name", "action"), ACTIONS.items(), ids=ACTIONS.keys())
async def test_without_the_log_an_action_is_answered_as_done(
    *,
    name: str,
    action: Action,
    tenants: Tenants,
    api_keys: ApiKeys,
    log: FakeAuditLog,
    outbox: SqlAuditOutbox,
    audit_delivery: AuditDelivery,
) -> None:
    """Without the audit log an action succeeds; its event is kept, and delivered once."""
    tenant = await tenants.create("one", Tier.STARTER, ATTRIBUTION)
    await api_keys.create(tenant, ATTRIBUTION)
    before = log.operations
    log.is_unavailable = True
    await action(tenants, api_keys, tenant)
    assert await waiting(outbox) == [name]
    with pytest.raises(UnavailableError):
        await audit_delivery.empty()
    log.is_unavailable = False
    await audit_delivery.empty()
    await audit_delivery.empty()
    assert log.operations == [*before, name]
    assert await waiting(outbox) == []


@pytest.mark.parametrize(("name", "action"), ACTIONS.items(), ids=ACTIONS.keys())
async def test_an_outbox_that_is_not_emptied_for_five_minutes_stops_actions(
    *,
    name: str,
    action: Action,
    tenants: Tenants,
    api_keys: ApiKeys,
    log: FakeAuditLog,
    outbox: SqlAuditOutbox,
    engine: AsyncEngine,
    audit_delivery: AuditDelivery,
) -> None:
    """An event that has waited for five minutes blocks actions until it is delivered."""
    tenant = await tenants.create("one", Tier.STARTER, ATTRIBUTION)
    await api_keys.create(tenant, ATTRIBUTION)
    old = replace(_refusal(1), at_us=time.time_ns() // 1000 - 300_000_000)
    await outbox.add(old)
    log.is_unavailable = True
    before = await _state(engine, api_keys, tenant)
    with pytest.raises(UnavailableError):
        await action(tenants, api_keys, tenant)
    with pytest.raises(UnavailableError):
        await audit_delivery.require_open(tenant.id)
    with pytest.raises(UnavailableError):
        await audit_delivery.record(_refusal(2))
    assert await _state(engine, api_keys, tenant) == before
    assert await events_of(outbox) == [old]
    log.is_unavailable = False
    await audit_delivery.empty()
    await action(tenants, api_keys, tenant)
    assert log.operations[-1] == name


async def test_an_event_that_waits_for_less_stops_nothing(
    tenants: Tenants, log: FakeAuditLog, outbox: SqlAuditOutbox
) -> None:
    """An outbox whose oldest event is four minutes old accepts further events."""
    await outbox.add(replace(_refusal(1), at_us=time.time_ns() // 1000 - 240_000_000))
    log.is_unavailable = True
    await tenants.create("one", Tier.FREE, ATTRIBUTION)
    assert await waiting(outbox) == ["encrypt", "create-tenant"]


async def test_an_answer_does_not_wait_for_a_log_that_hangs(
    tenants: Tenants, log: FakeAuditLog, outbox: SqlAuditOutbox
) -> None:
    """While the log hangs, an action gets its response, and its event waits."""
    log.responses = asyncio.Event()
    await tenants.create("one", Tier.FREE, ATTRIBUTION)
    assert await waiting(outbox) == ["create-tenant"]


async def test_what_was_delivered_and_not_removed_is_recorded_once(
    tenants: Tenants, log: FakeAuditLog, outbox: SqlAuditOutbox, audit_delivery: AuditDelivery
) -> None:
    """After a lost response of the log, the event is sent again and recorded once."""
    log.loses_responses = True
    await tenants.create("one", Tier.FREE, ATTRIBUTION)
    assert log.operations == await waiting(outbox) == ["create-tenant"]
    log.loses_responses = False
    await audit_delivery.empty()
    assert (log.operations, log.received) == (["create-tenant"], 2)
    assert await waiting(outbox) == []


async def test_a_refused_event_holds_no_other_up(
    tenants: Tenants, log: FakeAuditLog, outbox: SqlAuditOutbox, audit_delivery: AuditDelivery
) -> None:
    """An event that the log refuses is kept with the reason; others are delivered."""
    long_ago = time.time_ns() // 1000 - 300_000_000
    log.refuses, log.is_unavailable = "encrypt", True
    await tenants.create("one", Tier.FREE, ATTRIBUTION)
    await outbox.add(replace(_refusal(1), at_us=long_ago))
    log.is_unavailable = False
    await audit_delivery.empty()
    await tenants.create("two", Tier.FREE, ATTRIBUTION)
    await audit_delivery.record(_refusal(2))
    await audit_delivery.empty()
    assert log.operations == ["create-tenant", "create-tenant"]
    assert log.received == 4
    assert await waiting(outbox) == []
    assert await outbox.count_refused() == 2
    kept = await outbox.list_refused()
    assert {item.reason for item in kept} == {"not-an-event"}
    assert [item.event and item.event.key_version for item in kept] == [1, 2]
    assert kept[0].at_us == long_ago


@pytest.mark.parametrize("damage", ["cut", "out of bounds"])
async def test_an_unreadable_event_holds_no_other_up(
    *,
    damage: str,
    engine: AsyncEngine,
    tenants: Tenants,
    log: FakeAuditLog,
    outbox: SqlAuditOutbox,
    audit_delivery: AuditDelivery,
) -> None:
    """An event that violates the protocol's limits is kept and never sent; others are delivered."""
    encoded = msgspec.msgpack.encode(replace(_refusal(1), policy="p" * 129))
    if damage == "cut":
        encoded = encoded[:-1]
    row = {"id": str(uuid4()), "at_us": 1, "event": encoded}
    async with transaction(engine) as connection:
        await connection.execute(sa.insert(AUDIT_OUTBOX), row)
    await audit_delivery.empty()
    await tenants.create("one", Tier.FREE, ATTRIBUTION)
    assert log.operations == ["create-tenant"]
    assert log.received == await outbox.count_refused() == 1
    assert await outbox.list_refused() == (RefusedEvent(str(row["id"]), 1, UNREADABLE, None),)


async def _state(engine: AsyncEngine, api_keys: ApiKeys, tenant: Tenant) -> object:
    return await SqlTenants(engine).list(), await api_keys.list(tenant.id)


async def test_an_action_that_is_not_done_has_no_event(
    tenants: Tenants, api_keys: ApiKeys, log: FakeAuditLog, outbox: SqlAuditOutbox
) -> None:
    """A refused action (name taken, quota reached, tenant unknown) stores no event."""
    tenant = await tenants.create("one", Tier.FREE, ATTRIBUTION)
    for _ in range(plans.read()[Tier.FREE].api_keys):
        await api_keys.create(tenant, ATTRIBUTION)
    before = log.operations
    stranger = TenantId(uuid4())
    change = TenantChange(tier=Tier.GROWTH)
    with pytest.raises(NameTakenError):
        await tenants.create("one", Tier.FREE, ATTRIBUTION)
    with pytest.raises(QuotaReachedError):
        await api_keys.create(tenant, ATTRIBUTION)
    with pytest.raises(TenantNotFoundError):
        await tenants.change(stranger, change, ATTRIBUTION)
    assert log.operations == before
    assert await waiting(outbox) == []


def _refusal(number: int) -> Event:
    tenant = TenantId(uuid4())
    return event(
        ATTRIBUTION, tenant, Operation.ENCRYPT, outcome="ERR_POLICY_001", key_version=number
    )


async def test_a_refusal_waits_only_where_it_must(
    log: FakeAuditLog, outbox: SqlAuditOutbox, audit_delivery: AuditDelivery
) -> None:
    """A refusal goes to the log directly; during an outage it is stored and delivered later."""
    first, second = _refusal(1), _refusal(2)
    await audit_delivery.record(first)
    assert list(log.recorded.values()) == [first]
    log.is_unavailable = True
    await audit_delivery.record(second)
    assert await events_of(outbox) == [second]
    log.is_unavailable = False
    await audit_delivery.empty()
    assert list(log.recorded.values()) == [first, second]
    assert second.key_version == KeyVersion(2)


async def test_everything_that_waits_is_delivered_in_order(
    engine: AsyncEngine, log: FakeAuditLog, outbox: SqlAuditOutbox, audit_delivery: AuditDelivery
) -> None:
    """More events than fit into one message are all delivered, the oldest first."""
    events = [_refusal(number) for number in range(1, MAX_PAGE + 21)]
    async with transaction(engine) as connection:
        await add_audit_event(connection, *events)
    await audit_delivery.empty()
    at = [logged.at_us for logged in log.recorded.values()]
    assert at == sorted(at)
    assert set(log.recorded) == {sent.id for sent in events}
    assert await waiting(outbox) == []


async def test_concurrent_deliveries_record_once(
    engine: AsyncEngine, log: FakeAuditLog, outbox: SqlAuditOutbox
) -> None:
    """Events that several gateways deliver concurrently are recorded once."""
    events = [_refusal(number) for number in range(1, 31)]
    for sent in events:
        await outbox.add(sent)
    await asyncio.gather(
        *(AuditDelivery(SqlAuditOutbox(engine), one_shard(log)).empty() for _ in range(4))
    )
    assert len(log.recorded) == 30
    assert await waiting(outbox) == []


async def test_what_was_left_behind_is_delivered_by_itself(
    log: FakeAuditLog, outbox: SqlAuditOutbox, audit_delivery: AuditDelivery
) -> None:
    """The background task delivers events as soon as the log is available again."""
    await outbox.add(_refusal(1))
    log.is_unavailable = True
    running = asyncio.create_task(audit_delivery.run())
    await asyncio.sleep(0)
    log.is_unavailable = False
    async with asyncio.timeout(PATIENCE):
        while await waiting(outbox):  # noqa: ASYNC110 - another task empties it
            await asyncio.sleep(0.05)
    running.cancel()
    with suppress(asyncio.CancelledError):
        await running
    assert log.operations == ["encrypt"]
