"""A real key service in this process: a SQLite file, real cryptography, no socket."""

import asyncio
import os
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from pathlib import Path
from typing import Any, cast
from uuid import uuid4

import pytest

from pqkeep_keyservice.audit.log import AuditLog
from pqkeep_keyservice.dispatch import Dispatcher
from pqkeep_keyservice.operations.resources import Resources
from pqkeep_keyservice.slhdsa_process import Setup, SlhDsaProcesses
from pqkeep_keyservice.storage.database import Database
from pqkeep_keyservice.storage.keyrings import Keyrings
from pqkeep_keyservice.storage.material import KeyMaterial
from pqkeep_keyservice.storage.sealing import Sealer, read_root_key
from pqkeep_keyservice.storage.store import KeyStore
from pqkeep_keyservice.workers import Threads
from pqkeep_protocol.keys import TenantId
from pqkeep_protocol.messages import Attribution, KeyService, R_co, Request

SECONDS = 30.0


class InProcess:
    """The key service without a socket: every call gets the same generous deadline."""

    def __init__(self, dispatcher: Dispatcher) -> None:
        self._dispatcher = dispatcher

    async def execute(self, request: Request[R_co], attribution: Attribution, /) -> R_co:
        deadline = asyncio.get_running_loop().time() + SECONDS
        result = await self._dispatcher.execute(cast(Any, request), attribution, deadline)
        return cast(R_co, result)


@pytest.fixture
def tenant() -> TenantId:
    """Make up a tenant of this test only."""
    return TenantId(uuid4())


@pytest.fixture
def attribution() -> Attribution:
    """Somebody who asks."""
    return Attribution("request-1", "api-key:3", "192.0.2.7", "plan-allows")


@pytest.fixture
def database_path(tmp_path: Path) -> Path:
    """Where the database is, or will be."""
    return tmp_path / "keys.sqlite3"


@pytest.fixture
def database(database_path: Path) -> Iterator[Database]:
    """Open a new database."""
    with closing(Database(str(database_path))) as opened:
        yield opened


@pytest.fixture
def sql(database_path: Path) -> Callable[..., list[Any]]:
    """Run one statement on the database file, behind the key service's back."""

    def run(statement: str, *parameters: object) -> list[Any]:
        with closing(sqlite3.connect(database_path)) as connection, connection:
            return connection.execute(statement, parameters).fetchall()

    return run


@pytest.fixture
def store(database: Database) -> KeyStore:
    """Store keys in the open database."""
    return KeyStore(database)


@pytest.fixture
def root_key(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a root key of this test only."""
    path = tmp_path_factory.mktemp("secrets") / "root.key"
    path.write_bytes(os.urandom(32))
    path.chmod(0o400)
    return path


@pytest.fixture
def sealer(root_key: Path) -> Sealer:
    """Seal with that root key."""
    return Sealer(read_root_key(root_key))


@pytest.fixture
def material(sealer: Sealer) -> KeyMaterial:
    """Expand and keep keys."""
    return KeyMaterial(sealer)


NewDispatcher = Callable[[KeyMaterial], Dispatcher]


@pytest.fixture
def new_dispatcher(store: KeyStore, root_key: Path) -> Iterator[NewDispatcher]:
    """Make dispatchers on one database that know no keyring yet."""
    threads = Threads()
    slh_dsa = SlhDsaProcesses(Setup(str(root_key), "pqcrypto", None))

    def new(material: KeyMaterial) -> Dispatcher:
        return Dispatcher(Keyrings(store), Resources(material, threads, slh_dsa), AuditLog(store))

    yield new
    slh_dsa.close()
    threads.close()


@pytest.fixture
def dispatcher(new_dispatcher: NewDispatcher, material: KeyMaterial) -> Dispatcher:
    """Return the key service as its socket sees it."""
    return new_dispatcher(material)


@pytest.fixture
def keys(dispatcher: Dispatcher) -> KeyService:
    """Return the key service as its clients see it."""
    return InProcess(dispatcher)


@pytest.fixture
def serving(
    database_path: Path, root_key: Path, sealer: Sealer
) -> Callable[[], AbstractContextManager[KeyService]]:
    """Serve the database for as long as a block lasts, and close it then."""

    @contextmanager
    def serve() -> Iterator[KeyService]:
        with (
            closing(Database(str(database_path))) as database,
            closing(Threads()) as threads,
            closing(SlhDsaProcesses(Setup(str(root_key), "pqcrypto", None))) as slh_dsa,
        ):
            store = KeyStore(database)
            resources = Resources(KeyMaterial(sealer), threads, slh_dsa)
            yield InProcess(Dispatcher(Keyrings(store), resources, AuditLog(store)))

    return serve


@pytest.fixture
def restarted(new_dispatcher: NewDispatcher, sealer: Sealer) -> Callable[[], KeyService]:
    """Forget everything that is in memory and serve the same database again."""
    return lambda: InProcess(new_dispatcher(KeyMaterial(sealer)))
