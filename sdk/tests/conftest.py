"""A real service on this machine's loopback, and a tenant of its own for each test."""

import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from uuid import uuid4

import pytest

from pqkeep import Client

START_SECONDS = 60.0
STOP_SECONDS = 60.0
Answer = Callable[..., str]


@pytest.fixture(scope="session")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """Run the service; return its addresses and credentials."""
    directory = tmp_path_factory.mktemp("service")
    ready, log = directory / "ready.json", directory / "log"
    program = str(Path(sys.executable).with_name("pqkeepd"))
    command = (program, "dev", "--port", "0", "--ready-file", str(ready))
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
    try:
        deadline = time.monotonic() + START_SECONDS
        while not ready.exists():
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.02)
        yield json.loads(ready.read_bytes())
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise


@pytest.fixture(scope="session")
def base_url(service: dict[str, str]) -> str:
    """Return where the service is."""
    return service["base_url"]


@pytest.fixture(scope="session")
def operator(service: dict[str, str]) -> Iterator[Client]:
    """Be the operator."""
    with Client(service["base_url"], service["operator_key"]) as opened:
        yield opened


@pytest.fixture
def new_api_key(operator: Client) -> Callable[[], str]:
    """Make tenants that have no keys yet, and return an API key of each."""

    def make() -> str:
        tenant = operator.tenants.create(f"test {uuid4()}", plan="enterprise_plus")
        return operator.api_keys.create(tenant.id).api_key

    return make


@pytest.fixture
def client(base_url: str, new_api_key: Callable[[], str]) -> Iterator[Client]:
    """Be a tenant that has no keys yet."""
    with Client(base_url, new_api_key()) as opened:
        yield opened


@pytest.fixture
def answer() -> Iterator[Answer]:
    """Serve one canned answer to everything, and return where."""
    servers: list[tuple[ThreadingHTTPServer, threading.Thread]] = []

    def serve(body: bytes, status: int = 200, headers: tuple[tuple[str, str], ...] = ()) -> str:
        class Canned(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                self.rfile.read(int(self.headers.get("Content-Length", "0")))
                self.send_response(status)
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
