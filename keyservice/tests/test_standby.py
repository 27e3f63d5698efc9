"""Two key services on one PostgreSQL database: one is the writer, the other is a standby."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, closing
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import UUID

import psycopg
import pytest
import sqlalchemy as sa
from tests.patience import PATIENCE

from pqkeep_keyservice.activation import Activation
from pqkeep_keyservice.crypto.secret import Secret
from pqkeep_keyservice.keys.sealing import Sealer
from pqkeep_keyservice.storage.database import DatabaseUnavailableError
from pqkeep_keyservice.storage.fenced_database import FencedDatabase
from pqkeep_keyservice.storage.postgresql import LOCK, PostgresqlServer, stand_by_postgresql
from pqkeep_keyservice.storage.schema import ROOT_KEYS
from pqkeep_keyservice.storage.store import KeyStore
from pqkeep_keyservice.wiring import KeyServiceParts, wire
from pqkeep_protocol.algorithms import Algorithm
from pqkeep_protocol.errors import ErrorKind, KeyServiceError
from pqkeep_protocol.keys import KeyVersion, TenantId
from pqkeep_protocol.messages import (
    Attribution,
    Encrypt,
    GenerateKey,
    PutRule,
    RotateKey,
    ScheduleArchive,
)
from pqkeep_protocol.rules import Rule, RuleUse
from pqkeep_protocol.startup.settings import ConfigError

if TYPE_CHECKING:
    from keyservice.tests.conftest import Location
    from tests.fixtures.postgresql import PostgresServer

    from pqkeep_keyservice.live.worker_processes import WorkerSettings

pytestmark = pytest.mark.parametrize("backend", ["postgresql"], indirect=True)

Sql = Callable[..., list[Any]]
Open = Callable[[], Awaitable[FencedDatabase]]
KEM = Algorithm.ML_KEM_768
TENANT = TenantId(UUID(int=7))
KEY: dict[str, Any] = {"tenant": TENANT, "algorithm": KEM}
WHO = Attribution("request-1", "api-key:3", "192.0.2.7", "plan-allows")
SILENT = "UPDATE service_epoch SET held_until_us = 0 WHERE takeovers = 0"
ASLEEP = "SELECT 1 FROM pg_stat_activity WHERE wait_event = 'PgSleep'"
ROOT_KEY = {"id": 9, "check_value": b"", "added_at_us": 1}


async def until(condition: Callable[[], bool], meanwhile: Callable[[], object] = int) -> None:
    """Wait until a condition is true, and call a function in between."""
    async with asyncio.timeout(PATIENCE):
        while not condition():
            await asyncio.to_thread(meanwhile)
            await asyncio.sleep(0.01)


async def next_epoch(database: FencedDatabase, after: int) -> int:
    """Wait for an epoch other than ``after``, and return it."""
    await until(lambda: database.writer.epoch not in {0, after})
    return database.writer.epoch


def one(connection: sa.Connection) -> object:
    """Run a statement, for a transaction."""
    return connection.execute(sa.select(1)).scalar_one()


def add_root_key(connection: sa.Connection) -> None:
    """Write a row."""
    connection.execute(sa.insert(ROOT_KEYS), ROOT_KEY)


@pytest.fixture
async def opened(
    postgres_server: PostgresServer, location: Location, sql: Sql
) -> AsyncIterator[Open]:
    """Open the database as several key services, one after another, and close all of them."""
    ((name,),) = sql("SELECT current_database()")
    url = postgres_server.url("pqkeep_keyservice", name)
    async with AsyncExitStack() as stack:

        async def open_() -> FencedDatabase:
            database = await stand_by_postgresql(url)
            stack.push_async_callback(database.close)
            return database

        yield open_


async def test_a_standby_takes_over_what_is_given_up(opened: Open) -> None:
    """The second waits without an error, refuses requests, and begins the next epoch."""
    active, standby = await opened(), await opened()
    assert (active.writer.epoch, active.writer.takeovers) == (1, 0)
    await until(lambda: standby.writer.is_standing_by)
    assert not standby.writer.epoch
    for run in (standby.write, standby.read, standby.query):
        with pytest.raises(DatabaseUnavailableError):
            await run(one)
    assert await standby.peek(one) == 1
    await active.close()
    assert await next_epoch(standby, 0) == 2
    assert (await standby.write(one), standby.writer.takeovers, standby.writer.is_standing_by) == (
        1,
        1,
        False,
    )


async def test_a_holder_that_is_heard_of_is_left_alone(opened: Open, sql: Sql) -> None:
    """An idle holder renews its time by itself."""
    active, standby = await opened(), await opened()
    await until(lambda: standby.writer.is_standing_by)
    renewed = set[int]()
    await until(
        lambda: len(renewed) >= 3,
        lambda: renewed.update(row[0] for row in sql("SELECT held_until_us FROM service_epoch")),
    )
    assert (active.writer.epoch, standby.writer.is_standing_by) == (1, True)


@pytest.mark.threat("replaced-key-service")
async def test_a_silent_holder_loses_its_session(opened: Open, sql: Sql) -> None:
    """A silent holder's session is ended, and it becomes the standby."""
    active, standby = await opened(), await opened()
    await until(lambda: bool(standby.writer.epoch), lambda: sql(SILENT))
    epoch = standby.writer.epoch
    assert (epoch > 1, standby.writer.takeovers) == (True, 1)
    await until(lambda: active.writer.is_standing_by)
    with pytest.raises(DatabaseUnavailableError):
        await active.write(add_root_key)
    assert sql("SELECT count(*) FROM root_keys WHERE id = 9") == [(0,)]
    await standby.close()
    assert await next_epoch(active, epoch) > epoch


async def test_a_holder_that_the_server_works_for_is_left_alone(opened: Open, sql: Sql) -> None:
    """A long statement, as with a slow disk, does not end the session."""
    active, standby = await opened(), await opened()
    await until(lambda: standby.writer.is_standing_by)
    await active.write(one)

    def wait(connection: sa.Connection) -> object:
        return connection.exec_driver_sql("SELECT 1 FROM pg_sleep(1)").scalar_one()

    waiting = asyncio.create_task(active.read(wait))
    await until(lambda: waiting.done() or bool(sql(ASLEEP)))
    await asyncio.to_thread(sql, SILENT)
    assert await waiting == 1


@pytest.mark.threat("replaced-key-service")
async def test_without_the_lock_the_epoch_alone_stops_a_writer(opened: Open, sql: Sql) -> None:
    """A session that wrongly believes to have the lock commits nothing in a later epoch."""
    first = await opened()
    await first.read(lambda c: c.exec_driver_sql("SELECT pg_advisory_unlock_all()").scalar())
    second = await opened()
    assert (first.writer.epoch, second.writer.epoch) == (1, 2)
    with pytest.raises(DatabaseUnavailableError):
        await first.query(one)
    with pytest.raises(DatabaseUnavailableError):
        await first.write(add_root_key)
    assert sql("SELECT count(*) FROM root_keys WHERE id = 9") == [(0,)]
    assert await second.write(one) == 1
    await until(lambda: first.writer.is_standing_by)


async def test_an_old_epoch_s_transaction_ends_before_the_next_begins(
    opened: Open, sql: Sql
) -> None:
    """A transaction in progress delays the next epoch: it commits before, or never."""
    first = await opened()
    await first.read(lambda c: c.exec_driver_sql("SELECT pg_advisory_unlock_all()").scalar())
    order: list[str] = []

    def write(connection: sa.Connection) -> None:
        connection.exec_driver_sql("SELECT pg_sleep(0.5)")
        add_root_key(connection)

    async def write_first() -> None:
        await first.write(write)
        order.append("committed")

    async def begin_second() -> None:
        await asyncio.sleep(0.1)
        await next_epoch(await opened(), 0)
        order.append("begun")

    await asyncio.gather(write_first(), begin_second(), return_exceptions=True)
    committed = sql("SELECT count(*) FROM root_keys WHERE id = 9") == [(1,)]
    assert order == (["committed", "begun"] if committed else ["begun"])


async def test_only_a_key_service_s_session_is_ended(opened: Open, sql: Sql) -> None:
    """A key service waits for a restore that holds the lock, and never ends its session."""
    active = await opened()
    server = active._server
    assert isinstance(server, PostgresqlServer)
    url = server.name
    await active.close()
    with closing(psycopg.connect(url, autocommit=True)) as restore:
        restore.execute("SELECT pg_advisory_lock(%s)", [LOCK])
        standby = await opened()
        await until(lambda: standby.writer.is_standing_by)
        sql(SILENT)
        for _ in range(5):
            await asyncio.sleep(0.1)
            assert restore.execute("SELECT 1").fetchone() == (1,)
    assert await next_epoch(standby, 0) == 2


@pytest.fixture
def wired(
    sealer: Sealer, worker_settings: WorkerSettings, settings: Path
) -> Callable[[FencedDatabase], KeyServiceParts]:
    """Return a function that wires a key service on a database."""

    def new(database: FencedDatabase) -> KeyServiceParts:
        return wire(
            KeyStore(database, sealer),
            sealer,
            worker_settings,
            settings,
            least_destruction_days=0,
        )

    return new


async def running(activation: Activation) -> asyncio.Task[None]:
    """Start the activation's checks for each epoch."""
    await activation.start()
    return asyncio.create_task(activation.run())


async def test_a_key_service_that_took_over_knows_what_the_other_did(
    opened: Open, wired: Callable[[FencedDatabase], KeyServiceParts], sql: Sql
) -> None:
    """Each active key service first checks, continues the log, and uses no outdated key."""
    async with AsyncExitStack() as stack:
        databases = [await opened(), await opened()]
        first, second = parts = [wired(database) for database in databases]
        tasks = []
        for part in parts:
            stack.callback(part.close)
            tasks.append(await running(part.activation))
            stack.callback(tasks[-1].cancel)
        deadline = asyncio.get_running_loop().time() + PATIENCE

        async def run(service: KeyServiceParts, request: Any) -> Any:
            return await service.transactions.execute(request, WHO, deadline)

        assert [database.writer.serving for database in databases] == [1, 0]
        await run(first, GenerateKey(**KEY, quota=None))
        await run(first, RotateKey(**KEY))
        blob = (await run(first, Encrypt(**KEY, version=None, plaintext=b"text"))).ciphertext
        assert blob
        with pytest.raises(KeyServiceError) as refused:
            await run(second, Encrypt(**KEY, version=None, plaintext=b"text"))
        assert refused.value.kind is ErrorKind.UNAVAILABLE
        await until(lambda: bool(databases[1].writer.serving), lambda: sql(SILENT))
        await run(second, ScheduleArchive(days=0, **KEY, version=KeyVersion(1)))
        rotated = await run(second, RotateKey(**KEY))
        assert rotated.key.version == 3
        past, uses = datetime(2020, 1, 1, tzinfo=UTC), (RuleUse.GENERATE_KEY,)
        ended = Rule("end", (KEY["algorithm"],), uses=uses, deny_from=past)
        await run(second, PutRule(tenant=KEY["tenant"], name=ended.name, rules=(ended,)))
        await databases[1].close()
        await until(lambda: bool(databases[0].writer.serving))
        with pytest.raises(KeyServiceError) as refused:
            await run(first, Encrypt(**KEY, version=KeyVersion(1), plaintext=b"text"))
        assert refused.value.kind is ErrorKind.KEY_NOT_FOUND
        with pytest.raises(KeyServiceError) as refused:
            await run(first, RotateKey(**KEY))
        assert refused.value.kind is ErrorKind.RULE_DENIED
    numbers = [row[0] for row in sql("SELECT id FROM audit_records ORDER BY id")]
    assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))


@pytest.mark.threat("swapped-key-service")
async def test_a_standby_with_another_root_key_does_not_start(
    opened: Open,
    wired: Callable[[FencedDatabase], KeyServiceParts],
    worker_settings: WorkerSettings,
    settings: Path,
) -> None:
    """A standby with a wrong root key fails at its start, not at the takeover."""
    first = wired(await opened())
    with closing(first):
        await first.activation.start()
        database, wrong = await opened(), Sealer({1: Secret(bytearray(32))})
        await until(lambda: database.writer.is_standing_by)
        with (
            closing(wire(KeyStore(database, wrong), wrong, worker_settings, settings)) as second,
            pytest.raises(ConfigError, match="not the one that sealed"),
        ):
            await second.activation.start()
