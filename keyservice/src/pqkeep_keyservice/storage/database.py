"""The key service's database: how it is opened, and the one thread that uses it."""

import asyncio
import sqlite3
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar, TypeVarTuple

import sqlalchemy as sa
from alembic import command
from alembic.config import Config as AlembicConfig
from alembic.util import CommandError
from sqlalchemy.pool import ConnectionPoolEntry

from pqkeep_keyservice.config import ConfigError

T = TypeVar("T")
Arguments = TypeVarTuple("Arguments")

PRAGMAS = (
    "PRAGMA journal_mode = WAL",
    "PRAGMA synchronous = FULL",  # a commit that returned survives a power cut
    "PRAGMA foreign_keys = ON",
    "PRAGMA secure_delete = ON",  # a destroyed seed leaves no copy in free pages
    "PRAGMA busy_timeout = 5000",
)


class Database:
    """One connection, used by one thread, so that reads see every write before them."""

    def __init__(self, path: str) -> None:
        """Open the file, creating it if need be, and migrate it. Raises ConfigError."""
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="database")
        self._engine = sa.create_engine(
            sa.URL.create("sqlite", database=path),
            poolclass=sa.StaticPool,
            connect_args={"check_same_thread": False},
            hide_parameters=True,
        )
        sa.event.listen(self._engine, "connect", _on_connect)
        sa.event.listen(self._engine, "begin", _on_begin)
        try:
            Path(path).touch(mode=0o600)
            _migrate(self._engine)
        except CommandError:
            raise ConfigError(
                f"{path} has a schema that this version of pqkeep does not know"
            ) from None
        except (OSError, sa.exc.DatabaseError) as error:
            cause = getattr(error, "orig", error)
            raise ConfigError(f"cannot open the database {path}: {cause}") from None

    def begin(self) -> sa.Connection:
        """Begin a transaction. Blocks; only for the database's own thread, or before it runs."""
        return self._engine.begin()  # type: ignore[return-value]

    async def run(self, function: Callable[[*Arguments], T], *arguments: *Arguments) -> T:
        """Run a function on the database's thread, after all that was asked before."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._thread, function, *arguments)

    def close(self) -> None:
        """Wait for what was asked and close the file."""
        self._thread.shutdown()
        self._engine.dispose()


def _on_connect(connection: sqlite3.Connection, _: ConnectionPoolEntry) -> None:
    connection.isolation_level = None  # transactions begin where we say, see _on_begin
    for pragma in PRAGMAS:
        connection.execute(pragma)


def _on_begin(connection: sa.Connection) -> None:
    connection.exec_driver_sql("BEGIN IMMEDIATE")


def _migrate(engine: sa.Engine) -> None:
    config = AlembicConfig()
    config.set_main_option("script_location", "pqkeep_keyservice.storage:migrations")
    with engine.begin() as connection:
        config.attributes["connection"] = connection
        command.upgrade(config, "head")
