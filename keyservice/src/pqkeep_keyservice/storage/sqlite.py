"""The key service's database in a SQLite file."""

import asyncio
import fcntl
import os
import sqlite3
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import cast

import sqlalchemy as sa
from sqlalchemy.pool import ConnectionPoolEntry

from pqkeep_keyservice.storage.database import Arguments, DatabaseUnavailableError, T
from pqkeep_keyservice.storage.schema import migrate
from pqkeep_keyservice.storage.writer import Writer
from pqkeep_keyservice.threads import Threads
from pqkeep_protocol.commits import problem_of
from pqkeep_protocol.startup.logs import logger
from pqkeep_protocol.startup.settings import ConfigError
from pqkeep_protocol.startup.sqlite_files import EXISTING, OWN_CODE, open_database_file, uri_of

_LOG = logger(__name__)

PRAGMAS = (
    "PRAGMA journal_mode = WAL",
    "PRAGMA synchronous = FULL",  # a finished commit survives a power cut
    "PRAGMA foreign_keys = ON",
    "PRAGMA secure_delete = ON",  # a destroyed seed leaves no copy in free pages
    "PRAGMA busy_timeout = 200",  # no other process writes; see _lock_file
)

WRITERS_PRAGMAS = (
    "PRAGMA cache_size = -65536",  # KiB: enough for the index ends of ten thousand tenants
    "PRAGMA wal_autocheckpoint = 4000",  # pages: a commit that copies them takes 1 ms longer
)
"""Further pragmas for the writing connection."""

_TRANSIENT_ERRORS = frozenset(
    {
        sqlite3.SQLITE_FULL,
        sqlite3.SQLITE_IOERR,  # a limit on the file's size, or a broken disk
        sqlite3.SQLITE_READONLY,  # a file system can become read-only after errors
        sqlite3.SQLITE_CANTOPEN,  # also of the WAL files beside the database
        sqlite3.SQLITE_NOMEM,
        sqlite3.SQLITE_BUSY,
        sqlite3.SQLITE_LOCKED,
    }
)
"""Error codes of possibly temporary conditions."""
_PRIMARY = 0xFF
"""The bits of an extended error code that hold the primary code."""


class SqliteDatabase:
    """A Database with one connection, for one transaction at a time.

    Statements run on the event loop: SQLite executes them in memory within microseconds, while
    another thread would wait for the interpreter lock each time. The commit waits for the disk, so
    it has its own thread.
    """

    def __init__(self, path: str) -> None:
        """Open and migrate the file. An empty file becomes a new database. Raises ConfigError."""
        self._file_lock = _lock_file(path)
        self._commit_thread = Threads("commit")
        self._lock = asyncio.Lock()
        self.writer = Writer.alone()  # the file lock makes it the only writer
        self.is_scrubbed = False  # unknown: data to scrub may remain from a crash
        self._is_failing = False
        self._query_thread = ThreadPoolExecutor(1, thread_name_prefix="query")
        self._engine = engine = sa.create_engine(
            sa.URL.create("sqlite", database=uri_of(path), query=EXISTING),
            isolation_level="AUTOCOMMIT",  # this class begins and ends transactions
            connect_args={"check_same_thread": False},
            hide_parameters=True,
        )
        sa.event.listen(engine, "connect", _on_connect)
        with ExitStack() as on_failure:
            on_failure.callback(os.close, self._file_lock)
            on_failure.callback(self._commit_thread.close)
            on_failure.callback(engine.dispose)
            try:
                self._connection = on_failure.enter_context(engine.connect())
                self.dialect: sa.Dialect = self._connection.dialect
                self._driver = cast(
                    sqlite3.Connection, self._connection.connection.driver_connection
                )
                for pragma in WRITERS_PRAGMAS:
                    self._driver.execute(pragma)
                self._driver.execute("BEGIN IMMEDIATE")
                migrate(self._connection, path)
                self._driver.execute("COMMIT")
            except sa.exc.DatabaseError as error:
                raise ConfigError(f"cannot open the database {path}: {error.orig}") from None
            on_failure.pop_all()

    async def write(
        self, function: Callable[[sa.Connection, *Arguments], T], *arguments: *Arguments
    ) -> T:
        """See ``Database.write``. Raises DatabaseUnavailableError, for example on a full disk."""
        async with self._lock:
            try:
                self._driver.execute("BEGIN IMMEDIATE")
                result = function(self._connection, *arguments)
                await self._in_commit_thread(self._commit)
            except (sqlite3.Error, sa.exc.DBAPIError) as error:
                self._raise_if_transient(error)
                raise
            finally:
                if self._driver.in_transaction:
                    self._driver.execute("ROLLBACK")
        if self._is_failing:
            self._is_failing = False
            _LOG.warning("the database can be written again")
        return result

    async def insert(self, *_: object) -> None:
        """See ``Database.insert``. Statements to a file are fast, so ``write`` is used."""

    async def read(
        self, function: Callable[[sa.Connection, *Arguments], T], *arguments: *Arguments
    ) -> T:
        async with self._lock:
            try:
                return function(self._connection, *arguments)
            except (sqlite3.Error, sa.exc.DBAPIError) as error:
                self._raise_if_transient(error)
                raise

    async def query(
        self, function: Callable[[sa.Connection, *Arguments], T], *arguments: *Arguments
    ) -> T:
        loop = asyncio.get_running_loop()
        try:
            return await loop.run_in_executor(self._query_thread, self._query, function, arguments)
        except (sqlite3.Error, sa.exc.DBAPIError) as error:
            self._raise_if_transient(error)
            raise

    peek = query

    def _query(
        self, function: Callable[[sa.Connection, *Arguments], T], arguments: tuple[*Arguments]
    ) -> T:
        with self._engine.connect() as connection:
            connection.exec_driver_sql("BEGIN")
            try:
                return function(connection, *arguments)
            finally:
                connection.exec_driver_sql("ROLLBACK")

    async def close(self) -> None:
        self._commit_thread.close()
        self._query_thread.shutdown()
        self._connection.close()
        self._engine.dispose()
        os.close(self._file_lock)

    async def scrub(self) -> bool:
        """Empty the write-ahead log, and return True if that succeeded.

        It fails while another process reads the file, for example a backup.
        """
        async with self._lock:
            self.is_scrubbed = await self._in_commit_thread(self._empty_write_ahead_log)
        return self.is_scrubbed

    async def _in_commit_thread(self, function: Callable[[], T]) -> T:
        """Run a function in the commit thread. A cancellation waits for its end.

        Otherwise the caller could roll back while the thread commits, which is an error of SQLite
        in place of the cancellation.
        """
        try:
            return await self._commit_thread.run(function)
        except asyncio.CancelledError:
            await self._commit_thread.run(_nothing)
            raise

    def _commit(self) -> None:
        self._driver.execute("COMMIT")

    def _empty_write_ahead_log(self) -> bool:
        try:
            busy, _, _ = self._driver.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        except sqlite3.OperationalError:
            return False
        return not busy

    def _raise_if_transient(self, error: sqlite3.Error | sa.exc.DBAPIError) -> None:
        """Log a failure once. Raises DatabaseUnavailableError if it may be temporary."""
        cause = error.orig if isinstance(error, sa.exc.DBAPIError) else error
        if getattr(cause, "sqlite_errorcode", 0) & _PRIMARY not in _TRANSIENT_ERRORS:
            return
        if not self._is_failing:
            self._is_failing = True
            _LOG.error("the database cannot be read or written", error=str(cause))
        raise DatabaseUnavailableError(str(cause), problem_of(error)) from None


def _nothing() -> None:
    """Do nothing, behind all earlier functions of a thread."""


def _on_connect(connection: sqlite3.Connection, _: ConnectionPoolEntry) -> None:
    for pragma in PRAGMAS:
        connection.execute(pragma)
    ((count,),) = connection.execute(OWN_CODE)
    if count:
        raise ConfigError(
            "the keys database has views or triggers, which pqkeep does not create: remove them"
        )


def _lock_file(path: str) -> int:
    """Lock the file. Keys are cached, so no other process may write to it."""
    descriptor = open_database_file(path)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise ConfigError(
            f"the database {path} is in use by another key service: stop that one first"
        ) from None
    return descriptor
