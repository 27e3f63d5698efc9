"""A real service on loopback, and a new tenant for each test.

Tests that take ``connect`` or ``client`` run twice: with Client, and with AsyncClient.
"""

import asyncio
import inspect
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, cast
from uuid import uuid4

import pytest
from sdk.tests.fault_proxy import FaultProxy
from tests.fixtures.installation import Installation

from pqkeep import AsyncClient, Client

Answer = Callable[..., str]
Connect = Callable[..., Client]


@dataclass(frozen=True)
class Awaited:
    """An object of an AsyncClient with the interface of a Client's object."""

    of: Any
    runner: asyncio.Runner

    def __getattr__(self, name: str) -> Any:
        return self._waited(getattr(self.of, name))

    def _waited(self, value: Any) -> Any:
        if callable(value):
            return lambda *args, **named: self._waited(value(*args, **named))
        if inspect.isawaitable(value):
            return self.runner.run(_result(value))
        if isinstance(value, AsyncIterator):
            return self._members(value)
        return Awaited(value, self.runner) if _is_resource(value) else value

    def _members(self, iterator: AsyncIterator[Any]) -> Iterator[Any]:
        while (member := self.runner.run(_result(anext(iterator, None)))) is not None:
            yield member


async def _result(awaitable: Any) -> Any:
    return await awaitable


def _is_resource(value: object) -> bool:
    return type(value).__module__.startswith(("pqkeep.resources.", "pqkeep.local."))


@pytest.fixture(autouse=True)
def _no_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Keep the tester's own settings away from clients."""
    for name in ("URL", "API_KEY", "API_KEY_FILE", "CA_FILE", "PROFILE"):
        monkeypatch.delenv(f"PQKEEP_{name}", raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "no-config"))


@pytest.fixture(scope="session")
def service(installation: Installation) -> dict[str, str]:
    """Return the addresses and credentials of a running service."""
    return installation.ready


@pytest.fixture(scope="session")
def base_url(service: dict[str, str]) -> str:
    """Return the service's address."""
    return service["base_url"]


@pytest.fixture(scope="session")
def operator(service: dict[str, str]) -> Iterator[Client]:
    """Be the operator."""
    with Client(service["base_url"], service["operator_key"]) as opened:
        yield opened


@pytest.fixture(scope="session")
def new_api_key(operator: Client) -> Callable[[], str]:
    """Make tenants without keys, and return an API key of each."""

    def make() -> str:
        tenant = operator.tenants.create(f"test {uuid4()}", plan="enterprise_plus")
        return operator.api_keys.create(tenant.id).api_key

    return make


@pytest.fixture(scope="session")
def idle_api_key(new_api_key: Callable[[], str]) -> str:
    """Return an API key of a tenant without keys, for tests that need none."""
    return new_api_key()


@pytest.fixture(params=["sync", "async"])
def connect(request: pytest.FixtureRequest) -> Iterator[Connect]:
    """Make clients of either kind with the same interface, and close them.

    They do not retry unless a test says so.
    """
    with ExitStack() as stack:

        def make(*args: Any, retries: int = 0, **named: Any) -> Client:
            if request.param == "sync":
                return stack.enter_context(Client(*args, retries=retries, **named))
            runner = stack.enter_context(asyncio.Runner())
            client = Awaited(AsyncClient(*args, retries=retries, **named), runner)
            stack.callback(client.close)
            return cast("Client", client)

        yield make


@pytest.fixture
def api_key(new_api_key: Callable[[], str]) -> str:
    """Return an API key of a tenant without keys."""
    return new_api_key()


@pytest.fixture
def client(connect: Connect, base_url: str, api_key: str) -> Client:
    """Be a tenant without keys."""
    return connect(base_url, api_key)


@pytest.fixture
def response() -> Iterator[Answer]:
    """Serve one canned response to everything, or one for each path, and return the address."""
    servers: list[tuple[ThreadingHTTPServer, threading.Thread]] = []

    def serve(
        response: bytes | Mapping[str, bytes],
        status: int = 200,
        headers: tuple[tuple[str, str], ...] = (),
    ) -> str:
        class Canned(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                self.rfile.read(int(self.headers.get("Content-Length", "0")))
                body = response if isinstance(response, bytes) else response[self.path]
                has_date = any(name == "Date" for name, _ in headers)
                (self.send_response_only if has_date else self.send_response)(status)
                for name, value in (*headers, ("Content-Length", str(len(body)))):
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(body)

            do_GET = do_POST  # noqa: N815 - the standard library's names

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - its names
                pass

        server = ThreadingHTTPServer(("127.0.0.1", 0), Canned)
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        servers.append((server, thread))
        return f"http://127.0.0.1:{server.server_port}"

    yield serve
    for server, thread in servers:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture
def proxy(base_url: str) -> Iterator[FaultProxy]:
    """Stand between client and service."""
    with FaultProxy(base_url) as opened:
        yield opened
