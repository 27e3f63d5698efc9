"""The audit log as messages of syslog, RFC 5424: the record's JSON is the message.

Over a stream the messages are counted (RFC 6587; with TLS RFC 5425), and a page is taken when the
server has ended the connection after it, with TLS by close_notify: what only left this machine may be
lost. Datagrams are not acknowledged.
"""

import select
import socket
import ssl
from collections.abc import Sequence

from pqkeep_gateway.audit_stream import SinkError, StreamedRecord
from pqkeep_gateway.delivery.sink_connection import PAGE_SECONDS, STEP_SECONDS, connected

PRIORITY = 13 * 8 + 6
"""Facility "log audit", severity "informational"."""


def message(record: StreamedRecord, host: str) -> bytes:
    """Return a record as a message."""
    when = record.recorded_at.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    header = f"<{PRIORITY}>1 {when} {host} pqkeep - {record.operation} - "
    return header.encode() + record.line


class DatagramSyslog:
    """A Sink: UDP, or a Unix datagram socket such as /dev/log."""

    def __init__(self, address: tuple[str, int] | str) -> None:
        self._address = address
        self._host = _host()

    def send(self, records: Sequence[StreamedRecord]) -> None:
        """Send a datagram for each record. Raises OSError."""
        with _connected(self._address) as server:
            for record in records:
                server.send(message(record, self._host))


class StreamSyslog:
    """A Sink: TCP, or TLS over TCP, a connection for each page."""

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
                raise SinkError("the server sends data, which syslog does not")


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
                raise TimeoutError("the server does not end the connection") from None
        else:
            return
    # Python 3.11.2 calls it a success where the connection ends without close_notify.
    raise ssl.SSLEOFError(ssl.SSL_ERROR_EOF, "the server ends the connection without close_notify")


def _peek(server: ssl.SSLSocket) -> bytes | None:
    """Return the next byte, which stays to be read; none at the end, and None while there is none."""
    try:
        return socket.socket.recv(server, 1, socket.MSG_PEEK)
    except BlockingIOError:
        return None


def _connected(address: tuple[str, int] | str) -> socket.socket:
    """Return a datagram socket that is connected. Raises OSError."""
    if isinstance(address, str):
        return _connect(socket.AF_UNIX, address)
    error: OSError = OSError("the host has no address")
    for family, *_, found in socket.getaddrinfo(*address, type=socket.SOCK_DGRAM):
        try:
            return _connect(family, found)
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
    """Return this machine's name as a header may have it."""
    name = "".join(each for each in socket.gethostname() if "!" <= each <= "~")
    return name[:255] or "-"
