"""A key service in this process: a real database and real cryptography, without sockets.

Tests run on a SQLite file. A module whose tests hold for any database sets ``pytestmark =
pytest.mark.parametrize("backend", ["sqlite", "postgresql"], indirect=True)``.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import (
    AbstractAsyncContextManager,
    ExitStack,
    asynccontextmanager,
    closing,
    contextmanager,
)
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast
from uuid import uuid4

import hypothesis
import psycopg
import pytest
from hypothesis.stateful import run_state_machine_as_test
from tests.fixtures.schema import migrated_database, migrated_file
from tests.patience import PATIENCE

from pqkeep_keyservice.crypto.signature import SignatureSchemes
from pqkeep_keyservice.keys.sealing import Sealer
from pqkeep_keyservice.live.key_material import KeyMaterial
from pqkeep_keyservice.live.worker_processes import WorkerSettings, schemes_of
from pqkeep_keyservice.root_key_sources.file import read_root_key
from pqkeep_keyservice.storage import fenced_database, postgresql
from pqkeep_keyservice.storage.database import Database
from pqkeep_keyservice.storage.postgresql import open_postgresql
from pqkeep_keyservice.storage.schema import migrate
from pqkeep_keyservice.storage.sqlite import SqliteDatabase
from pqkeep_keyservice.storage.store import KeyStore
from pqkeep_keyservice.wiring import KeyServiceParts, wire
from pqkeep_protocol.errors import ErrorKind, KeyServiceError
from pqkeep_protocol.keys import TenantId
from pqkeep_protocol.messages import (
    Attribution,
    Batch,
    KeyRequest,
    KeyService,
    ListDestructions,
    R_co,
    Request,
)

if TYPE_CHECKING:
    from tests.fixtures.postgresql import PostgresServer

Sql = Callable[..., list[Any]]
ROLE = "pqkeep_keyservice"


@dataclass(frozen=True)
class InProcessService:
    """The key service without a socket. Every call has the same generous deadline."""

    parts: KeyServiceParts

    async def execute(self, request: Request[R_co], attribution: Attribution, /) -> R_co:
        """Execute a request about keys or about the log."""
        deadline = asyncio.get_running_loop().time() + PATIENCE
        if isinstance(request, Batch):
            results = await self.parts.batches.execute(request, attribution, deadline)
            return cast(R_co, results)
        if isinstance(request, ListDestructions):
            return cast(R_co, await self.parts.administration.list_destructions(request))
        if not isinstance(request, KeyRequest):
            return cast(R_co, await self.parts.audit_service.respond(cast(Any, request)))
        result = await self.parts.transactions.execute(cast(Any, request), attribution, deadline)
        return cast(R_co, result)


@dataclass
class OneTenant:
    """A caller with one tenant, who gets a result, or the kind of a refusal."""

    keys: KeyService
    tenant: TenantId
    attribution: Attribution

    async def ask(self, request: Request[R_co]) -> R_co:
        """Return the result. Raises KeyServiceError."""
        return await self.keys.execute(request, self.attribution)

    async def refusal(self, request: Request[Any]) -> ErrorKind:
        """Return the kind of the refusal, which there must be."""
        with pytest.raises(KeyServiceError) as refusal:
            await self.ask(request)
        return refusal.value.kind


NewService = Callable[[KeyMaterial], InProcessService]
Restart = Callable[[], InProcessService]
"""Starts the key service anew, over the same database."""
Walk = Callable[[Callable[[asyncio.Runner, Restart], Any], int], None]
"""Takes a state machine, and how many examples of it to run."""
Serving = Callable[[], AbstractAsyncContextManager[InProcessService]]


@dataclass(frozen=True)
class Location:
    """A database, as the key service opens it and as a test accesses it directly."""

    open: Callable[[], Awaitable[Database]]
    sql: Sql
    url: str
    """For SQLAlchemy."""


@pytest.fixture
def tenant() -> TenantId:
    """Return a new tenant."""
    return TenantId(uuid4())


@pytest.fixture
def attribution() -> Attribution:
    """Return a caller's attribution."""
    return Attribution("request-1", "api-key:3", "192.0.2.7", "plan-allows")


@pytest.fixture
def backend(request: pytest.FixtureRequest) -> str:
    """Return the kind of database."""
    return getattr(request, "param", "sqlite")


@pytest.fixture
def database_path(tmp_path: Path) -> Path:
    """Return the path of an empty database file."""
    path = tmp_path / "keys.sqlite3"
    path.touch(0o600)
    return path


@pytest.fixture(scope="session")
def file_with_schema(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a file with the schema, to copy."""
    return migrated_file(tmp_path_factory.mktemp("schema") / "keys.sqlite3", migrate)


@pytest.fixture(scope="session")
def database_with_schema(postgres_server: PostgresServer) -> str:
    """Return a database with the schema, to copy."""
    return migrated_database(postgres_server, ROLE, migrate)


@pytest.fixture
def has_schema() -> bool:
    """Return whether a new database already has the schema."""
    return True


@pytest.fixture
def location(
    *, backend: str, request: pytest.FixtureRequest, database_path: Path, has_schema: bool
) -> Iterator[Location]:
    """Return the location of a new database."""
    with _location(backend, request, database_path, has_schema=has_schema) as found:
        yield found


@pytest.fixture
def other_location(
    backend: str, request: pytest.FixtureRequest, tmp_path: Path
) -> Iterator[Location]:
    """Return the location of another new database, with the schema."""
    path = tmp_path / "other.sqlite3"
    path.touch(0o600)
    with _location(backend, request, path, has_schema=True) as found:
        yield found


@contextmanager
def _location(
    backend: str, request: pytest.FixtureRequest, path: Path, *, has_schema: bool
) -> Iterator[Location]:
    if backend == "sqlite":
        if has_schema:
            shutil.copy(request.getfixturevalue("file_with_schema"), path)

        async def opened() -> Database:
            return SqliteDatabase(str(path))

        yield Location(opened, _sqlite(path), f"sqlite:///{path}")
        return
    server: PostgresServer = request.getfixturevalue("postgres_server")
    template = "database_with_schema" if has_schema else None
    name = server.new_database(ROLE, template and request.getfixturevalue(template))
    url = server.url(ROLE, name)
    yield Location(
        lambda: open_postgresql(url, lock_seconds=0),
        _postgresql(url),
        url.replace("postgresql", "postgresql+psycopg", 1),
    )
    server.drop(name)


def _sqlite(path: Path) -> Sql:
    def run(statement: str, *parameters: object) -> list[Any]:
        with closing(sqlite3.connect(path)) as connection, connection:
            return connection.execute(statement, parameters).fetchall()

    return run


def _postgresql(url: str) -> Sql:
    def run(statement: str, *parameters: object) -> list[Any]:
        with psycopg.connect(url) as connection:
            placed = cast(Any, statement.replace("?", "%s"))
            cursor = connection.execute(placed, parameters or None)
            return cursor.fetchall() if cursor.description else []

    return run


@pytest.fixture
def sql(location: Location) -> Sql:
    """Return a function that runs one statement directly on the database."""
    return location.sql


@pytest.fixture(autouse=True)
def patient_databases(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give a server the time that it needs on a busy machine."""
    monkeypatch.setattr(fenced_database, "RESPONSE_SECONDS", PATIENCE)
    monkeypatch.setattr(postgresql, "RESPONSE_SECONDS", PATIENCE)
    monkeypatch.setattr(postgresql, "CONNECT_SECONDS", PATIENCE)


@pytest.fixture
async def database(location: Location) -> AsyncIterator[Database]:
    """Open a new database."""
    opened = await location.open()
    yield opened
    await opened.close()


@pytest.fixture
def root_key(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Create a root key for this test."""
    path = tmp_path_factory.mktemp("secrets") / "root.key"
    path.write_bytes(os.urandom(32))
    path.chmod(0o400)
    return path


@pytest.fixture
def sealer(root_key: Path) -> Sealer:
    """Return a sealer with that root key."""
    return Sealer({1: read_root_key(root_key)})


@pytest.fixture
def store(database: Database, sealer: Sealer) -> KeyStore:
    """Return a store on the open database."""
    return KeyStore(database, sealer)


@pytest.fixture
def settings(root_key: Path) -> Path:
    """Write a settings file that names the root key."""
    path = root_key.with_name("settings.toml")
    path.write_text(
        f'socket = "s"\ngateway_uid = "same"\ndatabase = "keys.sqlite3"\nroot_key_file = "{root_key}"\n'
    )
    return path


@pytest.fixture
def least_destruction_days() -> int:
    """Return the delay of destructions for development: none."""
    return 0


@pytest.fixture
def worker_settings() -> WorkerSettings:
    """Return the default settings of worker processes."""
    return WorkerSettings("pqcrypto", None)


@pytest.fixture
def schemes(worker_settings: WorkerSettings) -> SignatureSchemes:
    """Return the table of signature schemes."""
    return schemes_of(worker_settings)


@pytest.fixture
def material(sealer: Sealer, schemes: SignatureSchemes) -> KeyMaterial:
    """Return key material with that root key."""
    return KeyMaterial(sealer, schemes)


@pytest.fixture
def new_service(
    store: KeyStore,
    sealer: Sealer,
    worker_settings: WorkerSettings,
    settings: Path,
    least_destruction_days: int,
) -> Iterator[NewService]:
    """Wire key services on one database with empty caches, and close them at the end."""
    with ExitStack() as stack:

        def new(material: KeyMaterial) -> InProcessService:
            parts = wire(
                store,
                sealer,
                worker_settings,
                settings,
                material=material,
                least_destruction_days=least_destruction_days,
            )
            stack.callback(parts.close)
            return InProcessService(parts)

        yield new


@pytest.fixture
def service(new_service: NewService, material: KeyMaterial) -> InProcessService:
    """Return a key service with its parts."""
    return new_service(material)


@pytest.fixture
def keys(service: InProcessService) -> KeyService:
    """Return the key service as its clients see it."""
    return service


@pytest.fixture
def restarted(
    new_service: NewService, sealer: Sealer, schemes: SignatureSchemes
) -> Callable[[], KeyService]:
    """Serve the same database again, with empty caches."""
    return lambda: new_service(KeyMaterial(sealer, schemes))


@pytest.fixture
def serving(
    location: Location,
    sealer: Sealer,
    worker_settings: WorkerSettings,
    settings: Path,
    least_destruction_days: int,
) -> Serving:
    """Check and serve the database during a block, then close it."""

    @asynccontextmanager
    async def serve() -> AsyncIterator[InProcessService]:
        database = await location.open()
        try:
            store = KeyStore(database, sealer)
            await store.check()
            parts = wire(
                store,
                sealer,
                worker_settings,
                settings,
                least_destruction_days=least_destruction_days,
            )
            with closing(parts):
                yield InProcessService(parts)
        finally:
            await database.close()

    return serve


@pytest.fixture
def walk(
    location: Location, sealer: Sealer, worker_settings: WorkerSettings, settings: Path
) -> Iterator[Walk]:
    """Run a state machine against a key service, and restart the key service between its steps."""
    with asyncio.Runner() as runner:
        database: Database = runner.run(cast(Any, location.open()))
        store = KeyStore(database, sealer)
        runner.run(store.check())
        services: list[InProcessService] = []

        def restart() -> InProcessService:
            while services:
                services.pop().parts.close()
            parts = wire(store, sealer, worker_settings, settings, least_destruction_days=0)
            services.append(InProcessService(parts))
            return services[0]

        def run(machine: Callable[[asyncio.Runner, Restart], Any], examples: int) -> None:
            run_state_machine_as_test(
                cast(Any, lambda: machine(runner, restart)),
                settings=hypothesis.settings(
                    max_examples=examples,
                    stateful_step_count=20,
                    deadline=None,
                    suppress_health_check=list(hypothesis.HealthCheck),
                ),
            )

        yield run
        for each in services:
            each.parts.close()
        runner.run(database.close())
