"""A TCP proxy on loopback that forwards requests and causes network faults.

Each request has its own connection to the service, so the test knows what the service did.
"""

import socket
import ssl
import struct
import threading
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Self
from urllib.parse import urlsplit

from tests.patience import PATIENCE

RESET = struct.pack("ii", 1, 0)
"""SO_LINGER: closing resets the connection."""
END_OF_HEAD = b"\r\n\r\n"


@dataclass(frozen=True)
class Seen:
    """A request exactly as it arrived."""

    line: str
    headers: Mapping[str, str]
    raw: bytes = field(repr=False)


Fault = Callable[["FaultProxy", socket.socket, Seen], None]
"""The fault of a request. Returning closes its connection."""


def forwarded(proxy: "FaultProxy", client: socket.socket, seen: Seen) -> None:
    """No fault: forward the response."""
    client.sendall(proxy.ask(seen))


def reset_before(proxy: "FaultProxy", client: socket.socket, seen: Seen) -> None:
    """Reset the connection before the service gets the request."""
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)


def reset_after(proxy: "FaultProxy", client: socket.socket, seen: Seen) -> None:
    """Reset the connection after the service's response."""
    proxy.ask(seen)
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)


def closed_after(proxy: "FaultProxy", client: socket.socket, seen: Seen) -> None:
    """Close the connection after the service's response, without forwarding it."""
    proxy.ask(seen)


def half_a_body(proxy: "FaultProxy", client: socket.socket, seen: Seen) -> None:
    """Close the connection in the middle of the response's body."""
    response = proxy.ask(seen)
    body = response.index(END_OF_HEAD) + len(END_OF_HEAD)
    client.sendall(response[: (body + len(response)) // 2])


def silence(proxy: "FaultProxy", client: socket.socket, seen: Seen) -> None:
    """Hold back the service's response for as long as the client waits."""
    proxy.ask(seen)
    proxy.until_gone(client)


def trickled_head(proxy: "FaultProxy", client: socket.socket, seen: Seen) -> None:
    """Send a response head without an end, byte by byte."""
    client.sendall(b"HTTP/1.1 200 OK\r\n")
    while not proxy.until_gone(client, 0.05):
        client.sendall(b"X")


def trickle(proxy: "FaultProxy", client: socket.socket, seen: Seen) -> None:
    """Send the response byte by byte."""
    response = proxy.ask(seen)
    head = response.index(END_OF_HEAD) + len(END_OF_HEAD)
    client.sendall(response[:head])
    for byte in response[head:]:
        client.sendall(bytes([byte]))
        if proxy.until_gone(client, 0.05):
            return


def noise(proxy: "FaultProxy", client: socket.socket, seen: Seen) -> None:
    """Send something that is not HTTP."""
    client.sendall(b"\x15\x03\x01\x00\x02\x02\x16" * 10)


def answered(status: int, body: bytes, *headers: str) -> Fault:
    """Return a fault: a proxy responds, and the service never gets the request."""

    def fault(proxy: "FaultProxy", client: socket.socket, seen: Seen) -> None:
        own = (f"Content-Length: {len(body)}", "Connection: close")
        lines = (f"HTTP/1.1 {status} Said", *own, *headers)
        client.sendall("\r\n".join(lines).encode() + END_OF_HEAD + body)

    return fault


def refused(status: int, code: str, *headers: str) -> Fault:
    """Return a fault: an error response in the service's envelope."""
    return answered(
        status, b'{"error": {"error_code": "%b", "message": "no"}}' % code.encode(), *headers
    )


class FaultProxy:
    """Listens until it is closed."""

    def __init__(self, upstream: str, tls: ssl.SSLContext | None = None) -> None:
        """Begin in front of a service; with TLS, if there is a context."""
        parts = urlsplit(upstream)
        self._upstream = (parts.hostname, parts.port)
        self._tls = tls
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._threads: list[threading.Thread] = []
        self._is_closing = threading.Event()
        self.faults: deque[Fault] = deque()
        """The faults of the next requests. Later requests are forwarded."""
        self.seen: list[Seen] = []
        """The received requests."""
        self._start(self._accept)

    @property
    def url(self) -> str:
        """Where it is."""
        scheme = "http" if self._tls is None else "https"
        return f"{scheme}://127.0.0.1:{self._listener.getsockname()[1]}"

    def ask(self, seen: Seen) -> bytes:
        """Return the service's complete response."""
        head, _, body = seen.raw.partition(END_OF_HEAD)
        lines = [line for line in head.split(b"\r\n") if not line.lower().startswith(b"connection")]
        with socket.create_connection(self._upstream, PATIENCE) as service:
            service.sendall(b"\r\n".join([*lines, b"Connection: close"]) + END_OF_HEAD + body)
            return b"".join(iter(lambda: service.recv(65536), b""))

    def until_gone(self, client: socket.socket, seconds: float = PATIENCE) -> bool:
        """Wait for the client to give up; return True if it did in time."""
        client.settimeout(seconds)
        try:
            return client.recv(1) == b""
        except TimeoutError:
            return False

    def handle(self, client: socket.socket, seen: Seen) -> None:
        """Give a request its fault."""
        self.seen.append(seen)
        fault = self.faults.popleft() if self.faults else forwarded
        fault(self, client, seen)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._is_closing.set()
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for thread in self._threads:
            thread.join(PATIENCE)

    def _start(self, work: Callable[[], None]) -> None:
        thread = threading.Thread(target=work, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while not self._is_closing.is_set():
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            self._start(lambda client=client: self._serve(client))  # type: ignore[misc]

    def _serve(self, client: socket.socket) -> None:
        with suppress(OSError):  # clients hang up on purpose here
            if self._tls is not None:
                client = self._tls.wrap_socket(client, server_side=True)
            with client:
                client.settimeout(PATIENCE)
                seen = _read(client)
                if seen is not None:
                    self.handle(client, seen)


def _read(client: socket.socket) -> Seen | None:
    raw = b""
    while END_OF_HEAD not in raw:
        piece = client.recv(65536)
        if not piece:
            return None
        raw += piece
    head, _, body = raw.partition(END_OF_HEAD)
    line, *rest = head.decode("latin-1").split("\r\n")
    headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in rest)}
    missing = int(headers.get("content-length", "0")) - len(body)
    while missing > 0:
        piece = client.recv(missing)
        missing -= len(piece)
        raw += piece
    return Seen(line, headers, raw)
