"""A real accounts database, and tenants to put into it.

Tests run on a SQLite file. A module that is about what any database must do says so with
``pytestmark = pytest.mark.parametrize("backend", ["sqlite", "postgresql"], indirect=True)``.
"""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast
from uuid import UUID, uuid4

import psycopg
import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from pqkeep_gateway.access.credentials import PEPPER_SIZE, Pepper
from pqkeep_gateway.access.entitlements import Entitlements, Tier
from pqkeep_gateway.audit_events import AuditDelivery
from pqkeep_gateway.storage.database import open_database
from pqkeep_gateway.storage.outbox import SqlOutbox
from pqkeep_gateway.tenancy.tenants import Tenant, TenantStatus
from pqkeep_protocol.audit import Event, Recorded, RecordEvents
from pqkeep_protocol.errors import ErrorKind, KeyServiceError
from pqkeep_protocol.keys import TenantId
from pqkeep_protocol.messages import Attribution, R_co, Request

if TYPE_CHECKING:
    from tests.fixtures.postgresql import PostgresServer

ROLE = "pqkeep_gateway"


@dataclass
class EventLog:
    """A key service that only records events, each once, unless it is away."""

    recorded: dict[UUID, Event] = field(default_factory=dict)
    brought: int = 0
    """Events that came, repetitions among them."""
    is_away: bool = False
    loses_answers: bool = False

    async def execute(self, request: Request[R_co], _: Attribution, /) -> R_co:
        """Record, and then say so."""
        assert isinstance(request, RecordEvents)
        if self.is_away:
            raise KeyServiceError(ErrorKind.UNAVAILABLE)
        for each in request.events:
            self.brought += 1
            self.recorded.setdefault(each.id, each)
        if self.loses_answers:
            raise KeyServiceError(ErrorKind.UNAVAILABLE)
        return cast(R_co, Recorded())

    @property
    def operations(self) -> list[str]:
        """What was recorded, in order."""
        return [each.operation for each in self.recorded.values()]


@pytest.fixture
def pepper() -> Pepper:
    """Some pepper."""
    return Pepper(bytes(range(PEPPER_SIZE)))


@pytest.fixture
def database_path(tmp_path: Path) -> Path:
    """Where the accounts database is."""
    return tmp_path / "accounts.sqlite3"


@dataclass(frozen=True)
class Location:
    """A database: how the gateway finds it, and how a test gets behind the gateway's back."""

    name: str
    run: Callable[[str], None]


@pytest.fixture
def backend(request: pytest.FixtureRequest) -> str:
    """Which kind of database it is."""
    return getattr(request, "param", "sqlite")


@pytest.fixture
def location(
    backend: str, request: pytest.FixtureRequest, database_path: Path
) -> Iterator[Location]:
    """Where a new database is."""
    if backend == "sqlite":

        def in_file(statement: str) -> None:
            with closing(sqlite3.connect(database_path)) as connection, connection:
                connection.execute(statement)

        yield Location(str(database_path), in_file)
        return
    server: PostgresServer = request.getfixturevalue("postgres_server")
    name = server.new_database(ROLE)
    url = server.url(ROLE, name)

    def on_server(statement: Any) -> None:
        with psycopg.connect(url) as connection:
            connection.execute(statement)

    yield Location(url, on_server)
    server.drop(name)


@pytest.fixture
async def engine(location: Location) -> AsyncIterator[AsyncEngine]:
    """An open accounts database, migrated."""
    opened = await open_database(location.name)
    yield opened
    await opened.dispose()


@pytest.fixture
def log() -> EventLog:
    """Nothing is in it yet."""
    return EventLog()


@pytest.fixture
def audit_delivery(engine: AsyncEngine, log: EventLog) -> AuditDelivery:
    """Bring events from the accounts database to that log."""
    return AuditDelivery(SqlOutbox(engine), log)


@pytest.fixture
def new_tenant() -> Callable[..., Tenant]:
    """Make tenants that are in no database yet."""

    def make(name: str = "", tier: Tier = Tier.FREE) -> Tenant:
        now = datetime(2026, 2, 28, 23, 59, 59, 999_999, tzinfo=UTC)
        tenant = TenantId(uuid4())
        return Tenant(
            tenant, name or str(tenant), Entitlements(tier), TenantStatus.ACTIVE, now, now
        )

    return make
