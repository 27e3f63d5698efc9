"""A suspended tenant is deleted at its time: its keys first, then its people and API keys."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import cast
from uuid import uuid4

import pytest
import sqlalchemy as sa
from gateway.tests.world import (
    ATTRIBUTION,
    HERE,
    OTHER_EMAIL,
    ROUNDS,
    World,
    add_tenant,
    count_successes,
    new_tenant,
)
from sqlalchemy.ext.asyncio import AsyncEngine

from pqkeep_gateway.access.entitlements import Tier
from pqkeep_gateway.access.roles import Role
from pqkeep_gateway.storage.contracts import save_contract
from pqkeep_gateway.storage.database import transaction
from pqkeep_gateway.storage.deletion import SqlDeletions
from pqkeep_gateway.storage.schema import METADATA, TABLES_OF_USER, TENANTS
from pqkeep_gateway.tenancy.contracts import BilledElsewhereError, Contract, ContractStatus
from pqkeep_gateway.tenancy.deletion import Deletions, NoDeletionError, NotSuspendedError
from pqkeep_gateway.tenancy.tenants import (
    DeletionScheduledError,
    Tenant,
    TenantChange,
    TenantNotFoundError,
    TenantStatus,
)
from pqkeep_protocol.algorithms import Algorithm
from pqkeep_protocol.errors import ErrorKind, KeyServiceError
from pqkeep_protocol.keys import KeyInfo, KeyStatus, KeyVersion, TenantId
from pqkeep_protocol.messages import (
    ArchiveKey,
    Attribution,
    Key,
    Keys,
    ListKeys,
    R_co,
    Request,
    RetireKey,
)

pytestmark = pytest.mark.parametrize("backend", ["sqlite", "postgresql"], indirect=True)

DAY = 86_400
SUSPEND = TenantChange(status=TenantStatus.SUSPENDED)
RESUME = TenantChange(status=TenantStatus.ACTIVE)


@dataclass
class FakeKeys:
    """A key service with keys of one algorithm, which can fail, or have somebody come first."""

    statuses: dict[int, KeyStatus] = field(default_factory=dict)
    archived: list[int] = field(default_factory=list)
    attributions: set[Attribution] = field(default_factory=set)
    fails_after: int | None = None
    """After how many changes it is unavailable."""
    is_stuck: bool = False
    """Whether it refuses every change."""

    async def execute(self, request: Request[R_co], attribution: Attribution, /) -> R_co:
        """Do what is asked of the one tenant's keys."""
        self.attributions.add(attribution)
        if isinstance(request, ListKeys):
            found = tuple(_key(v, s) for v, s in self.statuses.items() if s is request.status)
            return cast(R_co, Keys(keys=found[:2], total=len(found)))
        assert isinstance(request, RetireKey | ArchiveKey)
        if self.fails_after == 0:
            raise KeyServiceError(ErrorKind.UNAVAILABLE)
        if self.fails_after is not None:
            self.fails_after -= 1
        expected = (
            {KeyStatus.ACTIVE, KeyStatus.DISABLED}
            if isinstance(request, RetireKey)
            else {KeyStatus.RETIRED}
        )
        if self.is_stuck or self.statuses[request.version] not in expected:
            raise KeyServiceError(ErrorKind.KEY_STATUS)
        if isinstance(request, RetireKey):
            self.statuses[request.version] = KeyStatus.RETIRED
        else:
            self.statuses[request.version] = KeyStatus.ARCHIVED
            self.archived.append(request.version)
        await asyncio.sleep(0)
        return cast(R_co, Key(key=_key(request.version, self.statuses[request.version])))


def _key(version: int, status: KeyStatus) -> KeyInfo:
    now = datetime(2026, 1, 31, tzinfo=UTC)
    return KeyInfo(Algorithm.ML_KEM_768, KeyVersion(version), status, b"", now)


@pytest.fixture
def keys() -> FakeKeys:
    """Six keys: an active one, three retired, a disabled and an archived one."""
    retired = [KeyStatus.RETIRED] * 3
    statuses = [KeyStatus.ARCHIVED, *retired, KeyStatus.DISABLED, KeyStatus.ACTIVE]
    return FakeKeys(dict(enumerate(statuses, 1)))


def deletions(world: World, keys: FakeKeys) -> Deletions:
    """Return what deletes tenants, as a gateway has it that has just started."""
    return Deletions(
        SqlDeletions(world.engine),
        keys,
        world._announce_change,
        world.audit_delivery,
        world.clock,
    )


async def scheduled(world: World, keys: FakeKeys, days: int = 7) -> Deletions:
    """Suspend the tenant and schedule its deletion."""
    await world.tenants.change(world.tenant.id, SUSPEND, ATTRIBUTION)
    found = deletions(world, keys)
    await found.schedule(world.tenant.id, days, ATTRIBUTION)
    return found


async def status(world: World) -> TenantStatus:
    """Return the tenant's status."""
    return (await world.tenants.get(world.tenant.id)).status


async def test_only_a_suspended_tenant_is_deleted(world: World, keys: FakeKeys) -> None:
    """The deletion of an active tenant, or of nobody, is refused and not recorded."""
    found = deletions(world, keys)
    with pytest.raises(NotSuspendedError):
        await found.schedule(world.tenant.id, 7, ATTRIBUTION)
    with pytest.raises(TenantNotFoundError):
        await found.schedule(TenantId(uuid4()), 7, ATTRIBUTION)
    with pytest.raises(NoDeletionError):
        await found.cancel(world.tenant.id, ATTRIBUTION)
    world.now += 100 * DAY
    await found.delete_due()
    assert await status(world) is TenantStatus.ACTIVE
    assert "delete-tenant" not in world.log.operations


async def test_nothing_happens_before_its_time(world: World, keys: FakeKeys) -> None:
    """A moment before the time the keys are there and the deletion can be cancelled; then it is over."""
    found = await scheduled(world, keys)
    start = world.now
    again = await found.schedule(world.tenant.id, 1, ATTRIBUTION)
    assert again.deletion_at is not None
    assert again.deletion_at.timestamp() == start + 7 * DAY
    with pytest.raises(DeletionScheduledError):
        await world.tenants.change(world.tenant.id, RESUME, ATTRIBUTION)
    world.now = start + 7 * DAY - 1
    await found.delete_due()
    assert keys.archived == []
    kept = await found.cancel(world.tenant.id, ATTRIBUTION)
    assert (kept.status, kept.deletion_at) == (TenantStatus.SUSPENDED, None)
    world.now = start + 8 * DAY
    await found.delete_due()
    assert keys.archived == []
    await world.tenants.change(world.tenant.id, RESUME, ATTRIBUTION)
    operations = world.log.operations
    assert operations.count("delete-tenant") == operations.count("cancel-tenant-deletion") == 1
    (recorded,) = (e for e in world.log.recorded.values() if e.operation == "delete-tenant")
    assert recorded.policy == f"at-{again.deletion_at:%Y-%m-%dT%H:%M:%SZ}"
    assert recorded.principal == ATTRIBUTION.principal


async def test_everything_of_it_ends_at_its_time(world: World, keys: FakeKeys) -> None:
    """Every private key is destroyed; people, sessions, API keys and invitations are gone; records stay."""
    tokens = await world.join()
    await world.enroll(await world.principal(tokens))
    await world.invite(OTHER_EMAIL, Role.VIEWER)
    await world.api_keys.create(world.tenant, ATTRIBUTION)
    other = await add_tenant(world.engine, new_tenant())
    await world.api_keys.create(other, ATTRIBUTION)
    found = await scheduled(world, keys)
    announced = world.changes_announced
    world.now += 7 * DAY
    await found.delete_due()
    assert set(keys.statuses.values()) == {KeyStatus.ARCHIVED}
    assert sorted(keys.archived) == [2, 3, 4, 5, 6]
    assert {(each.principal, each.policy) for each in keys.attributions} == {
        ("gateway", "tenant-deletion")
    }
    assert await status(world) is TenantStatus.DELETED
    assert world.changes_announced > announced
    assert await world.sessions.find(tokens.access, HERE) is None
    assert [each.status for each in await world.api_keys.list(world.tenant.id)] == ["revoked"]
    assert [each.status for each in await world.api_keys.list(other.id)] == ["active"]
    async with transaction(world.engine) as connection:
        for table in (*TABLES_OF_USER, METADATA.tables["users"], METADATA.tables["invitations"]):
            assert (await connection.execute(sa.select(table))).first() is None, table.name
    recorded = list(world.log.recorded.values())[-3:]
    operations = [each.operation for each in recorded]
    assert operations == ["revoke-api-key", "membership-ended", "tenant-deleted"]
    assert {each.policy for each in recorded} == {"tenant-deletion"}


async def test_a_deletion_goes_on_after_a_restart(world: World, keys: FakeKeys) -> None:
    """Cut after each change of a key, it is finished by the next start, once, and is not cancelled."""
    await scheduled(world, keys)
    world.now += 7 * DAY
    for changes in range(3):
        keys.fails_after = changes
        started = deletions(world, keys)
        await started.delete_due()
        assert await status(world) is TenantStatus.DELETING
        with pytest.raises(NoDeletionError):
            await started.cancel(world.tenant.id, ATTRIBUTION)
        for change in (RESUME, SUSPEND):
            with pytest.raises(DeletionScheduledError):
                await world.tenants.change(world.tenant.id, change, ATTRIBUTION)
    keys.fails_after = None
    for _ in range(2):
        await deletions(world, keys).delete_due()
    assert sorted(keys.archived) == [2, 3, 4, 5, 6]
    assert await status(world) is TenantStatus.DELETED
    assert world.log.operations.count("tenant-deleted") == 1


async def test_gateways_that_delete_at_once_do_it_once(world: World, keys: FakeKeys) -> None:
    """Of several gateways that find the tenant due, each key is destroyed once, and one ends it."""
    await scheduled(world, keys)
    await world.api_keys.create(world.tenant, ATTRIBUTION)
    world.now += 7 * DAY
    await asyncio.gather(*(deletions(world, keys).delete_due() for _ in range(4)))
    assert sorted(keys.archived) == [2, 3, 4, 5, 6]
    operations = world.log.operations
    assert operations.count("tenant-deleted") == operations.count("revoke-api-key") == 1


async def test_a_cancellation_at_its_time_is_all_or_nothing(world: World) -> None:
    """Of a deletion and its cancellation at the same moment one happens, and the other does nothing."""
    for _ in range(ROUNDS):
        keys = FakeKeys({1: KeyStatus.ACTIVE})
        started = await scheduled(world, keys)
        world.now += 7 * DAY
        cancelled = count_successes(
            [started.cancel(world.tenant.id, ATTRIBUTION) for _ in range(2)], NoDeletionError
        )
        count, *_ = await asyncio.gather(
            cancelled, started.delete_due(), deletions(world, keys).delete_due()
        )
        found = await status(world)
        if count:
            assert (count, found, keys.archived) == (1, TenantStatus.SUSPENDED, [])
        else:
            assert (found, keys.archived) == (TenantStatus.DELETED, [1])
        world.tenant = await add_tenant(world.engine, new_tenant())


async def test_a_deletion_and_a_resumption_exclude_each_other(world: World, keys: FakeKeys) -> None:
    """Asked for at once, the tenant is active, or its deletion is scheduled once; never both."""
    for _ in range(ROUNDS):
        await world.tenants.change(world.tenant.id, SUSPEND, ATTRIBUTION)
        started = deletions(world, keys)
        before = world.log.operations.count("delete-tenant")
        await asyncio.gather(
            count_successes(
                [world.tenants.change(world.tenant.id, RESUME, ATTRIBUTION)], DeletionScheduledError
            ),
            count_successes(
                [started.schedule(world.tenant.id, 7, ATTRIBUTION) for _ in range(2)],
                NotSuspendedError,
            ),
        )
        found = await world.tenants.get(world.tenant.id)
        is_scheduled = found.deletion_at is not None
        assert is_scheduled is (found.status is TenantStatus.SUSPENDED)
        assert world.log.operations.count("delete-tenant") - before == is_scheduled
        world.tenant = await add_tenant(world.engine, new_tenant())


async def test_a_deleted_tenant_gets_nothing_new(world: World, keys: FakeKeys) -> None:
    """What an operator began to add before the end, and adds after it, is refused as nobody's."""
    await scheduled(world, keys)
    world.now += 7 * DAY
    await deletions(world, keys).delete_due()
    assert await status(world) is TenantStatus.DELETED
    with pytest.raises(TenantNotFoundError):
        await world.api_keys.create(world.tenant, ATTRIBUTION)
    with pytest.raises(TenantNotFoundError):
        await world.invite(OTHER_EMAIL, Role.OWNER)
    assert await world.api_keys.list(world.tenant.id) == ()


async def test_one_that_fails_holds_no_other_up(world: World, keys: FakeKeys) -> None:
    """Where a tenant's keys cannot be destroyed, nothing of it ends, and the next one is deleted."""
    await scheduled(world, FakeKeys())
    stuck = FakeKeys({1: KeyStatus.RETIRED}, is_stuck=True)
    first = world.tenant
    world.tenant = await add_tenant(world.engine, new_tenant())
    await scheduled(world, keys)
    world.now += 7 * DAY

    class Both(FakeKeys):
        async def execute(self, request: Request[R_co], by: Attribution, /) -> R_co:
            return await (stuck if request.tenant == first.id else keys).execute(request, by)

    await deletions(world, Both()).delete_due()
    assert await status(world) is TenantStatus.DELETED
    world.tenant = first
    assert await status(world) is TenantStatus.DELETING


async def test_more_that_fail_than_are_tried_at_once_hold_no_other_up(world: World) -> None:
    """Which of those that are due are tried is left to chance: each has its turn."""
    store = SqlDeletions(world.engine)
    due = set()
    for _ in range(3):
        await scheduled(world, FakeKeys())
        due.add(world.tenant.id)
        world.tenant = await add_tenant(world.engine, new_tenant())
    world.now += 7 * DAY
    now = datetime.fromtimestamp(world.now, UTC)
    while due:
        (tried,) = await store.begin_due(now, 1)
        due.discard(tried)


async def test_what_is_paid_elsewhere_is_ended_there_first(world: World, keys: FakeKeys) -> None:
    """A tenant whose subscription a payment provider would go on charging is not deleted."""
    await _subscribe(world.tenant, world.engine)
    await world.tenants.change(world.tenant.id, SUSPEND, ATTRIBUTION)
    with pytest.raises(BilledElsewhereError):
        await deletions(world, keys).schedule(world.tenant.id, 7, ATTRIBUTION)
    async with transaction(world.engine) as connection:
        query = sa.select(TENANTS.c.deletion_at_us).where(TENANTS.c.id == world.tenant.id)
        assert (await connection.execute(query)).scalar() is None


async def _subscribe(tenant: Tenant, engine: AsyncEngine) -> None:
    now = datetime(2026, 1, 31, tzinfo=UTC)
    contract = Contract(
        id=uuid4(),
        tenant=tenant.id,
        tier=Tier.STARTER,
        status=ContractStatus.ACTIVE,
        started_at=now,
        period_start=now,
        period_end=now,
        as_of=now,
        price_cents=100,
        cancel_at_period_end=False,
        external_id="sub_1",
        revision=1,
    )
    async with transaction(engine) as connection:
        await save_contract(connection, None, contract)
