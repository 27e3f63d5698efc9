"""Tenants, on either database."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import product
from uuid import uuid4

import pytest
from gateway.tests.world import World, add_tenant, new_tenant
from sqlalchemy.ext.asyncio import AsyncEngine

from pqkeep_gateway.access.entitlements import (
    Entitlements,
    Subscription,
    TenantNotFoundError,
    TenantStatus,
    Tier,
)
from pqkeep_gateway.storage.tenants import NameTakenError, SqlTenants, Tenant, TenantChange
from pqkeep_gateway.tenancy.tenants import Tenants
from pqkeep_protocol.keys import TenantId
from pqkeep_protocol.messages import Attribution

pytestmark = pytest.mark.parametrize("backend", ["sqlite", "postgresql"], indirect=True)

NOW = datetime(2026, 3, 1, 12, 0, 0, 123_456, tzinfo=UTC)
OVERLAP = timedelta(seconds=30)
ATTRIBUTION = Attribution("request-1", "operator", "192.0.2.7")


async def test_a_tenant_comes_back_as_it_was(engine: AsyncEngine) -> None:
    """A tenant is read as it was stored: all entitlements, and times to the microsecond."""
    tenants = SqlTenants(engine)
    for tier, subscription, granted in product(Tier, Subscription, (None, 1, 1_000_000)):
        tenant = replace(new_tenant(), entitlements=Entitlements(tier, subscription, granted))
        assert await add_tenant(engine, tenant) == tenant
        assert await tenants.get(tenant.id) == tenant


async def test_a_tenant_that_is_not_there(engine: AsyncEngine) -> None:
    """An unknown id raises TenantNotFoundError."""
    with pytest.raises(TenantNotFoundError):
        await SqlTenants(engine).get(TenantId(uuid4()))


async def test_a_name_is_taken_once(engine: AsyncEngine) -> None:
    """Of twenty concurrent tenants with one name, one is added."""
    rivals = [new_tenant("one name") for _ in range(20)]
    outcomes = await asyncio.gather(
        *(add_tenant(engine, rival) for rival in rivals), return_exceptions=True
    )
    assert sum(isinstance(outcome, Tenant) for outcome in outcomes) == 1
    assert sum(isinstance(outcome, NameTakenError) for outcome in outcomes) == 19


async def test_tenants_are_listed_oldest_first(engine: AsyncEngine) -> None:
    """Tenants are listed by their time of creation."""
    tenants = SqlTenants(engine)
    listed = [replace(new_tenant(), created_at=NOW - n * OVERLAP) for n in range(5)]
    for tenant in listed:
        await add_tenant(engine, tenant)
    assert (await tenants.list()).tenants == tuple(reversed(listed))


async def test_tenants_are_listed_page_by_page(engine: AsyncEngine) -> None:
    """Pages of two have every tenant once, even with equal creation times, and the total."""
    tenants = SqlTenants(engine)
    for number in range(5):
        await add_tenant(engine, replace(new_tenant(), created_at=NOW + number // 3 * OVERLAP))
    everything = (await tenants.list()).tenants
    pages, after = [], None
    while True:
        page = await tenants.list(2, after)
        assert page.total == 5
        pages.append(page.tenants)
        if not page.has_more:
            break
        after = page.tenants[-1].id
    assert [len(page) for page in pages] == [2, 2, 1]
    assert tuple(tenant for page in pages for tenant in page) == everything
    with pytest.raises(TenantNotFoundError):
        await tenants.list(2, TenantId(uuid4()))


async def test_a_change_of_no_tenant(engine: AsyncEngine) -> None:
    """A change of an unknown tenant is refused."""
    with pytest.raises(TenantNotFoundError):
        await SqlTenants(engine).save_change(
            new_tenant().id, TenantChange(tier=Tier.STARTER), NOW, ()
        )


CHANGES = (
    TenantChange(tier=Tier.GROWTH),
    TenantChange(subscription=Subscription.ENDED),
    TenantChange(status=TenantStatus.SUSPENDED),
    TenantChange(requests_per_minute=7),
)


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (3, 2, 1, 0), (2, 0, 3, 1)])
async def test_a_change_undoes_no_other(world: World, order: tuple[int, ...]) -> None:
    """Consecutive changes of different fields all persist."""
    for number in order:
        changed = await world.tenants.change(world.tenant.id, CHANGES[number], ATTRIBUTION)
    assert await world.stored_tenants.get(world.tenant.id) == changed
    assert changed.entitlements == Entitlements(Tier.GROWTH, Subscription.ENDED, 7)
    assert changed.status is TenantStatus.SUSPENDED


async def test_a_tenant_s_own_rate_limit_can_be_taken_back(engine: AsyncEngine) -> None:
    """Only a request for the plan's rate limit removes the tenant's own."""
    tenant = new_tenant()
    store = SqlTenants(engine)
    await add_tenant(engine, tenant)
    await store.save_change(tenant.id, TenantChange(requests_per_minute=7), NOW, ())
    changed = await store.save_change(tenant.id, TenantChange(tier=Tier.STARTER), NOW, ())
    assert changed.entitlements == Entitlements(Tier.STARTER, Subscription.ACTIVE, 7)
    changed = await store.save_change(tenant.id, TenantChange(requests_per_minute="plan"), NOW, ())
    assert changed.entitlements == Entitlements(Tier.STARTER)


async def test_changes_are_announced_after_they_are_stored(world: World) -> None:
    """A change is announced after it is stored; without a change nothing is announced."""
    tenant = world.tenant
    seen: list[Tenant] = []

    async def look() -> None:
        seen.append(await world.stored_tenants.get(world.tenant.id))

    tenants = Tenants(SqlTenants(world.engine), look, world.audit_delivery)
    await tenants.change(tenant.id, TenantChange(), ATTRIBUTION)
    assert seen == []
    changed = await tenants.change(tenant.id, TenantChange(tier=Tier.STARTER), ATTRIBUTION)
    assert seen == [changed]
