"""Opens the accounts database, SQLite or PostgreSQL, and its transactions."""

import asyncio
import os
import sqlite3
import threading
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from weakref import WeakSet

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine

from pqkeep_gateway.access.credentials import Pepper, Purpose
from pqkeep_gateway.rehearsal import before_change
from pqkeep_gateway.storage.row_mac import ROW_KEY
from pqkeep_gateway.storage.time_limits import LIMITS, TRANSACTION_SECONDS, TimeLimits
from pqkeep_gateway.unavailable import UnavailableError
from pqkeep_protocol.commits import Commits, problem_of
from pqkeep_protocol.startup import sqlite_files
from pqkeep_protocol.startup.logs import logger
from pqkeep_protocol.startup.postgresql import (
    OWN_CODE,
    is_permanent,
    problem_with,
    require_no_code,
    require_version,
)
from pqkeep_protocol.startup.settings import POSTGRESQL, ConfigError
from pqkeep_protocol.startup.sqlite_files import EXISTING, open_database_file, uri_of

_LOG = logger(__name__)

COMMITS = "commits"
"""The execution option with the Commits of an engine's database."""

CLOSING_SECONDS = 5.0
"""The longest wait for a file to close."""

_FILES = "files"
"""The execution option with the _Files of an engine on a file."""

_HAS_CHANGES = "has changes"
"""The key in a connection's info: whether its transaction has changes to commit."""

SQLITE_READ_ONLY = "sqlite_readonly"
"""The option of a read-only connection, named after PostgreSQL's."""

READ_ONLY: Mapping[str, bool] = {"postgresql_readonly": True, SQLITE_READ_ONLY: True}
"""The options of a read-only connection; a dialect ignores those of others."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MICROSECOND = timedelta(microseconds=1)


async def open_database(
    location: str,
    password_file: Path | None = None,
    limits: TimeLimits = LIMITS,
    *,
    pepper: Pepper | None = None,
) -> AsyncEngine:
    """Open a file or connect to a server; create the schema if it is missing.

    ``limits``: for a server, and for the lock of a file. Without the pepper, rows with a MAC cannot be
    written or read: see row_mac. A database with the schema of another version is refused and stays
    unchanged. Raises ConfigError, and UnavailableError if another attempt may succeed.
    """
    on_server = location.startswith(POSTGRESQL)
    engine = (
        _server(location, password_file, limits) if on_server else sqlite_engine(location, limits)
    )
    if pepper is not None:
        engine.update_execution_options(**{ROW_KEY: pepper.derive(Purpose.ROW)})
    engine.sync_engine.update_execution_options(**{COMMITS: Commits()})
    sa.event.listen(engine.sync_engine, "after_cursor_execute", _note_changes)
    try:
        async with engine.begin() as connection:
            if on_server:
                require_version(connection.dialect.server_version_info, location)
                require_no_code((await connection.exec_driver_sql(OWN_CODE)).scalar(), location)
            await connection.run_sync(migrate, location)
    except ConfigError:
        await close_database(engine)
        raise
    except (sa.exc.SQLAlchemyError, OSError) as error:
        await close_database(engine)
        if not on_server:
            raise ConfigError(f"cannot open the database {location}: {_problem(error)}") from None
        problem = problem_with(error, location)
        if is_permanent(error):
            raise ConfigError(problem) from None
        _LOG.error("the accounts database is unavailable", error=problem)
        raise UnavailableError from None
    return engine


async def close_database(engine: AsyncEngine) -> None:
    """Close all connections, and wait until a file's are closed: the last one empties the WAL.

    The driver closes the connection of a cancelled task in a thread, which the process would not
    wait for. The wait for a hanging one ends after ``CLOSING_SECONDS``.
    """
    await engine.dispose()
    files = engine.sync_engine.get_execution_options().get(_FILES)
    if files is not None:
        await asyncio.to_thread(files.wait_until_closed, CLOSING_SECONDS)


def transaction(engine: AsyncEngine) -> AbstractAsyncContextManager[AsyncConnection]:
    """Begin a transaction that writes, and commit it at the end. Raises UnavailableError.

    The database's Commits record its outcome. In a rehearsal it is rolled back, and RehearsedError
    raised. A violated constraint raises sqlalchemy.exc.IntegrityError.
    """
    return _transaction(engine, read_only=False)


def read_transaction(engine: AsyncEngine) -> AbstractAsyncContextManager[AsyncConnection]:
    """Begin a read-only transaction, which waits for no writer. Raises UnavailableError."""
    return _transaction(engine, read_only=True)


def _note_changes(connection: sa.Connection, cursor: Any, *other: Any) -> None:
    """Mark a connection when a statement has changed rows: other commits write nothing."""
    context = other[2]
    if (context.isinsert or context.isupdate or context.isdelete) and cursor.rowcount:
        connection.info[_HAS_CHANGES] = True


def commits_of(engine: AsyncEngine) -> Commits:
    """Return the outcomes of an engine's writing transactions."""
    commits: Commits = engine.sync_engine.get_execution_options()[COMMITS]
    return commits


@asynccontextmanager
async def _transaction(engine: AsyncEngine, *, read_only: bool) -> AsyncIterator[AsyncConnection]:
    try:
        async with (
            asyncio.timeout(engine.sync_engine.get_execution_options().get(TRANSACTION_SECONDS)),
            engine.connect() as opened,
        ):
            connection = await opened.execution_options(**READ_ONLY) if read_only else opened
            connection.info[_HAS_CHANGES] = False
            async with connection.begin():
                yield connection
                if not read_only:
                    before_change()
            if connection.info[_HAS_CHANGES]:
                commits_of(engine).succeeded()
    except sa.exc.IntegrityError:
        raise
    except (sa.exc.DBAPIError, sa.exc.TimeoutError, OSError) as error:
        _LOG.error("the accounts database is unavailable", error=_problem(error))
        problem = problem_of(error)
        if not read_only:
            commits_of(engine).failed(problem)
        raise UnavailableError(problem) from None


async def insert_if_absent(
    connection: AsyncConnection, table: sa.Table, row: Mapping[str, object]
) -> bool:
    """Insert a row unless it violates a unique constraint; return whether it was inserted."""
    if connection.dialect.name == "postgresql":
        from sqlalchemy.dialects.postgresql import insert  # noqa: PLC0415 - slow
    else:
        from sqlalchemy.dialects.sqlite import insert  # type: ignore[assignment] # noqa: PLC0415
    statement = insert(table).on_conflict_do_nothing().values(row)
    return (await connection.execute(statement)).rowcount == 1


def microseconds(when: datetime) -> int:
    """Return a time in its stored form: microseconds since 1970, UTC."""
    return (when - _EPOCH) // MICROSECOND


def time_of(stored: int) -> datetime:
    """Return a stored time, in UTC."""
    return _EPOCH + stored * MICROSECOND


def _problem(error: BaseException) -> str:
    if isinstance(error, TimeoutError):
        return "no response in time"
    return str(getattr(error, "orig", None) or error) or type(error).__name__


def _server(url: str, password_file: Path | None, limits: TimeLimits) -> AsyncEngine:
    from pqkeep_gateway.storage.postgresql import postgresql_engine  # noqa: PLC0415 - slow

    return postgresql_engine(url, password_file, limits)


NEWEST_REVISION = "accounts_0001"
"""The schema revision of this version of pqkeep."""
MIGRATION_LOCK = 0x7071_6B65_6570_0002
"""The advisory lock of migrations on a server: "pqkeep", 2."""


def migrate(connection: sa.Connection, location: str) -> None:
    """Update the schema. Raises ConfigError with the database's location.

    The schema of another version of pqkeep, older or newer, stays unchanged.
    """
    if _revision(connection) == NEWEST_REVISION:
        return
    if connection.dialect.name == "postgresql":
        _wait_for_other_migrations(connection)
    _migrate(connection, location)


def _revision(connection: sa.Connection) -> str | None:
    if not sa.inspect(connection).has_table("alembic_version"):
        return None
    revision: str | None = connection.exec_driver_sql(
        "SELECT version_num FROM alembic_version"
    ).scalar()
    return revision


def _wait_for_other_migrations(connection: sa.Connection) -> None:
    """Hold the migration lock until the transaction ends."""
    for setting in ("statement_timeout", "lock_timeout"):
        connection.exec_driver_sql(f"SET LOCAL {setting} = '60s'")
    connection.execute(sa.select(sa.func.pg_advisory_xact_lock(MIGRATION_LOCK)))


def _migrate(connection: sa.Connection, location: str) -> None:
    from alembic import command  # noqa: PLC0415 - slow, and most starts have the newest schema
    from alembic.config import Config  # noqa: PLC0415
    from alembic.util import CommandError  # noqa: PLC0415

    config = Config()
    config.set_main_option("script_location", "pqkeep_gateway.storage:migrations")
    config.attributes["connection"] = connection
    try:
        command.upgrade(config, NEWEST_REVISION)
    except CommandError:
        raise ConfigError(
            f"the database {location} was created by another version of pqkeep. This version cannot use "
            "or upgrade it: use that version"
        ) from None


PRAGMAS = (
    "PRAGMA journal_mode = WAL",
    "PRAGMA synchronous = FULL",  # commits survive a power failure
    "PRAGMA foreign_keys = ON",
)
TRIES, PAUSE = 50, 0.1
"""The attempts of a pragma, and the seconds between them. When several processes open a new file,
one switches it to WAL, and SQLite does not make the others wait."""


class _Files:
    """Counts the open connections to a file. The driver's threads use it."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._opened = 0

    def open(self, *arguments: Any, **options: Any) -> sqlite3.Connection:
        """Open a connection, as a factory for sqlite3. It counts from its first statement on."""
        connection = _File(*arguments, **options)
        connection.unused = self
        return connection

    def count(self) -> None:
        """Count one more open connection."""
        with self._changed:
            self._opened += 1

    def close(self, close: Callable[[], None]) -> None:
        """Close one connection at a time.

        The last connection to close removes the WAL file. If two close at once, neither does.
        """
        with self._changed:
            close()
            self._opened -= 1
            self._changed.notify_all()

    def wait_until_closed(self, seconds: float) -> None:
        """Return when no connection is open, or after ``seconds``."""
        with self._changed:
            self._changed.wait_for(lambda: not self._opened, seconds)


class _File(sqlite3.Connection):
    """A connection that its _Files counts until it is closed."""

    unused: _Files | None = None
    files: _Files | None = None

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._cursors: WeakSet[sqlite3.Cursor] = WeakSet()

    def cursor(self, factory: Any = sqlite3.Cursor) -> Any:
        """Return a cursor, and remember it."""
        if self.unused is not None:
            self.files, self.unused = self.unused, None
            self.files.count()
        cursor = super().cursor(factory)
        self._cursors.add(cursor)
        return cursor

    def close(self) -> None:
        """Close it once, with its cursors: an unfinished statement would keep it open."""
        files, self.files = self.files, None
        if files is not None:
            for cursor in tuple(self._cursors):
                cursor.close()
            files.close(super().close)
        else:
            super().close()


def sqlite_engine(path: str, limits: TimeLimits = LIMITS) -> AsyncEngine:
    """Return an engine on a file, which may be empty. Raises ConfigError."""
    # Otherwise the driver would report a problem in a thread that outlives the event loop.
    os.close(open_database_file(path))
    files = _Files()
    engine = create_async_engine(
        sa.URL.create("sqlite+aiosqlite", database=uri_of(path), query=EXISTING),
        connect_args={"factory": files.open, "timeout": limits.file_lock},
        execution_options={_FILES: files},
        hide_parameters=True,
    )
    sa.event.listen(engine.sync_engine, "connect", _on_connect)
    sa.event.listen(engine.sync_engine, "begin", _on_begin)
    return engine


def _on_connect(connection: Any, _: object) -> None:
    connection.isolation_level = None  # no implicit BEGIN: see _on_begin
    cursor = connection.cursor()
    try:
        for pragma in PRAGMAS:
            _execute(cursor, pragma)
        _require_no_code(cursor)
    except BaseException:  # also after a cancellation
        connection.terminate()  # not in the pool yet
        raise
    cursor.close()


def _require_no_code(cursor: Any) -> None:
    cursor.execute(sqlite_files.OWN_CODE)
    if cursor.fetchone()[0]:
        raise ConfigError(
            "the accounts database has views or triggers, which pqkeep does not create: remove them"
        )


def _execute(cursor: Any, pragma: str) -> None:
    for _ in range(TRIES):
        try:
            cursor.execute(pragma)
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode != sqlite3.SQLITE_BUSY:
                raise
            time.sleep(PAUSE)
        else:
            return
    cursor.execute(pragma)


def _on_begin(connection: sa.Connection) -> None:
    """Take the write lock immediately or never: a later attempt can fail."""
    is_read_only = bool(connection.get_execution_options().get(SQLITE_READ_ONLY))
    if connection.info.get(SQLITE_READ_ONLY, False) is not is_read_only:
        connection.exec_driver_sql(f"PRAGMA query_only = {is_read_only:d}")
        connection.info[SQLITE_READ_ONLY] = is_read_only
    connection.exec_driver_sql("BEGIN" if is_read_only else "BEGIN IMMEDIATE")
