"""A key service in this process, real ones in their own, and an installation."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx2
import pytest
from tests.conftest import KNOWN_ANSWERS

from pqkeep_keyservice.audit.log import AuditLog
from pqkeep_keyservice.crypto.slhdsa import SETS
from pqkeep_keyservice.dispatch import Dispatcher
from pqkeep_keyservice.keys.sealing import Sealer, read_root_key
from pqkeep_keyservice.live.key_material import KeyMaterial
from pqkeep_keyservice.live.keyring_cache import KeyringCache
from pqkeep_keyservice.live.resources import Resources
from pqkeep_keyservice.live.slhdsa_process import Setup, SlhDsaProcesses
from pqkeep_keyservice.live.workers import Threads
from pqkeep_keyservice.storage.sqlite import SqliteDatabase
from pqkeep_keyservice.storage.store import KeyStore
from pqkeep_protocol.algorithms import Algorithm
from pqkeep_protocol.errors import ErrorKind, KeyServiceError
from pqkeep_protocol.keys import TenantId
from pqkeep_protocol.messages import AnyRequest, AnyResult, Attribution, GenerateKey

AT_ONCE = 500
SLH_DSA_AT_ONCE = 60
"""Below the number of requests that one tenant may have waiting."""
SECONDS = 100.0
"""Signatures are made at low priority: beside other tests they may wait long."""
START_SECONDS = 60.0

Outcome = AnyResult | ErrorKind
Outcomes = Callable[[Sequence[AnyRequest]], list[Outcome]]
Post = Callable[[str, dict[str, object]], httpx2.Response]
KeyServiceProcess = tuple[subprocess.Popen[str], Path]


@pytest.fixture
def proof_count(record_property: Callable[[str, object], None]) -> Callable[[Algorithm, int], None]:
    """Take note of how many known answers held; none at all is a failure."""

    def count(algorithm: Algorithm, held: int) -> None:
        assert held > 0
        record_property(KNOWN_ANSWERS + algorithm, held)

    return count


@pytest.fixture(scope="session")
def proof_vectors() -> Callable[[str], Any]:
    """Read one file of the project's own vectors."""
    folder = Path(__file__).parent.parent / "vectors"
    return lambda name: json.loads((folder / name).read_bytes())


@pytest.fixture(scope="session")
def proof_openssl_library() -> str:
    """Return the path of an OpenSSL >= 3.5: the one inside the installed psycopg wheel."""
    wheel = find_spec("psycopg_binary")
    if wheel is None or wheel.origin is None:
        pytest.skip("psycopg_binary, whose wheel brings an OpenSSL, is not installed")
    libraries = Path(wheel.origin).parent.with_name("psycopg_binary.libs")
    for path in sorted(libraries.glob("libcrypto*")):
        return str(path)
    pytest.skip("the installed psycopg_binary wheel brings no libcrypto")


@contextmanager
def _serve(path: Path) -> Iterator[Outcomes]:
    root_key = path.with_name("root.key")
    if not root_key.exists():
        root_key.write_bytes(os.urandom(32))
        root_key.chmod(0o400)
    database = SqliteDatabase(str(path))
    store = KeyStore(database)
    material = KeyMaterial(Sealer({1: read_root_key(root_key)}))
    slh_dsa = SlhDsaProcesses(Setup(((1, str(root_key)),), "pqcrypto", None))
    threads = Threads()
    resources = Resources(material, threads, slh_dsa)
    dispatcher = Dispatcher(KeyringCache(store), resources, AuditLog(store))
    attribution = Attribution("request-1", "api-key:3", "192.0.2.7", "plan-allows")

    async def outcome(request: AnyRequest) -> Outcome:
        deadline = asyncio.get_running_loop().time() + SECONDS
        try:
            return await dispatcher.execute(request, attribution, deadline)
        except KeyServiceError as refusal:
            return refusal.kind

    async def every(requests: Sequence[AnyRequest]) -> list[Outcome]:
        answers: list[Outcome] = []
        queued = any(request.algorithm in SETS for request in requests)
        size = SLH_DSA_AT_ONCE if queued else AT_ONCE
        for start in range(0, len(requests), size):
            batch = requests[start : start + size]
            answers += await asyncio.gather(*(outcome(request) for request in batch))
        return answers

    with asyncio.Runner() as runner:
        yield lambda requests: runner.run(every(requests))
        slh_dsa.close()
        threads.close()
        runner.run(database.close())


@pytest.fixture(scope="session")
def proof_serve() -> Callable[[Path], AbstractContextManager[Outcomes]]:
    """Open a database and run requests through a real Dispatcher on it.

    Each gives its result or the kind of its refusal. Anything else that the Dispatcher might raise
    comes out, and fails the test.
    """
    return _serve


@pytest.fixture(scope="session")
def proof_outcomes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Outcomes]:
    """Serve like proof_serve, on one database for the whole session."""
    with _serve(tmp_path_factory.mktemp("in-process") / "keys.sqlite3") as outcomes:
        yield outcomes


@pytest.fixture(scope="session")
def proof_tenant(proof_outcomes: Outcomes) -> TenantId:
    """Make a tenant of the key service in this process, with a key of every algorithm."""
    tenant = TenantId(uuid4())
    made = proof_outcomes(
        [GenerateKey(tenant=tenant, algorithm=algorithm, quota=None) for algorithm in Algorithm]
    )
    assert not [kind for kind in made if isinstance(kind, ErrorKind)]
    return tenant


@pytest.fixture(scope="module")
def proof_start_key_service(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Callable[[str], KeyServiceProcess]]:
    """Start a real key service process with these settings added; return it and its socket."""
    started: list[subprocess.Popen[str]] = []

    def start(settings: str) -> KeyServiceProcess:
        folder = tmp_path_factory.mktemp("keyservice")
        root_key = folder / "root.key"
        root_key.write_bytes(os.urandom(32))
        root_key.chmod(0o400)
        file = folder / "settings.toml"
        file.write_text(
            'socket = "s"\ndatabase = "keys.sqlite3"\nroot_key_file = "root.key"\n' + settings
        )
        log = (folder / "log").open("w+")
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "pqkeep_keyservice", str(file)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            text=True,
        )
        log.close()
        started.append(process)
        return process, folder / "s"

    yield start
    for process in started:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(START_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


@pytest.fixture(scope="session")
def proof_installation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """Run a whole installation; return base_url, tenant_id, api_key and operator_key."""
    folder = tmp_path_factory.mktemp("installation")
    ready = folder / "ready.json"
    log = (folder / "log").open("w")
    process = subprocess.Popen(
        [
            str(Path(sys.executable).with_name("pqkeepd")),
            *("dev", "--port", "0", "--ready-file", str(ready)),
        ],
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=subprocess.STDOUT,
    )
    log.close()
    try:
        deadline = time.monotonic() + START_SECONDS
        while not ready.exists():
            assert process.poll() is None, (folder / "log").read_text()
            assert time.monotonic() < deadline, "the installation was not ready in time"
            time.sleep(0.05)
        yield json.loads(ready.read_bytes())
    finally:
        process.terminate()
        process.wait(START_SECONDS)


@pytest.fixture(scope="session")
def proof_new_tenant(proof_installation: dict[str, str]) -> Iterator[Callable[[], Post]]:
    """Make a tenant of the installation with a key of every algorithm; return how it posts."""
    clients: list[httpx2.Client] = []

    def client(api_key: str) -> httpx2.Client:
        made = httpx2.Client(
            base_url=proof_installation["base_url"] + "/api/v1",
            headers={"X-API-Key": api_key},
            timeout=SECONDS,
            trust_env=False,
        )
        clients.append(made)
        return made

    operator = client(proof_installation["operator_key"])

    def new_tenant() -> Post:
        name = {"name": f"proof {uuid4()}", "plan": "enterprise_plus"}
        tenant = operator.post("/tenants", json=name).json()["data"]["id"]
        made = operator.post(f"/tenants/{tenant}/api-keys").json()["data"]
        own = client(made["api_key"])

        def post(path: str, body: dict[str, object]) -> httpx2.Response:
            return own.post(path, json=body)

        for algorithm in Algorithm:
            assert post("/kms/keys/generate", {"algorithm": algorithm}).status_code == 201
        return post

    yield new_tenant
    for each in clients:
        each.close()


@pytest.fixture(scope="session")
def proof_post(proof_new_tenant: Callable[[], Post]) -> Post:
    """Post as a tenant with a key of every algorithm."""
    return proof_new_tenant()
