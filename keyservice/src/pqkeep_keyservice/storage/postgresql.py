"""The key service's database on a PostgreSQL server.

One session does all the work. It holds an advisory lock, so that no other key service writes. When
the session is lost, for whatever reason, nothing is answered until a new one holds the lock. Another
key service may have held it in between, so the new session starts a new epoch.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Self

import asyncpg
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine
from sqlalchemy.pool import NullPool

from pqkeep_keyservice.storage.database import Arguments, DatabaseUnavailableError, T
from pqkeep_keyservice.storage.migration import migrate
from pqkeep_keyservice.storage.schema import KEYS, TENANT_BUNDLES
from pqkeep_protocol.startup.logs import logger
from pqkeep_protocol.startup.secret_files import check_secret_file
from pqkeep_protocol.startup.settings import ConfigError

_LOG = logger(__name__)

LOCK = 0x7071_6B65_6570_0001
"""The advisory lock of the key service: "pqkeep", 1."""
LOCK_SECONDS = 15.0
"""How long a server needs to notice that the machine which held the lock is gone; see SESSION."""
CONNECT_SECONDS = 3.0
OPEN_SECONDS = 30.0
"""For the lock, the checks and the migrations."""
ANSWER_SECONDS = 4.0
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
_FAILURES = (sa.exc.SQLAlchemyError, asyncpg.PostgresError, asyncpg.InterfaceError, OSError)


class _InUseError(ConfigError):
    pass


@dataclass(frozen=True, slots=True, eq=False)
class _Session:
    connection: AsyncConnection
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
        self._epoch = 0
        self.is_scrubbed = True

    @classmethod
    async def open(
        cls, url: str, password_file: Path | None = None, lock_seconds: float = LOCK_SECONDS
    ) -> Self:
        """Lock the database for this process and migrate it.

        The password, if any, is in a file as libpq defines it. Raises ConfigError, and
        DatabaseUnavailableError where a later try may succeed.
        """
        if password_file is not None:
            check_secret_file(password_file, "PostgreSQL password")
        connect = partial(
            asyncpg.connect,
            url,
            passfile=password_file,
            timeout=CONNECT_SECONDS,
            server_settings=SESSION,
            target_session_attrs="read-write",
        )
        engine = create_async_engine(
            "postgresql+asyncpg://",
            async_creator=connect,
            poolclass=NullPool,
            isolation_level="READ COMMITTED",
            hide_parameters=True,
        )
        opened = cls(engine, url)
        until = asyncio.get_running_loop().time() + lock_seconds
        while True:
            try:
                await opened._open_session()
            except _InUseError:
                if asyncio.get_running_loop().time() >= until:
                    raise
                await asyncio.sleep(LAST_RETRY_SECONDS)
            else:
                return opened

    @property
    def dialect(self) -> sa.Dialect:
        return self._engine.dialect

    @property
    def epoch(self) -> int:
        """The number of the session."""
        return self._epoch

    async def write(
        self, function: Callable[[sa.Connection, *Arguments], T], *arguments: *Arguments
    ) -> T:
        """See ``Database.write``."""
        async with self._lock:
            session = self._session
            if session is None:
                raise DatabaseUnavailableError
            try:
                async with asyncio.timeout(ANSWER_SECONDS), session.connection.begin():
                    return await session.connection.run_sync(function, *arguments)
            except sa.exc.IntegrityError:
                raise  # the server refused the statement, and the session is still usable
            except _FAILURES as error:
                self._drop_session(session, _problem(error))
                raise DatabaseUnavailableError from None
            except asyncio.CancelledError:
                self._drop_session(session, "interrupted")
                raise

    read = write

    async def query(
        self, function: Callable[[sa.Connection, *Arguments], T], *arguments: *Arguments
    ) -> T:
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
        if self._reopening is not None:
            self._reopening.cancel()
            await asyncio.wait([self._reopening])
        for session in (last, self._session):
            if session is not None:
                await session.close()
        self._session = None
        await self._engine.dispose()

    async def _open_session(self) -> None:
        """Open a session that holds the lock. Raises ConfigError and DatabaseUnavailableError."""
        try:
            connection = await self._engine.connect()
        except _FAILURES as error:
            raise self._error(error) from None
        driver: asyncpg.Connection = (await connection.get_raw_connection()).driver_connection
        session = _Session(connection, driver)
        try:
            async with asyncio.timeout(OPEN_SECONDS), connection.begin():
                await connection.run_sync(_prepare, self._name)
        except (ConfigError, *_FAILURES) as error:
            await session.abandon()
            raise self._error(error) from None
        except BaseException:
            await session.abandon()
            raise
        driver.add_termination_listener(lambda _: self._drop_session(session, "the server hung up"))
        self._session = session
        self._epoch += 1
        self.is_scrubbed = False  # unknown

    def _error(self, error: Exception) -> ConfigError | DatabaseUnavailableError:
        driver = getattr(error, "orig", None)
        cause = error if driver is None else driver.__cause__ or driver
        if isinstance(cause, ConfigError):
            return cause
        if isinstance(cause, _PERMANENT_ERRORS):
            return ConfigError(f"cannot open the database {self._name}: {cause}")
        return DatabaseUnavailableError(
            f"the database {self._name} is out of reach: {_problem(cause)}"
        )

    def _drop_session(self, session: _Session, why: str) -> None:
        """Give a session up, and start to open another."""
        if self._session is not session:
            return
        self._session = None
        _LOG.error("lost the connection to the database", error=why)
        self._reopening = asyncio.create_task(self._reopen(session))

    async def _reopen(self, lost: _Session) -> None:
        lost.driver.terminate()  # ends the transaction that waits for it
        async with self._lock:
            await lost.abandon()
        retry, last_error = FIRST_RETRY_SECONDS, ""
        while True:
            try:
                await self._open_session()
            except Exception as error:  # noqa: BLE001 - another try may succeed, whatever failed
                if str(error) != last_error:
                    last_error = str(error)
                    _LOG.error(
                        "the connection to the database will be tried again", error=last_error
                    )
            else:
                _LOG.warning("connected to the database again")
                return
            await asyncio.sleep(retry)
            retry = min(2 * retry, LAST_RETRY_SECONDS)


def _prepare(connection: sa.Connection, name: str) -> None:
    """Check the server, take the lock, migrate. Raises ConfigError."""
    if connection.exec_driver_sql("SHOW fsync").scalar_one() != "on":
        raise ConfigError(
            f"the database {name} is on a server with fsync off: commits would not survive a "
            "power cut"
        )
    if connection.exec_driver_sql("SHOW synchronous_commit").scalar_one() == "off":
        connection.exec_driver_sql("SET synchronous_commit = on")
    query = sa.select(sa.func.pg_try_advisory_lock(LOCK))
    if not connection.execute(query).scalar_one():
        raise _InUseError(f"the database {name} is in use by another key service")
    migrate(connection, name)


def _problem(error: BaseException) -> str:
    if isinstance(error, TimeoutError):
        return "no answer in time"
    return str(getattr(error, "orig", None) or error) or type(error).__name__
