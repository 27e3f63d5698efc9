"""Each tenant has one shard, which gets its placement, its requests and its events."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, cast
from uuid import uuid4

import pytest
import sqlalchemy as sa
from gateway.tests.world import ATTRIBUTION, FakeAuditLog, new_tenant
from sqlalchemy.ext.asyncio import AsyncEngine

from pqkeep_gateway.access.clock import date_of
from pqkeep_gateway.access.entitlements import TenantStatus
from pqkeep_gateway.audit_delivery import AuditDelivery
from pqkeep_gateway.audit_events import event
from pqkeep_gateway.shards import (
    Departures,
    Placement,
    ShardFullError,
    ShardInUseError,
    ShardNotFoundError,
    Shards,
    Then,
    UnknownShardError,
    removal,
)
from pqkeep_gateway.storage.audit_outbox import SqlAuditOutbox
from pqkeep_gateway.storage.database import transaction
from pqkeep_gateway.storage.schema import SHARDS, TENANTS
from pqkeep_gateway.storage.shards import SqlShards
from pqkeep_gateway.storage.tenants import SqlTenants, Tenant
from pqkeep_gateway.unavailable import UnavailableError
from pqkeep_protocol.audit_events import AuditEvent
from pqkeep_protocol.errors import ErrorKind, KeyServiceError
from pqkeep_protocol.keys import INSTALLATION, TenantId
from pqkeep_protocol.messages import Attribution, ListKeys, Request

pytestmark = pytest.mark.parametrize("backend", ["sqlite", "postgresql"], indirect=True)

NAMES = ("default", "b", "c")


@dataclass
class FakeKeyService:
    """A key service that notes the tenants of its requests."""

    asked: list[TenantId] = field(default_factory=list)
    refuses: ErrorKind | None = None

    def call(
        self, request: Request[Any], _: Attribution, placement: Placement | None, then: Then[Any]
    ) -> None:
        """Handle a request."""
        if self.refuses is not None:
            then(KeyServiceError(self.refuses))
        else:
            self.asked.append(request.tenant)
            then(None)


class Setting:
    """An installation with three shards, some of which are in the settings."""

    def __init__(self, engine: AsyncEngine) -> None:
        self.engine = engine
        self.services = {name: FakeKeyService() for name in NAMES}
        self.directory = SqlShards(engine)
        self.departures = Departures()
        self.shards = Shards(cast("Any", self.services), self.directory, self.departures)
        self.tenants = SqlTenants(engine, NAMES)

    async def add(self, shard: str | None = None) -> Tenant:
        """Create a tenant."""
        tenant = new_tenant()
        created = event(ATTRIBUTION, tenant.id, AuditEvent.CREATE_TENANT)
        return await self.tenants.add(tenant, created, shard=shard)

    async def ask(self, tenant: TenantId, admitted: Placement | None = None) -> None:
        """Send a request to the tenant's key service."""
        request = ListKeys(tenant=tenant, algorithm=None, status=None)
        await self.shards.execute(request, ATTRIBUTION, admitted)

    async def move(self, tenant: TenantId, shard: str, state: str = "serving") -> None:
        """Change the placement in the database."""
        async with transaction(self.engine) as connection:
            change = sa.update(TENANTS).where(TENANTS.c.id == tenant)
            await connection.execute(change.values(shard=shard, shard_state=state))

    async def drain(self, shard: str) -> None:
        """Stop a shard from accepting new tenants."""
        async with transaction(self.engine) as connection:
            change = sa.update(SHARDS).where(SHARDS.c.name == shard)
            await connection.execute(change.values(draining=True))


@pytest.fixture
async def setting(engine: AsyncEngine) -> Setting:
    """Three shards without a tenant."""
    made = Setting(engine)
    await made.directory.add(NAMES, date_of(1_800_000_000))
    return made


async def test_a_new_tenant_is_put_where_the_fewest_are(setting: Setting) -> None:
    """Tenants are spread evenly.

    Deleted tenants do not count, and a draining shard gets no new ones.
    """
    assert [(await setting.add()).shard for _ in range(6)] == 2 * ["b", "c", "default"]
    async with transaction(setting.engine) as connection:
        change = sa.update(TENANTS).where(TENANTS.c.shard == "c")
        await connection.execute(change.values(status=TenantStatus.DELETED))
    assert [(await setting.add()).shard for _ in range(2)] == ["c", "c"]
    await setting.drain("b")
    assert {(await setting.add()).shard for _ in range(4)} == {"c", "default"}
    tenant = await setting.add()
    await setting.move(tenant.id, "c", "moving")
    found = await setting.directory.list()
    assert [(item.name, item.draining, item.moving) for item in found] == [
        ("b", True, 0),
        ("c", False, 1),
        ("default", False, 0),
    ]


async def test_the_operator_names_a_shard(setting: Setting) -> None:
    """The operator can choose a shard, except an unknown or draining one."""
    assert (await setting.add("c")).shard == "c"
    with pytest.raises(ShardNotFoundError):
        await setting.add("d")
    await setting.drain("c")
    with pytest.raises(ShardFullError):
        await setting.add("c")
    assert sum(shard.tenants for shard in await setting.directory.list()) == 1


async def test_without_a_shard_for_it_no_tenant_is_created(setting: Setting) -> None:
    """If all shards are draining, a new tenant is refused, and nothing is stored."""
    for name in NAMES:
        await setting.drain(name)
    with pytest.raises(UnavailableError):
        await setting.add()
    assert (await setting.tenants.list()).total == 0


async def test_a_request_goes_to_its_tenants_shard(setting: Setting) -> None:
    """Requests go to the tenant's key service, and requests without a tenant to ``default``."""
    placed = {name: (await setting.add(name)).id for name in NAMES}
    for tenant in placed.values():
        await setting.ask(tenant)
    await setting.ask(INSTALLATION)
    stranger = TenantId(uuid4())
    await setting.ask(stranger)
    assert {name: service.asked for name, service in setting.services.items()} == {
        "default": [placed["default"], INSTALLATION, stranger],
        "b": [placed["b"]],
        "c": [placed["c"]],
    }


async def test_a_request_goes_where_its_tenant_was_admitted(setting: Setting) -> None:
    """A request uses the placement of its credential; without one it is looked up."""
    tenant, other = (await setting.add("b")).id, (await setting.add("b")).id
    await setting.ask(tenant, Placement("c"))
    await setting.ask(other)
    assert setting.services["c"].asked == [tenant]
    assert setting.services["b"].asked == [other]


async def test_a_moving_tenant_is_refused(setting: Setting) -> None:
    """During a tenant's move its requests are refused; then they go to the new shard."""
    tenant = (await setting.add("b")).id
    await setting.move(tenant, "b", "moving")
    with pytest.raises(KeyServiceError) as refused:
        await setting.ask(tenant)
    assert refused.value.kind is ErrorKind.TENANT_MOVED
    await setting.move(tenant, "c")
    await setting.ask(tenant)
    assert (setting.services["b"].asked, setting.services["c"].asked) == ([], [tenant])


async def test_a_shard_without_settings_is_refused(setting: Setting) -> None:
    """A tenant in an unknown shard is refused, and no other shard gets the request."""
    tenant = (await setting.add("b")).id
    del setting.services["b"]
    with pytest.raises(KeyServiceError) as refused:
        await setting.ask(tenant)
    assert refused.value.kind is ErrorKind.UNAVAILABLE
    assert [service.asked for service in setting.services.values()] == [[], []]
    with pytest.raises(UnknownShardError):
        setting.shards.of("b")


async def test_what_a_shard_says_is_gone_is_read_again(setting: Setting) -> None:
    """A placement is not cached during a move, or if the shard refused it."""
    tenant = (await setting.add("b")).id
    here = Placement("b")
    assert setting.departures.is_current(tenant, here)
    assert not setting.departures.is_current(tenant, Placement("b", is_moving=True))
    setting.services["b"].refuses = ErrorKind.TENANT_MOVED
    with pytest.raises(KeyServiceError):
        await setting.ask(tenant)
    assert not setting.departures.is_current(tenant, Placement("b", is_moving=True))
    assert not setting.departures.is_current(tenant, here)
    assert setting.departures.is_current(tenant, here)  # it was read again


async def test_a_move_is_noticed_by_the_request_that_meets_it(setting: Setting) -> None:
    """If a tenant has moved since the admission, the request goes to the new shard."""
    tenant, before = (await setting.add("b")).id, Placement("b")
    await setting.move(tenant, "c")
    setting.services["b"].refuses = ErrorKind.TENANT_MOVED
    await setting.ask(tenant, before)
    await setting.ask(tenant, before)
    assert setting.services["c"].asked == [tenant, tenant]
    assert not setting.departures.is_current(tenant, before)
    setting.services["c"].refuses = ErrorKind.TENANT_MOVED
    with pytest.raises(KeyServiceError):
        await setting.ask(tenant, Placement("c"))  # neither there nor in any known shard
    with pytest.raises(KeyServiceError):
        await setting.ask(tenant, before)  # and is not looked for a third time


async def test_a_tenant_resides_where_it_is_now(setting: Setting) -> None:
    """The residence is the current shard, even if the request was admitted before a move."""
    tenant = (await setting.add("b")).id
    await setting.move(tenant, "c")
    assert await setting.shards.residence(tenant) == "c"
    assert await setting.shards.recording(tenant, Placement("b")) == "b"


async def test_events_are_in_their_tenants_log(setting: Setting) -> None:
    """Each event goes to the log of the tenant's shard at that time; operators' to ``default``."""
    logs = {name: FakeAuditLog() for name in NAMES}
    delivery = _delivery(setting, logs)
    tenants = [await setting.add(name) for name in NAMES]
    await setting.move(tenants[1].id, "c")
    await delivery.deliver()
    await delivery.record(event(ATTRIBUTION, tenants[2].id, AuditEvent.SIGN_IN))
    await delivery.record(event(ATTRIBUTION, INSTALLATION, AuditEvent.SIGN_IN))
    recorded = {
        name: [(logged.tenant, logged.operation) for logged in log.recorded.values()]
        for name, log in logs.items()
    }
    assert recorded == {
        "default": [(tenants[0].id, "create-tenant"), (INSTALLATION, "sign-in")],
        "b": [(tenants[1].id, "create-tenant")],
        "c": [(tenants[2].id, "create-tenant"), (tenants[2].id, "sign-in")],
    }


async def test_a_shard_that_is_gone_delays_no_others_events(setting: Setting) -> None:
    """An unavailable shard delays only its own events, which are delivered later."""
    logs = {name: FakeAuditLog() for name in NAMES}
    delivery = _delivery(setting, logs)
    logs["b"].is_unavailable = True
    await setting.add("b")
    for _ in range(2):
        await setting.add("c")
        await delivery.deliver()
    assert (len(logs["b"].recorded), len(logs["c"].recorded)) == (0, 2)
    with pytest.raises(UnavailableError):
        await delivery.empty()
    logs["b"].is_unavailable = False
    await delivery.empty()
    assert len(logs["b"].recorded) == 1
    assert await SqlAuditOutbox(setting.engine).list_oldest(10) == []


async def test_a_shard_is_removed_when_nothing_needs_it(setting: Setting) -> None:
    """A shard is removed if it is drained, and has no tenants, pending events or needed records."""
    directory, tenant = setting.directory, (await setting.add("b")).id

    async def remove(*, leaves_records: bool = False) -> int:
        return await directory.remove("b", removal("b"), leaves_records=leaves_records)

    async def move(source: str, target: str) -> None:
        await directory.begin_move(tenant)
        await directory.end_move(tenant, source, target)

    with pytest.raises(ShardInUseError, match="accepts new tenants"):
        await remove(leaves_records=True)
    await setting.drain("b")
    with pytest.raises(ShardInUseError, match="it has tenants"):
        await remove(leaves_records=True)
    await move("b", "c")
    with pytest.raises(ShardInUseError, match="wait for its log"):
        await remove(leaves_records=True)
    logs = {name: FakeAuditLog() for name in NAMES}
    await _delivery(setting, logs).deliver()
    with pytest.raises(ShardInUseError, match="records of tenants"):
        await remove()
    assert await directory.visited(tenant) == ("b", "c")
    assert await remove(leaves_records=True) == 1
    assert await directory.visited(tenant) == ("c",)
    await move("c", "default")
    assert await directory.visited(tenant) == ("c", "default")
    await _delivery(setting, logs).deliver()
    said = [(logged.operation, logged.policy) for logged in logs["default"].recorded.values()]
    assert said == [("remove-shard", "shard-b")]
    with pytest.raises(ShardNotFoundError):
        await directory.remove("d", removal("d"), leaves_records=True)


def _delivery(setting: Setting, logs: dict[str, FakeAuditLog]) -> AuditDelivery:
    services = cast("dict[str, Any]", logs)
    shards = Shards(services, setting.directory, setting.departures)
    return AuditDelivery(SqlAuditOutbox(setting.engine), shards)
