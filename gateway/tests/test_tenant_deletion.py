"""A suspended tenant's people and API keys are deleted once its keys are destroyed."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Literal, cast
from uuid import uuid4

import pytest
import sqlalchemy as sa
from gateway.tests.world import (
    ATTRIBUTION,
    EMAIL,
    HERE,
    OTHER_EMAIL,
    ROUNDS,
    World,
    add_tenant,
    count_successes,
    new_tenant,
    one_shard,
)
from sqlalchemy.ext.asyncio import AsyncEngine

from pqkeep_gateway.access.callers import Role
from pqkeep_gateway.access.clock import date_of
from pqkeep_gateway.access.entitlements import TenantNotFoundError, TenantStatus, Tier
from pqkeep_gateway.outgoing_mail import MailKind, of_tenant
from pqkeep_gateway.storage.billing import (
    BilledElsewhereError,
    Contract,
    ContractStatus,
    save_contract,
)
from pqkeep_gateway.storage.database import transaction
from pqkeep_gateway.storage.deletion import NoDeletionError, NotSuspendedError, SqlDeletions
from pqkeep_gateway.storage.schema import METADATA, TABLES_OF_USER, TENANTS
from pqkeep_gateway.storage.tenants import DeletionScheduledError, Tenant, TenantChange
from pqkeep_gateway.tenancy.deletion import Deletions
from pqkeep_protocol.errors import ErrorKind, KeyServiceError
from pqkeep_protocol.keys import INSTALLATION, Destruction, DestructionState, TenantId
from pqkeep_protocol.messages import (
    Attribution,
    CancelDestruction,
    Destructions,
    ListDestructions,
    R_co,
    Request,
    ScheduledDestruction,
    ScheduleDestruction,
    TenantDestruction,
)

pytestmark = pytest.mark.parametrize("backend", ["sqlite", "postgresql"], indirect=True)

DAY = 86_400
SUSPEND = TenantChange(status=TenantStatus.SUSPENDED)
RESUME = TenantChange(status=TenantStatus.ACTIVE)


@dataclass
class FakeKeys:
    """A key service that destroys tenants' keys after a minimum delay, and can fail."""

    world: World
    least_days: int = 7
    destructions: dict[TenantId, Destruction] = field(default_factory=dict)
    attributions: list[Attribution] = field(default_factory=list)
    is_down: bool = False
    unknown: frozenset[TenantId] = frozenset()
    """Tenants of whom it refuses every request."""
    kills: Literal["before", "after"] | None = None
    """Whether the work of the next change's gateway ends before or after the change."""
    before_schedule: Callable[[], Awaitable[None]] | None = None
    """Runs just before the next schedule."""

    async def execute(self, request: Request[R_co], attribution: Attribution, /) -> R_co:
        """Execute requests about the tenants' destruction."""
        await asyncio.sleep(0)
        if self.is_down or request.tenant in self.unknown:
            raise KeyServiceError(ErrorKind.UNAVAILABLE)
        if isinstance(request, ListDestructions):
            return cast(R_co, self._list(request.tenant))
        kills, self.kills = self.kills, None
        if kills == "before":
            raise KeyServiceError(ErrorKind.BAD_RESPONSE)
        if isinstance(request, ScheduleDestruction) and self.before_schedule is not None:
            before, self.before_schedule = self.before_schedule, None
            await before()
        self.attributions.append(attribution)
        result = cast(R_co, self._changed(request))
        if kills == "after":
            raise KeyServiceError(ErrorKind.BAD_RESPONSE)
        return result

    def _changed(self, request: Request[R_co]) -> TenantDestruction:
        found = self.destructions.get(request.tenant)
        if isinstance(request, ScheduleDestruction):
            earliest = self.now + timedelta(days=self.least_days)
            scheduled = Destruction(DestructionState.SCHEDULED, max(request.at, earliest))
            if found is None or (request.renews and found.state is DestructionState.CANCELLED):
                self.destructions[request.tenant] = found = scheduled
            return TenantDestruction(destruction=found)
        assert isinstance(request, CancelDestruction)
        if found is not None and found.has_begun:
            raise KeyServiceError(ErrorKind.KEY_STATUS)
        found = Destruction(DestructionState.CANCELLED, self.now if found is None else found.at)
        self.destructions[request.tenant] = found
        return TenantDestruction(destruction=found)

    @property
    def open(self) -> set[TenantId]:
        """The tenants with a scheduled destruction."""
        return {tenant for tenant, found in self.destructions.items() if found.is_open}

    @property
    def now(self) -> datetime:
        """The time of its clock, which is the gateway's."""
        return datetime.fromtimestamp(self.world.now, UTC)

    def look(self, state: DestructionState = DestructionState.COMPLETED) -> None:
        """Begin a due destruction, or complete it."""
        for tenant, found in self.destructions.items():
            if found.at <= self.now and found.is_open:
                self.destructions[tenant] = Destruction(state, found.at)

    def _list(self, tenant: TenantId) -> Destructions:
        found = tuple(
            ScheduledDestruction(of, destruction)
            for of, destruction in sorted(self.destructions.items())
            if (destruction.is_open if tenant == INSTALLATION else of == tenant)
        )
        return Destructions(destructions=found, has_more=False)


@pytest.fixture
def keys(world: World) -> FakeKeys:
    """Return a key service of the world's installation."""
    return FakeKeys(world)


def deletions(world: World, keys: FakeKeys) -> Deletions:
    """Return the deletions of a gateway that has just started."""
    return Deletions(
        SqlDeletions(world.engine),
        one_shard(keys),
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
    return (await world.stored_tenants.get(world.tenant.id)).status


async def test_only_a_suspended_tenant_is_deleted(world: World, keys: FakeKeys) -> None:
    """The deletion of an active or unknown tenant is refused and not recorded."""
    found = deletions(world, keys)
    with pytest.raises(NotSuspendedError):
        await found.schedule(world.tenant.id, 7, ATTRIBUTION)
    with pytest.raises(TenantNotFoundError):
        await found.schedule(TenantId(uuid4()), 7, ATTRIBUTION)
    with pytest.raises(NoDeletionError):
        await found.cancel(world.tenant.id, ATTRIBUTION)
    with pytest.raises(TenantNotFoundError):
        await found.cancel(TenantId(uuid4()), ATTRIBUTION)
    await found.compare()
    assert await status(world) is TenantStatus.ACTIVE
    assert "delete-tenant" not in world.log.operations
    assert keys.open == set()


async def test_a_deletion_is_cancelled(world: World, keys: FakeKeys) -> None:
    """A scheduled time remains until it is cancelled; then the keys are kept."""
    found = await scheduled(world, keys)
    start = world.now
    again = await found.schedule(world.tenant.id, 1, ATTRIBUTION)
    assert again.deletion_at is not None
    assert again.deletion_at.timestamp() == start + 7 * DAY
    with pytest.raises(DeletionScheduledError):
        await world.tenants.change(world.tenant.id, RESUME, ATTRIBUTION)
    await found.compare()
    kept = await found.cancel(world.tenant.id, ATTRIBUTION)
    assert (kept.status, kept.deletion_at) == (TenantStatus.SUSPENDED, None)
    assert keys.open == set()
    assert set(keys.attributions) == {ATTRIBUTION}
    await found.compare()
    assert keys.open == set()
    await world.tenants.change(world.tenant.id, RESUME, ATTRIBUTION)
    operations = world.log.operations
    assert operations.count("delete-tenant") == operations.count("cancel-tenant-deletion") == 1
    (recorded,) = (e for e in world.log.recorded.values() if e.operation == "delete-tenant")
    assert recorded.policy == f"at-{again.deletion_at:%Y-%m-%dT%H:%M:%SZ}"
    assert recorded.principal == ATTRIBUTION.principal


async def test_the_key_service_decides_when(world: World, keys: FakeKeys) -> None:
    """The tenant shows the key service's time, also if it changes after a restore."""
    keys.least_days = 30
    found = await scheduled(world, keys, days=1)
    shown = await world.stored_tenants.get(world.tenant.id)
    assert shown.deletion_at == keys.now + timedelta(days=30)
    later = Destruction(DestructionState.SCHEDULED, keys.now + timedelta(days=60))
    keys.destructions[world.tenant.id] = later
    await found.compare()
    assert (await world.stored_tenants.get(world.tenant.id)).deletion_at == later.at


@pytest.mark.threat("accounts-database-writer")
@pytest.mark.parametrize("state", ["suspended", "deleting"])
async def test_a_row_destroys_nothing(world: World, keys: FakeKeys, state: str) -> None:
    """A forged row can only schedule a destruction, which is visible and can be cancelled."""
    written = {"status": state, "deletion_at_us": 1}
    async with transaction(world.engine) as connection:
        await connection.execute(sa.update(TENANTS).values(written))
    found = deletions(world, keys)
    for _ in range(2):
        await found.compare()
    shown = await world.stored_tenants.get(world.tenant.id)
    assert (shown.status, shown.deletion_at) == (
        TenantStatus.SUSPENDED,
        keys.now + timedelta(days=7),
    )
    assert [attribution.principal for attribution in keys.attributions] == ["gateway"]
    await found.cancel(world.tenant.id, ATTRIBUTION)
    assert keys.open == set()


async def test_what_no_row_says_is_kept(world: World, keys: FakeKeys) -> None:
    """A destruction without a row is cancelled, unless it has begun or the tenant is gone."""
    gone = await add_tenant(world.engine, new_tenant())
    async with transaction(world.engine) as connection:
        update = sa.update(TENANTS).where(TENANTS.c.id == gone.id)
        await connection.execute(update.values(status="deleted"))
    begun, nobodys = TenantId(uuid4()), TenantId(uuid4())
    at = keys.now + timedelta(days=7)
    for tenant in (world.tenant.id, gone.id, nobodys):
        keys.destructions[tenant] = Destruction(DestructionState.SCHEDULED, at)
    keys.destructions[begun] = Destruction(DestructionState.BEGUN, at)
    await deletions(world, keys).compare()
    assert keys.open == {gone.id, begun}


async def test_the_key_service_is_told_later(world: World, keys: FakeKeys) -> None:
    """While the key service is down, nothing is cancelled; it gets new deletions later."""
    keys.is_down = True
    with pytest.raises(KeyServiceError):
        await scheduled(world, keys)
    found = deletions(world, keys)
    with pytest.raises(KeyServiceError):
        await found.cancel(world.tenant.id, ATTRIBUTION)
    await found.compare()
    assert (await world.stored_tenants.get(world.tenant.id)).deletion_at is not None
    keys.is_down = False
    await found.compare()
    assert keys.open == {world.tenant.id}


async def _told(world: World) -> list[tuple[str, str]]:
    """Return the recipients and subjects of waiting mails, and remove them."""
    now = date_of(world.now)
    claimed = await world.mail_outbox.claim(1000, now, now)
    for mail in claimed:
        await world.mail_outbox.remove(mail)
    return [
        (mail.to, mail.about) for mail in claimed if mail.kind is MailKind.DESTRUCTION_SCHEDULED
    ]


async def test_owners_are_told_the_time_of_the_destruction(world: World, keys: FakeKeys) -> None:
    """The mail has the key service's time, and each time is announced once."""
    await world.join()
    keys.least_days = 30
    found = await scheduled(world, keys, days=1)
    await found.schedule(world.tenant.id, 1, ATTRIBUTION)
    for _ in range(2):
        await found.compare()
    assert await _told(world) == [(EMAIL, of_tenant(keys.now + timedelta(days=30)))]
    later = Destruction(DestructionState.SCHEDULED, keys.now + timedelta(days=60))
    keys.destructions[world.tenant.id] = later
    for _ in range(2):
        await found.compare()
    assert await _told(world) == [(EMAIL, of_tenant(later.at))]
    await found.cancel(world.tenant.id, ATTRIBUTION)
    await found.schedule(world.tenant.id, 60, ATTRIBUTION)
    assert await _told(world) == [(EMAIL, of_tenant(later.at))]


async def test_owners_are_told_once_the_key_service_is(world: World, keys: FakeKeys) -> None:
    """While the key service is down, the time is unknown; the mail follows later."""
    await world.join()
    keys.is_down = True
    with pytest.raises(KeyServiceError):
        await scheduled(world, keys, days=40)
    assert await _told(world) == []
    keys.is_down = False
    for _ in range(2):
        await deletions(world, keys).compare()
    assert await _told(world) == [(EMAIL, of_tenant(keys.now + timedelta(days=40)))]


async def test_everything_of_it_ends_at_its_time(world: World, keys: FakeKeys) -> None:
    """With its keys, people, sessions, API keys and invitations are deleted; records stay."""
    tokens = await world.join()
    await world.enroll(await world.principal(tokens))
    await world.invite(OTHER_EMAIL, Role.VIEWER)
    await world.api_keys.create(world.tenant, ATTRIBUTION)
    other = await add_tenant(world.engine, new_tenant())
    await world.api_keys.create(other, ATTRIBUTION)
    found = await scheduled(world, keys)
    announced = world.changes_announced
    world.now += 7 * DAY
    await found.compare()
    assert await status(world) is TenantStatus.SUSPENDED
    keys.look()
    await found.compare()
    assert await status(world) is TenantStatus.DELETED
    assert world.changes_announced > announced
    assert await world.sessions.find(tokens.access, HERE) is None
    assert [key.status for key in await world.api_keys.list(world.tenant.id)] == ["revoked"]
    assert [key.status for key in await world.api_keys.list(other.id)] == ["active"]
    async with transaction(world.engine) as connection:
        for table in (*TABLES_OF_USER, METADATA.tables["users"], METADATA.tables["invitations"]):
            assert (await connection.execute(sa.select(table))).first() is None, table.name
    recorded = list(world.log.recorded.values())[-3:]
    operations = [entry.operation for entry in recorded]
    assert operations == ["revoke-api-key", "membership-ended", "tenant-deleted"]
    assert {entry.policy for entry in recorded} == {"tenant-deletion"}


async def test_a_cancellation_at_the_key_service_holds(world: World, keys: FakeKeys) -> None:
    """A deletion that was cancelled at the key service is not scheduled again by a gateway."""
    found = await scheduled(world, keys, 30)
    await keys.execute(CancelDestruction(tenant=world.tenant.id), ATTRIBUTION)
    for gateway in (found, deletions(world, keys)):
        await gateway.compare()
        await gateway.compare()
        assert keys.destructions[world.tenant.id].state is DestructionState.CANCELLED
        assert (await world.stored_tenants.get(world.tenant.id)).deletion_at is None
    again = await found.schedule(world.tenant.id, 40, ATTRIBUTION)
    await found.compare()
    assert keys.destructions[world.tenant.id].state is DestructionState.SCHEDULED
    assert (await world.stored_tenants.get(world.tenant.id)).deletion_at == again.deletion_at


@pytest.mark.parametrize("is_told", [True, False])
@pytest.mark.parametrize("has_older", [True, False])
async def test_a_killed_gateway_schedules_no_cancelled_deletion(
    world: World, keys: FakeKeys, *, is_told: bool, has_older: bool
) -> None:
    """A gateway ends before it stores a schedule, another before it stores the cancellation.

    The cancellation at the key service holds, whether or not the schedule had reached it.
    """
    if has_older:
        await (await scheduled(world, keys)).cancel(world.tenant.id, ATTRIBUTION)
    await world.tenants.change(world.tenant.id, SUSPEND, ATTRIBUTION)
    keys.kills = "after" if is_told else "before"
    with pytest.raises(KeyServiceError):
        await deletions(world, keys).schedule(world.tenant.id, 30, ATTRIBUTION)
    keys.kills = "after"
    with pytest.raises(KeyServiceError):
        await deletions(world, keys).cancel(world.tenant.id, ATTRIBUTION)
    started = deletions(world, keys)
    for _ in range(3):
        await started.compare()
        assert keys.open == set()
    assert (await world.stored_tenants.get(world.tenant.id)).deletion_at is None
    again = await started.schedule(world.tenant.id, 30, ATTRIBUTION)
    assert keys.open == {world.tenant.id}
    await started.compare()
    assert (await world.stored_tenants.get(world.tenant.id)).deletion_at == again.deletion_at


async def test_a_cancellation_between_two_steps_of_a_comparison(
    world: World, keys: FakeKeys
) -> None:
    """A gateway that has just read a row does not schedule what another gateway cancels meanwhile."""
    keys.is_down = True
    with pytest.raises(KeyServiceError):
        await scheduled(world, keys)
    keys.is_down = False

    async def cancelled() -> None:
        await deletions(world, keys).cancel(world.tenant.id, ATTRIBUTION)

    keys.before_schedule = cancelled
    await deletions(world, keys).compare()
    assert keys.before_schedule is None
    assert keys.open == set()
    assert (await world.stored_tenants.get(world.tenant.id)).deletion_at is None


async def test_a_deletion_that_has_begun_is_not_cancelled(world: World, keys: FakeKeys) -> None:
    """During the destruction a tenant cannot be cancelled; after a restart it ends once."""
    await scheduled(world, keys)
    world.now += 7 * DAY
    keys.look(DestructionState.BEGUN)
    for _ in range(2):
        started = deletions(world, keys)
        await started.compare()
        assert await status(world) is TenantStatus.DELETING
        with pytest.raises(NoDeletionError):
            await started.cancel(world.tenant.id, ATTRIBUTION)
        for change in (RESUME, SUSPEND):
            with pytest.raises(DeletionScheduledError):
                await world.tenants.change(world.tenant.id, change, ATTRIBUTION)
    keys.look()
    for _ in range(2):
        await deletions(world, keys).compare()
    assert await status(world) is TenantStatus.DELETED
    assert world.log.operations.count("tenant-deleted") == 1


async def test_gateways_that_delete_at_once_do_it_once(world: World, keys: FakeKeys) -> None:
    """If several gateways find the tenant without keys, one deletes it."""
    await scheduled(world, keys)
    await world.api_keys.create(world.tenant, ATTRIBUTION)
    world.now += 7 * DAY
    keys.look()
    await asyncio.gather(*(deletions(world, keys).compare() for _ in range(4)))
    assert await status(world) is TenantStatus.DELETED
    operations = world.log.operations
    assert operations.count("tenant-deleted") == operations.count("revoke-api-key") == 1


async def test_a_cancellation_at_its_time_is_all_or_nothing(world: World, keys: FakeKeys) -> None:
    """Of a concurrent deletion and cancellation exactly one takes effect."""

    async def look() -> None:
        await asyncio.sleep(0)
        keys.look()

    for _ in range(ROUNDS):
        started = await scheduled(world, keys)
        world.now += 7 * DAY
        cancelled = count_successes(
            [started.cancel(world.tenant.id, ATTRIBUTION) for _ in range(2)], NoDeletionError
        )
        count, *_ = await asyncio.gather(
            cancelled, look(), started.compare(), deletions(world, keys).compare()
        )
        await started.compare()
        if count:
            assert (count, await status(world)) == (1, TenantStatus.SUSPENDED)
            assert world.tenant.id not in keys.open
        else:
            assert await status(world) is TenantStatus.DELETED
        world.tenant = await add_tenant(world.engine, new_tenant())


async def test_a_deletion_and_a_resumption_exclude_each_other(world: World, keys: FakeKeys) -> None:
    """After a concurrent deletion and resumption, the tenant is either active or scheduled."""
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
        found = await world.stored_tenants.get(world.tenant.id)
        is_scheduled = found.deletion_at is not None
        assert is_scheduled is (found.status is TenantStatus.SUSPENDED)
        assert world.log.operations.count("delete-tenant") - before == is_scheduled
        world.tenant = await add_tenant(world.engine, new_tenant())


async def test_a_deleted_tenant_gets_nothing_new(world: World, keys: FakeKeys) -> None:
    """Additions to a deleted tenant are refused, even if they began before the deletion."""
    await scheduled(world, keys)
    world.now += 7 * DAY
    keys.look()
    await deletions(world, keys).compare()
    assert await status(world) is TenantStatus.DELETED
    with pytest.raises(TenantNotFoundError):
        await world.api_keys.create(world.tenant, ATTRIBUTION)
    with pytest.raises(TenantNotFoundError):
        await world.invite(OTHER_EMAIL, Role.OWNER)
    assert await world.api_keys.list(world.tenant.id) == ()


async def test_one_that_fails_holds_no_other_up(world: World, keys: FakeKeys) -> None:
    """A tenant without a response of its key service remains, and the next one is deleted."""
    await scheduled(world, keys)
    first = world.tenant
    world.tenant = await add_tenant(world.engine, new_tenant())
    await scheduled(world, keys)
    world.now += 7 * DAY
    keys.look()
    keys.unknown = frozenset({first.id})
    await deletions(world, keys).compare()
    assert await status(world) is TenantStatus.DELETED
    world.tenant = first
    assert await status(world) is TenantStatus.SUSPENDED


async def test_an_outage_is_logged_once(
    world: World, keys: FakeKeys, caplog: pytest.LogCaptureFixture
) -> None:
    """An outage is logged once, but not before the key service has responded once."""
    found = deletions(world, keys)
    for outages in range(3):
        keys.is_down = True
        for _ in range(3):
            await found.compare()
        assert len(caplog.records) == outages
        keys.is_down = False
        await found.compare()
        assert len(caplog.records) == outages


async def test_more_than_are_tried_at_once_have_their_turn(world: World, keys: FakeKeys) -> None:
    """The tenants of one round are chosen at random."""
    store = SqlDeletions(world.engine)
    due = set()
    for _ in range(3):
        await scheduled(world, keys)
        due.add(world.tenant.id)
        world.tenant = await add_tenant(world.engine, new_tenant())
    while due:
        (tried,) = await store.list_scheduled(1)
        due.discard(tried.tenant)


async def test_what_is_paid_elsewhere_is_ended_there_first(world: World, keys: FakeKeys) -> None:
    """A tenant with a running external subscription is not deleted."""
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
