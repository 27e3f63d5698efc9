"""One HTTP connection: from bytes to requests, with limits, and from responses to bytes.

httptools parses. This module limits the size and time of everything except bodies, which each
endpoint limits (``body``). A request is handed over when its head has arrived. If the body is
complete too, it comes with the head. The next request is parsed after its response. If a complete
request's head has the same bytes as the previous head, it is not parsed again: programs repeat
their heads.

``watching`` checks each connection from its beginning to its end. A connection's phase is the event
that it waits for, with a time limit. The phase and its progress are determined at each check, so a
request needs no timer.
"""

import asyncio
import math
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Literal, NoReturn
from urllib.parse import unquote

import httptools
from starlette.types import ASGIApp, Message, Scope

from pqkeep_gateway.http import envelope
from pqkeep_gateway.http.connections import Connections
from pqkeep_gateway.http.errors import ApiError, invalid, unavailable
from pqkeep_gateway.http.observer import RequestObserver
from pqkeep_gateway.http.request_head import (
    MAX_HEADERS,
    NOT_HTTP,
    TOO_MANY_HEADERS,
    check_head,
    path_of,
)
from pqkeep_gateway.http.responses import WholeResponse, lines_of, new_request_id
from pqkeep_gateway.http.tls_server import TlsServer
from pqkeep_gateway.http.tls_session import TlsError, TlsSession
from pqkeep_gateway.http.transport import GatheringTransport
from pqkeep_protocol.startup.logs import logger

_LOG = logger(__name__)

HEAD_END = b"\r\n\r\n"
LISTS = b"LIST /v1/"
"""The beginning of requests with Vault's method LIST, which the parser does not know."""
READS = b"GET /v1/"
"""The beginning that the parser gets instead."""
STEP = 4096
"""Bytes of a head, or of a chunked body, that are parsed at once. In between, too many headers or
an early response are detected."""
MANY_CHUNKS = 64
"""Chunks or pieces in one step. A body with more is parsed in turns with other such bodies: 256 KB
in chunks of one byte take about 15 ms."""
MAX_HEAD = 32 * 1024
MAX_KEPT_HEAD = 2048
"""Bytes of a head that is kept for comparison with the next one."""
MAX_TAIL = 8 * 1024 * 1024
"""Bytes after a head, with the overhead of chunks and trailers, read or discarded."""
HIGH_WATER = 65_536
"""Bytes that are buffered of a body, or after a request, before the client must wait."""
NO_BODY = frozenset({204, 304})
"""Statuses without a body, even if the headers announce one."""
STATUS_LINE = {
    status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n".encode() for status in HTTPStatus
}
HEAD_TOO_LARGE = "the request's head is too large"


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """The numbers of connections, and the seconds for each phase."""

    connections: int = 4096
    per_address: int = 1024
    """The most connections from one IPv4 address, or from one /64 of IPv6."""
    new_per_second: int = 500
    """New connections per address. More are closed before anything is read."""
    request_seconds: float = 10
    """The time for a request to arrive, and for a new connection to begin one."""
    idle_seconds: float = 65
    """The time until the next request begins."""
    write_seconds: float = 20
    """The time for the client to read the buffered response."""
    close_seconds: float = 5
    """The time for the client to close its side."""
    unread: int = 512 * 1024 * 1024
    """Bytes of responses to all clients that are buffered until they are read."""


LIMITS = ConnectionLimits()


Phase = Literal["new", "request", "answer", "idle", "write", "close"]
"""The event that a connection waits for. "new": its first request; "request": the rest of a
request; "answer": the response, which has its own deadlines; "idle": the next request; "write": the
client, to read the response; "close": the client, to close its side."""


class Listener:
    """The shared state of the connections of one listening address."""

    def __init__(
        self,
        respond: "Callable[[Request], object]",
        counted: Connections,
        observer: RequestObserver,
        limits: ConnectionLimits = LIMITS,
        tls: TlsServer | None = None,
        *,
        takes_lists: bool = False,
    ) -> None:
        """Take the function to call with each request once its head has arrived.

        It must not raise. ``takes_lists``: whether requests with LISTS are accepted.
        """
        self.takes_lists = takes_lists
        self.respond = respond
        self.counted = counted
        self.observer = observer
        self.limits = limits
        self.tls = tls
        self.seconds: dict[Phase, float] = {
            "new": limits.request_seconds,
            "request": limits.request_seconds,
            "answer": math.inf,
            "idle": limits.idle_seconds,
            "write": limits.write_seconds,
            "close": limits.close_seconds,
        }
        self.connections: set[HttpConnection] = set()
        self.tasks: set[asyncio.Task[None]] = set()
        """Tasks of requests that wait for something."""
        self.lines = b""
        """Headers of every response."""

    def connection(self) -> "HttpConnection":
        """Return the protocol of a new connection."""
        return HttpConnection(self)

    def begin(self, work: Coroutine[Any, Any, None]) -> None:
        """Run waiting work in a task."""
        task = asyncio.get_running_loop().create_task(work)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)


def application(app: ASGIApp) -> "Callable[[Request], None]":
    """Return a function that runs an ASGI application for each request."""
    return lambda request: request.run(app)


class _Flow:
    """Flow control: pauses reading and writing."""

    def __init__(self, transport: GatheringTransport) -> None:
        self._transport = transport
        self._writable: asyncio.Event | None = None
        self._is_paused = False
        self.write_paused = False
        """Whether the client must read before more is written."""
        self.waiting = b""
        """Received bytes that are not parsed yet."""

    def pause_reading(self) -> None:
        """Stop reading."""
        if not self._is_paused:
            self._is_paused = True
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        """Resume reading, unless many bytes are waiting.

        It is called for each request, even while earlier requests wait.
        """
        if self._is_paused and len(self.waiting) < HIGH_WATER:
            self._is_paused = False
            self._transport.resume_reading()

    def pause_writing(self) -> None:
        """Hold back further writes."""
        self.write_paused = True

    def resume_writing(self) -> None:
        """Release the held-back writes."""
        self.write_paused = False
        if self._writable is not None:
            self._writable.set()
            self._writable = None

    async def drain(self) -> None:
        """Return when the client has read enough for more to be written."""
        if self.write_paused:
            if self._writable is None:
                self._writable = asyncio.Event()
            await self._writable.wait()


class Request:
    """One request and its response: the API uses it directly, pages through ASGI.

    A request with a complete body and an immediate response needs no task and no event.
    """

    __slots__ = (
        "_event",
        "_has_news",
        "_is_chunked",
        "_length_left",
        "_waits_for_100",
        "body",
        "connection",
        "disconnected",
        "header_list",
        "headers",
        "is_whole",
        "keep_alive",
        "method",
        "on_body",
        "path",
        "peer",
        "query",
        "raw_path",
        "response_complete",
        "response_started",
        "status",
        "version",
    )

    def __init__(
        self,
        connection: "HttpConnection",
        method: str,
        version: str,
        raw_path: bytes,
        query: bytes,
        header_list: list[tuple[bytes, bytes]],
        headers: dict[bytes, bytes],
        *,
        keep_alive: bool,
    ) -> None:
        """Take a head. The names of its headers are in lower case."""
        self._event: asyncio.Event | None = None
        self._has_news = False
        self._is_chunked = False
        self._length_left = 0
        self._waits_for_100 = b"expect" in headers and version != "1.0"
        self.body = bytearray()
        """Received bytes of the body that were not taken yet."""
        self.connection = connection
        """The connection of the request."""
        self.disconnected = False
        """Whether the client no longer waits for the response."""
        self.header_list = header_list
        self.headers = headers
        self.is_whole = False
        """Whether the whole body has arrived."""
        self.keep_alive = keep_alive
        self.method = method
        self.on_body: Callable[[], None] | None = None
        """Called when a part of the body has arrived, or the client has gone."""
        path = raw_path.decode("ascii")
        self.path = unquote(path) if "%" in path else path
        self.peer = connection.address
        """The address at the other end of the connection."""
        self.query = query
        self.raw_path = raw_path
        self.response_complete = False
        self.response_started = False
        self.status = 0
        """The response's status, once it has begun."""
        self.version = version

    # --- The body -------------------------------------------------------------------------------

    def expect_body(self) -> None:
        """Send 100 Continue if the client waits for it."""
        if self._waits_for_100 and not self.connection.transport.is_closing():
            self.connection.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            self._waits_for_100 = False

    async def receive(self) -> Message:
        """Return the received part of the body, or the disconnection, as an ASGI message."""
        self.expect_body()
        if not self.disconnected and not self.response_complete:
            self.connection.flow.resume_reading()
            if not self._has_news:
                self._event = self._event or asyncio.Event()
                await self._event.wait()
            if self._event is not None:
                self._event.clear()
            self._has_news = False
        if self.disconnected or self.response_complete:
            return {"type": "http.disconnect"}
        body, self.body = bytes(self.body), bytearray()
        return {"type": "http.request", "body": body, "more_body": not self.is_whole}

    def tell(self) -> None:
        """Wake the reader of the body."""
        self._has_news = True
        if self._event is not None:
            self._event.set()

    def disconnect(self) -> None:
        """Mark the client as gone."""
        self.disconnected = True
        self.tell()
        if self.on_body is not None:
            self.on_body()

    # --- The response ---------------------------------------------------------------------------

    def respond(self, response: WholeResponse) -> None:
        """Send a complete response at once."""
        if self.disconnected:
            return
        status, content_type, lines, body = response
        self.response_started = True
        self.status = status
        self._waits_for_100 = False
        connection = self.connection
        if status in NO_BODY:
            connection.gathering.send(
                b"%b%b%b%b\r\n"
                % (
                    STATUS_LINE[status],
                    connection.listener.lines,
                    lines,
                    b"" if self.keep_alive else b"connection: close\r\n",
                )
            )
            self._complete()
            return
        connection.gathering.send(
            b"%b%bcontent-type: %b\r\ncontent-length: %d\r\n%b%b\r\n%b"
            % (
                STATUS_LINE[status],
                connection.listener.lines,
                content_type,
                len(body),
                lines,
                b"" if self.keep_alive else b"connection: close\r\n",
                b"" if self.method == "HEAD" else body,
            )
        )
        self._complete()

    async def send(self, message: Message) -> None:
        """Send a part of the response, an ASGI message. Raises RuntimeError for an invalid one."""
        flow = self.connection.flow
        if flow.write_paused and not self.disconnected:
            await flow.drain()
        if self.disconnected:
            return
        if not self.response_started:
            _require(message, "http.response.start")
            self._start(message["status"], message.get("headers", ()))
        elif self.response_complete:
            raise RuntimeError("the response is already complete")
        else:
            _require(message, "http.response.body")
            self._send_body(message.get("body", b""), more=message.get("more_body", False))

    def _start(self, status: int, headers: Sequence[tuple[bytes, bytes]]) -> None:
        lines = lines_of(headers)
        named = dict(headers)
        length = named.get(b"content-length")
        self._is_chunked = named.get(b"transfer-encoding") == b"chunked"
        if length is not None:
            self._length_left = int(length)
        elif not self._is_chunked and self.method != "HEAD" and status not in NO_BODY:
            self._is_chunked = True
            lines += b"transfer-encoding: chunked\r\n"
        if named.get(b"connection") == b"close":
            self.keep_alive = False
        elif not self.keep_alive:
            lines += b"connection: close\r\n"
        self.response_started = True
        self.status = status
        self._waits_for_100 = False
        connection = self.connection
        connection.transport.write(
            b"%b%b%b\r\n" % (STATUS_LINE[status], connection.listener.lines, lines)
        )

    def _send_body(self, body: bytes, *, more: bool) -> None:
        transport = self.connection.transport
        if self.method == "HEAD":
            self._length_left = 0
        elif self._is_chunked:
            chunk = b"%x\r\n%b\r\n" % (len(body), body) if body else b""
            transport.write(chunk if more else chunk + b"0\r\n\r\n")
            self._length_left = 0
        else:
            self._length_left -= len(body)
            if self._length_left < 0:
                raise RuntimeError("the response is longer than its Content-Length")
            transport.write(body)
        if not more:
            if self._length_left:
                raise RuntimeError("the response is shorter than its Content-Length")
            self._complete()

    def _complete(self) -> None:
        self.response_complete = True
        self.on_body = None
        if self.body:  # the connection keeps its last request, an unread body would stay with it
            self.body = bytearray()
        self.tell()
        connection = self.connection
        if not self.keep_alive:
            connection.transport.close()
        connection.on_response_complete()

    # --- Pages ----------------------------------------------------------------------------------

    def scope(self) -> Scope:
        """Return the request as an ASGI scope."""
        connection = self.connection
        return {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": self.version,
            "server": connection.server,
            "client": connection.client,
            "scheme": connection.scheme,
            "root_path": "",
            "headers": list(self.header_list),
            "state": {"tls_group": connection.tls_group},
            "method": self.method,
            "path": self.path,
            "raw_path": self.raw_path,
            "query_string": self.query,
        }

    def run(self, app: ASGIApp, parameters: Mapping[str, str] | None = None) -> None:
        """Run an ASGI application in a task. ``parameters``: the fields in the path."""
        self.connection.listener.begin(self._run(app, {**self.scope(), "path_params": parameters}))

    async def _run(self, app: ASGIApp, scope: Scope) -> None:
        try:
            await app(scope, self.receive, self.send)
        except Exception:  # noqa: BLE001 - the client gets a response after any error
            _LOG.exception("a page failed")
            await self.fail()
        except BaseException:
            await self.fail()
            raise
        else:
            if not self.response_complete and not self.disconnected:
                _LOG.error("a page was not sent to its end")
                await self.fail()

    async def fail(self) -> None:
        """Send status 500, or close the connection if a response has begun."""
        if self.response_complete:
            return
        if self.response_started:
            self.connection.transport.close()
            return
        headers = [(b"content-type", b"text/plain; charset=utf-8"), (b"content-length", b"21")]
        self.keep_alive = False
        await self.send({"type": "http.response.start", "status": 500, "headers": headers})
        await self.send({"type": "http.response.body", "body": b"Internal Server Error"})


def _require(message: Message, type_: str) -> None:
    if message["type"] != type_:
        raise RuntimeError(f"ASGI: {type_} was expected")


class HttpConnection(asyncio.Protocol):
    """One connection."""

    def __init__(self, listener: Listener) -> None:
        """Take the shared state of the listener's connections."""
        self.listener = listener
        self.loop = asyncio.get_running_loop()
        self.was_used = False
        self.headers: list[tuple[bytes, bytes]] = []
        self.url = b""
        self.address = ""
        """The client's address."""
        self.request: Request | None = None
        """The last request."""
        self._counted = listener.counted
        self._tls: TlsSession | None = None
        self._has_arrived = False
        self._phase: Phase = "new"
        self._progress = 0
        self._checked_progress = -1
        self._deadline = 0.0
        self._is_lost = False
        self._is_receiving = False
        self._has_head = False
        self._is_new = False
        self._offers_upgrade = False
        self._head = b""
        self._kept_head = b""
        """The head of the last request, if equal bytes may be taken for the same head."""
        self._kept_size = 0
        """Bytes of the last request, with its body."""
        self._last = b""
        self._body_left = 0
        self._chunks = 0
        self._has_a_turn = False
        self._tail_size = 0
        self._keeps_alive = False
        self._is_draining = False
        self._refusal: ApiError | None = None

    # --- Events of the connection ---------------------------------------------------------------

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        peer = transport.get_extra_info("peername")
        self.address = peer[0] if isinstance(peer, tuple) else ""
        if not self._counted.may_arrive(self.address):
            transport.abort()
            return
        self._has_arrived = True
        if self.listener.tls is not None:
            self._tls = self.listener.tls.session()
        self.gathering = self.transport = GatheringTransport(transport, self.loop, self._tls)
        self.flow = _Flow(self.gathering)
        self._new_parser()
        self.listener.connections.add(self)
        if not self._counted.add(self, self.address):
            self._hang_up(unavailable())

    def _new_parser(self) -> None:
        self.parser = httptools.HttpRequestParser(self)
        # Bytes after a request with "Connection: close" are discarded here.
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)

    def connection_lost(self, exc: Exception | None) -> None:
        if not self._has_arrived:
            return
        self._is_lost = True
        self.flow.waiting = b""
        self.listener.connections.discard(self)
        self._counted.remove(self, self.address)
        request = self.request
        # A request and a parser refer to their connection. Collecting thousands of these cycles
        # takes a tenth of a second, in which every client waits.
        self.request = None
        del self.parser
        self.flow.resume_writing()
        if request is not None and not request.response_complete:
            request.disconnect()
        elif request is not None:
            request.tell()
        if exc is None:
            self.transport.close()

    def eof_received(self) -> None:
        """Close: a client that has closed its side gets no response."""

    def data_received(self, data: bytes) -> None:
        if self.gathering.is_closed or self._refusal is not None:
            self._tail_size += len(data)
            if self._tail_size > MAX_TAIL:
                self.transport.abort()
            else:
                self._counted.unread_bodies.wait(self.gathering)
            return
        if self._tls is not None:
            data = self._decrypt(self._tls, data)
            if not data:
                return
        if self.flow.waiting:
            data, self.flow.waiting = self.flow.waiting + data, b""
        if self._has_a_turn:
            self._wait(data)
        else:
            self._parse_received(data)

    def pause_writing(self) -> None:
        self.flow.pause_writing()

    def resume_writing(self) -> None:
        self.flow.resume_writing()
        self._progress += 1
        self._go_on()

    def shutdown(self) -> None:
        """Make the current request the last, and close the connection if no request is current."""
        self._is_draining = True
        self.gathering.expects_more = False
        if self.request is None or self.request.response_complete:
            self.transport.close()
        else:
            self.request.keep_alive = False

    def leave(self) -> None:
        """Make the next request the last: its response closes the connection."""
        self._is_draining = True

    def evict(self) -> None:
        self.transport.abort()

    async def drained(self) -> None:
        """Return when the client has read the response, or has gone."""
        await asyncio.sleep(0)  # lets the gathered bytes be written
        await self.flow.drain()

    def end_unread(self) -> None:
        """Close immediately, because other responses need the memory."""
        self._counted.closed["unread"] += 1
        self.transport.abort()

    # --- Events of the parser -------------------------------------------------------------------

    def on_message_begin(self) -> None:
        self.url = b""
        self.headers = []
        self._progress += 1
        self._is_receiving = True
        self._has_head = False
        self._offers_upgrade = False
        self._tail_size = 0

    def on_url(self, url: bytes) -> None:
        self.url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        """Take the head of a request. Raises ApiError if it is refused."""
        parser = self.parser
        if parser.should_upgrade():
            self._offers_upgrade = True
            return
        method, version = parser.get_method(), parser.get_http_version()
        if self.listener.takes_lists and self._head.startswith(LISTS):
            method = b"LIST"
        line = self._head.partition(b"\r\n")[0]
        headers = check_head(line, method, self.url, version, self.headers)
        path, query = path_of(self.url, headers.get(b"host"))
        self._body_left = int(headers.get(b"content-length", 0))
        self._keeps_alive = version != "1.0" and parser.should_keep_alive()
        # A response before the end of the body is the connection's last. Otherwise the rest of the
        # body would have to be read first.
        self.request = Request(
            self,
            method.decode("ascii"),
            version,
            path,
            query,
            self.headers,
            headers,
            keep_alive=False,
        )
        self._is_new = self._has_head = True
        self._keep_head(headers)
        self._head = b""
        self.headers = []  # trailers follow: they must not replace headers
        self.gathering.expects_more = True

    def _keep_head(self, headers: Mapping[bytes, bytes]) -> None:
        """Keep a head's bytes if they determine where the head and its body end.

        The head has as many lines as the parser has found. So it ends where the parser says, and
        contains no part of a body.
        """
        head, lines = self._head, len(self.headers) + 2
        self._kept_head = b""
        if (
            self._keeps_alive
            and len(head) <= MAX_KEPT_HEAD
            and b"transfer-encoding" not in headers
            and head.endswith(HEAD_END)
            and head.count(b"\r\n") == head.count(b"\n") == head.count(b"\r") == lines
        ):
            self._kept_head = head
            self._kept_size = len(head) + self._body_left

    def on_body(self, body: bytes) -> None:
        self._chunks += 1
        self._body_left -= len(body)
        request = self.request
        if request is not None and not request.response_complete:
            request.body += body
            if len(request.body) > HIGH_WATER:
                self.flow.pause_reading()
            request.tell()

    def on_message_complete(self) -> None:
        if self._offers_upgrade:
            return
        if len(self.headers) > MAX_HEADERS:
            raise invalid(TOO_MANY_HEADERS)
        self._is_receiving = False
        self.gathering.expects_more = False
        request = self.request
        if request is not None and not request.response_complete:
            request.is_whole = True
            request.tell()
            if not request.response_started and not self._is_draining:
                request.keep_alive = self._keeps_alive

    def on_response_complete(self) -> None:
        """Continue with the next request after a response."""
        self.was_used = True
        if self._is_lost:
            return
        if not self.gathering.is_closed:
            self.flow.resume_reading()
            if self._refusal is not None:
                self._hang_up(self._refusal)
            if self.flow.waiting:
                self.loop.call_soon(self._go_on)  # after the response has been written

    # --- What is received -----------------------------------------------------------------------

    def _decrypt(self, tls: TlsSession, data: bytes) -> bytes:
        """Return the HTTP bytes in received TLS bytes, and send TLS's own.

        Close if TLS has ended.
        """
        received = b""
        try:
            received = tls.receive(data)
        except TlsError as error:
            if self.listener.tls is not None:
                self.listener.tls.count_failure(error)
            self.gathering.expects_more = True
            self.transport.close()
        self.gathering.send_tls(tls)
        if tls.has_ended:
            self.loop.call_soon(self.transport.close)  # after the received bytes are parsed
        return received

    def _go_on(self) -> None:
        """Parse the waiting bytes, unless a response is in progress."""
        data, self.flow.waiting = self.flow.waiting, b""
        if data:
            self.flow.resume_reading()
            self._parse_received(data)

    def _parse_received(self, data: bytes) -> None:
        """Parse received bytes up to the end of a request. The following bytes wait unparsed.

        The garbage collector would scan thousands of parsed requests, while every client waits.
        """
        if (
            len(data) == self._kept_size
            and data.startswith(self._kept_head)
            and self._take_again(data)
        ):
            return
        begin = step_begin = self._chunks = 0
        try:
            while begin < len(data) and not self.gathering.is_closed and self._refusal is None:
                if self.flow.write_paused or self.is_answering():
                    self._wait(data[begin:])
                    return
                piece = self._piece(data, begin)
                begin += len(piece)
                self._chunks += 1
                self._parse(piece)
                if self._is_new and not self._is_receiving:
                    if begin < len(data):
                        self._wait(data[begin:])
                    return
                if self._chunks > MANY_CHUNKS:
                    self._wait(data[begin:])
                    self._has_a_turn = True
                    self._counted.small_chunks.wait(self._take_turn)
                    return
                if begin - step_begin >= STEP:
                    step_begin, self._chunks = begin, 0
        except httptools.HttpParserError as error:
            cause = error.__context__
            self._refuse(cause if isinstance(cause, ApiError) else invalid(NOT_HTTP))
        except ApiError as error:
            self._refuse(error)
        finally:
            self._hand_over()

    def _take_again(self, data: bytes) -> bool:
        """Take a complete request with the same head bytes as the last one, and pass it on.

        Returns whether this was done. The parser is between two requests, and equal bytes have an
        equal result, so the parser is skipped.
        """
        last, head = self.request, self._kept_head
        if (
            not head
            or last is None
            or not last.response_complete
            or self._is_receiving
            or self._head
            or self.flow.write_paused
            or self._refusal is not None
            or self.gathering.is_closed
        ):
            return False
        self._progress += 1
        self._last = data[-len(HEAD_END) + 1 :]
        self._tail_size = len(data) - len(head)
        self.request = request = Request(
            self,
            last.method,
            last.version,
            last.raw_path,
            last.query,
            last.header_list,
            last.headers,
            keep_alive=not self._is_draining,
        )
        request.body += memoryview(data)[len(head) :]
        request.is_whole = True
        request.tell()
        if self._tail_size > HIGH_WATER:
            self.flow.pause_reading()
        self.listener.respond(request)
        return True

    def _hand_over(self) -> None:
        """Pass on a request with a complete head, or announce more of its body.

        A refused request is passed on too, to be counted: its connection is already closing.
        """
        request = self.request
        if request is None:
            return
        if self._is_new:
            self._is_new = False
            self.listener.respond(request)
        elif request.on_body is not None:
            request.on_body()

    def _wait(self, data: bytes) -> None:
        """Keep received bytes unparsed, and stop reading."""
        self.flow.waiting = data
        self.flow.pause_reading()

    def _take_turn(self) -> None:
        self._has_a_turn = False
        if not self.flow.waiting:
            self.flow.resume_reading()
        self._go_on()

    def _piece(self, data: bytes, begin: int) -> bytes:
        """Return the next bytes to parse: the rest of a body, or a step up to the next empty line.

        So each request begins with a new piece, because a head and a chunked body end with an empty
        line. Empty lines before a request do not end a piece, since a piece for each would be slow.
        """
        if self._is_receiving and self._has_head and self._body_left > 0:
            return data[begin : begin + self._body_left]
        first = begin if self._is_receiving else len(data) - len(data[begin:].lstrip(b"\r\n"))
        found = (self._last + data[first : first + STEP]).find(HEAD_END)
        end = STEP if found < 0 else found + len(HEAD_END) - len(self._last)
        return data[begin : first + end]

    def _parse(self, piece: bytes) -> None:
        rest = piece
        if self._is_receiving and self._has_head:
            self._tail_size += len(piece)
        else:
            self._collect_head(piece)
            if self.listener.takes_lists:
                rest = self._without_list(piece)
        self._last = (self._last + piece)[-len(HEAD_END) + 1 :]
        while rest:
            try:
                self.parser.feed_data(rest)
            except httptools.HttpParserUpgrade as upgrade:
                rest = self._head_without_upgrade() + rest[upgrade.args[0] :]
                self._new_parser()  # the old parser cannot continue
            else:
                break
        if self._is_receiving and (self._tail_size > MAX_TAIL or len(self.headers) > MAX_HEADERS):
            self._refuse_size()

    def _collect_head(self, piece: bytes) -> None:
        """Collect the head without the empty lines before it. Raises ApiError."""
        head = self._head + piece
        if not self._is_receiving:
            rest = head.lstrip(b"\r\n")
            head = head[: len(head) - len(rest)].replace(b"\r\n", b"") + rest
            if head[:1] in {b"\r", b"\n"} and head != b"\r":
                raise invalid(NOT_HTTP)
        if len(head) > MAX_HEAD:
            raise invalid(HEAD_TOO_LARGE)
        self._head = head

    def _without_list(self, piece: bytes) -> bytes:
        """Return the bytes for the parser, with READS for LISTS; none while that may follow."""
        head = self._head
        if self._is_receiving:
            return piece
        if head.startswith(LISTS):
            return READS + head[len(LISTS) :]
        return b"" if LISTS.startswith(head) else head

    def _head_without_upgrade(self) -> bytes:
        """Return the head without its offer of another protocol.

        After such an offer the parser would take the following bytes for the other protocol.
        """
        method = self.parser.get_method()
        if method == b"CONNECT":
            raise invalid("CONNECT is not supported: this is not a proxy")
        version = self.parser.get_http_version().encode()
        headers = [header for header in self.headers if header[0] != b"upgrade"]
        lines = b"".join(b"%s: %s\r\n" % header for header in headers)
        return b"%s %s HTTP/%s\r\n%s\r\n" % (method, self.url, version, lines)

    def _refuse_size(self) -> NoReturn:
        """Refuse a request that is already too large. Raises ApiError."""
        if self._has_head and self._tail_size > MAX_TAIL:
            raise invalid("the body is too large")
        raise invalid(TOO_MANY_HEADERS)

    # --- The end of a connection ----------------------------------------------------------------

    @property
    def scheme(self) -> str:
        """The scheme that the client uses."""
        return "http" if self._tls is None else "https"

    @property
    def tls_group(self) -> str:
        """The key-exchange group of TLS; empty without TLS."""
        return "" if self._tls is None else self._tls.group

    @property
    def client(self) -> tuple[str, int] | None:
        """The client's address and port."""
        peer = self.transport.get_extra_info("peername")
        return (str(peer[0]), int(peer[1])) if isinstance(peer, tuple) else None

    @property
    def server(self) -> tuple[str, int] | None:
        """The local address and port."""
        own = self.transport.get_extra_info("sockname")
        return (str(own[0]), int(own[1])) if isinstance(own, tuple) else None

    @property
    def unread(self) -> int:
        """Bytes of responses that wait in memory until the client reads."""
        waits = self._has_arrived and self.flow.write_paused and not self._is_lost
        return self.gathering.get_write_buffer_size() if waits else 0

    def is_answering(self) -> bool:
        """Return whether a response is pending or in progress."""
        request = self.request
        if request is None or request.response_complete:
            return False
        return request.response_started or request.is_whole

    def check_deadline(self, now: float) -> bool:
        """End the connection if its phase has used up its time; ``now`` is the event loop's time.

        The time begins with the first check that finds the connection in the phase. Returns whether
        it was used up.
        """
        if self._is_lost:
            return False
        phase = self._current_phase()
        if phase is not self._phase or self._progress != self._checked_progress:
            self._phase = phase
            self._checked_progress = self._progress
            self._deadline = now + self.listener.seconds[phase]
            return False
        if now < self._deadline:
            return False
        self._expire()
        return True

    def _current_phase(self) -> Phase:
        if self.gathering.is_closed:
            return "close"
        if self.flow.write_paused:
            return "write"
        if self.is_answering():
            return "answer"
        if self._is_receiving:
            return "request"
        return "new" if self.request is None else "idle"

    def _expire(self) -> None:
        match self._phase:
            case "new" | "idle":
                self.transport.close()
            case "request":
                self._hang_up(invalid("the request did not arrive in time"))
            case "write" | "close":
                self.transport.abort()
            case "answer":
                pass

    def _refuse(self, error: ApiError) -> None:
        """Stop reading; finish the current response, then send this error and close."""
        self._refusal = error.without_frames()
        if not self.is_answering():
            self._hang_up(error)

    def _hang_up(self, error: ApiError) -> None:
        """Send an error for a request that no endpoint will see, and close."""
        if self.gathering.is_closed:
            return
        request = self.request
        if request is not None and not request.response_complete:
            request.disconnect()
        request_id = new_request_id()
        body = envelope.failure(error, request_id)
        headers = (
            (b"content-type", b"application/json"),
            (b"content-length", b"%d" % len(body)),
            (b"cache-control", b"no-store"),
            (b"x-request-id", request_id.encode()),
            (b"connection", b"close"),
        )
        lines = b"".join(b"%s: %s\r\n" % header for header in headers)
        start = STATUS_LINE[error.code.status] + self.listener.lines
        self.transport.write(start + lines + b"\r\n" + body)
        self.listener.observer.refuse(error, request_id, self.address)
        self.gathering.expects_more = error is self._refusal or self._is_receiving
        self.transport.close()
