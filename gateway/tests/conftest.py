"""A real accounts database, with the gateway's stores and services.

Tests run on a SQLite file. A module about the behaviour of every database declares this with
``pytestmark = pytest.mark.parametrize("backend", ["sqlite", "postgresql"], indirect=True)``.
"""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from gateway.tests.world import FakeAuditLog, World, add_tenant, new_tenant, one_shard
from sqlalchemy.ext.asyncio import AsyncEngine
from tests.fixtures.schema import migrated_database, migrated_file
from tests.patience import PATIENCE

from pqkeep_gateway.access.credentials import PEPPER_SIZE, Pepper
from pqkeep_gateway.audit_delivery import AuditDelivery
from pqkeep_gateway.storage import database
from pqkeep_gateway.storage.audit_outbox import SqlAuditOutbox
from pqkeep_gateway.storage.database import migrate, open_database
from pqkeep_gateway.storage.time_limits import TimeLimits

if TYPE_CHECKING:
    from tests.fixtures.postgresql import PostgresServer

ROLE = "pqkeep_gateway"


@pytest.fixture
def pepper() -> Pepper:
    """A pepper."""
    return Pepper(bytes(range(PEPPER_SIZE)))


@pytest.fixture
def database_path(tmp_path: Path) -> Path:
    """The path of the accounts database, an empty file at first."""
    path = tmp_path / "accounts.sqlite3"
    path.touch(0o600)
    return path


@dataclass(frozen=True)
class Location:
    """A database: its setting, and a function that executes a statement without the gateway."""

    name: str
    run: Callable[[str], None]


@pytest.fixture
def backend(request: pytest.FixtureRequest) -> str:
    """The kind of database."""
    return getattr(request, "param", "sqlite")


@pytest.fixture(scope="session")
def file_with_schema(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file with the schema, to copy."""
    return migrated_file(tmp_path_factory.mktemp("schema") / "accounts.sqlite3", migrate)


@pytest.fixture(scope="session")
def database_with_schema(postgres_server: PostgresServer) -> str:
    """A database with the schema, to copy."""
    return migrated_database(postgres_server, ROLE, migrate)


@pytest.fixture
def has_schema() -> bool:
    """Whether a new database contains the schema; it is empty otherwise."""
    return True


@pytest.fixture
def location(
    *, backend: str, request: pytest.FixtureRequest, database_path: Path, has_schema: bool
) -> Iterator[Location]:
    """The location of a new database."""
    if backend == "sqlite":
        if has_schema:
            shutil.copy(request.getfixturevalue("file_with_schema"), database_path)

        def in_file(statement: str) -> None:
            with closing(sqlite3.connect(database_path)) as connection, connection:
                connection.execute(statement)

        yield Location(str(database_path), in_file)
        return
    server: PostgresServer = request.getfixturevalue("postgres_server")
    template = "database_with_schema" if has_schema else None
    name = server.new_database(ROLE, template and request.getfixturevalue(template))
    url = server.url(ROLE, name)

    def on_server(statement: Any) -> None:
        with psycopg.connect(url) as connection:
            connection.execute(statement)

    yield Location(url, on_server)
    server.drop(name)


@pytest.fixture
def time_limits() -> TimeLimits:
    """Time limits that a busy machine keeps, also with many more callers than connections."""
    return TimeLimits(connect=60, wait=60, statement=60, transaction=120, file_lock=60)


@pytest.fixture
async def engine(
    location: Location, time_limits: TimeLimits, pepper: Pepper, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[AsyncEngine]:
    """An open accounts database, migrated. A file's writers wait long for each other."""
    wait = f"PRAGMA busy_timeout = {1000 * PATIENCE:.0f}"
    monkeypatch.setattr(database, "PRAGMAS", (*database.PRAGMAS, wait))
    opened = await open_database(location.name, limits=time_limits, pepper=pepper)
    yield opened
    await opened.dispose()


@pytest.fixture
def log() -> FakeAuditLog:
    """An empty audit log."""
    return FakeAuditLog()


@pytest.fixture
def audit_delivery(engine: AsyncEngine, log: FakeAuditLog) -> AuditDelivery:
    """The delivery of events from the accounts database to that log."""
    return AuditDelivery(SqlAuditOutbox(engine), one_shard(log))


@pytest.fixture
async def world(engine: AsyncEngine, pepper: Pepper, log: FakeAuditLog) -> World:
    """All stores and services, and one tenant on free without people."""
    return World(engine, pepper, log, await add_tenant(engine, new_tenant()))
