"""Connections to the databases, to back them up and to restore into them."""

import os
import sqlite3
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Concatenate, ParamSpec, Protocol, TypeVar
from urllib.parse import quote

import asyncpg
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import create_async_engine

from pqkeep_protocol.keys import DEFAULT_SHARD
from pqkeep_protocol.startup import postgresql
from pqkeep_protocol.startup.postgresql import problem_with
from pqkeep_protocol.startup.secret_files import password_file_of
from pqkeep_protocol.startup.settings import ConfigError, DatabaseAddress
from pqkeep_protocol.startup.sqlite_files import OWN_CODE, open_database_file
from pqkeep_server.backup.tables import DatabaseError, revision

CONNECT_SECONDS = 10.0
STATEMENT_SECONDS = 120.0
"""For one statement of the many that read or write a table. A hanging server ends the command."""

T = TypeVar("T")
Arguments = ParamSpec("Arguments")


@dataclass(frozen=True, slots=True)
class DatabaseKind:
    """One of the databases of an installation: the accounts, or the keys of a shard."""

    name: str
    folder: str
    """The process's folder in the data directory."""
    file: str
    """The name of the SQLite file."""
    migrations: str
    lock: int
    """The advisory lock that migrations hold on a PostgreSQL server."""


ACCOUNTS = DatabaseKind(
    "accounts",
    "gateway",
    "accounts.sqlite3",
    "pqkeep_gateway.storage:migrations",
    0x7071_6B65_6570_0002,
)
KEYS = DatabaseKind(
    "keys",
    "keyservice",
    "keys.sqlite3",
    "pqkeep_keyservice.storage:migrations",
    0x7071_6B65_6570_0001,
)


def keys_of(shard: str) -> DatabaseKind:
    """Return the kind of a shard's keys database."""
    if shard == DEFAULT_SHARD:
        return KEYS
    return replace(KEYS, name=f"{KEYS.name}-{shard}", folder=f"{KEYS.folder}-{shard}")


@dataclass(frozen=True, slots=True)
class Database:
    """A database's kind, address and password file."""

    kind: DatabaseKind
    address: DatabaseAddress
    password_file: Path | None = None


class Run(Protocol):
    """Runs a function in a transaction."""

    async def __call__(
        self,
        function: Callable[Concatenate[sa.Connection, Arguments], T],
        /,
        *arguments: Arguments.args,
        **named: Arguments.kwargs,
    ) -> T:
        """Return what the function returns."""


@asynccontextmanager
async def snapshot(database: Database) -> AsyncIterator[Run]:
    """Begin a read-only transaction that sees one state of the database.

    Writers are not blocked. Raises DatabaseError.
    """
    async with _connected(database, "rw") as run:
        on_server = database.address.is_on_server
        await run(_begin_reading_server if on_server else _begin_reading_file)
        yield run


@asynccontextmanager
async def exclusive(database: Database) -> AsyncIterator[Run]:
    """Read a file that no other process has open or can open during the block.

    Raises DatabaseError, for example if another process has the file open.
    """
    async with _connected(database, "rw") as run:
        await run(_begin_alone)
        yield run


@asynccontextmanager
async def restoring(database: Database) -> AsyncIterator[Run]:
    """Begin a transaction on an empty database, and commit it if the block succeeds.

    A SQLite file is created. Raises DatabaseError if the database is not empty or is in use.
    """
    async with _connected(database, "rwc") as run:
        if database.address.is_on_server:
            await run(_lock, database)
        else:
            await run(_begin_writing_file)
        await run(_require_empty, database)
        yield run
        await run(sa.Connection.commit)


@asynccontextmanager
async def _connected(database: Database, mode: str) -> AsyncIterator[Run]:
    location = database.address.location
    try:
        on_server = database.address.is_on_server
        async with _server(database) if on_server else _file(location, mode) as run:
            yield run
    except ConfigError as error:
        raise DatabaseError(str(error)) from None
    except (sa.exc.SQLAlchemyError, sqlite3.Error, asyncpg.PostgresError, OSError) as error:
        if database.address.is_on_server:
            raise DatabaseError(problem_with(error, location)) from None
        problem = str(getattr(error, "orig", None) or error) or type(error).__name__
        raise DatabaseError(f"the database {location}: {problem}") from None


@asynccontextmanager
async def _file(path: str, mode: str) -> AsyncIterator[Run]:
    if mode == "rw":
        os.close(open_database_file(path))
    connect = partial(
        sqlite3.connect,
        f"file:{quote(path)}?mode={mode}",
        uri=True,
        isolation_level=None,  # no implicit BEGIN
    )
    engine = sa.create_engine("sqlite://", creator=connect, poolclass=sa.NullPool)
    with engine.connect() as connection:
        if connection.exec_driver_sql(OWN_CODE).scalar_one():
            raise ConfigError(
                f"the database {path} has views or triggers, which pqkeep never makes"
            )

        async def run(
            function: Callable[Concatenate[sa.Connection, Arguments], T],
            /,
            *arguments: Arguments.args,
            **named: Arguments.kwargs,
        ) -> T:
            return function(connection, *arguments, **named)

        yield run


@asynccontextmanager
async def _server(database: Database) -> AsyncIterator[Run]:
    passwords = database.password_file
    if passwords is not None:
        passwords = password_file_of(passwords, "PostgreSQL password")
    connect = partial(
        asyncpg.connect,
        database.address.location,
        passfile=passwords,
        timeout=CONNECT_SECONDS,
        command_timeout=STATEMENT_SECONDS,
    )
    engine = create_async_engine(
        "postgresql+asyncpg://",
        async_creator=connect,
        poolclass=sa.NullPool,
        isolation_level="REPEATABLE READ",
        hide_parameters=True,
    )
    async with engine.connect() as connection:
        found = (await connection.exec_driver_sql(postgresql.OWN_CODE)).scalar()
        postgresql.require_no_code(found, database.address.location)

        async def run(
            function: Callable[Concatenate[sa.Connection, Arguments], T],
            /,
            *arguments: Arguments.args,
            **named: Arguments.kwargs,
        ) -> T:
            return await connection.run_sync(function, *arguments, **named)

        yield run


def _begin_reading_file(connection: sa.Connection) -> None:
    connection.exec_driver_sql("PRAGMA query_only = ON")
    connection.exec_driver_sql("PRAGMA busy_timeout = 10000")
    connection.exec_driver_sql("BEGIN")
    revision(connection)  # the first read fixes the snapshot


def _begin_reading_server(connection: sa.Connection) -> None:
    connection.exec_driver_sql("SET TRANSACTION READ ONLY")
    revision(connection)


def _begin_alone(connection: sa.Connection) -> None:
    connection.exec_driver_sql(
        "PRAGMA journal_mode = DELETE"
    )  # fails if another process has the file open
    connection.exec_driver_sql("PRAGMA locking_mode = EXCLUSIVE")
    connection.exec_driver_sql("BEGIN EXCLUSIVE")


def _begin_writing_file(connection: sa.Connection) -> None:
    connection.exec_driver_sql("PRAGMA journal_mode = WAL")
    connection.exec_driver_sql("PRAGMA synchronous = FULL")
    connection.exec_driver_sql("BEGIN IMMEDIATE")


def _lock(connection: sa.Connection, database: Database) -> None:
    query = sa.select(sa.func.pg_try_advisory_xact_lock(database.kind.lock))
    if not connection.execute(query).scalar_one():
        raise DatabaseError(f"the database {database.address.location} is in use: stop its users")


def _require_empty(connection: sa.Connection, database: Database) -> None:
    if sa.inspect(connection).get_table_names():
        raise DatabaseError(
            f"the database {database.address.location} is not empty: name an empty one"
        )
