"""A server with Transit's paths: pqkeep on each kind of database, and OpenBao where it is at hand."""

from __future__ import annotations

import os
import subprocess
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import hvac
import pytest
import requests
from tests.fixtures import openbao
from tests.fixtures.installation import running
from tests.fixtures.postgresql import new_databases
from tests.patience import PATIENCE

SCOPES = [{"operations": ["*", "delete-keyrings"]}]
"""The scopes of an API key that may do everything."""


@dataclass(frozen=True)
class Server:
    """A server, and one credential for it."""

    address: str
    token: str
    role_id: str
    secret_id: str
    is_pqkeep: bool
    connected: Callable[..., hvac.Client]
    new_token: Callable[..., str]
    """Return the credential of a caller without keys; pqkeep takes its scopes."""

    def client(self, **options: Any) -> hvac.Client:
        """Return hvac with this server's address and credential."""
        return self.connected(url=self.address, **{"token": self.token, **options})


@contextmanager
def _openbao(folder: Path, connected: Callable[..., hvac.Client]) -> Iterator[Server]:
    with openbao.running(folder) as original:

        def new_token() -> str:
            original.forget_keys()
            return original.token

        yield Server(
            original.address,
            original.token,
            original.role_id,
            original.secret_id,
            is_pqkeep=False,
            connected=connected,
            new_token=new_token,
        )


@contextmanager
def _pqkeep(
    kind: str, request: pytest.FixtureRequest, folder: Path, connected: Callable[..., hvac.Client]
) -> Iterator[Server]:
    with ExitStack() as stack:
        options: dict[str, Any] = {}
        if kind == "postgresql":
            postgresql = request.getfixturevalue("postgres_server")
            options["databases"] = stack.enter_context(new_databases(postgresql))
        installation = stack.enter_context(running(folder, settings={"transit": True}, **options))

        def new_token(scopes: object = SCOPES) -> str:
            path = f"/tenants/{installation.new_tenant().tenant_id}/api-keys"
            made = installation.operator().post(path, {"scopes": scopes}, status=201)
            api_key: str = made["api_key"]
            return api_key

        token = new_token()
        yield Server(
            installation.base_url,
            token,
            "app",
            token,
            is_pqkeep=True,
            connected=connected,
            new_token=new_token,
        )


@pytest.fixture(scope="session")
def connected() -> Iterator[Callable[..., hvac.Client]]:
    """Make clients whose connections end with the tests."""
    with ExitStack() as stack:

        def client(**options: Any) -> hvac.Client:
            session = stack.enter_context(requests.Session())
            session.trust_env = False
            return hvac.Client(session=session, timeout=PATIENCE, **options)

        yield client


@pytest.fixture(
    scope="session",
    params=[
        "sqlite",
        "postgresql",
        pytest.param("openbao", marks=[pytest.mark.campaign, openbao.NEEDS_OPENBAO]),
    ],
)
def server(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    connected: Callable[..., hvac.Client],
) -> Iterator[Server]:
    """Pqkeep on each kind of database, and OpenBao."""
    kind = request.param
    folder = tmp_path_factory.mktemp("transit")
    with (
        _openbao(folder, connected)
        if kind == "openbao"
        else _pqkeep(kind, request, folder, connected)
    ) as server:
        yield server


@pytest.fixture
def pqkeep(server: Server) -> Server:
    """Pqkeep alone: deliberate refusals, and better results."""
    if not server.is_pqkeep:
        pytest.skip("says what pqkeep does")
    return server


@pytest.fixture
def client(server: Server) -> hvac.Client:
    """Hvac with the server's address and a credential."""
    return server.client()


@pytest.fixture
def send(server: Server) -> Callable[..., requests.Response]:
    """Send a request as vault/api does; a token replaces the server's."""
    session = server.client().session

    def request(
        method: str, path: str, body: object = None, *, token: str | None = None
    ) -> requests.Response:
        credential = {"X-Vault-Token": server.token if token is None else token}
        headers = {"X-Vault-Request": "true", **(credential if token != "" else {})}
        url = f"{server.address}/v1/{path}"
        response: requests.Response = session.request(method, url, headers=headers, json=body)
        return response

    return request


@pytest.fixture
def run(server: Server, tmp_path: Path) -> Callable[..., str]:
    """Run a client with this server's address and credential; return its output."""
    names = {"ADDR": server.address, "TOKEN": server.token}
    environment = {
        **{
            f"{prefix}_{name}": value
            for prefix in ("VAULT", "BAO")
            for name, value in names.items()
        },
        "SECRET_ID": server.secret_id,
        "HOME": str(tmp_path),
        "PATH": os.environ.get("PATH", os.defpath),
    }

    def program(*words: str | Path, status: int = 0) -> str:
        ended = subprocess.run(
            words, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
        )
        assert ended.returncode == status, ended.stdout + ended.stderr
        return ended.stdout if status == 0 else ended.stderr

    return program


@pytest.fixture
def name() -> str:
    """The name of a key that does not exist yet."""
    return f"key-{uuid.uuid4()}"
