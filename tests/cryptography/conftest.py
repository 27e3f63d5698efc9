"""A key service in this process, and tenants with a key of every current algorithm."""

import asyncio
import json
import os
from base64 import b64decode
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx2
import pytest
from tests.conftest import KNOWN_ANSWERS
from tests.fixtures.installation import Installation
from tests.patience import PATIENCE

from pqkeep_keyservice.crypto.slhdsa import PARAMETER_SETS
from pqkeep_keyservice.keys.sealing import Sealer
from pqkeep_keyservice.live.worker_processes import WorkerSettings
from pqkeep_keyservice.root_key_sources.file import read_root_key
from pqkeep_keyservice.storage.sqlite import SqliteDatabase
from pqkeep_keyservice.storage.store import KeyStore
from pqkeep_keyservice.wiring import wire
from pqkeep_protocol.algorithms import CURRENT, Algorithm
from pqkeep_protocol.errors import ErrorKind, KeyServiceError
from pqkeep_protocol.keys import TenantId
from pqkeep_protocol.messages import AnyRequest, AnyResult, Attribution, GenerateKey

AT_ONCE = 500
SLH_DSA_AT_ONCE = 60
"""Fewer than the requests of one tenant that may wait."""

Outcome = AnyResult | ErrorKind
Execute = Callable[[Sequence[AnyRequest]], list[Outcome]]
Post = Callable[[str, dict[str, object]], httpx2.Response]


@pytest.fixture
def count_known_answers(
    record_property: Callable[[str, object], None],
) -> Callable[[Algorithm, int], None]:
    """Count the verified known answers. None at all is a failure."""

    def count(algorithm: Algorithm, held: int) -> None:
        assert held > 0
        record_property(KNOWN_ANSWERS + algorithm, held)

    return count


@pytest.fixture(scope="session")
def read_vectors() -> Callable[[str], Any]:
    """Read one file of the project's own vectors."""
    folder = Path(__file__).parent.parent / "vectors"
    return lambda name: json.loads((folder / name).read_bytes())


@contextmanager
def _serve(path: Path) -> Iterator[Execute]:
    root_key = path.with_name("root.key")
    if not root_key.exists():
        root_key.write_bytes(os.urandom(32))
        root_key.chmod(0o400)
    path.touch(0o600)
    database = SqliteDatabase(str(path))
    settings = WorkerSettings("pqcrypto", None)
    sealer = Sealer({1: read_root_key(root_key)})
    parts = wire(
        KeyStore(database, sealer),
        sealer,
        settings,
        path.with_name("settings.toml"),
        least_destruction_days=0,
    )
    attribution = Attribution("request-1", "api-key:3", "192.0.2.7", "plan-allows")

    async def outcome(request: AnyRequest) -> Outcome:
        deadline = asyncio.get_running_loop().time() + PATIENCE
        try:
            return await parts.transactions.execute(request, attribution, deadline)
        except KeyServiceError as refusal:
            return refusal.kind

    async def every(requests: Sequence[AnyRequest]) -> list[Outcome]:
        responses: list[Outcome] = []
        queued = any(request.algorithm in PARAMETER_SETS for request in requests)
        size = SLH_DSA_AT_ONCE if queued else AT_ONCE
        for start in range(0, len(requests), size):
            batch = requests[start : start + size]
            responses += await asyncio.gather(*(outcome(request) for request in batch))
        return responses

    with asyncio.Runner() as runner:
        yield lambda requests: runner.run(every(requests))
        parts.close()
        runner.run(database.close())


@pytest.fixture(scope="session")
def serve() -> Callable[[Path], AbstractContextManager[Execute]]:
    """Open a database and run requests through a real key service on it.

    Each returns its result or the kind of its refusal. Other exceptions fail the test.
    """
    return _serve


@pytest.fixture(scope="session")
def execute(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Execute]:
    """Serve like `serve`, with one database for the whole session."""
    with _serve(tmp_path_factory.mktemp("in-process") / "keys.sqlite3") as execute:
        yield execute


@pytest.fixture(scope="session")
def tenant(execute: Execute) -> TenantId:
    """Make a tenant of the key service in this process, with a key of every current algorithm."""
    tenant = TenantId(uuid4())
    made = execute(
        [GenerateKey(tenant=tenant, algorithm=algorithm, quota=None) for algorithm in CURRENT]
    )
    assert not [kind for kind in made if isinstance(kind, ErrorKind)]
    return tenant


@pytest.fixture(scope="session")
def new_tenant_with_keys(installation: Installation) -> Callable[[], Post]:
    """Make a tenant with a key of every current algorithm; return its post function."""

    def make() -> Post:
        caller = installation.new_tenant()
        for algorithm in CURRENT:
            caller.post("/kms/keys/generate", {"algorithm": algorithm}, status=201)
        return lambda path, body: caller.ask("POST", path, body)

    return make


@pytest.fixture(scope="session")
def new_post(installation: Installation) -> Callable[[Algorithm], tuple[Post, bytes]]:
    """Make a tenant with a key of one algorithm; return its post function and the public key."""

    def make(algorithm: Algorithm) -> tuple[Post, bytes]:
        caller = installation.new_tenant()
        made = caller.post("/kms/keys/generate", {"algorithm": algorithm}, status=201)
        public_key = b64decode(made["public_key"], validate=True)
        return lambda path, body: caller.ask("POST", path, body), public_key

    return make


@pytest.fixture(scope="session")
def post(new_tenant_with_keys: Callable[[], Post]) -> Post:
    """Post as a tenant with a key of every current algorithm."""
    return new_tenant_with_keys()
