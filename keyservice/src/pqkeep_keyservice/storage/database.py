"""The key service's database: how it is opened, and how it is written to."""

import asyncio
import fcntl
import os
import sqlite3
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar, TypeVarTuple, cast

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
    "PRAGMA busy_timeout = 200",  # nobody else writes; see _lock
)


class Database:
    """One connection, used by one transaction at a time.

    Statements run on the event loop: to SQLite they are memory work of microseconds, and in
    another thread each would wait for the interpreter lock. What waits for the disk, the commit,
    has a thread of its own.
    """

    def __init__(self, path: str) -> None:
        """Open the file, creating it if need be, and migrate it. Raises ConfigError."""
        self._lock = _lock(path)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="commit")
        self._turn = asyncio.Lock()
        self.is_scrubbed = True
        engine = sa.create_engine(
            sa.URL.create("sqlite", database=path),
            isolation_level="AUTOCOMMIT",  # transactions begin and end in this class
            connect_args={"check_same_thread": False},
            hide_parameters=True,
        )
        sa.event.listen(engine, "connect", _on_connect)
        try:
            self._connection = engine.connect()
            self._driver = cast(sqlite3.Connection, self._connection.connection.driver_connection)
            self._migrate()
        except (CommandError, sa.exc.DatabaseError) as error:
            engine.dispose()
            os.close(self._lock)
            if isinstance(error, CommandError):
                problem = f"{path} has a schema that this version of pqkeep does not know"
            else:
                problem = f"cannot open the database {path}: {error.orig}"
            raise ConfigError(problem) from None

    @property
    def dialect(self) -> sa.Dialect:
        """What SQL is compiled for."""
        return self._connection.dialect

    @contextmanager
    def transaction(self) -> Iterator[sa.Connection]:
        """Begin a transaction and commit it, blocking: for before the event loop serves."""
        self._driver.execute("BEGIN IMMEDIATE")
        try:
            yield self._connection
            self._driver.execute("COMMIT")
        finally:
            self._roll_back()

    async def write(
        self, function: Callable[[sa.Connection, *Arguments], T], *arguments: *Arguments
    ) -> T:
        """Run a function in a transaction. What it wrote is durable on return."""
        loop = asyncio.get_running_loop()
        async with self._turn:
            self._driver.execute("BEGIN IMMEDIATE")
            try:
                result = function(self._connection, *arguments)
                await loop.run_in_executor(self._thread, self._driver.execute, "COMMIT")
            finally:
                self._roll_back()
        return result

    async def read(
        self, function: Callable[[sa.Connection, *Arguments], T], *arguments: *Arguments
    ) -> T:
        """Run a function that only reads, after every write that was asked for before."""
        async with self._turn:
            return function(self._connection, *arguments)

    def close(self) -> None:
        """Wait for the last commit and close the file."""
        self._thread.shutdown()
        self._connection.close()
        self._connection.engine.dispose()
        os.close(self._lock)

    async def scrub(self) -> bool:
        """Leave no copy of what was deleted in the write-ahead log.

        Return whether that could be done: not while somebody else reads the file, a backup say.
        """
        loop = asyncio.get_running_loop()
        async with self._turn:
            self.is_scrubbed = await loop.run_in_executor(self._thread, self._empty_log)
        return self.is_scrubbed

    def _empty_log(self) -> bool:
        try:
            busy, _, _ = self._driver.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        except sqlite3.OperationalError:
            return False
        return not busy

    def _migrate(self) -> None:
        config = AlembicConfig()
        config.set_main_option("script_location", "pqkeep_keyservice.storage:migrations")
        config.attributes["connection"] = self._connection
        self._driver.execute("BEGIN IMMEDIATE")
        command.upgrade(config, "head")  # commits

    def _roll_back(self) -> None:
        if self._driver.in_transaction:
            self._driver.execute("ROLLBACK")


def _on_connect(connection: sqlite3.Connection, _: ConnectionPoolEntry) -> None:
    for pragma in PRAGMAS:
        connection.execute(pragma)


def _lock(path: str) -> int:
    """Take the database for this process alone: keyrings are cached, and nobody else may write."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
        raise ConfigError(f"cannot open the database {path}: {error.strerror}") from None
    if os.fstat(descriptor).st_mode & 0o077:
        problem = "can be read by others; its mode must be 0600"
    else:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            problem = "is in use by another key service"
        else:
            return descriptor
    os.close(descriptor)
    raise ConfigError(f"the database {path} {problem}")
