"""Copies of audit records: to syslog (RFC 5424), an HTTP collector, or a file.

A syslog message is the record's JSON. Over a stream, messages have a length prefix (RFC 6587; with
TLS RFC 5425). A page counts as delivered when the server has then closed the connection, with TLS
by close_notify. Sent data may otherwise be lost. Datagrams are not acknowledged.
"""

import fcntl
import os
import select
import socket
import ssl
import stat
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from io import BufferedReader, RawIOBase
from pathlib import Path
from threading import Event, Timer
from typing import Any
from urllib.parse import urlsplit

from pqkeep_gateway.audit_stream import SinkError, StreamedRecord
from pqkeep_protocol.startup.secret_files import read_secret_text
from pqkeep_protocol.startup.settings import ConfigError

STEP_SECONDS = 5.0
"""The time to connect, and for each step of sending."""
PAGE_SECONDS = 20.0
"""The time for a whole connection. It also bounds a sink that responds byte by byte."""


class TooSlowError(SinkError):
    """The connection exceeded its time limit."""


Connect = Callable[[tuple[str, int], float], socket.socket]
"""Opens a connection to a host and port within seconds. Raises OSError."""


@contextmanager
def connected(
    address: tuple[str, int],
    tls: ssl.SSLContext | None,
    seconds: float = PAGE_SECONDS,
    connect: Connect = socket.create_connection,
) -> Iterator[socket.socket]:
    """Yield a connection that ends after this many seconds. With TLS it is an SSLSocket.

    Raises SinkError, OSError.
    """
    opened = connect(address, STEP_SECONDS)
    with opened:
        if tls is not None:
            opened = tls.wrap_socket(
                opened, server_hostname=address[0], do_handshake_on_connect=False
            )
        is_over = Event()

        def end() -> None:
            is_over.set()
            with suppress(OSError):  # SSLSocket.shutdown is not safe: another thread uses it
                socket.socket.shutdown(opened, socket.SHUT_RDWR)

        timer = Timer(seconds, end)
        timer.daemon = True
        timer.start()
        try:
            with opened:
                if isinstance(opened, ssl.SSLSocket):
                    opened.do_handshake()
                yield opened
        except Exception:
            if not is_over.is_set():
                raise
        finally:
            timer.cancel()
        if is_over.is_set():
            raise TooSlowError(f"the page took longer than {seconds:g} seconds")


def trusting(ca_file: Path | None) -> ssl.SSLContext:
    """Return a TLS context that trusts these authorities, or the system's. Raises ConfigError."""
    try:
        return ssl.create_default_context(cafile=ca_file)
    except OSError as error:  # SSLError is one
        problem = error.strerror or "it has no certificate"
        raise ConfigError(f"audit_sink_ca_file: cannot use {ca_file}: {problem}") from None


PRIORITY = 13 * 8 + 6
"""Facility "log audit", severity "informational"."""


def message(record: StreamedRecord, host: str) -> bytes:
    """Return a record as a syslog message."""
    when = record.recorded_at.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    header = f"<{PRIORITY}>1 {when} {host} pqkeep - {record.operation} - "
    return header.encode() + record.line


class DatagramSyslog:
    """A Sink for UDP, or for a Unix datagram socket such as /dev/log."""

    def __init__(self, address: tuple[str, int] | str) -> None:
        self._address = address
        self._host = _host()

    def send(self, records: Sequence[StreamedRecord]) -> None:
        """Send a datagram for each record. Raises OSError."""
        with _connected(self._address) as server:
            for record in records:
                server.send(message(record, self._host))


class StreamSyslog:
    """A Sink for TCP, with or without TLS. It opens a connection for each page."""

    def __init__(
        self,
        address: tuple[str, int],
        tls: ssl.SSLContext | None = None,
        *,
        page_seconds: float = PAGE_SECONDS,
    ) -> None:
        self._address = address
        self._tls = tls
        self._page_seconds = page_seconds
        self._host = _host()

    def send(self, records: Sequence[StreamedRecord]) -> None:
        """Send the records, and wait until the server has read them. Raises SinkError, OSError."""
        with connected(self._address, self._tls, self._page_seconds) as server:
            messages = (message(record, self._host) for record in records)
            server.sendall(b"".join(b"%d " % len(text) + text for text in messages))
            if isinstance(server, ssl.SSLSocket):
                _end_tls(server)
                return
            server.shutdown(socket.SHUT_WR)
            if server.recv(1):
                raise SinkError("the server sent data, so it is not a syslog server")


def _end_tls(server: ssl.SSLSocket) -> None:
    """Send close_notify, and wait for the server's (RFC 5425, 4.4). Raises OSError without one."""
    waiting = select.poll()
    waiting.register(server, select.POLLIN)
    server.settimeout(0)
    while _peek(server) != b"":
        try:
            server.unwrap().close()
        except ssl.SSLWantReadError:
            if not waiting.poll(STEP_SECONDS * 1000):
                raise TimeoutError("the server did not close the connection") from None
        else:
            return
    # Python 3.11.2's unwrap() also succeeds when the connection ends without close_notify.
    raise ssl.SSLEOFError(
        ssl.SSL_ERROR_EOF, "the server closed the connection without close_notify"
    )


def _peek(server: ssl.SSLSocket) -> bytes | None:
    """Return the next byte without consuming it: empty at the end, None if nothing has arrived."""
    try:
        return socket.socket.recv(server, 1, socket.MSG_PEEK)
    except BlockingIOError:
        return None


def _connected(address: tuple[str, int] | str) -> socket.socket:
    """Return a connected datagram socket. Raises OSError."""
    if isinstance(address, str):
        return _connect(socket.AF_UNIX, address)
    error: OSError = OSError("the host has no address")
    for family, *_, resolved in socket.getaddrinfo(*address, type=socket.SOCK_DGRAM):
        try:
            return _connect(family, resolved)
        except OSError as problem:
            error = problem
    raise error


def _connect(family: int, address: str | tuple[object, ...]) -> socket.socket:
    opened = socket.socket(family, socket.SOCK_DGRAM)
    try:
        opened.settimeout(STEP_SECONDS)
        opened.connect(address)
    except OSError:
        opened.close()
        raise
    return opened


def _host() -> str:
    """Return this machine's name, up to 255 printable ASCII characters."""
    name = "".join(letter for letter in socket.gethostname() if "!" <= letter <= "~")
    return name[:255] or "-"


_MAX_RESPONSE = 64 * 1024
MAX_HEAD = 64 * 1024
"""The most bytes of a response before its body, with interim responses (100)."""


class _Bounded(RawIOBase):
    """The first bytes of a stream. It raises SinkError when more are needed."""

    def __init__(self, stream: BufferedReader, most: int) -> None:
        self._stream = stream
        self._left = most

    def readable(self) -> bool:
        """Return True."""
        return True

    def readinto(self, buffer: bytearray | memoryview) -> int:  # type: ignore[override] # narrower
        """Read some bytes; return their number, 0 at the end. Raises SinkError."""
        if self._left == 0:
            raise SinkError("the response is too long")
        count = self._stream.readinto1(memoryview(buffer)[: self._left])
        self._left -= count
        return count

    def close(self) -> None:
        """Close the stream."""
        self._stream.close()
        super().close()


def _response_of(most: int) -> type[HTTPResponse]:
    """Return a class of responses that read at most MAX_HEAD bytes, and ``most`` of the body."""

    class BoundedResponse(HTTPResponse):
        def __init__(self, sock: socket.socket, *rest: Any, **named: Any) -> None:
            super().__init__(sock, *rest, **named)
            self.fp = BufferedReader(_Bounded(self.fp, MAX_HEAD + most))

    return BoundedResponse


def send(
    url: str,
    tls: ssl.SSLContext | None,
    body: bytes | None,
    headers: Mapping[str, str],
    *,
    seconds: float,
    most: int,
    connect: Connect = socket.create_connection,
) -> tuple[int, bytes]:
    """Post a body, or get if it is None; return the status and a part of the response.

    The part has at most one byte more than ``most``. Redirects are not followed. ``tls`` is for https. Raises SinkError, OSError.
    """
    parts = urlsplit(url)
    kind = HTTPConnection if tls is None else HTTPSConnection
    address = parts.hostname or "", parts.port or kind.default_port
    connection = kind(*address)
    connection.response_class = _response_of(most + 1)
    try:
        with connected(address, tls, seconds, connect) as connection.sock:
            target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
            method = "GET" if body is None else "POST"
            connection.request(method, target, body, dict(headers))
            response = connection.getresponse()
            return response.status, response.read(most + 1) if most else b""
    except HTTPException as error:
        if isinstance(error, OSError):  # the connection was closed
            raise
        raise SinkError(type(error).__name__) from None
    finally:
        connection.close()


class HttpCollector:
    """A Sink for HTTP. A status from 200 to 299 means that the collector has the page."""

    def __init__(
        self,
        url: str,
        token_file: Path | None,
        ca_file: Path | None,
        *,
        page_seconds: float = PAGE_SECONDS,
    ) -> None:
        """Read the token and the certificates. Raises ConfigError."""
        self._url = url
        self._tls = trusting(ca_file) if urlsplit(url).scheme == "https" else None
        self._page_seconds = page_seconds
        self._headers = {"Content-Type": "application/x-ndjson", "User-Agent": "pqkeep"}
        if token_file is not None:
            token = read_secret_text(token_file, "audit sink's token")
            self._headers["Authorization"] = f"Bearer {token}"

    def send(self, records: Sequence[StreamedRecord]) -> None:
        """Send the records in one request. Raises SinkError, OSError."""
        body = b"".join(record.line + b"\n" for record in records)
        status, _ = send(
            self._url,
            self._tls,
            body,
            self._headers,
            seconds=self._page_seconds,
            most=_MAX_RESPONSE,
        )
        if status // 100 != 2:  # noqa: PLR2004 - successful
            raise SinkError(f"the collector's response has status {status}")


_FLAGS = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOCTTY | os.O_NONBLOCK
LOCK_SECONDS = 10.0


class FileSink:
    """A Sink for a file. It opens the file for each page, so the file can be renamed any time."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def send(self, records: Sequence[StreamedRecord]) -> None:
        """Append the records, durably. Raises SinkError, OSError."""
        with os.fdopen(os.open(self._path, _FLAGS, 0o600), "r+b", buffering=0) as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise SinkError("the path is not a regular file")
            _lock(file.fileno())
            _remove_cut_line(file.fileno())
            for record in records:
                _write(file.fileno(), record.line + b"\n")
            os.fsync(file.fileno())


def _lock(descriptor: int) -> None:
    """Wait for the file's lock. The stream of another shard or gateway may hold it.

    The lock ends with the descriptor. Raises SinkError after LOCK_SECONDS.
    """
    deadline = time.monotonic() + LOCK_SECONDS
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise SinkError("another process has locked the file") from None
            time.sleep(0.01)
        else:
            return


def _remove_cut_line(descriptor: int) -> None:
    """Remove an incomplete last line of an interrupted write. The record is sent again."""
    end = os.fstat(descriptor).st_size
    while end:
        start = max(0, end - 4096)
        block = os.pread(descriptor, end - start, start)
        if (newline := block.rfind(b"\n")) >= 0:
            os.ftruncate(descriptor, start + newline + 1)
            return
        end = start
    os.ftruncate(descriptor, 0)


def _write(descriptor: int, line: bytes) -> None:
    while line:
        line = line[os.write(descriptor, line) :]
