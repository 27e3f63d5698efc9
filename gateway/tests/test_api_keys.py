"""API keys, on either database: versions, quotas and rotations are exact."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest
import sqlalchemy as sa
from gateway.tests.world import ROUNDS, add_tenant, count_successes, new_tenant
from sqlalchemy.ext.asyncio import AsyncEngine

from pqkeep_gateway.access.admission import Found
from pqkeep_gateway.access.api_key_limits import ApiKeyLimits
from pqkeep_gateway.access.entitlements import Entitlements, Tier
from pqkeep_gateway.access.idempotency import IdempotencyKeyReusedError
from pqkeep_gateway.access.networks import Networks
from pqkeep_gateway.access.principals import ApiKeyPrincipal
from pqkeep_gateway.access.scopes import Scope, Scopes
from pqkeep_gateway.storage.api_keys import (
    MAX_LISTED,
    AlreadyRotatedError,
    ApiKey,
    ApiKeyDraft,
    ApiKeyFilter,
    ApiKeyNotFoundError,
    ApiKeyState,
    ApiKeyStatus,
    QuotaReachedError,
    SqlApiKeys,
    StoredApiKey,
)
from pqkeep_gateway.storage.database import microseconds
from pqkeep_gateway.storage.pages import Sorted
from pqkeep_gateway.storage.schema import API_KEYS
from pqkeep_gateway.storage.tenants import Tenant
from pqkeep_protocol.messages import Attribution, Idempotency

if TYPE_CHECKING:
    from gateway.tests.conftest import Location

pytestmark = pytest.mark.parametrize("backend", ["sqlite", "postgresql"], indirect=True)

NOW = datetime(2026, 3, 1, 12, 0, 0, 123_456, tzinfo=UTC)
OVERLAP = timedelta(seconds=30)
ATTRIBUTION = Attribution("request-1", "operator", "192.0.2.7")


def _draft(number: int, created_at: datetime = NOW) -> ApiKeyDraft:
    return ApiKeyDraft(
        number.to_bytes(32, "big"), f"{number:04}", number.to_bytes(16, "big"), created_at
    )


async def _add(store: SqlApiKeys, tenant: Tenant, number: int, quota: int) -> ApiKey:
    draft = _draft(number, tenant.created_at)
    return (await store.add(tenant.id, draft, quota, ATTRIBUTION)).metadata


async def test_versions_count_up_under_concurrency(engine: AsyncEngine) -> None:
    """Twenty API keys that are created concurrently have the versions 1 to 20."""
    tenant = new_tenant()
    await add_tenant(engine, tenant)
    store = SqlApiKeys(engine)
    added = await asyncio.gather(*(_add(store, tenant, n, quota=20) for n in range(20)))
    assert sorted(key.version for key in added) == list(range(1, 21))
    assert all(key.status is ApiKeyStatus.ACTIVE for key in added)


async def test_the_quota_is_exact_under_concurrency(engine: AsyncEngine) -> None:
    """Of twenty concurrent creations with a quota of five, five succeed: versions 1 to 5."""
    tenant = new_tenant()
    await add_tenant(engine, tenant)
    store = SqlApiKeys(engine)
    outcomes = await asyncio.gather(
        *(_add(store, tenant, n, quota=5) for n in range(20)), return_exceptions=True
    )
    added = [outcome for outcome in outcomes if isinstance(outcome, ApiKey)]
    assert sorted(key.version for key in added) == [1, 2, 3, 4, 5]
    assert sum(isinstance(outcome, QuotaReachedError) for outcome in outcomes) == 15


@pytest.mark.parametrize("method", ["add", "rotate"])
async def test_one_idempotency_key_for_two_tenants(engine: AsyncEngine, method: str) -> None:
    """If two tenants create API keys concurrently with one Idempotency-Key, one is refused."""
    store = SqlApiKeys(engine)

    async def create(number: int, idempotency: Idempotency) -> StoredApiKey:
        tenant, draft = new_tenant(), _draft(number)
        await add_tenant(engine, tenant)
        if method == "add":
            return await store.add(tenant.id, draft, 1, ATTRIBUTION, idempotency)
        return await store.rotate(tenant.id, None, draft, NOW, ATTRIBUTION, idempotency)

    for number in range(ROUNDS):
        requests = [Idempotency(bytes([number]) * 32, bytes([digit]) * 32) for digit in range(2)]
        attempts = [create(2 * number + index, request) for index, request in enumerate(requests)]
        assert await count_successes(attempts, IdempotencyKeyReusedError) == 1


async def test_each_tenant_counts_for_itself(engine: AsyncEngine) -> None:
    """Another tenant's API keys do not change versions or quota."""
    first, second = new_tenant(), new_tenant()
    store = SqlApiKeys(engine)
    for tenant in (first, second):
        await add_tenant(engine, tenant)
    assert (await _add(store, first, 1, quota=1)).version == 1
    assert (await _add(store, second, 2, quota=1)).version == 1


async def test_a_revoked_key_counts_as_a_version_and_not_in_the_quota(engine: AsyncEngine) -> None:
    """A revocation frees the quota, but the version is never reused."""
    tenant = new_tenant()
    await add_tenant(engine, tenant)
    store = SqlApiKeys(engine)
    await _add(store, tenant, 1, quota=1)
    await store.revoke(tenant.id, 1, NOW, ATTRIBUTION)
    assert (await _add(store, tenant, 2, quota=1)).version == 2
    assert await store.find((1).to_bytes(32, "big")) is None


async def test_a_digest_leads_to_its_principal(engine: AsyncEngine, location: Location) -> None:
    """A digest finds its tenant with the current plan and status; an unknown digest finds none."""
    tenant = new_tenant(tier=Tier.STARTER)
    await add_tenant(engine, tenant)
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
    stored = await store.rotate(tenant.id, version, _draft(number), NOW + OVERLAP, ATTRIBUTION)
    return stored.metadata, stored.revoked


async def test_a_rotated_key_is_found_with_the_end_of_its_overlap(engine: AsyncEngine) -> None:
    """A rotation revokes the old version; its digest still leads to the end of its overlap."""
    tenant = new_tenant()
    await add_tenant(engine, tenant)
    store = SqlApiKeys(engine)
    old = await _add(store, tenant, 1, quota=1)
    added, revoked = await _rotate(store, tenant, 1, 2)
    assert (added, revoked) == (ApiKey(2, "0002", ApiKeyStatus.ACTIVE, NOW), 1)
    listed = ApiKey(1, "0001", ApiKeyStatus.REVOKED, old.created_at, NOW, NOW + OVERLAP)
    assert await store.list(tenant.id, NOW) == (listed, added)
    found = await store.find((1).to_bytes(32, "big"))
    principal = ApiKeyPrincipal(
        tenant.id, Entitlements(Tier.FREE), 1, suspended=False, is_rotated=True
    )
    assert found == Found(principal, (NOW + OVERLAP).timestamp())
    assert await store.revoke(tenant.id, 1, NOW + OVERLAP, ATTRIBUTION) == replace(
        listed, accepted_until=None
    )
    assert await store.find((1).to_bytes(32, "big")) is None


@pytest.mark.parametrize("version", [1, 3, 99])
async def test_only_an_active_version_is_rotated(engine: AsyncEngine, version: int) -> None:
    """The rotation of a rotated, revoked or unknown version is refused, and nothing is created."""
    tenant = new_tenant()
    await add_tenant(engine, tenant)
    store = SqlApiKeys(engine)
    await _add(store, tenant, 1, quota=1)
    await _rotate(store, tenant, 1, 2)
    await _add(store, tenant, 3, quota=2)
    await store.revoke(tenant.id, 3, NOW, ATTRIBUTION)
    before = await store.list(tenant.id, NOW)
    with pytest.raises(AlreadyRotatedError):
        await _rotate(store, tenant, version, 4)
    assert await store.list(tenant.id, NOW) == before
    assert await store.find((4).to_bytes(32, "big")) is None


async def test_of_concurrent_rotations_of_one_version_one_succeeds(engine: AsyncEngine) -> None:
    """Of sixteen concurrent rotations of one version, one succeeds and leaves one active key."""
    tenant = new_tenant()
    await add_tenant(engine, tenant)
    store = SqlApiKeys(engine)
    await _add(store, tenant, 0, quota=1)
    outcomes = await asyncio.gather(
        *(_rotate(store, tenant, 1, n) for n in range(1, 17)), return_exceptions=True
    )
    assert sum(isinstance(outcome, AlreadyRotatedError) for outcome in outcomes) == 15
    statuses = [key.status for key in await store.list(tenant.id, NOW)]
    assert statuses == [ApiKeyStatus.REVOKED, ApiKeyStatus.ACTIVE]


async def test_concurrent_rotations_of_the_newest_keep_the_number(engine: AsyncEngine) -> None:
    """After sixteen concurrent rotations without a version, two versions are still active."""
    tenant = new_tenant()
    await add_tenant(engine, tenant)
    store = SqlApiKeys(engine)
    for number in (100, 101):
        await _add(store, tenant, number, quota=2)
    outcomes = await asyncio.gather(*(_rotate(store, tenant, None, n) for n in range(16)))
    assert sorted(added.version for added, _ in outcomes) == list(range(3, 19))
    assert sorted(revoked or 0 for _, revoked in outcomes) == list(range(2, 18))
    listed = await store.list(tenant.id, NOW)
    assert [key.version for key in listed if key.status is ApiKeyStatus.ACTIVE] == [1, 18]


async def test_rotating_nothing_makes_a_key(engine: AsyncEngine) -> None:
    """Without an active key, a rotation without a version creates a key and revokes none."""
    tenant, other = new_tenant(), new_tenant()
    store = SqlApiKeys(engine)
    for owner in (tenant, other):
        await add_tenant(engine, owner)
    await _add(store, other, 9, quota=1)
    assert await _rotate(store, tenant, None, 1) == (
        ApiKey(1, "0001", ApiKeyStatus.ACTIVE, NOW),
        None,
    )
    assert [key.status for key in await store.list(other.id, NOW)] == [ApiKeyStatus.ACTIVE]


async def test_revoke_is_each_tenant_s_own(engine: AsyncEngine) -> None:
    """A revocation affects only the given tenant's version; an unknown version is not found."""
    tenant, other = new_tenant(), new_tenant()
    store = SqlApiKeys(engine)
    for number, owner in enumerate((tenant, other)):
        await add_tenant(engine, owner)
        await _add(store, owner, number, quota=1)
    first = await store.revoke(tenant.id, 1, NOW, ATTRIBUTION)
    assert first.revoked_at == NOW
    assert await store.revoke(tenant.id, 1, NOW + OVERLAP, ATTRIBUTION) == first
    assert await store.find((1).to_bytes(32, "big"))
    for owner, version in ((tenant, 2), (other, 0), (new_tenant(), 1)):
        with pytest.raises(ApiKeyNotFoundError):
            await store.revoke(owner.id, version, NOW, ATTRIBUTION)


SCOPES = Scopes([Scope(operations=("use",), keyrings=("payments.*",))])
LIMITS = ApiKeyLimits(SCOPES, NOW + timedelta(days=90), Networks(["192.0.2.0/24"]))


def _stated(key: ApiKey) -> tuple[object, ...]:
    """Return an API key's limits in a comparable form."""
    scopes, addresses = key.limits.scopes, key.limits.addresses
    return (
        key.name,
        None if scopes is None else scopes.stated,
        key.limits.expires_at,
        None if addresses is None else addresses.texts,
    )


EVERYTHING = ("worker", SCOPES.stated, NOW + timedelta(days=90), ("192.0.2.0/24",))


async def test_limits_are_stored_and_found(engine: AsyncEngine) -> None:
    """An API key's name and limits are in the list, in the response and with its digest."""
    tenant = new_tenant()
    await add_tenant(engine, tenant)
    store = SqlApiKeys(engine)
    draft = replace(_draft(1), name="worker", limits=LIMITS)
    added = (await store.add(tenant.id, draft, 1, ATTRIBUTION)).metadata
    (listed,) = await store.list(tenant.id, NOW)
    found = await store.find((1).to_bytes(32, "big"))
    assert found is not None
    assert _stated(added) == _stated(listed) == EVERYTHING
    assert str(found.principal) == "api-key:1/worker"
    assert found.principal.scopes is not None
    assert found.principal.scopes.stated == SCOPES.stated
    assert "192.0.2.9" in (found.principal.limits.addresses or ())
    assert found.accepted_until == (NOW + timedelta(days=90)).timestamp()


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        (_draft(2), EVERYTHING),
        (replace(_draft(2), name="other"), ("other", *EVERYTHING[1:])),
        (
            replace(_draft(2), limits=ApiKeyLimits(expires_at=NOW + OVERLAP)),
            (*EVERYTHING[:2], NOW + OVERLAP, EVERYTHING[3]),
        ),
        (
            replace(_draft(2), limits=ApiKeyLimits(scopes=Scopes([Scope()]))),
            (EVERYTHING[0], (Scope(),), *EVERYTHING[2:]),
        ),
        (
            replace(_draft(2), limits=ApiKeyLimits(addresses=Networks(["::1"]))),
            (*EVERYTHING[:3], ("::1/128",)),
        ),
    ],
)
async def test_a_rotation_keeps_what_it_does_not_change(
    engine: AsyncEngine, changes: ApiKeyDraft, expected: tuple[object, ...]
) -> None:
    """A new API key keeps the old one's name and limits, except for the changes in the rotation."""
    tenant = new_tenant()
    await add_tenant(engine, tenant)
    store = SqlApiKeys(engine)
    draft = replace(_draft(1), name="worker", limits=LIMITS)
    await store.add(tenant.id, draft, 1, ATTRIBUTION)
    rotated = await store.rotate(tenant.id, None, changes, NOW + OVERLAP, ATTRIBUTION)
    old, new = await store.list(tenant.id, NOW)
    assert _stated(old) == EVERYTHING
    assert _stated(rotated.metadata) == _stated(new) == expected


async def test_an_overlap_ends_with_the_expiry(engine: AsyncEngine) -> None:
    """A rotated API key is accepted no longer than until it expires."""
    tenant = new_tenant()
    await add_tenant(engine, tenant)
    store = SqlApiKeys(engine)
    soon = NOW + timedelta(seconds=1)
    await store.add(
        tenant.id, replace(_draft(1), limits=ApiKeyLimits(expires_at=soon)), 1, ATTRIBUTION
    )
    await _rotate(store, tenant, 1, 2)
    found = await store.find((1).to_bytes(32, "big"))
    assert found is not None
    assert found.accepted_until == soon.timestamp()


async def test_an_expired_key_is_neither_counted_nor_rotated(engine: AsyncEngine) -> None:
    """An expired API key frees the quota, and a rotation cannot renew it."""
    tenant = new_tenant()
    await add_tenant(engine, tenant)
    store = SqlApiKeys(engine)
    expiring = replace(_draft(1, tenant.created_at), limits=ApiKeyLimits(expires_at=NOW))
    await store.add(tenant.id, expiring, 1, ATTRIBUTION)
    early = NOW - timedelta(microseconds=1)
    with pytest.raises(QuotaReachedError):
        await store.add(tenant.id, _draft(2, early), 1, ATTRIBUTION)
    assert (await store.add(tenant.id, _draft(2, NOW), 1, ATTRIBUTION)).metadata.version == 2
    with pytest.raises(AlreadyRotatedError):
        await _rotate(store, tenant, 1, 3)
    assert (await _rotate(store, tenant, None, 3))[1] == 2


async def test_an_idempotency_key_does_not_give_another_key_s_successor(
    engine: AsyncEngine,
) -> None:
    """An API key that repeats another API key's rotation is refused, without its successor."""
    tenant = new_tenant()
    await add_tenant(engine, tenant)
    store = SqlApiKeys(engine)
    for number in (1, 2):
        await _add(store, tenant, number, quota=2)
    same = Idempotency(bytes(32), bytes(32))

    async def rotate(version: int | None) -> StoredApiKey:
        until = NOW + OVERLAP
        return await store.rotate(tenant.id, version, _draft(3), until, ATTRIBUTION, same)

    first = await rotate(1)
    assert await rotate(1) == await rotate(None) == first
    with pytest.raises(IdempotencyKeyReusedError):
        await rotate(2)


async def test_of_many_api_keys_the_valid_and_the_newest_are_listed(engine: AsyncEngine) -> None:
    """After many rotations a list is still short, and contains every valid API key."""
    tenant = new_tenant()
    await add_tenant(engine, tenant)
    store = SqlApiKeys(engine)
    oldest = await _add(store, tenant, 1, quota=2)
    async with engine.begin() as connection:
        (row,) = (await connection.execute(sa.select(API_KEYS))).mappings()
        revoked = {**row, "status": ApiKeyStatus.REVOKED, "revoked_at_us": row["created_at_us"]}
        rows = [
            {**revoked, "version": version, "digest": version.to_bytes(32, "big")}
            for version in range(2, MAX_LISTED + 52)
        ]
        await connection.execute(sa.insert(API_KEYS), rows)
    newest = await _add(store, tenant, MAX_LISTED + 52, quota=2)
    listed = await store.list(tenant.id, NOW)
    assert (listed[0], listed[-1]) == (oldest, newest)
    assert [key.version for key in listed[1:]] == [*range(54, MAX_LISTED + 53)]
    assert await store.count(tenant.id) == MAX_LISTED + 52
    assert await store.count(tenant.id, valid_at=NOW) == 2
    assert await store.has(tenant.id, 2)
    assert not await store.has(tenant.id, MAX_LISTED + 53)


async def test_a_sorted_list_equals_a_model(engine: AsyncEngine) -> None:
    """Each filter gives what the same condition in Python gives, and pages follow one another."""
    tenant, other = new_tenant(), new_tenant()
    for each in (tenant, other):
        await add_tenant(engine, each)
    store = SqlApiKeys(engine)
    day = timedelta(days=1)
    for number in range(1, 13):
        limits = ApiKeyLimits(
            scopes=Scopes([Scope(operations=("use",), keyrings=("pay.*",))])
            if number % 2
            else None,
            expires_at=NOW + (number - 6) * day if number % 3 == 0 else None,
        )
        draft = replace(_draft(number, NOW - number * day), name=f"App-{number % 4}", limits=limits)
        await store.add(tenant.id, draft, 100, ATTRIBUTION)
    await _add(store, other, 99, quota=9)
    for version in (4, 8):
        await store.revoke(tenant.id, version, NOW, ATTRIBUTION)
    used = (
        sa.update(API_KEYS)
        .where(API_KEYS.c.version.in_((1, 5)))
        .values(last_used_at_us=microseconds(NOW))
    )
    async with engine.begin() as connection:
        await connection.execute(used)
    keys = await store.list(tenant.id, NOW)

    async def listed(sort: str = "version", **only: object) -> list[int]:
        found: list[int] = []
        while True:
            part = Sorted(sort, len(found), 5)
            page = await store.list_sorted(tenant.id, ApiKeyFilter(**only), part, NOW)  # type: ignore[arg-type]
            found += [key.version for key in page.entries]
            if not page.has_more:
                assert page.total == len(found)
                return found

    expired = {key.version for key in keys if (at := key.limits.expires_at) and at <= NOW}
    assert expired == {3, 6}
    assert await listed() == list(range(1, 13))
    assert await listed("-created") == list(range(1, 13))
    assert await listed(states=(ApiKeyState.EXPIRED,)) == [3, 6]
    assert await listed(states=(ApiKeyState.REVOKED,)) == [4, 8]
    assert await listed(states=(ApiKeyState.EXPIRED, ApiKeyState.REVOKED)) == [3, 4, 6, 8]
    assert await listed("status") == [12, 11, 10, 9, 7, 5, 2, 1, 8, 6, 4, 3]
    assert await listed(words=("app", "-1")) == [1, 5, 9]
    assert await listed(words=("%",)) == []
    assert await listed(words=("0007",)) == [7]
    assert await listed(scope="pay.") == list(range(1, 13))  # those without scopes have all
    assert await listed(scope="verify", states=(ApiKeyState.ACTIVE,)) == [2, 10, 12]
    assert await listed(created_before_us=microseconds(NOW - 10 * day)) == [11, 12]
    assert await listed(created_since_us=microseconds(NOW - 2 * day)) == [1, 2]
    assert await listed(used_since_us=microseconds(NOW)) == [1, 5]
    assert await listed(unused_since_us=microseconds(NOW), words=("-1",)) == [9]
    assert await listed(expires_before_us=microseconds(NOW + 4 * day)) == [9]
    assert (await listed("expires"))[:4] == [3, 6, 9, 12]
    assert (await listed("-expires"))[:4] == [12, 9, 6, 3]
    assert (await listed("-last-used"))[:2] == [5, 1]
