"""The files that remain beside a closed accounts database."""

import asyncio
import gc
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncEngine

from pqkeep_gateway.storage.database import (
    close_database,
    open_database,
    read_transaction,
    transaction,
)

SLOW = "WITH RECURSIVE n(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM n LIMIT 3000000) SELECT sum(n) FROM n"
"""A statement of about a second."""


@pytest.fixture
async def file(tmp_path: Path) -> Path:
    """A closed accounts database with its schema."""
    path = tmp_path / "accounts.sqlite3"
    path.touch(0o600)
    await close_database(await open_database(str(path)))
    return path


@pytest.fixture
async def engine(file: Path) -> AsyncIterator[AsyncEngine]:
    """The same database, open again."""
    engine = await open_database(str(file))
    yield engine
    await engine.dispose()


def _names(file: Path) -> list[str]:
    return sorted(path.name for path in file.parent.iterdir())


async def test_a_task_cancelled_within_a_statement(file: Path, engine: AsyncEngine) -> None:
    """Closing waits for the statement of a task that was cancelled twice, so no WAL remains."""
    begun = asyncio.Event()

    async def work() -> None:
        async with transaction(engine) as connection:
            begun.set()
            await connection.execute(sa.text(SLOW))

    task = asyncio.create_task(work())
    await begun.wait()
    await asyncio.sleep(0)
    while not task.done():  # the second has the driver close it without being awaited
        task.cancel()
        await asyncio.sleep(0)
    await close_database(engine)
    assert _names(file) == [file.name]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("moment", ["do_connect", "connect"])
async def test_a_task_cancelled_while_it_connects(file: Path, moment: str) -> None:
    """A connection that is not in the pool yet is closed, too."""
    engine = await open_database(str(file))

    async def work() -> None:
        async with (
            read_transaction(engine),
            read_transaction(engine),
        ):  # the second opens a connection
            pass

    task = asyncio.create_task(work())
    connecting = asyncio.Event()

    def cancel(*_: object) -> None:
        connecting.set()
        task.cancel()

    sa.event.listen(engine.sync_engine, moment, cancel, insert=True)
    await asyncio.wait([task])
    assert connecting.is_set()
    assert task.cancelled()
    await close_database(engine)
    gc.collect()  # a connection that no statement used: from 3.13 on, Python warns of it
    assert _names(file) == [file.name]
