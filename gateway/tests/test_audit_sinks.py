"""The output of each kind of sink, and when a sink has accepted a page."""

from __future__ import annotations

import select
import socket
import ssl
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from tests.fixtures.certificate import new_certificate
from tests.patience import PATIENCE

from pqkeep_gateway.audit_stream import SinkError, StreamedRecord
from pqkeep_gateway.delivery.audit_sinks import (
    DatagramSyslog,
    FileSink,
    HttpCollector,
    StreamSyslog,
    message,
    trusting,
)
from pqkeep_protocol.startup.settings import ConfigError

HERE = "127.0.0.1"
WHEN = datetime(2026, 1, 31, 12, 0, 0, 123, tzinfo=UTC)
RECORDS = [
    StreamedRecord(number, "encrypt", WHEN, f'{{"id":{number},"name":"ä"}}'.encode())
    for number in (1, 2, 3)
]
LINES = b"".join(record.line + b"\n" for record in RECORDS)


def test_a_file_has_a_line_for_each_record(tmp_path: Path) -> None:
    """Records are appended to a file with mode 0600, also after the file was renamed."""
    path = tmp_path / "audit.jsonl"
    sink = FileSink(path)
    sink.send(RECORDS[:2])
    sink.send(RECORDS[2:])
    assert path.read_bytes() == LINES
    assert path.stat().st_mode & 0o777 == 0o600
    path.rename(tmp_path / "audit.jsonl.1")
    sink.send(RECORDS)
    assert path.read_bytes() == LINES


@pytest.mark.parametrize("cut", [b"", b"{", b'{"id":9', b"x" * 10_000])
@pytest.mark.parametrize("before", [b"", b'{"id":0}\n'])
def test_a_line_that_was_cut_is_removed(tmp_path: Path, before: bytes, cut: bytes) -> None:
    """The next page removes an incomplete line that a crash left."""
    path = tmp_path / "audit.jsonl"
    path.write_bytes(before + cut)
    FileSink(path).send(RECORDS)
    assert path.read_bytes() == before + LINES


def test_a_file_that_cannot_be_written(tmp_path: Path) -> None:
    """A missing folder, a folder as the file, and a device are refused."""
    for path in (tmp_path / "missing" / "x", tmp_path, Path("/dev/null")):
        with pytest.raises((OSError, SinkError)):
            FileSink(path).send(RECORDS)


def test_a_message_of_syslog() -> None:
    """A record is a message of RFC 5424, with the record's time and JSON."""
    expected = b"<110>1 2026-01-31T12:00:00.000123Z host pqkeep - encrypt - " + RECORDS[0].line
    assert message(RECORDS[0], "host") == expected


@pytest.mark.parametrize("kind", ["udp", "unix"])
def test_datagrams(tmp_path: Path, kind: str) -> None:
    """Each record is a datagram."""
    family = socket.AF_INET if kind == "udp" else socket.AF_UNIX
    with socket.socket(family, socket.SOCK_DGRAM) as server:
        server.settimeout(PATIENCE)
        server.bind((HERE, 0) if kind == "udp" else str(tmp_path / "log"))
        DatagramSyslog(server.getsockname()).send(RECORDS)
        for record in RECORDS:
            assert server.recv(4096).endswith(b" - " + record.line)


def test_datagrams_to_nobody(tmp_path: Path) -> None:
    """A missing socket is an error."""
    with pytest.raises(OSError, match="No such file"):
        DatagramSyslog(str(tmp_path / "log")).send(RECORDS)


@contextmanager
def server_that(responses: Callable[[socket.socket], None]) -> Iterator[tuple[str, int]]:
    """Accept one connection and response it."""
    with socket.create_server((HERE, 0)) as listener:
        listener.settimeout(PATIENCE)

        def serve() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.settimeout(PATIENCE)
                responses(connection)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield listener.getsockname()
        finally:
            thread.join(PATIENCE)


def test_a_stream_of_syslog() -> None:
    """Messages are framed by length, and delivered once the server closes the connection."""
    received = bytearray()

    def reads(connection: socket.socket) -> None:
        while block := connection.recv(4096):
            received.extend(block)

    with server_that(reads) as address:
        StreamSyslog(address).send(RECORDS)
    rest = bytes(received)
    for record in RECORDS:
        size, _, rest = rest.partition(b" ")
        assert rest[: int(size)].endswith(record.line)
        rest = rest[int(size) :]
    assert rest == b""


@pytest.mark.parametrize("confirms", [True, False])
def test_a_stream_of_syslog_over_tls(tmp_path: Path, *, confirms: bool) -> None:
    """A verified server has a page only when it sends close_notify, not at the connection's end."""
    certificate = new_certificate(tmp_path)
    received = bytearray()

    def reads(connection: socket.socket) -> None:
        with certificate.context.wrap_socket(connection, server_side=True) as tls:
            while block := tls.recv(4096):
                received.extend(block)
            if confirms:
                tls.unwrap()

    with server_that(reads) as address:
        sink = StreamSyslog(address, trusting(certificate.path))
        with nullcontext() if confirms else pytest.raises((ssl.SSLError, ConnectionError)):
            sink.send(RECORDS)
    assert all(record.line in received for record in RECORDS)


def test_a_syslog_server_that_nobody_vouches_for_gets_nothing(tmp_path: Path) -> None:
    """A server certificate of an unknown authority is refused."""
    certificate = new_certificate(tmp_path)

    def shakes_hands(connection: socket.socket) -> None:
        with suppress(OSError):
            certificate.context.wrap_socket(connection, server_side=True).close()

    with server_that(shakes_hands) as address, pytest.raises(ssl.SSLCertVerificationError):
        StreamSyslog(address, trusting(None)).send(RECORDS)


def drips(first: bytes, then: bytes) -> Callable[[socket.socket], None]:
    """Send some bytes, then others repeatedly, until the client has gone."""

    def respond(connection: socket.socket) -> None:
        connection.recv(65536)
        readable = select.poll()
        readable.register(connection, select.POLLIN)
        with suppress(OSError):
            connection.sendall(first)
            while not readable.poll(10) or connection.recv(65536):
                connection.sendall(then)

    return respond


ENDLESS: dict[str, tuple[str, bytes, bytes]] = {
    "a status line": ("http", b"", b"H"),
    "headers": ("http", b"HTTP/1.1 200 OK\r\nX: ", b"x"),
    "a body": ("http", b"HTTP/1.1 200 OK\r\nContent-Length: 99999\r\n\r\n", b"x"),
    "statuses before the last": ("http", b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
    "a handshake": ("https", b"\x16\x03\x03\x40\x00", b"\x00"),
}


@pytest.mark.parametrize("what", ENDLESS)
def test_an_answer_that_never_ends_is_no_answer(what: str) -> None:
    """A sink that sends single bytes without end is stopped by the time limit of one page."""
    scheme, first, then = ENDLESS[what]
    with server_that(drips(first, then)) as (host, port):
        sink = HttpCollector(f"{scheme}://{host}:{port}/", None, None, page_seconds=0.3)
        with pytest.raises(SinkError, match=r"longer than 0\.3 seconds"):
            sink.send(RECORDS)


def test_more_headers_than_an_answer_has_are_refused() -> None:
    """A response with an endless line or too many headers is an error, and is not buffered."""
    for response in (b"X: " + b"x" * 70_000, b"X: y\r\n" * 200):
        responses = drips(b"HTTP/1.1 200 OK\r\n" + response, b"")
        with (
            server_that(responses) as (host, port),
            pytest.raises(SinkError, match=r"LineTooLong|HTTPException"),
        ):
            HttpCollector(f"http://{host}:{port}/", None, None).send(RECORDS)


def test_a_stream_that_breaks_is_not_taken() -> None:
    """If the server closes the connection without reading, the page is not delivered."""

    def breaks(connection: socket.socket) -> None:
        linger = (1).to_bytes(4, "little") + bytes(4)
        connection.recv(1)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)

    with server_that(breaks) as address, pytest.raises(OSError, match=r"reset|pipe|not connected"):
        StreamSyslog(address).send(RECORDS)


class Collector(BaseHTTPRequestHandler):
    """Responds with the given statuses, one for each request."""

    statuses: Sequence[int] = ()
    requests: list[tuple[str, str | None, bytes]]

    def do_POST(self) -> None:
        """Store the request."""
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.requests.append((self.path, self.headers["Authorization"], body))
        self.send_response(self.statuses[len(self.requests) - 1])
        self.send_header("Location", "/elsewhere")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - its name
        """Log nothing."""


@contextmanager
def collector(
    *statuses: int, context: ssl.SSLContext | None = None
) -> Iterator[tuple[str, list[tuple[str, str | None, bytes]]]]:
    """Run a collector; yield its address and its received requests."""
    requests: list[tuple[str, str | None, bytes]] = []
    handler = type("Handler", (Collector,), {"statuses": statuses, "requests": requests})
    server = HTTPServer((HERE, 0), handler)
    if context is not None:
        server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield f"{HERE}:{server.server_port}/v1/logs", requests
    finally:
        server.shutdown()
        thread.join(PATIENCE)
        server.server_close()


def test_a_collector_gets_json_lines(tmp_path: Path) -> None:
    """A page is one POST with the token; a success is taken."""
    token = tmp_path / "token"
    token.write_text("secret\n")
    token.chmod(0o600)
    with collector(200, 204) as (address, requests):
        sink = HttpCollector(f"http://{address}", token, None)
        sink.send(RECORDS)
        sink.send(RECORDS)
    assert requests == [("/v1/logs", "Bearer secret", LINES)] * 2
    token.chmod(0o644)
    with pytest.raises(ConfigError, match="token"):
        HttpCollector(f"http://{address}", token, None)


def test_a_collector_that_refuses_has_nothing() -> None:
    """Any other status is an error, and redirects are not followed."""
    statuses = (302, 400, 401, 429, 500, 503)
    with collector(*statuses) as (address, requests):
        sink = HttpCollector(f"http://{address}", None, None)
        for status in statuses:
            with pytest.raises(SinkError, match=f"has status {status}$"):
                sink.send(RECORDS)
    assert len(requests) == len(statuses)
    with pytest.raises(ConnectionRefusedError):
        sink.send(RECORDS)


def test_a_collector_that_is_no_http_server() -> None:
    """A response that is not HTTP is an error of the sink."""

    def responses(connection: socket.socket) -> None:
        connection.recv(65536)
        connection.sendall(b"220 mail.example.org\r\n")

    with server_that(responses) as (host, port), pytest.raises((SinkError, OSError)):
        HttpCollector(f"http://{host}:{port}/", None, None).send(RECORDS)


def test_a_collector_over_tls(tmp_path: Path) -> None:
    """The collector's certificate is verified against the configured authorities."""
    certificate = new_certificate(tmp_path)
    with collector(200, context=certificate.context) as (address, requests):
        with pytest.raises(ssl.SSLCertVerificationError):
            HttpCollector(f"https://{address}", None, None).send(RECORDS)
        HttpCollector(f"https://{address}", None, certificate.path).send(RECORDS)
    assert requests == [("/v1/logs", None, LINES)]
    with pytest.raises(ConfigError, match="audit_sink_ca_file"):
        HttpCollector(f"https://{address}", None, certificate.path.with_name("missing"))
