"""Both databases as a backup sees them: tables with rows, and the revision of their schema.

Tables and columns are taken from the database itself, so that what a later migration adds is in
every backup without a word here.
"""

import sqlite3
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol, TypeVar, TypeVarTuple
from urllib.parse import quote
from uuid import UUID

import asyncpg
import sqlalchemy as sa
from alembic import command
from alembic.config import Config as AlembicConfig
from alembic.migration import MigrationContext
from alembic.util import CommandError
from sqlalchemy.ext.asyncio import AsyncConnection, create_async_engine

from pqkeep_server.settings_file import read

POSTGRESQL = "postgresql://"
ROWS = 200
"""At a time in memory."""
CONNECT_SECONDS = 10.0
_VERSION_TABLE = "alembic_version"

T = TypeVar("T")
Arguments = TypeVarTuple("Arguments")


class DatabaseError(Exception):
    """A database cannot be read or filled. The message is for the person who asked for it."""


@dataclass(frozen=True, slots=True)
class Kind:
    """One of the two databases of every installation."""

    name: str
    folder: str
    """Whose it is, in the data directory."""
    file: str
    """What its SQLite file is called unless it is set otherwise."""
    migrations: str
    lock: int
    """The advisory lock of whoever changes its schema, on a PostgreSQL server."""


ACCOUNTS = Kind(
    "accounts",
    "gateway",
    "accounts.sqlite3",
    "pqkeep_gateway.storage:migrations",
    0x7071_6B65_6570_0002,
)
KEYS = Kind(
    "keys",
    "keyservice",
    "keys.sqlite3",
    "pqkeep_keyservice.storage:migrations",
    0x7071_6B65_6570_0001,
)
KINDS = (ACCOUNTS, KEYS)
"""In the order in which they are backed up: a tenant that has keys has an account."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a database is: a SQLite file, or on a PostgreSQL server."""

    kind: Kind
    location: str
    password_file: str | None = None

    @property
    def is_on_server(self) -> bool:
        """Whether it is no file."""
        return self.location.startswith(POSTGRESQL)


class Session(Protocol):
    """One transaction on one database."""

    async def run(
        self, function: Callable[[sa.Connection, *Arguments], T], *arguments: *Arguments
    ) -> T:
        """Run a function in it."""


@dataclass(frozen=True, slots=True)
class _FileSession:
    connection: sa.Connection

    async def run(
        self, function: Callable[[sa.Connection, *Arguments], T], *arguments: *Arguments
    ) -> T:
        return function(self.connection, *arguments)


@dataclass(frozen=True, slots=True)
class _ServerSession:
    connection: AsyncConnection

    async def run(
        self, function: Callable[[sa.Connection, *Arguments], T], *arguments: *Arguments
    ) -> T:
        return await self.connection.run_sync(function, *arguments)


def place_of(kind: Kind, settings: Path) -> Place:
    """Return where a settings file says that a database is. Raises SettingsFileError."""
    location = read(settings).get("database", "")
    password_file = read(settings).get("database_password_file")
    here = settings.resolve().parent
    return Place(
        kind,
        location if location.startswith(POSTGRESQL) else str(here / location),
        None if password_file is None else str(here / password_file),
    )


@asynccontextmanager
async def snapshot(place: Place) -> AsyncIterator[Session]:
    """Read a database as it is at one moment, while others go on. Raises DatabaseError."""
    async with _connected(place, "rw") as session:
        begin = _begin_reading_server if place.is_on_server else _begin_reading_file
        await session.run(begin)
        yield session


@asynccontextmanager
async def filling(place: Place) -> AsyncIterator[Session]:
    """Fill an empty database in one transaction, alone, committed where the block ends well.

    A SQLite file is created. Raises DatabaseError.
    """
    async with _connected(place, "rwc") as session:
        if place.is_on_server:
            await session.run(_lock, place)
        else:
            await session.run(_begin_writing_file)
        await session.run(_require_empty, place)
        yield session
        await session.run(sa.Connection.commit)


def revision(connection: sa.Connection) -> str:
    """Return the schema's revision; it begins the snapshot where the database is a file."""
    return MigrationContext.configure(connection).get_current_revision() or ""


def migrate(connection: sa.Connection, kind: Kind, to: str) -> None:
    """Make a schema, or bring it on. Raises DatabaseError where the revision is not known."""
    config = AlembicConfig()
    config.set_main_option("script_location", kind.migrations)
    config.attributes["connection"] = connection
    try:
        command.upgrade(config, to)
    except CommandError:
        problem = f"the {kind.name} in it have a schema that this version of pqkeep does not know"
        raise DatabaseError(problem) from None


def tables(connection: sa.Connection) -> list[sa.Table]:
    """Return all tables but Alembic's own, each after those it refers to."""
    metadata = sa.MetaData()
    metadata.reflect(connection)
    return [table for table in metadata.sorted_tables if table.name != _VERSION_TABLE]


def rows(connection: sa.Connection, table: sa.Table) -> Iterator[list[list[Any]]]:
    """Yield a table's rows by its primary key, a few at a time."""
    query = sa.select(table).order_by(*table.primary_key)
    result = connection.execute(query, execution_options={"yield_per": ROWS})
    for some in result.partitions():
        yield [[_portable(value) for value in row] for row in some]


def insert(
    connection: sa.Connection, table: sa.Table, names: Sequence[str], some: list[list[Any]]
) -> None:
    """Put rows into a table. Raises DatabaseError where they do not fit."""
    if set(names) != set(table.columns.keys()):
        raise DatabaseError(f"the table {table.name} has other columns")
    takes_uuid = [isinstance(table.columns[name].type, sa.Uuid) for name in names]
    values = [
        {
            name: UUID(value) if is_uuid and value is not None else value
            for name, is_uuid, value in zip(names, takes_uuid, row, strict=True)
        }
        for row in some
    ]
    connection.execute(sa.insert(table), values)


def count_on(connection: sa.Connection, table: sa.Table) -> None:
    """Let a table that numbers its rows on a PostgreSQL server go on after the last one."""
    for column in table.primary_key:
        if "nextval" not in str(getattr(column.server_default, "arg", "")):
            continue
        sequence = sa.func.pg_get_serial_sequence(table.name, column.name)
        last = connection.execute(sa.select(sa.func.max(column))).scalar()
        if last is not None:
            connection.execute(sa.select(sa.func.setval(sequence, last)))


def _portable(value: Any) -> Any:
    if isinstance(value, UUID):
        return value.hex  # as SQLite has it
    if value is None or isinstance(value, bool | int | float | str | bytes | dict | list):
        return value
    raise DatabaseError(f"a backup has no form for values of type {type(value).__name__}")


@asynccontextmanager
async def _connected(place: Place, mode: str) -> AsyncIterator[Session]:
    try:
        connected = _server(place) if place.is_on_server else _file(place.location, mode)
        async with connected as session:
            yield session
    except (sa.exc.SQLAlchemyError, sqlite3.Error, asyncpg.PostgresError, OSError) as error:
        problem = str(getattr(error, "orig", None) or error) or type(error).__name__
        raise DatabaseError(f"the database {place.location}: {problem}") from None


@asynccontextmanager
async def _file(path: str, mode: str) -> AsyncIterator[Session]:
    connect = partial(
        sqlite3.connect,
        f"file:{quote(path)}?mode={mode}",
        uri=True,
        isolation_level=None,  # transactions begin where we say
    )
    engine = sa.create_engine("sqlite://", creator=connect, poolclass=sa.NullPool)
    with engine.connect() as connection:
        yield _FileSession(connection)


@asynccontextmanager
async def _server(place: Place) -> AsyncIterator[Session]:
    connect = partial(
        asyncpg.connect, place.location, passfile=place.password_file, timeout=CONNECT_SECONDS
    )
    engine = create_async_engine(
        "postgresql+asyncpg://",
        async_creator=connect,
        poolclass=sa.NullPool,
        isolation_level="REPEATABLE READ",
        hide_parameters=True,
    )
    async with engine.connect() as connection:
        yield _ServerSession(connection)


def _begin_reading_file(connection: sa.Connection) -> None:
    connection.exec_driver_sql("PRAGMA query_only = ON")
    connection.exec_driver_sql("PRAGMA busy_timeout = 10000")
    connection.exec_driver_sql("BEGIN")
    revision(connection)  # the first read is the moment of the snapshot


def _begin_reading_server(connection: sa.Connection) -> None:
    connection.exec_driver_sql("SET TRANSACTION READ ONLY")
    revision(connection)


def _begin_writing_file(connection: sa.Connection) -> None:
    connection.exec_driver_sql("PRAGMA journal_mode = WAL")
    connection.exec_driver_sql("PRAGMA synchronous = FULL")
    connection.exec_driver_sql("BEGIN IMMEDIATE")


def _lock(connection: sa.Connection, place: Place) -> None:
    query = sa.select(sa.func.pg_try_advisory_xact_lock(place.kind.lock))
    if not connection.execute(query).scalar_one():
        raise DatabaseError(f"the database {place.location} is in use")


def _require_empty(connection: sa.Connection, place: Place) -> None:
    if sa.inspect(connection).get_table_names():
        raise DatabaseError(f"the database {place.location} is not empty")
