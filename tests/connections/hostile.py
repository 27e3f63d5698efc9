"""Hostile connections of each kind, in their own process."""

from __future__ import annotations

import resource
import selectors
import socket
import time
from collections.abc import Mapping
from contextlib import suppress
from multiprocessing.synchronize import Event

from tests.fixtures.processes import HOST

SOURCES = [f"127.0.0.{last}" for last in range(2, 8)]
HEALTH = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"
REFUSED = b"POST /api/v1/kem/encrypt HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n"
LOGIN = REFUSED.replace(b"kem/encrypt", b"auth/login")
LARGE = b"GET /api/v1/openapi.json HTTP/1.1\r\nHost: x\r\n\r\n"

BODIES = 100
BODY_SIZE = 4 * 1024 * 1024
LARGE_LOGIN = LOGIN.replace(b"1000", b"%d" % BODY_SIZE)
PIECE = memoryview(b" " * 262_144)

UNREAD = "answers that nobody reads"
KINDS: Mapping[str, tuple[bytes, bytes, bytes]] = {
    "nothing sent": (b"", b"", b""),
    "half a head": (HEALTH[:20], b"", b""),
    "a head without end": (HEALTH[:-2], b"", b"X: y\r\n"),
    "no body": (LOGIN, b"", b""),
    "a body without end": (LOGIN, b"", b" "),
    "idle after an answer": (HEALTH, b"", b""),
    "line ends after an answer": (HEALTH, b"\r\n", b"\r\n"),
    "a body after 401": (REFUSED, b"x", b"x"),
    UNREAD: (8 * LARGE, b"", b""),
}
"""The bytes to send first, after the response, and repeatedly."""
WELL_BEHAVED = "well-behaved"
"""Harmless connections: each sends a request, waits, and closes. They close at the opening rate."""
SECONDS_BETWEEN = 5
WELL_BEHAVED_SECONDS = 3
"""The seconds that a harmless client keeps its connection, once all are open."""

PER_SECOND = 500
"""New connections per second, so that only their number matters."""


def hold(port: int, kind: str, count: int, opened: Event, done: Event) -> None:
    """Open connections of a kind, and behave like it until told to stop."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    first, then, again = KINDS.get(kind, (HEALTH, b"", b""))
    connections = []
    selector = selectors.DefaultSelector()
    for number in range(count):
        connection = _connect(port, SOURCES[number % len(SOURCES)], first, kind)
        connections.append(connection)
        if kind != UNREAD:
            selector.register(connection, selectors.EVENT_READ, connection)
        time.sleep(1 / PER_SECOND)
    opened.set()
    if kind == WELL_BEHAVED:
        _close(connections)
        return
    next_piece = time.monotonic()
    while not done.is_set():
        if again and time.monotonic() >= next_piece:
            next_piece += SECONDS_BETWEEN
            for connection in connections:
                with suppress(OSError):
                    connection.send(again)
        for key, _ in selector.select(0.2):
            if not _is_still_open(key.data, then):
                selector.unregister(key.data)
                key.data.close()
        done.wait(0.01)


def upload(port: int, done: Event) -> None:
    """Send large bodies without permission, all at once, every second, until told to stop."""
    while not done.is_set():
        _upload_at_once(port)
        done.wait(1)


def throw_away(listener: socket.socket) -> None:
    """Read and discard the bytes of a socket, like an idle gateway."""
    with selectors.DefaultSelector() as selector:
        selector.register(listener, selectors.EVENT_READ)
        while True:
            for key, _ in selector.select():
                connection = key.fileobj
                assert isinstance(connection, socket.socket)
                if connection is listener:
                    selector.register(listener.accept()[0], selectors.EVENT_READ)
                    continue
                with suppress(OSError):
                    if connection.recv(262_144):
                        continue
                selector.unregister(connection)
                connection.close()


def _upload_at_once(port: int) -> None:
    with selectors.DefaultSelector() as selector:
        for number in range(BODIES):
            connection = _connect(port, SOURCES[number % len(SOURCES)], LARGE_LOGIN, "")
            selector.register(connection, selectors.EVENT_WRITE, [connection, BODY_SIZE])
        until = time.monotonic() + 10
        while selector.get_map() and time.monotonic() < until:
            for key, _ in selector.select(0.2):
                connection, left = key.data
                with suppress(OSError):
                    key.data[1] = left = left - connection.send(PIECE[:left])
                    if left:
                        continue
                selector.unregister(connection)
                connection.close()


def _close(connections: list[socket.socket]) -> None:
    time.sleep(WELL_BEHAVED_SECONDS)
    for connection in connections:
        with suppress(OSError):
            connection.recv(65_536)
        connection.close()
        time.sleep(1 / PER_SECOND)


def _connect(port: int, source: str, first: bytes, kind: str) -> socket.socket:
    connection = socket.socket()
    if kind == UNREAD:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.settimeout(10)
    connection.bind((source, 0))
    with suppress(OSError):
        connection.connect((HOST, port))
        connection.sendall(first)
    connection.settimeout(0)
    return connection


def _is_still_open(connection: socket.socket, then: bytes) -> bool:
    try:
        received = connection.recv(65_536)
        if received and then:
            connection.send(then)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return bool(received)
