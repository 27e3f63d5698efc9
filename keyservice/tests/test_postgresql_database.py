"""The key service with a PostgreSQL server that disconnects, hangs or is misconfigured."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import UUID

import psycopg
import pytest
import sqlalchemy as sa
from tests.fixtures.postgresql import PASSWORD
from tests.patience import PATIENCE

from pqkeep_keyservice.audit.log import AuditLog
from pqkeep_keyservice.keys.changes import CommitOutcome, KeyChange
from pqkeep_keyservice.keys.key_versions import KeyName, SealedSeed
from pqkeep_keyservice.keys.sealing import Sealer, associated_data
from pqkeep_keyservice.ledger.records import NewRecord
from pqkeep_keyservice.storage import fenced_database
from pqkeep_keyservice.storage.database import DatabaseUnavailableError
from pqkeep_keyservice.storage.fenced_database import FencedDatabase
from pqkeep_keyservice.storage.key_versions import find_key_versions, replace_key_versions
from pqkeep_keyservice.storage.postgresql import LOCK, open_postgresql
from pqkeep_keyservice.storage.store import KeyStore
from pqkeep_protocol.algorithms import Algorithm, Operation
from pqkeep_protocol.errors import ErrorKind, KeyServiceError
from pqkeep_protocol.keys import DEFAULT_KEYRING, KeyVersion, TenantId
from pqkeep_protocol.messages import (
    Attribution,
    Encrypt,
    GenerateKey,
    GetActiveKey,
    KeyService,
    RotateKey,
    ScheduleArchive,
)
from pqkeep_protocol.startup.settings import ConfigError

if TYPE_CHECKING:
    from keyservice.tests.conftest import Location
    from tests.fixtures.postgresql import PostgresServer

pytestmark = pytest.mark.parametrize("backend", ["postgresql"], indirect=True)

Sql = Callable[..., list[Any]]
KEM = Algorithm.ML_KEM_768
TENANT = TenantId(UUID(int=7))


def row(request_id: str = "request") -> NewRecord:
    """Return a record, identified by its request."""
    return NewRecord(TENANT, "p", Operation.ROTATE_KEY, KEM, 1, "success", request_id, "a", "y")


def one(connection: sa.Connection) -> object:
    """Run a statement, for a transaction."""
    return connection.execute(sa.select(1)).scalar_one()


async def until(condition: Callable[[], bool]) -> None:
    """Wait until a condition is true."""
    async with asyncio.timeout(PATIENCE):
        while not condition():  # noqa: ASYNC110 - it happens elsewhere
            await asyncio.sleep(0.01)


async def until_back(database: FencedDatabase, epoch: int) -> None:
    """Wait for a new session after an epoch."""
    await until(lambda: database.writer.epoch > epoch)


@pytest.fixture
def name(sql: Sql) -> str:
    """Return the database's name on its server."""
    ((found,),) = sql("SELECT current_database()")
    return str(found)


async def test_a_lost_session_is_found_again(
    database: FencedDatabase, postgres_server: PostgresServer, name: str
) -> None:
    """After the server disconnects, a new session and a new epoch begin automatically."""
    assert database.writer.epoch == 1
    for epoch in (2, 3):
        await asyncio.to_thread(postgres_server.end_connections, name)
        await until_back(database, epoch - 1)
        assert database.writer.epoch == epoch
        assert await database.write(one) == 1


async def test_a_server_that_hangs_is_out_of_reach(
    database: FencedDatabase,
    postgres_server: PostgresServer,
    name: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A transaction without a response is given up, and the next one works."""
    with postgres_server.frozen(name), monkeypatch.context() as impatient:
        impatient.setattr(fenced_database, "RESPONSE_SECONDS", 1.0)
        with pytest.raises(DatabaseUnavailableError):
            await database.write(one)
        with pytest.raises(
            DatabaseUnavailableError
        ):  # at once: the lock is still the hanging session's
            await database.write(one)
    await until_back(database, 1)
    assert await database.write(one) == 1


@pytest.fixture
def rival(sql: Sql, postgres_server: PostgresServer, name: str, sealer: Sealer) -> Iterator[Rival]:
    """Return another key service that waits for the lock, from the database's view."""
    url = postgres_server.url("pqkeep_keyservice", name)
    with psycopg.connect(url, autocommit=True) as connection:
        yield Rival(connection, url.replace("postgresql", "postgresql+psycopg", 1), sealer)


@dataclass(frozen=True)
class Rival:
    """Takes the lock when it is free, and changes keys."""

    connection: psycopg.Connection[Any]
    url: str
    sealer: Sealer

    def take(self) -> None:
        self.connection.execute("SELECT pg_advisory_lock(%s)", [LOCK])

    def retire(self, tenant: TenantId) -> None:
        engine = sa.create_engine(self.url, poolclass=sa.NullPool)
        with engine.begin() as connection:
            active = find_key_versions(connection, self.sealer, KeyName(tenant, KEM), 0)
            retired = KeyChange(active, active.with_retired(KeyVersion(1), datetime.now(UTC)))
            assert replace_key_versions(connection, self.sealer, retired) is CommitOutcome.DURABLE

    def release(self) -> None:
        self.connection.execute("SELECT pg_advisory_unlock(%s)", [LOCK])


async def test_what_another_key_service_changed_is_seen(
    keys: KeyService,
    database: FencedDatabase,
    postgres_server: PostgresServer,
    name: str,
    rival: Rival,
    tenant: TenantId,
    attribution: Attribution,
) -> None:
    """While another holder has the lock, requests are refused. Later they see its changes."""
    encrypt = Encrypt(tenant=tenant, algorithm=KEM, version=None, plaintext=b"text")
    await keys.execute(GenerateKey(tenant=tenant, algorithm=KEM, quota=None), attribution)
    await keys.execute(encrypt, attribution)
    (ours,) = (
        pid for pid in postgres_server.backends(name) if pid != rival.connection.info.backend_pid
    )
    taken = asyncio.create_task(asyncio.to_thread(rival.take))
    waiting = "SELECT 1 FROM pg_locks WHERE locktype='advisory' AND NOT granted"
    await until(lambda: bool(postgres_server.sql(waiting)))
    await asyncio.to_thread(postgres_server.sql, "SELECT pg_terminate_backend(%s)", ours)
    await taken
    for _ in range(3):
        with pytest.raises(KeyServiceError) as refused:
            await keys.execute(encrypt, attribution)
        assert refused.value.kind is ErrorKind.UNAVAILABLE
    await asyncio.to_thread(rival.retire, tenant)
    rival.release()
    await until_back(database, 1)
    with pytest.raises(KeyServiceError) as refused:
        await keys.execute(encrypt, attribution)
    assert refused.value.kind is ErrorKind.KEY_NOT_FOUND


async def test_work_of_an_earlier_epoch_is_stale(
    database: FencedDatabase,
    store: KeyStore,
    postgres_server: PostgresServer,
    name: str,
    sql: Sql,
) -> None:
    """A result from before the session was lost is not recorded afterwards."""
    log = AuditLog(store)
    await asyncio.to_thread(postgres_server.end_connections, name)
    await until_back(database, 1)
    early, late = log.commit(row("early"), epoch=1), log.commit(row("late"), epoch=2)
    assert [*await asyncio.gather(early, late)] == [CommitOutcome.STALE, CommitOutcome.DURABLE]
    assert await store.commit([(row("early"), None)], epoch=1) == [CommitOutcome.STALE]
    assert sql("SELECT request_id FROM audit_records") == [("late",)]


async def test_a_key_survives_every_hang_up_or_is_not_made(
    keys: KeyService,
    database: FencedDatabase,
    postgres_server: PostgresServer,
    name: str,
    tenant: TenantId,
    attribution: Attribution,
    sql: Sql,
) -> None:
    """Each rotation with a response is stored in order, across repeated disconnections."""
    await keys.execute(GenerateKey(tenant=tenant, algorithm=KEM, quota=None), attribution)
    rotate = RotateKey(tenant=tenant, algorithm=KEM)
    answered, refusals = [1], set()
    for _ in range(5):
        hanging_up = asyncio.create_task(asyncio.to_thread(postgres_server.end_connections, name))
        for _ in range(40):
            try:
                answered.append((await keys.execute(rotate, attribution)).key.version)
            except KeyServiceError as refused:
                refusals.add(refused.kind)
                await asyncio.sleep(0.01)
        await hanging_up
    assert refusals <= {ErrorKind.UNAVAILABLE}
    await until_back(database, 5)
    stored = [version for (version,) in sql("SELECT version FROM keys ORDER BY version")]
    assert stored == list(range(1, len(stored) + 1))
    assert set(answered) <= set(stored)
    assert answered == sorted(set(answered))
    recorded = sql("SELECT key_version FROM audit_records WHERE operation = 'rotate-key'")
    assert sorted(version for (version,) in recorded) == stored[1:]
    active = GetActiveKey(tenant=tenant, algorithm=KEM)
    assert (await keys.execute(active, attribution)).key.version == stored[-1]


async def test_a_server_without_fsync_is_refused(
    location: Location, postgres_server: PostgresServer
) -> None:
    """The key service does not start if commits would not survive a power cut."""
    postgres_server.sql("ALTER SYSTEM SET fsync = off")
    try:
        postgres_server.sql("SELECT pg_reload_conf()")
        await until(lambda: postgres_server.sql("SHOW fsync") == [("off",)])
        with pytest.raises(ConfigError, match="fsync"):
            await location.open()
    finally:
        postgres_server.sql("ALTER SYSTEM RESET fsync")
        postgres_server.sql("SELECT pg_reload_conf()")
        await until(lambda: postgres_server.sql("SHOW fsync") == [("on",)])


@pytest.mark.parametrize(
    ("default", "used"), [("off", "on"), ("local", "local"), ("on", "on"), ("remote_apply",) * 2]
)
async def test_commits_wait_for_the_disk(
    default: str, used: str, location: Location, sql: Sql, name: str
) -> None:
    """The session overrides a default of not waiting for the disk, and no other default."""
    sql(f"ALTER DATABASE {name} SET synchronous_commit = {default}")
    database = await location.open()
    query = "SHOW synchronous_commit"
    assert await database.read(lambda c: c.exec_driver_sql(query).scalar()) == used
    await database.close()


async def test_no_deleted_row_stays_in_the_table(
    keys: KeyService,
    tenant: TenantId,
    attribution: Attribution,
    postgres_server: PostgresServer,
    name: str,
) -> None:
    """After archiving, the table's pages have only current rows."""
    key: dict[str, Any] = {"tenant": tenant, "algorithm": KEM}
    await keys.execute(GenerateKey(**key, quota=None), attribution)
    for _ in range(10):
        await keys.execute(RotateKey(**key), attribution)
    postgres_server.sql("CREATE EXTENSION pageinspect", database=name)
    rows = (
        "SELECT count(*) FROM generate_series(0, pg_relation_size('keys') / 8192 - 1) AS page,"
        " heap_page_items(get_raw_page('keys', page::int)) WHERE t_data IS NOT NULL"
    )
    assert postgres_server.sql(rows, database=name)[0][0] > 11
    for version in (3, 1, 2):
        await keys.execute(ScheduleArchive(days=0, **key, version=KeyVersion(version)), attribution)
    assert postgres_server.sql(rows, database=name) == [(11,)]


async def test_no_private_key_is_in_the_server_s_files(
    keys: KeyService,
    sealer: Sealer,
    tenant: TenantId,
    attribution: Attribution,
    postgres_server: PostgresServer,
    sql: Sql,
) -> None:
    """The server's files and log have public keys, and no seeds."""
    key: dict[str, Any] = {"tenant": tenant, "algorithm": KEM}
    await keys.execute(GenerateKey(**key, quota=None), attribution)
    for _ in range(5):
        await keys.execute(RotateKey(**key), attribution)
    postgres_server.sql("CHECKPOINT")
    files = b"".join(
        path.read_bytes() for path in postgres_server.data.rglob("*") if path.is_file()
    )
    for version, public_key, sealed in sql("SELECT version, public_key, sealed_seed FROM keys"):
        where = associated_data(tenant, DEFAULT_KEYRING, KEM, version, public_key)
        assert files.find(public_key) >= 0
        assert files.find(sealed) >= 0
        seed = bytes(sealer.unseal(SealedSeed(sealed), where).reveal())
        assert all(files.find(half) < 0 for half in (seed[:32], seed[32:]))


async def test_a_password_comes_from_its_file(
    with_password: str, server_password_file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The database opens only with the right password file."""
    database = await open_postgresql(with_password, server_password_file)
    assert PASSWORD not in repr([vars(database), vars(database._server)])
    await database.close()
    server_password_file.write_text("*:*:*:with_password:wrong-horse\n")  # noqa: ASYNC240 - a few bytes
    for file in (server_password_file, None):
        with pytest.raises(ConfigError, match="with_password") as refused:
            await open_postgresql(with_password, file)
        assert "horse" not in str(refused.value)
    assert "horse" not in caplog.text


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o644])
async def test_a_password_file_open_to_others_is_refused(
    mode: int, server_password_file: Path, location: Location
) -> None:
    """A password file that others can read is refused by name, before any connection."""
    server_password_file.chmod(mode)  # noqa: ASYNC240 - no waiting
    with pytest.raises(ConfigError, match="passwords: other users have access"):
        await open_postgresql("postgresql://nobody@127.0.0.1:9/none", server_password_file)


async def test_a_server_that_is_not_there_may_come(location: Location) -> None:
    """A server that does not listen is unavailable, and not a configuration error."""
    with pytest.raises(DatabaseUnavailableError, match=r"127\.0\.0\.1"):
        await open_postgresql("postgresql://pqkeep_keyservice@127.0.0.1:9/pqkeep_keys")


async def test_a_database_that_is_not_there_is_a_clear_error(
    location: Location, postgres_server: PostgresServer
) -> None:
    """A database name that the server does not know is a configuration error."""
    for role, name in (("pqkeep_keyservice", "missing"), ("missing", "pqkeep_keys")):
        with pytest.raises(ConfigError, match="missing"):
            await open_postgresql(postgres_server.url(role, name))
