"""Tenants and API keys in a real database."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import product
from typing import TYPE_CHECKING
from uuid import uuid4

import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy.ext.asyncio import AsyncEngine

from pqkeep_gateway.access.authentication import Found
from pqkeep_gateway.access.entitlements import Entitlements, Subscription, Tier
from pqkeep_gateway.access.principals import ApiKeyPrincipal
from pqkeep_gateway.audit_events import AuditDelivery, event
from pqkeep_gateway.storage.api_keys import SqlApiKeys
from pqkeep_gateway.storage.database import open_database
from pqkeep_gateway.storage.postgresql import postgresql_engine
from pqkeep_gateway.storage.schema import METADATA
from pqkeep_gateway.storage.sqlite import sqlite_engine
from pqkeep_gateway.storage.tenants import SqlTenants
from pqkeep_gateway.tenancy.api_keys import (
    AlreadyRotatedError,
    ApiKey,
    ApiKeyDraft,
    ApiKeyNotFoundError,
    ApiKeyStatus,
    QuotaReachedError,
)
from pqkeep_gateway.tenancy.tenants import (
    NameTakenError,
    Tenant,
    TenantChange,
    TenantNotFoundError,
    Tenants,
    TenantStatus,
)
from pqkeep_protocol.audit import Event
from pqkeep_protocol.audit_events import AuditEvent
from pqkeep_protocol.keys import TenantId
from pqkeep_protocol.messages import Attribution
from pqkeep_protocol.startup.settings import ConfigError

if TYPE_CHECKING:
    from gateway.tests.conftest import Location

pytestmark = pytest.mark.parametrize("backend", ["sqlite", "postgresql"], indirect=True)

NOW = datetime(2026, 3, 1, 12, 0, 0, 123_456, tzinfo=UTC)
OVERLAP = timedelta(seconds=30)
ATTRIBUTION = Attribution("request-1", "operator", "192.0.2.7")


def news(tenant: Tenant) -> Event:
    """Return the event of a tenant that is made."""
    return event(ATTRIBUTION, tenant.id, AuditEvent.CREATE_TENANT)


async def test_migrations_make_the_schema(engine: AsyncEngine) -> None:
    """The migrated database has exactly the tables, columns and constraints of the schema."""

    def difference(connection: sa.Connection) -> object:
        return compare_metadata(MigrationContext.configure(connection), METADATA)

    async with engine.begin() as connection:
        assert await connection.run_sync(difference) == []


async def test_a_tenant_comes_back_as_it_was(
    engine: AsyncEngine, new_tenant: Callable[..., Tenant]
) -> None:
    """Every field of a tenant survives, of every standing, its times to the microsecond."""
    tenants = SqlTenants(engine)
    for tier, subscription, granted in product(Tier, Subscription, (None, 1, 1_000_000)):
        tenant = replace(new_tenant(), entitlements=Entitlements(tier, subscription, granted))
        assert await tenants.add(tenant, news(tenant)) == tenant
        assert await tenants.get(tenant.id) == tenant


async def test_a_tenant_that_is_not_there(engine: AsyncEngine) -> None:
    """An id that nobody has raises TenantNotFoundError."""
    with pytest.raises(TenantNotFoundError):
        await SqlTenants(engine).get(TenantId(uuid4()))


async def test_a_name_is_taken_once(engine: AsyncEngine, new_tenant: Callable[..., Tenant]) -> None:
    """Of twenty tenants of one name that are added at once, one is added."""
    tenants = SqlTenants(engine)
    rivals = [new_tenant("one name") for _ in range(20)]
    outcomes = await asyncio.gather(
        *(tenants.add(each, news(each)) for each in rivals), return_exceptions=True
    )
    assert sum(isinstance(outcome, Tenant) for outcome in outcomes) == 1
    assert sum(isinstance(outcome, NameTakenError) for outcome in outcomes) == 19


def _draft(number: int, created_at: datetime = NOW) -> ApiKeyDraft:
    return ApiKeyDraft(
        number.to_bytes(32, "big"), f"{number:04}", number.to_bytes(16, "big"), created_at
    )


async def _add(store: SqlApiKeys, tenant: Tenant, number: int, quota: int) -> ApiKey:
    draft = _draft(number, tenant.created_at)
    return (await store.add(tenant.id, draft, quota, ATTRIBUTION)).metadata


async def test_versions_count_up_under_concurrency(
    engine: AsyncEngine, new_tenant: Callable[..., Tenant]
) -> None:
    """Twenty API keys that are added at once have the versions 1 to 20."""
    tenant = new_tenant()
    await SqlTenants(engine).add(tenant, news(tenant))
    store = SqlApiKeys(engine)
    made = await asyncio.gather(*(_add(store, tenant, n, quota=20) for n in range(20)))
    assert sorted(key.version for key in made) == list(range(1, 21))
    assert all(key.status is ApiKeyStatus.ACTIVE for key in made)


async def test_the_quota_is_exact_under_concurrency(
    engine: AsyncEngine, new_tenant: Callable[..., Tenant]
) -> None:
    """Of twenty that are added at once to a quota of five, five are added: versions 1 to 5."""
    tenant = new_tenant()
    await SqlTenants(engine).add(tenant, news(tenant))
    store = SqlApiKeys(engine)
    outcomes = await asyncio.gather(
        *(_add(store, tenant, n, quota=5) for n in range(20)), return_exceptions=True
    )
    made = [outcome for outcome in outcomes if isinstance(outcome, ApiKey)]
    assert sorted(key.version for key in made) == [1, 2, 3, 4, 5]
    assert sum(isinstance(outcome, QuotaReachedError) for outcome in outcomes) == 15


async def test_each_tenant_counts_for_itself(
    engine: AsyncEngine, new_tenant: Callable[..., Tenant]
) -> None:
    """Another tenant's API keys change neither versions nor quota."""
    first, second = new_tenant(), new_tenant()
    store = SqlApiKeys(engine)
    for tenant in (first, second):
        await SqlTenants(engine).add(tenant, news(tenant))
    assert (await _add(store, first, 1, quota=1)).version == 1
    assert (await _add(store, second, 2, quota=1)).version == 1


async def test_a_revoked_key_counts_as_a_version_and_not_in_the_quota(
    engine: AsyncEngine, new_tenant: Callable[..., Tenant]
) -> None:
    """After a revocation there is room again; the version is never given out twice."""
    tenant = new_tenant()
    await SqlTenants(engine).add(tenant, news(tenant))
    store = SqlApiKeys(engine)
    await _add(store, tenant, 1, quota=1)
    await store.revoke(tenant.id, 1, NOW, ATTRIBUTION)
    assert (await _add(store, tenant, 2, quota=1)).version == 2
    assert await store.find((1).to_bytes(32, "big")) is None


async def test_a_digest_leads_to_its_principal(
    engine: AsyncEngine, location: Location, new_tenant: Callable[..., Tenant]
) -> None:
    """A digest is its tenant's, with plan and status as they are now; an unknown one nobody's."""
    tenant = new_tenant(tier=Tier.STARTER)
    await SqlTenants(engine).add(tenant, news(tenant))
    store = SqlApiKeys(engine)
    await _add(store, tenant, 7, quota=1)
    digest = (7).to_bytes(32, "big")
    expected = ApiKeyPrincipal(tenant.id, Entitlements(Tier.STARTER), 1, suspended=False)
    assert await store.find(digest) == Found(expected)
    assert await store.find(bytes(32)) is None
    location.run("UPDATE tenants SET status = 'suspended'")
    suspended = await store.find(digest)
    assert suspended is not None
    assert suspended.principal.suspended


async def _rotate(
    store: SqlApiKeys, tenant: Tenant, version: int | None, number: int
) -> tuple[ApiKey, int | None]:
    kept = await store.rotate(tenant.id, version, _draft(number), NOW + OVERLAP, ATTRIBUTION)
    return kept.metadata, kept.revoked


async def test_a_rotated_key_is_found_with_the_end_of_its_overlap(
    engine: AsyncEngine, new_tenant: Callable[..., Tenant]
) -> None:
    """Rotate revokes the old version now, and its digest leads to when its overlap ends."""
    tenant = new_tenant()
    await SqlTenants(engine).add(tenant, news(tenant))
    store = SqlApiKeys(engine)
    old = await _add(store, tenant, 1, quota=1)
    made, revoked = await _rotate(store, tenant, 1, 2)
    assert (made, revoked) == (ApiKey(2, "0002", ApiKeyStatus.ACTIVE, NOW), 1)
    listed = ApiKey(1, "0001", ApiKeyStatus.REVOKED, old.created_at, NOW)
    assert await store.list(tenant.id) == (listed, made)
    found = await store.find((1).to_bytes(32, "big"))
    principal = ApiKeyPrincipal(tenant.id, Entitlements(Tier.FREE), 1, suspended=False)
    assert found == Found(principal, (NOW + OVERLAP).timestamp())
    assert await store.revoke(tenant.id, 1, NOW + OVERLAP, ATTRIBUTION) == listed
    assert await store.find((1).to_bytes(32, "big")) is None


@pytest.mark.parametrize("version", [1, 3, 99])
async def test_only_an_active_version_is_rotated(
    engine: AsyncEngine, new_tenant: Callable[..., Tenant], version: int
) -> None:
    """A version that was rotated, was revoked or never was is refused, and nothing is made."""
    tenant = new_tenant()
    await SqlTenants(engine).add(tenant, news(tenant))
    store = SqlApiKeys(engine)
    await _add(store, tenant, 1, quota=1)
    await _rotate(store, tenant, 1, 2)
    await _add(store, tenant, 3, quota=2)
    await store.revoke(tenant.id, 3, NOW, ATTRIBUTION)
    before = await store.list(tenant.id)
    with pytest.raises(AlreadyRotatedError):
        await _rotate(store, tenant, version, 4)
    assert await store.list(tenant.id) == before
    assert await store.find((4).to_bytes(32, "big")) is None


async def test_of_concurrent_rotations_of_one_version_one_succeeds(
    engine: AsyncEngine, new_tenant: Callable[..., Tenant]
) -> None:
    """Of sixteen rotations of one version at once, one succeeds: one key is active after it."""
    tenant = new_tenant()
    await SqlTenants(engine).add(tenant, news(tenant))
    store = SqlApiKeys(engine)
    await _add(store, tenant, 0, quota=1)
    outcomes = await asyncio.gather(
        *(_rotate(store, tenant, 1, n) for n in range(1, 17)), return_exceptions=True
    )
    assert sum(isinstance(outcome, AlreadyRotatedError) for outcome in outcomes) == 15
    statuses = [key.status for key in await store.list(tenant.id)]
    assert statuses == [ApiKeyStatus.REVOKED, ApiKeyStatus.ACTIVE]


async def test_concurrent_rotations_of_the_newest_keep_the_number(
    engine: AsyncEngine, new_tenant: Callable[..., Tenant]
) -> None:
    """Sixteen rotations at once that name no version replace one another: two stay active."""
    tenant = new_tenant()
    await SqlTenants(engine).add(tenant, news(tenant))
    store = SqlApiKeys(engine)
    for number in (100, 101):
        await _add(store, tenant, number, quota=2)
    outcomes = await asyncio.gather(*(_rotate(store, tenant, None, n) for n in range(16)))
    assert sorted(made.version for made, _ in outcomes) == list(range(3, 19))
    assert sorted(revoked or 0 for _, revoked in outcomes) == list(range(2, 18))
    listed = await store.list(tenant.id)
    assert [key.version for key in listed if key.status is ApiKeyStatus.ACTIVE] == [1, 18]


async def test_rotating_nothing_makes_a_key(
    engine: AsyncEngine, new_tenant: Callable[..., Tenant]
) -> None:
    """Where no key is active a rotation that names no version makes one and revokes none."""
    tenant, other = new_tenant(), new_tenant()
    store = SqlApiKeys(engine)
    for each in (tenant, other):
        await SqlTenants(engine).add(each, news(each))
    await _add(store, other, 9, quota=1)
    assert await _rotate(store, tenant, None, 1) == (
        ApiKey(1, "0001", ApiKeyStatus.ACTIVE, NOW),
        None,
    )
    assert [key.status for key in await store.list(other.id)] == [ApiKeyStatus.ACTIVE]


async def test_revoke_is_each_tenant_s_own(
    engine: AsyncEngine, new_tenant: Callable[..., Tenant]
) -> None:
    """A version is revoked of the tenant named only; one it never had is not found."""
    tenant, other = new_tenant(), new_tenant()
    store = SqlApiKeys(engine)
    for number, each in enumerate((tenant, other)):
        await SqlTenants(engine).add(each, news(each))
        await _add(store, each, number, quota=1)
    first = await store.revoke(tenant.id, 1, NOW, ATTRIBUTION)
    assert first.revoked_at == NOW
    assert await store.revoke(tenant.id, 1, NOW + OVERLAP, ATTRIBUTION) == first
    assert await store.find((1).to_bytes(32, "big"))
    for each, version in ((tenant, 2), (other, 0), (new_tenant(), 1)):
        with pytest.raises(ApiKeyNotFoundError):
            await store.revoke(each.id, version, NOW, ATTRIBUTION)


async def test_tenants_are_listed_oldest_first(
    engine: AsyncEngine, new_tenant: Callable[..., Tenant]
) -> None:
    """Every tenant is listed, by the time it was made."""
    tenants = SqlTenants(engine)
    listed = [replace(new_tenant(), created_at=NOW - n * OVERLAP) for n in range(5)]
    for tenant in listed:
        await tenants.add(tenant, news(tenant))
    assert await tenants.list() == tuple(reversed(listed))


async def test_a_change_of_no_tenant(
    engine: AsyncEngine, new_tenant: Callable[..., Tenant]
) -> None:
    """A tenant that is not there cannot be changed."""
    with pytest.raises(TenantNotFoundError):
        await SqlTenants(engine).save_change(
            new_tenant().id, TenantChange(tier=Tier.STARTER), NOW, ()
        )


async def _nobody_to_tell() -> None:
    """Stand for gateways that remember nothing."""


CHANGES = (
    TenantChange(tier=Tier.GROWTH),
    TenantChange(subscription=Subscription.ENDED),
    TenantChange(status=TenantStatus.SUSPENDED),
    TenantChange(requests_per_minute=7),
)


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (3, 2, 1, 0), (2, 0, 3, 1)])
async def test_a_change_undoes_no_other(
    engine: AsyncEngine,
    audit_delivery: AuditDelivery,
    new_tenant: Callable[..., Tenant],
    order: tuple[int, ...],
) -> None:
    """Whatever is changed one after another, in any order, is kept: each touches what it names."""
    tenant = new_tenant()
    tenants = Tenants(SqlTenants(engine), _nobody_to_tell, audit_delivery)
    await SqlTenants(engine).add(tenant, news(tenant))
    for number in order:
        changed = await tenants.change(tenant.id, CHANGES[number], ATTRIBUTION)
    assert await tenants.get(tenant.id) == changed
    assert changed.entitlements == Entitlements(Tier.GROWTH, Subscription.ENDED, 7)
    assert changed.status is TenantStatus.SUSPENDED


async def test_a_tenant_s_own_rate_limit_can_be_taken_back(
    engine: AsyncEngine, new_tenant: Callable[..., Tenant]
) -> None:
    """Asking for the plan's rate limit removes the tenant's own, and nothing else does."""
    tenant = new_tenant()
    store = SqlTenants(engine)
    await store.add(tenant, news(tenant))
    await store.save_change(tenant.id, TenantChange(requests_per_minute=7), NOW, ())
    kept = await store.save_change(tenant.id, TenantChange(tier=Tier.STARTER), NOW, ())
    assert kept.entitlements == Entitlements(Tier.STARTER, Subscription.ACTIVE, 7)
    kept = await store.save_change(tenant.id, TenantChange(requests_per_minute="plan"), NOW, ())
    assert kept.entitlements == Entitlements(Tier.STARTER)


async def test_changes_are_announced_after_they_are_made(
    engine: AsyncEngine, audit_delivery: AuditDelivery, new_tenant: Callable[..., Tenant]
) -> None:
    """When gateways hear of a change it can be read already; of no change they hear nothing."""
    tenant = new_tenant()
    seen: list[Tenant] = []

    async def look() -> None:
        seen.append(await SqlTenants(engine).get(tenant.id))

    tenants = Tenants(SqlTenants(engine), look, audit_delivery)
    await SqlTenants(engine).add(tenant, news(tenant))
    await tenants.change(tenant.id, TenantChange(), ATTRIBUTION)
    assert seen == []
    changed = await tenants.change(tenant.id, TenantChange(tier=Tier.STARTER), ATTRIBUTION)
    assert seen == [changed]


async def test_data_survive_reopening(
    location: Location, new_tenant: Callable[..., Tenant]
) -> None:
    """A database that is opened a second time is migrated already and has what it had."""
    tenant = new_tenant()
    for expected in (False, True):
        engine = await open_database(location.name)
        tenants = SqlTenants(engine)
        if expected:
            assert await tenants.get(tenant.id) == tenant
        else:
            await tenants.add(tenant, news(tenant))
        await engine.dispose()


def engine_on(location: str) -> AsyncEngine:
    """Return an engine that changes nothing in a database by itself."""
    on_server = location.startswith("postgresql:")
    return postgresql_engine(location, None) if on_server else sqlite_engine(location)


@pytest.mark.parametrize("revision", ["0001", "0009", "9999"])
async def test_another_version_s_database_is_refused(location: Location, revision: str) -> None:
    """A database of an earlier or later version is refused with a clear message, and unchanged."""
    location.run("CREATE TABLE alembic_version (version_num VARCHAR(32) NOT NULL)")
    location.run(f"INSERT INTO alembic_version VALUES ('{revision}')")  # noqa: S608 - of a table of rows
    location.run("CREATE TABLE letters (id VARCHAR(36) PRIMARY KEY)")
    location.run("INSERT INTO letters VALUES ('old')")
    with pytest.raises(ConfigError, match="was made by another version of pqkeep") as refused:
        await open_database(location.name)
    assert location.name in str(refused.value)
    engine = engine_on(location.name)
    async with engine.connect() as connection:
        tables = await connection.run_sync(lambda each: sa.inspect(each).get_table_names())
        stored = (
            await connection.execute(
                sa.text("SELECT version_num, id FROM alembic_version, letters")
            )
        ).all()
    await engine.dispose()
    assert sorted(tables) == ["alembic_version", "letters"]
    assert stored == [(revision, "old")]
