"""How the accounts database is opened."""

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import sqlalchemy as sa
from alembic import command
from alembic.config import Config as AlembicConfig
from alembic.util import CommandError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine

from pqkeep_gateway.access.unavailable import UnavailableError
from pqkeep_gateway.config import ConfigError

_LOG = logging.getLogger(__name__)

PRAGMAS = (
    "PRAGMA journal_mode = WAL",
    "PRAGMA synchronous = FULL",  # a commit that returned survives a power cut
    "PRAGMA foreign_keys = ON",
    "PRAGMA busy_timeout = 5000",
)

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


async def open_database(path: str) -> AsyncEngine:
    """Open the file, creating it if need be, and migrate it. Raises ConfigError."""
    engine = create_async_engine(
        sa.URL.create("sqlite+aiosqlite", database=path), hide_parameters=True
    )
    sa.event.listen(engine.sync_engine, "connect", _on_connect)
    sa.event.listen(engine.sync_engine, "begin", _on_begin)
    try:
        async with engine.begin() as connection:
            await connection.run_sync(_migrate)
    except (CommandError, sa.exc.DatabaseError) as error:
        await engine.dispose()
        if isinstance(error, CommandError):
            problem = f"{path} has a schema that this version of pqkeep does not know"
        else:
            problem = f"cannot open the database {path}: {error.orig}"
        raise ConfigError(problem) from None
    return engine


@asynccontextmanager
async def transaction(engine: AsyncEngine) -> AsyncIterator[AsyncConnection]:
    """Begin a transaction; commit it at the end. Raises UnavailableError."""
    try:
        async with engine.begin() as connection:
            yield connection
    except sa.exc.OperationalError as error:
        _LOG.error("the accounts database is out of reach: %s", error.orig)
        raise UnavailableError from None


def microseconds(when: datetime) -> int:
    """Return a time as it is stored: microseconds since 1970, UTC."""
    return (when - _EPOCH) // _MICROSECOND


def time_of(stored: int) -> datetime:
    """Return a stored time."""
    return _EPOCH + stored * _MICROSECOND


def _on_connect(connection: Any, _: object) -> None:
    connection.isolation_level = None  # transactions begin where we say, see _on_begin
    cursor = connection.cursor()
    try:
        for pragma in PRAGMAS:
            cursor.execute(pragma)
    except Exception:
        connection.close()  # it is in no pool yet
        raise
    cursor.close()


def _on_begin(connection: sa.Connection) -> None:
    connection.exec_driver_sql("BEGIN IMMEDIATE")


def _migrate(connection: sa.Connection) -> None:
    config = AlembicConfig()
    config.set_main_option("script_location", "pqkeep_gateway.storage:migrations")
    config.attributes["connection"] = connection
    command.upgrade(config, "head")
