"""The accounts database in a SQLite file: its refusals and its configuration."""

import asyncio
import sqlite3
import threading
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from pqkeep_gateway.storage.database import open_database
from pqkeep_protocol.startup.settings import ConfigError


@pytest.fixture(autouse=True)
async def _threads_end() -> AsyncIterator[None]:
    """Keep the event loop until aiosqlite's threads have ended, because they report to it."""
    yield
    for thread in threading.enumerate():
        if thread.name.endswith("(_connection_worker_thread)"):
            await asyncio.to_thread(thread.join)


async def test_a_commit_survives_a_power_cut(engine: AsyncEngine) -> None:
    """Every connection uses WAL, synchronous = FULL and foreign keys."""
    async with engine.begin() as connection:
        for pragma, value in (("journal_mode", "wal"), ("synchronous", 2), ("foreign_keys", 1)):
            found = await connection.exec_driver_sql(f"PRAGMA {pragma}")
            assert found.scalar_one() == value


@pytest.fixture
def no_database(database_path: Path) -> Path:
    """A file that is not a database."""
    database_path.write_bytes(b"no database" * 1000)
    return database_path


async def test_a_file_that_is_no_database_is_refused(no_database: Path) -> None:
    """The error names the file."""
    with pytest.raises(ConfigError, match=str(no_database)):
        await open_database(str(no_database))


@pytest.mark.parametrize(
    "planted",
    [
        "CREATE VIEW planted AS SELECT 1",
        "CREATE TRIGGER planted AFTER INSERT ON users BEGIN DELETE FROM api_keys; END",
    ],
)
async def test_a_database_with_code_is_refused(planted: str, database_path: Path) -> None:
    """A view or a trigger that a writer of the file planted is named, and does not run."""
    engine = await open_database(str(database_path))
    await engine.dispose()
    with closing(sqlite3.connect(database_path)) as writer:
        writer.executescript(planted)
    with pytest.raises(ConfigError, match="views or triggers"):
        await open_database(str(database_path))


async def test_a_missing_folder_is_refused(tmp_path: Path) -> None:
    """The error names the path."""
    with pytest.raises(ConfigError, match="nowhere"):
        await open_database(str(tmp_path / "nowhere" / "accounts.sqlite3"))


async def test_a_new_file_that_another_one_is_writing_is_waited_for(tmp_path: Path) -> None:
    """Several gateways that start at once on a new file all open it."""
    path = tmp_path / "accounts.sqlite3"
    path.touch(0o600)
    with closing(sqlite3.connect(path, isolation_level=None, check_same_thread=False)) as other:
        other.execute("BEGIN IMMEDIATE")
        other.execute("PRAGMA user_version = 1")
        threading.Timer(0.3, other.execute, ["ROLLBACK"]).start()
        engine = await open_database(str(path))
        await engine.dispose()
