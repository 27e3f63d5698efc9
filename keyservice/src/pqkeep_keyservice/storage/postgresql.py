"""PostgreSQL for the key service's database: sessions, their lock and their epochs.

A lock alone is not enough. A paused process keeps its session, and so its lock. Therefore the
session regularly writes the time until which it is protected into the one row of ``service_epoch``.
A standby ends a session with an expired time, except while the server executes a statement for it:
the process is alive then, and only the disk is slow. All times are the database server's.

Each writing transaction locks that row, and requires its epoch to be the current one. So a late
write of an earlier session cannot be committed, even without the lock.

Transactions that only insert rows run as a single statement. A transaction of several statements
would wait for three responses of the server, and each row would cost a statement. Instead the rows
of each table are sent as one JSON text. The statement inserts nothing unless its epoch is the
current one. It locks that row like every writing transaction.
"""

import asyncio
import os
import socket
from collections.abc import Callable
from contextlib import suppress
from functools import lru_cache, partial
from itertools import starmap
from pathlib import Path
from typing import Any

import asyncpg
import msgspec
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine
from sqlalchemy.pool import NullPool

from pqkeep_keyservice.storage.database import Arguments, DatabaseUnavailableError, Rows, T
from pqkeep_keyservice.storage.fenced_database import (
    RESPONSE_SECONDS,
    FencedDatabase,
    LostEpochError,
)
from pqkeep_keyservice.storage.schema import KEYS, SERVICE_EPOCH, TENANT_BUNDLES, migrate
from pqkeep_keyservice.storage.writer import HELD_SECONDS, Epoch
from pqkeep_protocol.commits import problem_of
from pqkeep_protocol.startup.postgresql import (
    OWN_CODE,
    is_permanent,
    problem_with,
    require_no_code,
    require_version,
)
from pqkeep_protocol.startup.secret_files import password_file_of
from pqkeep_protocol.startup.settings import ConfigError

LOCK = 0x7071_6B65_6570_0001
"""The advisory lock of the key service: "pqkeep", 1."""
LOCK_SECONDS = 15.0
"""How long a command waits for the lock: as long as a server needs to notice that the holder's
machine is gone; see SESSION."""
BUSY_SECONDS = RESPONSE_SECONDS
"""How long the server may execute one statement of a session: the time limit of a transaction."""
CONNECT_SECONDS = 3.0
QUERY_SECONDS = 8.0
QUERIES = 2
"""Queries at once. Each has its own connection, and the role may have few
(deploy/postgresql.sql)."""
SCRUB_SECONDS = 60.0
SESSION = {
    "application_name": "pqkeep key service",
    "idle_in_transaction_session_timeout": "10s",  # a process that hangs loses the lock
    "tcp_keepalives_idle": "5",  # a machine that is gone loses it too
    "tcp_keepalives_interval": "2",
    "tcp_keepalives_count": "3",
    "tcp_user_timeout": "10s",
}
_FAILURES: tuple[type[Exception], ...] = (
    sa.exc.SQLAlchemyError,
    asyncpg.PostgresError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,  # from a session that ended during a call
    LostEpochError,
    OSError,
)

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


async def open_postgresql(
    url: str, password_file: Path | None = None, lock_seconds: float = LOCK_SECONDS
) -> FencedDatabase:
    """Lock a database for this process, and migrate it.

    The password, if any, is in a file in libpq's format. Raises ConfigError, and
    DatabaseUnavailableError if a later try may succeed.
    """
    return await FencedDatabase.open(PostgresqlServer(url, password_file), lock_seconds)


async def stand_by_postgresql(url: str, password_file: Path | None = None) -> FencedDatabase:
    """Like ``open_postgresql``, but as a standby while another key service has the lock."""
    return await FencedDatabase.open_or_stand_by(PostgresqlServer(url, password_file))


class PostgresqlServer:
    """One database of a server. Its address holds no secret, and is used in messages."""

    failures = _FAILURES
    refusals: tuple[type[Exception], ...] = (
        sa.exc.IntegrityError,
        asyncpg.IntegrityConstraintViolationError,
    )

    def __init__(self, url: str, password_file: Path | None = None) -> None:
        """Take the address, and a password file in libpq's format. Raises ConfigError."""
        self.name = url
        self.in_use = f"the database {url} is in use by another key service"
        self._engine = _engine(url, password_file)
        self.dialect: sa.Dialect = self._engine.dialect
        self._query_slots = asyncio.Semaphore(QUERIES)

    async def connect(self) -> "PostgresqlSession":
        """Open a session, and check the server. Raises ConfigError."""
        connection = await self._engine.connect()
        driver: asyncpg.Connection = (await connection.get_raw_connection()).driver_connection
        session = PostgresqlSession(self.name, connection, driver)
        try:
            connection = await connection.execution_options(isolation_level="AUTOCOMMIT")
            async with asyncio.timeout(RESPONSE_SECONDS):
                await connection.run_sync(_check_server, self.name)
        except BaseException:
            await session.abandon()
            raise
        return session

    async def peek(
        self, function: Callable[[sa.Connection, *Arguments], T], *arguments: *Arguments
    ) -> T:
        """See ``Server.peek``."""
        async with (
            asyncio.timeout(QUERY_SECONDS),
            self._query_slots,
            self._engine.connect() as connection,
        ):
            # The function reads a single snapshot.
            moment = await connection.execution_options(isolation_level="REPEATABLE READ")
            return await moment.run_sync(function, *arguments)

    async def scrub(self) -> bool:
        """Vacuum the tables with private keys.

        Copies remain in the write-ahead log, in replicas and backups, and in free space of pages.
        """
        async with asyncio.timeout(SCRUB_SECONDS), self._engine.connect() as connection:
            single = await connection.execution_options(isolation_level="AUTOCOMMIT")
            await single.exec_driver_sql(f"VACUUM {KEYS.name}, {TENANT_BUNDLES.name}")
        return True

    def error(self, error: BaseException) -> ConfigError | DatabaseUnavailableError:
        """See ``Server.error``."""
        driver = getattr(error, "orig", None)
        cause = error if driver is None else driver.__cause__ or driver
        if isinstance(cause, ConfigError):
            return cause
        problem = problem_with(cause, self.name)
        if is_permanent(cause):
            return ConfigError(problem)
        return DatabaseUnavailableError(problem, problem_of(cause))

    async def close(self) -> None:
        """See ``Server.close``."""
        await self._engine.dispose()


class PostgresqlSession:
    """A session. It begins and ends transactions itself, so SQLAlchemy is in AUTOCOMMIT."""

    def __init__(self, name: str, connection: AsyncConnection, driver: asyncpg.Connection) -> None:
        """Take a database's name and a connection to it."""
        self._name = name
        self._connection = connection
        self.driver = driver

    async def take_lock(self) -> bool:
        """See ``Session.take_lock``."""
        taken: bool = await self.driver.fetchval(_TAKE)
        return taken

    async def end_silent_holder(self) -> bool:
        """See ``Session.end_silent_holder``.

        Waits up to a second for its end, so that this session is the next to ask for the lock.
        """
        return await self._has_epochs() and bool(await self.driver.fetch(_END_HOLDER))

    async def begin_epoch(self, seconds: float, *, has_waited: bool) -> Epoch:
        """See ``Session.begin_epoch``. A new database gets the table of epochs by the migration."""
        holder = f"{socket.gethostname()} {os.getpid()}"[:255]
        held_us = int(seconds * 1_000_000)
        is_new = not await self._has_epochs()
        if is_new:
            await self._migrate()
        row = await self.driver.fetchrow(_BEGIN_EPOCH, int(has_waited), holder, held_us)
        if row is None:
            raise LostEpochError("the table of epochs is empty")
        if not is_new:
            await self._migrate()
        return Epoch(*row)

    async def begin(self, epoch: int, *, writes: bool, renews: bool) -> None:
        """See ``Session.begin``."""
        if renews:
            held_us = int(HELD_SECONDS * 1_000_000)
            check = (
                f"UPDATE {_TABLE} SET held_until_us = {_NOW_US} + {held_us} WHERE epoch = {epoch:d}"  # noqa: S608 - numbers
            )
        elif writes:
            check = f"SELECT FROM {_TABLE} WHERE epoch = {epoch:d} FOR SHARE"
        else:
            check = f"SELECT FROM {_TABLE} WHERE epoch = {epoch:d}"
        done = await self.driver.execute(f"BEGIN; {check}")
        if not done.endswith(" 1"):
            raise LostEpochError("another session has begun an epoch")

    async def run(
        self, function: Callable[[sa.Connection, *Arguments], T], *arguments: *Arguments
    ) -> T:
        """See ``Session.run``."""
        return await self._connection.run_sync(function, *arguments)

    async def commit(self) -> None:
        """See ``Session.commit``."""
        if await self.driver.execute("COMMIT") != "COMMIT":
            raise LostEpochError("the server rolled the transaction back")

    async def roll_back(self) -> None:
        """See ``Session.roll_back``."""
        await self.driver.execute("ROLLBACK")

    async def insert(self, epoch: int, rows: Rows) -> None:
        """See ``Session.insert``."""
        texts = [_text(table, table_rows) for table, table_rows in rows.items()]
        *_, last = rows.values()
        done = await self.driver.execute(_statement(tuple(rows)), epoch, *texts)
        if done != f"INSERT 0 {len(last)}":
            raise LostEpochError("another session has begun an epoch")

    def has_ended(self) -> bool:
        """See ``Session.has_ended``."""
        is_closed: bool = self.driver.is_closed()
        return is_closed

    def on_end(self, callback: Callable[[], None]) -> None:
        """See ``Session.on_end``."""
        self.driver.add_termination_listener(lambda _: callback())

    def terminate(self) -> None:
        """See ``Session.terminate``."""
        self.driver.terminate()

    async def abandon(self) -> None:
        """See ``Session.abandon``."""
        self.driver.terminate()
        with suppress(*_FAILURES):
            await self._connection.invalidate()
            await self._connection.close()

    async def close(self) -> None:
        """See ``Session.close``."""
        with suppress(*_FAILURES):
            async with asyncio.timeout(CONNECT_SECONDS):
                await self._connection.close()

    async def _has_epochs(self) -> bool:
        """Return whether the database has the table of epochs."""
        exists: bool = await self.driver.fetchval(_EXISTS)
        return exists

    async def _migrate(self) -> None:
        await self.driver.execute("BEGIN")
        await self._connection.run_sync(migrate, self._name)
        await self.driver.execute("COMMIT")


def _engine(url: str, password_file: Path | None) -> AsyncEngine:
    """Return an engine for a database. Raises ConfigError."""
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
    """Check the server, and make commits wait for its disk. Raises ConfigError."""
    require_version(connection.dialect.server_version_info, name)
    require_no_code(connection.exec_driver_sql(OWN_CODE).scalar(), name)
    if connection.exec_driver_sql("SHOW fsync").scalar_one() != "on":
        raise ConfigError(
            f"the database {name} is on a server with fsync off, so that commits would not survive"
            " a power cut: turn fsync on"
        )
    if connection.exec_driver_sql("SHOW synchronous_commit").scalar_one() == "off":
        connection.exec_driver_sql("SET synchronous_commit = on")


def _text(table: sa.Table, rows: Any) -> str:
    return msgspec.json.encode(list(starmap(_row_type(table), rows))).decode()


@lru_cache
def _row_type(table: sa.Table) -> type[msgspec.Struct]:
    """Return a type that is encoded as an object of the non-null columns, with bytes as base64."""
    columns = [(str(column.name), Any, None) for column in table.columns]
    return msgspec.defstruct(str(table.name), columns, omit_defaults=True, gc=False)


@lru_cache
def _statement(tables: tuple[sa.Table, ...]) -> str:
    *others, last = [_insert(table, number) for number, table in enumerate(tables, 2)]
    held = f"held AS (SELECT FROM {SERVICE_EPOCH.name} WHERE epoch = $1 FOR SHARE)"
    inserted = [f"inserted_{number} AS ({insert})" for number, insert in enumerate(others)]
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
    """Return a column's type in the JSON text, and the SQL of its value."""
    if isinstance(column.type, sa.LargeBinary):
        return "text", "decode({}, 'base64')"
    return str(column.type), "{}"
