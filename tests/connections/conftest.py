"""A gateway without a key service, and clients that send and read byte by byte."""

from __future__ import annotations

import json
import socket
import ssl
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import pytest
from tests.fixtures import processes
from tests.fixtures.certificate import Certificate
from tests.fixtures.preloaded import running_forked
from tests.fixtures.processes import HOST, LIMITED_GATEWAY, Process
from tests.patience import PATIENCE

from pqkeep_gateway.access.credentials import CredentialKind, new_credential
from pqkeep_server.initialise import Layout, initialise
from pqkeep_server.settings_file import edited

PROGRAM = (sys.executable, "-P", "-m", "pqkeep_gateway")
HASTY = {"request_seconds": 1, "idle_seconds": 2, "write_seconds": 1.5, "close_seconds": 0.5}


@dataclass(frozen=True)
class Answer:
    """One complete response."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def code(self) -> str:
        """The error's code, or an empty text."""
        return self._error("error_code")

    @property
    def message(self) -> str:
        """The message, or an empty text."""
        return self._error("message")

    @property
    def field(self) -> str:
        """The name of the wrong field, or an empty text."""
        return self._error("field")

    def _error(self, member: str) -> str:
        error: dict[str, Any] = json.loads(self.body).get("error", {})
        return str(error.get(member, ""))


class Client:
    """One connection."""

    def __init__(
        self,
        port: int,
        *,
        source: str = HOST,
        read_buffer: int = 0,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.socket = socket.socket()
        if read_buffer:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, read_buffer)
        self.socket.settimeout(PATIENCE)
        self.socket.bind((source, 0))
        self.socket.connect((HOST, port))
        if tls is not None:
            self.socket = tls.wrap_socket(self.socket, server_hostname=HOST)
        self._received = b""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def send(self, data: bytes) -> None:
        """Send some bytes."""
        self.socket.sendall(data)

    def respond(self, *, to_head: bool = False) -> Answer:
        """Read one complete response."""
        while b"\r\n\r\n" not in self._received:
            self._receive()
        head, _, rest = self._received.partition(b"\r\n\r\n")
        first, *lines = head.decode("ascii").split("\r\n")
        headers = {name.lower(): value for name, value in (line.split(": ", 1) for line in lines)}
        assert len(headers) == len(lines), lines
        size = 0 if to_head else int(headers["content-length"])
        self._received = rest
        while len(self._received) < size:
            self._receive()
        body, self._received = self._received[:size], self._received[size:]
        return Answer(int(first.split()[1]), headers, body)

    def ask(self, data: bytes) -> Answer:
        """Send one request and read its response."""
        self.send(data)
        return self.respond()

    def closed_after(self) -> float:
        """Read until the other side closes; return the seconds."""
        began = time.monotonic()
        try:
            while self.socket.recv(65_536):
                pass
        except ConnectionResetError:
            pass
        return time.monotonic() - began

    def _receive(self) -> None:
        received = self.socket.recv(65_536)
        assert received, self._received
        self._received += received


@dataclass(frozen=True)
class Gateway:
    """A running gateway."""

    port: int
    pid: int
    output: Path
    operator_key: str
    tls: ssl.SSLContext | None = None
    """The TLS context of clients, if it has TLS."""

    def client(self, *, source: str = HOST, read_buffer: int = 0) -> Client:
        """Connect to it."""
        return Client(self.port, source=source, read_buffer=read_buffer, tls=self.tls)

    def raw_client(self) -> Client:
        """Connect to it without TLS."""
        return Client(self.port)

    def files(self) -> int:
        """Return the number of the process's files and sockets. This is cheap for large numbers."""
        return sum(1 for _ in Path(f"/proc/{self.pid}/fd").iterdir())

    def memory(self) -> int:
        """Return the process's largest memory so far, in bytes."""
        status = Path(f"/proc/{self.pid}/status").read_text()
        line = next(line for line in status.splitlines() if line.startswith("VmHWM:"))
        return int(line.split()[1]) * 1024

    def connections(self) -> int:
        """Return the number of the process's connections."""
        return len(self._connections())

    def unsent(self) -> int:
        """Return the bytes of unread responses in the kernel."""
        return sum(int(row[4].partition(":")[0], 16) for row in self._connections())

    def _connections(self) -> list[list[str]]:
        sockets = {
            link.rpartition("[")[2].rstrip("]")
            for link in _links(self.pid)
            if link.startswith("socket:")
        }
        table = Path(f"/proc/{self.pid}/net/tcp").read_text().splitlines()[1:]
        rows = [line.split() for line in table]
        mine = f":{self.port:04X}"
        return [r for r in rows if r[1].endswith(mine) and r[3] != "0A" and r[9] in sockets]


def _links(pid: int) -> Iterator[str]:
    for link in Path(f"/proc/{pid}/fd").iterdir():
        try:
            yield str(link.readlink())
        except FileNotFoundError:
            continue


@contextmanager
def running_gateway(
    folder: Path,
    limits: Mapping[str, float] | None = None,
    certificate: Certificate | None = None,
) -> Iterator[Gateway]:
    """Run a gateway, as a fork, optionally with other ConnectionLimits."""
    layout = Layout(folder / "data")
    operator_key = new_credential(CredentialKind.OPERATOR)
    initialise(layout, operator_key, signup="operator")
    tls = None
    if certificate is not None:
        tls = certificate.client()
        files = {"tls_certificate": str(certificate.path), "tls_key": str(certificate.key)}
        settings = layout.gateway_settings
        settings.write_text(edited(settings.read_text(), files))
    with socket.create_server((HOST, 0), backlog=4096) as listener, ExitStack() as stack:
        words: list[str | Path] = [layout.gateway_settings, "--fd", str(listener.fileno())]
        port = listener.getsockname()[1]
        output, inherited = folder / "output", [listener.fileno()]
        process: Process
        if limits is None:
            command = [*PROGRAM, *words]
            process = stack.enter_context(processes.running(command, output, pass_fds=inherited))
        else:
            words = [LIMITED_GATEWAY, json.dumps(limits), *words]
            process = stack.enter_context(running_forked(words, output, pass_fds=inherited))
        listener.close()
        with Client(port, tls=tls) as client:
            client.ask(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
        yield Gateway(port, process.pid, output, operator_key, tls)


@pytest.fixture(scope="module")
def start_gateway(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Callable[..., Gateway]]:
    """Start gateways with other connection limits; they run until the file's last test."""
    with ExitStack() as stack:

        def start(certificate: Certificate | None = None, **limits: float) -> Gateway:
            folder = tmp_path_factory.mktemp("gateway")
            return stack.enter_context(running_gateway(folder, limits, certificate))

        yield start


@pytest.fixture(scope="module")
def gateway(start_gateway: Callable[..., Gateway]) -> Gateway:
    """A gateway with the default limits."""
    return start_gateway()


@pytest.fixture(scope="module")
def secured(start_gateway: Callable[..., Gateway], certificate: Certificate) -> Gateway:
    """A gateway with TLS and short timeouts."""
    return start_gateway(certificate, **HASTY)


@pytest.fixture(scope="module")
def hasty(start_gateway: Callable[..., Gateway]) -> Gateway:
    """A gateway with different short timeouts."""
    return start_gateway(**HASTY)
