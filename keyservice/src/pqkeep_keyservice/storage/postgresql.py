"""The key service's database on a PostgreSQL server.

One session does all the work. It holds an advisory lock, so that no other key service writes. When
the session is lost, for whatever reason, nothing is answered until a new one holds the lock. Another
key service may have held it in between, so the new session starts a new epoch. A key service that
finds the lock taken waits for it: it stands by.

A lock alone is not enough: a process that is paused keeps its session, and with it the lock. So the
session says again and again, in the one row of ``service_epoch``, until when no other may end it.
A key service that waits for the lock ends a session whose time is over, unless the server is at
work for it just then: that is a slow disk, and no silent process. All times are the database
server's. Each transaction that writes locks that row and so requires that its epoch is the current
one: what an earlier epoch's session still tried could not be committed, even without the lock.

Rows that are only inserted go by one statement, which is a transaction of its own. A transaction of
several statements is three answers that are waited for, and a row the work of a statement. Here the
rows come as one JSON text for each table, and the statement inserts nothing unless the epoch is the
current one, whose row it locks as every transaction that writes does.
"""

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import starmap
from pathlib import Path
from typing import Any, Self

import asyncpg
import msgspec
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine
from sqlalchemy.pool import NullPool

from pqkeep_keyservice.storage.database import Arguments, DatabaseUnavailableError, T
from pqkeep_keyservice.storage.inserts import Rows
from pqkeep_keyservice.storage.schema import KEYS, SERVICE_EPOCH, TENANT_BUNDLES, migrate
from pqkeep_protocol.commits import WriteProblem, problem_of
from pqkeep_protocol.startup.logs import logger
from pqkeep_protocol.startup.secret_files import password_file_of
from pqkeep_protocol.startup.settings import ConfigError

_LOG = logger(__name__)

LOCK = 0x7071_6B65_6570_0001
"""The advisory lock of the key service: "pqkeep", 1."""
HELD_SECONDS = 2.0
"""How long a session is not ended that has not been heard of."""
RENEW_SECONDS = 0.5
"""Between two renewals of that time."""
BUSY_SECONDS = 4.0
"""How long the server may be at work on one statement of the session: as long as a transaction may
take."""
POLL_SECONDS = 0.2
"""Between two looks at the lock of another key service."""

_TABLE = SERVICE_EPOCH.name
_NOW_US = "(extract(epoch FROM clock_timestamp()) * 1000000)::bigint"
_TAKE = f"SELECT pg_try_advisory_lock({LOCK})"
_EXISTS = f"SELECT to_regclass('{_TABLE}') IS NOT NULL"
_BEGIN_EPOCH = f"""
    UPDATE {_TABLE} SET epoch = epoch + 1, takeovers = takeovers + $1, holder = $2,
        backend_pid = pg_backend_pid(), held_until_us = {_NOW_US} + $3,
        backend_start_us = (
            SELECT (extract(epoch FROM backend_start) * 1000000)::bigint
            FROM pg_stat_activity WHERE pid = pg_backend_pid()
        )
    RETURNING epoch, takeovers
"""  # noqa: S608 - of constants
_END_HOLDER = f"""
    SELECT pg_terminate_backend(lock.pid, 1000) FROM {_TABLE} AS held
    JOIN pg_locks AS lock ON lock.pid = held.backend_pid
    JOIN pg_stat_activity AS session ON session.pid = lock.pid
    WHERE lock.locktype = 'advisory' AND lock.granted AND lock.objsubid = 1
        AND lock.classid = {LOCK >> 32} AND lock.objid = {LOCK & 0xFFFF_FFFF}
        AND session.datname = current_database()
        AND (extract(epoch FROM session.backend_start) * 1000000)::bigint = held.backend_start_us
        AND held.held_until_us < {_NOW_US}
        AND (
            session.state <> 'active'
            OR session.query_start < clock_timestamp() - interval '{BUSY_SECONDS} seconds'
        )
"""  # noqa: S608 - of constants


@dataclass(frozen=True, slots=True)
class Epoch:
    """A time during which one session is the only one that writes."""

    number: int
    takeovers: int
    """How many epochs were begun by a key service that had waited for another."""


async def take_lock(driver: asyncpg.Connection) -> bool:
    """Take the lock for a session, if it is free."""
    taken: bool = await driver.fetchval(_TAKE)
    return taken


async def has_epochs(driver: asyncpg.Connection) -> bool:
    """Return whether the database has its tables."""
    exists: bool = await driver.fetchval(_EXISTS)
    return exists


async def begin_epoch(driver: asyncpg.Connection, seconds: float, *, has_waited: bool) -> Epoch:
    """Begin an epoch for a session that has the lock, and must not be ended for some seconds."""
    holder = f"{socket.gethostname()} {os.getpid()}"[:255]
    held_us = int(seconds * 1_000_000)
    row = await driver.fetchrow(_BEGIN_EPOCH, int(has_waited), holder, held_us)
    if row is None:
        raise LostEpochError("the table of epochs is empty")
    return Epoch(*row)


async def end_silent_holder(driver: asyncpg.Connection) -> bool:
    """End the session that has the lock, if its time is over; return whether it was.

    Waits up to a second until it is gone, so that the next to ask for the lock is this one.
    """
    return bool(await driver.fetch(_END_HOLDER))


class LostEpochError(Exception):
    """The epoch is over: another session has begun one."""


async def begin(driver: asyncpg.Connection, epoch: int, *, writes: bool, renews: bool) -> None:
    """Begin a transaction. Raises LostEpochError where it must not write any more."""
    if renews:
        held_us = int(HELD_SECONDS * 1_000_000)
        check = f"UPDATE {_TABLE} SET held_until_us = {_NOW_US} + {held_us} WHERE epoch = {epoch:d}"  # noqa: S608 - numbers
    elif writes:
        check = f"SELECT FROM {_TABLE} WHERE epoch = {epoch:d} FOR SHARE"
    else:
        check = f"SELECT FROM {_TABLE} WHERE epoch = {epoch:d}"
    done = await driver.execute(f"BEGIN; {check}")
    if not done.endswith(" 1"):
        raise LostEpochError("another session has begun an epoch")


LOCK_SECONDS = 15.0
"""How long a command waits for the lock: as long as a server needs to notice that the machine which
held it is gone; see SESSION."""
CONNECT_SECONDS = 3.0
OPEN_SECONDS = 30.0
"""For the checks and the migrations, once the lock is held."""
ANSWER_SECONDS = BUSY_SECONDS
"""For one transaction. The gateway waits ten seconds for an answer."""
QUERY_SECONDS = 8.0
QUERIES = 2
"""Queries at once. Each has a connection, and the role has few (see deploy/postgresql.sql)."""
SCRUB_SECONDS = 60.0
FIRST_RETRY_SECONDS = 0.05
LAST_RETRY_SECONDS = 1.0
SESSION = {
    "application_name": "pqkeep key service",
    "idle_in_transaction_session_timeout": "10s",  # a process that hangs loses the lock
    "tcp_keepalives_idle": "5",  # and so does a machine that is gone
    "tcp_keepalives_interval": "2",
    "tcp_keepalives_count": "3",
    "tcp_user_timeout": "10s",
}
_PERMANENT_ERRORS = (
    asyncpg.InvalidAuthorizationSpecificationError,
    asyncpg.InvalidCatalogNameError,
    asyncpg.InsufficientPrivilegeError,
    asyncpg.ClientConfigurationError,
)
"""Errors that another try does not change."""
_FAILURES = (
    sa.exc.SQLAlchemyError,
    asyncpg.PostgresError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,  # of a session that ended in the middle of something
    LostEpochError,
    OSError,
)


class _InUseError(ConfigError):
    pass


@dataclass(frozen=True, slots=True, eq=False)
class _Session:
    connection: AsyncConnection
    """In AUTOCOMMIT, as SQLAlchemy calls it: transactions begin and end in this file."""
    driver: asyncpg.Connection

    async def close(self) -> None:
        """Close the connection, in an orderly way if the server answers."""
        with suppress(*_FAILURES):
            async with asyncio.timeout(CONNECT_SECONDS):
                await self.connection.close()

    async def abandon(self) -> None:
        """Close the connection without waiting for the server."""
        self.driver.terminate()
        with suppress(*_FAILURES):
            await self.connection.invalidate()
            await self.connection.close()


class PostgresqlDatabase:
    """A Database in which each batch is one transaction on one session."""

    def __init__(self, engine: AsyncEngine, name: str) -> None:
        """Connect by an engine. The name is for messages and holds no secret. See ``open``."""
        self._engine = engine
        self._name = name
        self._session: _Session | None = None
        self._lock = asyncio.Lock()
        self._query_slots = asyncio.Semaphore(QUERIES)
        self._reopening: asyncio.Task[None] | None = None
        self._heartbeat: asyncio.Task[None] | None = None
        self._renewed_at = 0.0
        self._epoch = Epoch(0, 0)
        self._changed = asyncio.Condition()
        self.is_standing_by = False
        self.is_scrubbed = True
        self._problem = WriteProblem.NO_ANSWER
        """Why the last session was given up, or none could be opened."""

    @classmethod
    async def open(
        cls, url: str, password_file: Path | None = None, lock_seconds: float = LOCK_SECONDS
    ) -> Self:
        """Lock the database for this process and migrate it.

        The password, if any, is in a file as libpq defines it. Raises ConfigError, and
        DatabaseUnavailableError where a later try may succeed.
        """
        opened = cls(_engine(url, password_file), url)
        until = asyncio.get_running_loop().time() + lock_seconds
        while True:
            try:
                await opened._open_session(waits=False)
            except _InUseError:
                if asyncio.get_running_loop().time() >= until:
                    raise
                await asyncio.sleep(LAST_RETRY_SECONDS)
            else:
                return opened

    @classmethod
    async def open_or_stand_by(cls, url: str, password_file: Path | None = None) -> Self:
        """Lock the database as ``open`` does, or where another has it go on without, and wait."""
        opened = cls(_engine(url, password_file), url)
        try:
            await opened._open_session(waits=False)
        except _InUseError:
            opened._reopening = asyncio.create_task(opened._reopen(None))
        return opened

    @property
    def dialect(self) -> sa.Dialect:
        return self._engine.dialect

    @property
    def epoch(self) -> int:
        """The number of the session, which is durable: no two sessions ever have the same."""
        return self._epoch.number

    @property
    def takeovers(self) -> int:
        return self._epoch.takeovers

    @property
    def is_open(self) -> bool:
        return self._session is not None

    async def next_epoch(self, after: int) -> int:
        async with self._changed:
            await self._changed.wait_for(lambda: self.is_open and self.epoch != after)
            return self.epoch

    async def write(
        self, function: Callable[[sa.Connection, *Arguments], T], *arguments: *Arguments
    ) -> T:
        """See ``Database.write``."""
        return await self._run(True, function, *arguments)  # noqa: FBT003 - positional arguments follow

    async def read(
        self, function: Callable[[sa.Connection, *Arguments], T], *arguments: *Arguments
    ) -> T:
        """See ``Database.read``."""
        return await self._run(False, function, *arguments)  # noqa: FBT003 - positional arguments follow

    async def insert(
        self, plan: Callable[[*Arguments], tuple[Rows, T] | None], *arguments: *Arguments
    ) -> T | None:
        """See ``Database.insert``. None, too, when a transaction is due that renews the session."""
        async with self._answered() as session:
            is_due = asyncio.get_running_loop().time() - self._renewed_at >= RENEW_SECONDS
            planned = None if is_due else plan(*arguments)
            if planned is None:
                return None
            rows, result = planned
            await insert(session.driver, self.epoch, rows)
            return result

    async def _run(
        self,
        writes: bool,  # noqa: FBT001 - positional arguments follow
        function: Callable[[sa.Connection, *Arguments], T],
        *arguments: *Arguments,
    ) -> T:
        async with self._answered() as session, self._transaction(session, writes):
            return await session.connection.run_sync(function, *arguments)

    @asynccontextmanager
    async def _answered(self) -> AsyncIterator[_Session]:
        """Have the session for a block, and give it up where the server does not answer in time."""
        async with self._lock:
            session = self._session
            if session is None:
                raise DatabaseUnavailableError(problem=self._problem)
            try:
                async with asyncio.timeout(ANSWER_SECONDS):
                    yield session
            except (sa.exc.IntegrityError, asyncpg.IntegrityConstraintViolationError):
                raise  # the server refused the statement, and the session is still usable
            except _FAILURES as error:
                self._problem = problem_of(error)
                self._drop_session(session, _problem(error))
                raise DatabaseUnavailableError(problem=self._problem) from None
            except asyncio.CancelledError:
                self._drop_session(session, "interrupted")
                raise

    @asynccontextmanager
    async def _transaction(self, session: _Session, writes: bool) -> AsyncIterator[None]:  # noqa: FBT001
        """Run a block in a transaction of the current epoch. It renews the session's time if due."""
        began = asyncio.get_running_loop().time()
        renews = began - self._renewed_at >= RENEW_SECONDS
        await begin(session.driver, self.epoch, writes=writes, renews=renews)
        try:
            yield
        except Exception:
            await session.driver.execute("ROLLBACK")
            raise
        if await session.driver.execute("COMMIT") != "COMMIT":
            raise LostEpochError("the server rolled the transaction back")
        if renews:
            self._renewed_at = began

    async def query(
        self, function: Callable[[sa.Connection, *Arguments], T], *arguments: *Arguments
    ) -> T:
        session = self._session
        if session is None:
            raise DatabaseUnavailableError
        number, found = await self.peek(_with_epoch, function, *arguments)
        if self._session is not session or number != self.epoch:
            raise DatabaseUnavailableError
        return found

    async def peek(
        self, function: Callable[[sa.Connection, *Arguments], T], *arguments: *Arguments
    ) -> T:
        """See ``Database.peek``."""
        try:
            async with (
                asyncio.timeout(QUERY_SECONDS),
                self._query_slots,
                self._engine.connect() as connection,
            ):
                # The function reads one snapshot.
                moment = await connection.execution_options(isolation_level="REPEATABLE READ")
                return await moment.run_sync(function, *arguments)
        except _FAILURES as error:
            _LOG.warning("the database could not be read", error=_problem(error))
            raise DatabaseUnavailableError from None

    async def scrub(self) -> bool:
        """Vacuum the tables that hold private keys.

        Copies stay in the write-ahead log, in replicas and backups, and in a page's free space.
        """
        self.is_scrubbed = False
        try:
            async with asyncio.timeout(SCRUB_SECONDS), self._engine.connect() as connection:
                single = await connection.execution_options(isolation_level="AUTOCOMMIT")
                await single.exec_driver_sql(f"VACUUM {KEYS.name}, {TENANT_BUNDLES.name}")
        except _FAILURES as error:
            _LOG.warning("deleted keys could not be vacuumed", error=_problem(error))
        else:
            self.is_scrubbed = True
        return self.is_scrubbed

    async def close(self) -> None:
        async with self._lock:
            last, self._session = self._session, None
        await _end(self._reopening)
        newest, self._session = self._session, None
        await _end(self._heartbeat)
        for session in (last, newest):
            if session is not None:
                await session.close()
        await self._engine.dispose()

    async def _open_session(self, *, waits: bool) -> None:
        """Open a session that holds the lock, and begin an epoch.

        Unless it waits for the lock, raises ConfigError where another has it. Raises ConfigError
        and DatabaseUnavailableError.
        """
        try:
            connection = await self._engine.connect()
        except _FAILURES as error:
            raise self._error(error) from None
        driver: asyncpg.Connection = (await connection.get_raw_connection()).driver_connection
        session = _Session(connection, driver)
        try:
            connection = await connection.execution_options(isolation_level="AUTOCOMMIT")
            async with asyncio.timeout(ANSWER_SECONDS):
                await connection.run_sync(_check_server, self._name)
            has_waited = await self._take_lock(driver, waits=waits)
            async with asyncio.timeout(OPEN_SECONDS):
                epoch = await self._begin_epoch(session, has_waited=has_waited)
        except (ConfigError, *_FAILURES) as error:
            await session.abandon()
            raise self._error(error) from None
        except BaseException:
            await session.abandon()
            raise
        finally:
            self.is_standing_by = False
        if driver.is_closed():
            await session.abandon()
            raise DatabaseUnavailableError("the server hung up")
        self._session = session
        self._epoch = epoch
        self._renewed_at = 0.0
        self.is_scrubbed = False  # unknown
        driver.add_termination_listener(lambda _: self._drop_session(session, "the server hung up"))
        self._heartbeat = asyncio.create_task(self._renew(session))
        async with self._changed:
            self._changed.notify_all()

    async def _take_lock(self, driver: asyncpg.Connection, *, waits: bool) -> bool:
        """Take the lock; return whether another key service had it. Raises ConfigError."""
        while True:
            async with asyncio.timeout(ANSWER_SECONDS):
                if await take_lock(driver):
                    return self.is_standing_by
                if not waits:
                    raise _InUseError(f"the database {self._name} is in use by another key service")
                if not self.is_standing_by:
                    self.is_standing_by = True
                    _LOG.info("standing by: another key service has the database's lock")
                if await has_epochs(driver) and await end_silent_holder(driver):
                    _LOG.warning(
                        "ended the session of a key service that was silent",
                        seconds=HELD_SECONDS,
                    )
                    continue
            await asyncio.sleep(POLL_SECONDS)

    async def _begin_epoch(self, session: _Session, *, has_waited: bool) -> Epoch:
        """Begin an epoch, and migrate the database. Raises ConfigError."""
        connection, driver = session.connection, session.driver
        if await has_epochs(driver):
            epoch = await begin_epoch(driver, OPEN_SECONDS, has_waited=has_waited)
            await self._migrate(connection, driver)
            return epoch
        await self._migrate(connection, driver)
        return await begin_epoch(driver, OPEN_SECONDS, has_waited=has_waited)

    async def _migrate(self, connection: AsyncConnection, driver: asyncpg.Connection) -> None:
        await driver.execute("BEGIN")
        await connection.run_sync(migrate, self._name)
        await driver.execute("COMMIT")

    async def _renew(self, session: _Session) -> None:
        """Say that the session is in use, as long as it is."""
        while self._session is session:
            with suppress(DatabaseUnavailableError):
                await self.write(_nothing)
            await asyncio.sleep(RENEW_SECONDS)

    def _error(self, error: Exception) -> ConfigError | DatabaseUnavailableError:
        driver = getattr(error, "orig", None)
        cause = error if driver is None else driver.__cause__ or driver
        if isinstance(cause, ConfigError):
            return cause
        if isinstance(cause, _PERMANENT_ERRORS):
            return ConfigError(f"cannot open the database {self._name}: {cause}")
        return DatabaseUnavailableError(
            f"the database {self._name} is out of reach: {_problem(cause)}", problem_of(cause)
        )

    def _drop_session(self, session: _Session, why: str) -> None:
        """Give a session up, and start to open another."""
        if self._session is not session:
            return
        self._session = None
        _LOG.error("lost the connection to the database", error=why)
        self._reopening = asyncio.create_task(self._reopen(session))

    async def _reopen(self, lost: _Session | None) -> None:
        if lost is not None:
            lost.driver.terminate()  # ends the transaction that waits for it
            async with self._lock:
                await lost.abandon()
        retry, last_error = FIRST_RETRY_SECONDS, ""
        while True:
            try:
                await self._open_session(waits=True)
            except Exception as error:  # noqa: BLE001 - another try may succeed, whatever failed
                if isinstance(error, DatabaseUnavailableError):
                    self._problem = error.problem
                if str(error) != last_error:
                    last_error = str(error)
                    _LOG.error(
                        "the connection to the database will be tried again", error=last_error
                    )
            else:
                if lost is None:
                    _LOG.warning("took the database's lock over", epoch=self.epoch)
                else:
                    _LOG.warning("connected to the database again", epoch=self.epoch)
                return
            await asyncio.sleep(retry)
            retry = min(2 * retry, LAST_RETRY_SECONDS)


async def _end(task: asyncio.Task[None] | None) -> None:
    if task is not None:
        task.cancel()
        await asyncio.wait([task])


def _engine(url: str, password_file: Path | None) -> AsyncEngine:
    """Return what connects to a database. Raises ConfigError."""
    if password_file is not None:
        password_file = password_file_of(password_file, "PostgreSQL password")
    connect = partial(
        asyncpg.connect,
        url,
        passfile=password_file,
        timeout=CONNECT_SECONDS,
        server_settings=SESSION,
        target_session_attrs="read-write",
    )
    return create_async_engine(
        "postgresql+asyncpg://",
        async_creator=connect,
        poolclass=NullPool,
        isolation_level="READ COMMITTED",
        hide_parameters=True,
    )


def _check_server(connection: sa.Connection, name: str) -> None:
    """Check the server, and have commits wait for its disk. Raises ConfigError."""
    if connection.exec_driver_sql("SHOW fsync").scalar_one() != "on":
        raise ConfigError(
            f"the database {name} is on a server with fsync off: commits would not survive a "
            "power cut"
        )
    if connection.exec_driver_sql("SHOW synchronous_commit").scalar_one() == "off":
        connection.exec_driver_sql("SET synchronous_commit = on")


def _with_epoch(
    connection: sa.Connection,
    function: Callable[[sa.Connection, *Arguments], T],
    *arguments: *Arguments,
) -> tuple[int, T]:
    """Return the current epoch, and what a function returns."""
    number: int = connection.execute(sa.select(SERVICE_EPOCH.c.epoch)).scalar_one()
    return number, function(connection, *arguments)


def _nothing(_: sa.Connection) -> None:
    """Be a transaction that only renews the session's time."""


def _problem(error: BaseException) -> str:
    if isinstance(error, TimeoutError):
        return "no answer in time"
    return str(getattr(error, "orig", None) or error) or type(error).__name__


async def insert(driver: asyncpg.Connection, epoch: int, rows: Rows) -> None:
    """Insert rows, durably on return. Raises LostEpochError where the epoch is not the current one."""
    texts = [_text(table, of_table) for table, of_table in rows.items()]
    *_, last = rows.values()
    done = await driver.execute(_statement(tuple(rows)), epoch, *texts)
    if done != f"INSERT 0 {len(last)}":
        raise LostEpochError("another session has begun an epoch")


def _text(table: sa.Table, rows: Any) -> str:
    return msgspec.json.encode(list(starmap(_row_type(table), rows))).decode()


@lru_cache
def _row_type(table: sa.Table) -> type[msgspec.Struct]:
    """Return what is encoded as an object with the columns that are not null, and bytes as base64."""
    columns = [(str(column.name), Any, None) for column in table.columns]
    return msgspec.defstruct(str(table.name), columns, omit_defaults=True, gc=False)


@lru_cache
def _statement(tables: tuple[sa.Table, ...]) -> str:
    *others, last = [_insert(table, number) for number, table in enumerate(tables, 2)]
    held = f"held AS (SELECT FROM {SERVICE_EPOCH.name} WHERE epoch = $1 FOR SHARE)"
    inserted = [f"inserted_{number} AS ({each})" for number, each in enumerate(others)]
    return f"WITH {', '.join([held, *inserted])} {last}"


def _insert(table: sa.Table, parameter: int) -> str:
    columns = [(column.name, *_types(column)) for column in table.columns]
    names = ", ".join(f'"{name}"' for name, _, _ in columns)
    values = ", ".join(value.format(f'"{name}"') for name, _, value in columns)
    types = ", ".join(f'"{name}" {kind}' for name, kind, _ in columns)
    return (
        f'INSERT INTO "{table.name}" ({names}) '  # noqa: S608 - of a table's names
        f"SELECT {values} FROM held, json_to_recordset(${parameter}::json) AS new ({types})"
    )


def _types(column: sa.Column[Any]) -> tuple[str, str]:
    """Return a column's type in a JSON text, and its value."""
    if isinstance(column.type, sa.LargeBinary):
        return "text", "decode({}, 'base64')"
    return str(column.type), "{}"
