"""The requirements for a SQLite file, and the settings of SQLite."""

import asyncio
import resource
import sqlite3
import stat
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
import sqlalchemy as sa

from pqkeep_keyservice.storage.database import Database, DatabaseUnavailableError
from pqkeep_keyservice.storage.sqlite import SqliteDatabase
from pqkeep_protocol.algorithms import Algorithm
from pqkeep_protocol.keys import TenantId
from pqkeep_protocol.messages import Attribution, GenerateKey, KeyService
from pqkeep_protocol.startup.settings import ConfigError


@pytest.mark.parametrize(
    ("pragma", "value"),
    [
        ("journal_mode", "wal"),
        ("synchronous", 2),  # FULL
        ("foreign_keys", 1),
        ("secure_delete", 1),
        ("busy_timeout", 200),
        ("wal_autocheckpoint", 4000),
    ],
)
async def test_pragmas_are_in_force(pragma: str, value: object, database: Database) -> None:
    """SQLite reports each setting on the writing connection."""
    query = f"PRAGMA {pragma}"
    assert await database.read(lambda c: c.exec_driver_sql(query).scalar()) == value


@pytest.mark.parametrize("content", [b"not a database" * 100, b"SQLite format 3\0" + bytes(4080)])
def test_a_file_that_is_no_database_is_refused(database_path: Path, content: bytes) -> None:
    """Another file is a ConfigError, and is not changed."""
    database_path.write_bytes(content)
    database_path.chmod(0o600)
    with pytest.raises(ConfigError, match="cannot open"):
        SqliteDatabase(str(database_path))
    assert database_path.read_bytes() == content


@pytest.mark.threat("keys-database-writer")
@pytest.mark.parametrize(
    "planted",
    [
        "CREATE VIEW planted AS SELECT 1",
        "ALTER TABLE keyrings RENAME TO others; CREATE VIEW keyrings AS SELECT * FROM others",
        "CREATE TRIGGER planted AFTER INSERT ON keys BEGIN DELETE FROM audit_records; END",
    ],
)
def test_a_database_with_code_is_refused(planted: str, database_path: Path) -> None:
    """A view or a trigger that an attacker added to the file is refused by name, and does not run."""
    asyncio.run(SqliteDatabase(str(database_path)).close())
    with closing(sqlite3.connect(database_path)) as writer:
        writer.executescript(planted)
    with pytest.raises(ConfigError, match="views or triggers"):
        SqliteDatabase(str(database_path))


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o604, 0o620, 0o602, 0o666, 0o601])
def test_a_database_open_to_others_is_refused(mode: int, database_path: Path) -> None:
    """A database with any right for group or others is not opened or changed."""
    asyncio.run(SqliteDatabase(str(database_path)).close())
    content = database_path.read_bytes()
    database_path.chmod(mode)
    with pytest.raises(ConfigError, match="its mode must be 0600"):
        SqliteDatabase(str(database_path))
    assert database_path.read_bytes() == content
    assert stat.S_IMODE(database_path.stat().st_mode) == mode
    database_path.chmod(0o600)
    asyncio.run(SqliteDatabase(str(database_path)).close())


def test_a_folder_that_is_not_there_is_a_clear_error(tmp_path: Path) -> None:
    """A path that cannot be opened is a ConfigError with the path."""
    with pytest.raises(ConfigError, match="missing"):
        SqliteDatabase(str(tmp_path / "missing" / "keys.sqlite3"))


@pytest.mark.parametrize("has_schema", [False])
async def test_only_the_owner_can_read_the_files(
    database_path: Path, keys: KeyService, tenant: TenantId, attribution: Attribution
) -> None:
    """The database and its WAL files have mode 0600, whatever the umask."""
    generate = GenerateKey(tenant=tenant, algorithm=Algorithm.ML_KEM_768, quota=None)
    await keys.execute(generate, attribution)
    modes = {
        path.name: stat.S_IMODE(path.stat().st_mode) for path in database_path.parent.iterdir()
    }
    assert modes == dict.fromkeys(["keys.sqlite3", "keys.sqlite3-wal", "keys.sqlite3-shm"], 0o600)


@pytest.fixture
def no_room_for_files() -> Iterator[None]:
    """Limit the growth of files, including temporary ones."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (64 * 1024, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


def sort_on_disk(connection: sa.Connection) -> object:
    """Read more than fits in memory for a sort."""
    numbers = "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 30000)"
    query = f"{numbers} SELECT randomblob(5000) AS bytes FROM n ORDER BY bytes"  # noqa: S608
    return connection.exec_driver_sql(query).first()


@pytest.mark.usefixtures("database", "no_room_for_files")
@pytest.mark.parametrize("kind", ["read", "query"])
async def test_a_disk_that_fails_while_it_is_read(kind: str, database: Database) -> None:
    """A disk error during a read is DatabaseUnavailableError too."""
    with pytest.raises(DatabaseUnavailableError):
        await getattr(database, kind)(sort_on_disk)


async def test_a_cancelled_write_waits_for_its_commit(database_path: Path) -> None:
    """A task that is cancelled during its commit ends as cancelled, and the commit is whole.

    A rollback meanwhile would raise an error of SQLite in place of the cancellation.
    """
    database = SqliteDatabase(str(database_path))
    loop, is_committing, is_cancelled = (
        asyncio.get_running_loop(),
        asyncio.Event(),
        threading.Event(),
    )

    def trace(statement: str) -> None:
        if statement == "COMMIT":
            loop.call_soon_threadsafe(is_committing.set)
            is_cancelled.wait(
                1
            )  # a rollback would wait for this thread, which holds the connection

    def create(connection: sa.Connection) -> None:
        connection.exec_driver_sql("CREATE TABLE written (number INTEGER)")

    database._driver.set_trace_callback(trace)
    writing = asyncio.create_task(database.write(create))
    await is_committing.wait()
    writing.cancel()
    loop.call_later(0.05, is_cancelled.set)
    with pytest.raises(asyncio.CancelledError):
        await writing
    database._driver.set_trace_callback(None)
    count = "SELECT count(*) FROM written"
    assert await database.read(lambda c: c.exec_driver_sql(count).scalar()) == 0
    await database.close()
