"""One connection: from bytes to requests, in time and within bounds, and from answers to bytes.

httptools parses; what comes is bounded in size and time here, but for the size of bodies, which each
endpoint bounds (``body``). A request whose head has come is handed over, with its body if that has
come, too; the next one is parsed when it is answered. A whole request whose head has the very bytes
of the last one on its connection is not parsed again: programs send the same heads all the time.

``watching`` checks each connection from its beginning to its end. What a connection waits for, and
how long, is its phase: which one that is, and how far it has come, is found out when it is checked,
so that a request costs no timer.
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
from pqkeep_gateway.http.responses import Answer, lines_of, new_request_id
from pqkeep_gateway.http.tls_server import TlsServer
from pqkeep_gateway.http.tls_session import TlsError, TlsSession
from pqkeep_gateway.http.transport import GatheringTransport
from pqkeep_protocol.startup.logs import logger

_LOG = logger(__name__)

HEAD_END = b"\r\n\r\n"
STEP = 4096
"""Bytes of a head, or of a body in chunks, that are parsed at once: in between it is found that there
are too many headers, or that the body has an answer already."""
MANY_CHUNKS = 64
"""Chunks, or pieces, of one step. A body that has more is parsed in turns with others that have: 256 KB in chunks
of one byte take some 15 ms."""
MAX_HEAD = 32 * 1024
MAX_KEPT_HEAD = 2048
"""Bytes of a head that is kept until the next one: programs send the same ones again and again."""
MAX_TAIL = 8 * 1024 * 1024
"""Bytes after a head, with all that chunks and trailers add to a body, read or thrown away."""
HIGH_WATER = 65_536
"""Bytes of a body, or behind a request, that are kept before the client has to wait."""
NO_BODY = frozenset({204, 304})
"""Answers without a body, whatever their headers say."""
STATUS_LINE = {
    status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n".encode() for status in HTTPStatus
}
HEAD_TOO_LARGE = "the request's head is too large"


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """How many connections there may be, and how many seconds one may take for what."""

    connections: int = 4096
    per_address: int = 1024
    """Of one IPv4 address, or of one /64 of IPv6."""
    new_per_second: int = 500
    """New ones of one address: more are closed before anything is read."""
    request_seconds: float = 10
    """For a request to arrive, and for a new connection to begin one."""
    idle_seconds: float = 65
    """Until the next request begins."""
    write_seconds: float = 20
    """For the client to read what waits to be sent."""
    close_seconds: float = 5
    """For the client to close its side."""
    unread: int = 512 * 1024 * 1024
    """Bytes of answers to all clients together that wait in memory until these read."""


LIMITS = ConnectionLimits()


Phase = Literal["new", "request", "answer", "idle", "write", "close"]
"""What a connection waits for: its first request; the rest of a request; the answer, which has
deadlines of its own; the next request; the client, to read what has been answered; the client, to
close its side."""


class Listener:
    """What the connections of one listening address share."""

    def __init__(
        self,
        respond: "Callable[[Request], object]",
        counted: Connections,
        observer: RequestObserver,
        limits: ConnectionLimits = LIMITS,
        tls: TlsServer | None = None,
    ) -> None:
        """Take what is called with each request, once its head has come: it must not raise."""
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
        """What answers requests that have to wait for something."""
        self.lines = b""
        """Headers of every answer."""

    def connection(self) -> "HttpConnection":
        """Return the protocol of a new connection."""
        return HttpConnection(self)

    def begin(self, work: Coroutine[Any, Any, None]) -> None:
        """Have something done that has to wait."""
        task = asyncio.get_running_loop().create_task(work)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)


def application(app: ASGIApp) -> "Callable[[Request], None]":
    """Return what answers each request by an ASGI application."""
    return lambda request: request.run(app)


class _Flow:
    """When a connection is read, and written to."""

    def __init__(self, transport: GatheringTransport) -> None:
        self._transport = transport
        self._writable: asyncio.Event | None = None
        self._is_paused = False
        self.write_paused = False
        """Whether the client is to read before anything more is written."""
        self.waiting = b""
        """What has come and is not parsed yet."""

    def pause_reading(self) -> None:
        """Read nothing more for now."""
        if not self._is_paused:
            self._is_paused = True
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        """Read on, unless much waits: each request asks for it, also of those behind others."""
        if self._is_paused and len(self.waiting) < HIGH_WATER:
            self._is_paused = False
            self._transport.resume_reading()

    def pause_writing(self) -> None:
        """Have what is written wait."""
        self.write_paused = True

    def resume_writing(self) -> None:
        """Go on with what waits to be written."""
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
    """One request and its answer: for the API as it is, for pages as an ASGI application sees it.

    A request that comes with its whole body, and is answered at once, needs no task and no event.
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
        """What has come of the body, and was not taken yet."""
        self.connection = connection
        """The connection over which it has come."""
        self.disconnected = False
        """Whether nobody waits for the answer any more."""
        self.header_list = header_list
        self.headers = headers
        self.is_whole = False
        """Whether all of its body has come."""
        self.keep_alive = keep_alive
        self.method = method
        self.on_body: Callable[[], None] | None = None
        """What is called when some of the body has come, or the client has gone."""
        path = raw_path.decode("ascii")
        self.path = unquote(path) if "%" in path else path
        self.peer = connection.address
        """The address at the other end of the connection."""
        self.query = query
        self.raw_path = raw_path
        self.response_complete = False
        self.response_started = False
        self.status = 0
        """Of the answer, once it has begun."""
        self.version = version

    # --- The body -------------------------------------------------------------------------------

    def expect_body(self) -> None:
        """Have the client send the body, if it waits to be asked for it."""
        if self._waits_for_100 and not self.connection.transport.is_closing():
            self.connection.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            self._waits_for_100 = False

    async def receive(self) -> Message:
        """Return what has come of the body, or that the client has gone, as ASGI has it."""
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
        """Tell who waits for the body that there is something new."""
        self._has_news = True
        if self._event is not None:
            self._event.set()

    def disconnect(self) -> None:
        """Say that nobody waits for the answer any more."""
        self.disconnected = True
        self.tell()
        if self.on_body is not None:
            self.on_body()

    # --- The answer -----------------------------------------------------------------------------

    def answer(self, answer: Answer) -> None:
        """Send a whole answer at once."""
        if self.disconnected:
            return
        status, content_type, lines, body = answer
        self.response_started = True
        self.status = status
        self._waits_for_100 = False
        connection = self.connection
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
        """Send a part of the answer, as ASGI has it. Raises RuntimeError for what is not HTTP."""
        flow = self.connection.flow
        if flow.write_paused and not self.disconnected:
            await flow.drain()
        if self.disconnected:
            return
        if not self.response_started:
            _require(message, "http.response.start")
            self._start(message["status"], message.get("headers", ()))
        elif self.response_complete:
            raise RuntimeError("the answer has been sent already")
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
                raise RuntimeError("the answer is longer than its Content-Length")
            transport.write(body)
        if not more:
            if self._length_left:
                raise RuntimeError("the answer is shorter than its Content-Length")
            self._complete()

    def _complete(self) -> None:
        self.response_complete = True
        self.on_body = None
        self.tell()
        connection = self.connection
        if not self.keep_alive:
            connection.transport.close()
        connection.on_response_complete()

    # --- Pages ----------------------------------------------------------------------------------

    def scope(self) -> Scope:
        """Return the request as ASGI has it."""
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
        """Have an ASGI application answer, in a task. ``parameters``: the fields in its path."""
        self.connection.listener.begin(self._run(app, {**self.scope(), "path_params": parameters}))

    async def _run(self, app: ASGIApp, scope: Scope) -> None:
        try:
            await app(scope, self.receive, self.send)
        except Exception:  # noqa: BLE001 - whatever it is, the client is told
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
        """Answer that the service failed, or cut the answer that has begun."""
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
        raise RuntimeError(f"ASGI: {type_} is next")


class HttpConnection(asyncio.Protocol):
    """One connection."""

    def __init__(self, listener: Listener) -> None:
        """Take what is the same for all connections of a listener."""
        self.listener = listener
        self.loop = asyncio.get_running_loop()
        self.was_used = False
        self.headers: list[tuple[bytes, bytes]] = []
        self.url = b""
        self.address = ""
        """The client's address."""
        self.request: Request | None = None
        """The one that came last."""
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
        """The head of the last request, if the next one may be taken for equal by its bytes."""
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
        # What comes behind a request that says that it is the last is thrown away here.
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)

    def connection_lost(self, exc: Exception | None) -> None:
        if not self._has_arrived:
            return
        self._is_lost = True
        self.flow.waiting = b""
        self.listener.connections.discard(self)
        self._counted.remove(self, self.address)
        request = self.request
        # A request and a parser know their connection. Thousands of these cycles take the collector
        # a tenth of a second, for which everybody waits.
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
        """Close: who sends nothing more is not answered either."""

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
        """Let the request that is under way be the last, and close if there is none."""
        self._is_draining = True
        self.gathering.expects_more = False
        if self.request is None or self.request.response_complete:
            self.transport.close()
        else:
            self.request.keep_alive = False

    def leave(self) -> None:
        """Let the next request be the last: its answer says that the connection is closed."""
        self._is_draining = True

    def evict(self) -> None:
        self.transport.abort()

    async def drained(self) -> None:
        """Return when the client has read what it was sent, or has gone."""
        await asyncio.sleep(0)  # in which what was gathered is written
        await self.flow.drain()

    def end_unread(self) -> None:
        """Close at once: others' answers need the memory that this one's take."""
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
        line = self._head.partition(b"\r\n")[0]
        headers = check_head(line, method, self.url, version, self.headers)
        path, query = path_of(self.url, headers.get(b"host"))
        self._body_left = int(headers.get(b"content-length", 0))
        self._keeps_alive = version != "1.0" and parser.should_keep_alive()
        # An answer before the end of the body is the connection's last: what is left of the body
        # would have to be read to come to the next request.
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
        self.headers = []  # what comes is trailers: they must not stand in for headers
        self.gathering.expects_more = True

    def _keep_head(self, headers: Mapping[bytes, bytes]) -> None:
        """Keep a head's bytes, if those alone tell where it and its body end.

        It has as many lines as the parser has found: so it ends where the parser says, and nothing
        of a body is in it.
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
        """Go on with the next request, when an answer has been sent."""
        self.was_used = True
        if self._is_lost:
            return
        if not self.gathering.is_closed:
            self.flow.resume_reading()
            if self._refusal is not None:
                self._hang_up(self._refusal)
            if self.flow.waiting:
                self.loop.call_soon(self._go_on)  # when the answer has been written

    # --- What is received -----------------------------------------------------------------------

    def _decrypt(self, tls: TlsSession, data: bytes) -> bytes:
        """Return the HTTP in what has come, and let TLS answer. Close what TLS ends."""
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
            self.loop.call_soon(self.transport.close)  # when what has come is parsed
        return received

    def _go_on(self) -> None:
        """Parse what waits, unless the client is still to read an answer or to be sent one."""
        data, self.flow.waiting = self.flow.waiting, b""
        if data:
            self.flow.resume_reading()
            self._parse_received(data)

    def _parse_received(self, data: bytes) -> None:
        """Parse what has come, up to the end of a request: the next ones wait, as bytes.

        Thousands of parsed requests would be what the collector of cycles looks at, while everybody
        else waits.
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
        """Take a whole request whose head is the last one's, byte by byte, and have it answered.

        Return whether this was done. The parser is between two requests: it makes the same of the
        same bytes, and whether they are refused depends on nothing else, so it is not asked.
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
        """Have a request answered that has a head, or tell that more of its body has come.

        One that was refused on the way counts, too: it has been hung up on by now.
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
        """Keep what has come as bytes, and read nothing more for now."""
        self.flow.waiting = data
        self.flow.pause_reading()

    def _take_turn(self) -> None:
        self._has_a_turn = False
        if not self.flow.waiting:
            self.flow.resume_reading()
        self._go_on()

    def _piece(self, data: bytes, begin: int) -> bytes:
        """Return what is parsed next: a body of known size, or a step, up to the next empty line.

        So each request begins with a piece: its head and a body in chunks end with an empty line.
        Line ends before a request end nothing: a piece for each would take long.
        """
        if self._is_receiving and self._has_head and self._body_left > 0:
            return data[begin : begin + self._body_left]
        first = begin if self._is_receiving else len(data) - len(data[begin:].lstrip(b"\r\n"))
        found = (self._last + data[first : first + STEP]).find(HEAD_END)
        end = STEP if found < 0 else found + len(HEAD_END) - len(self._last)
        return data[begin : first + end]

    def _parse(self, piece: bytes) -> None:
        if self._is_receiving and self._has_head:
            self._tail_size += len(piece)
        else:
            self._collect_head(piece)
        self._last = (self._last + piece)[-len(HEAD_END) + 1 :]
        rest = piece
        while rest:
            try:
                self.parser.feed_data(rest)
            except httptools.HttpParserUpgrade as upgrade:
                rest = self._head_without_upgrade() + rest[upgrade.args[0] :]
                self._new_parser()  # the other one is at its end
            else:
                break
        if self._is_receiving and (self._tail_size > MAX_TAIL or len(self.headers) > MAX_HEADERS):
            self._refuse_size()

    def _collect_head(self, piece: bytes) -> None:
        """Keep the head as it comes, without the empty lines before it. Raises ApiError."""
        head = self._head + piece
        if not self._is_receiving:
            rest = head.lstrip(b"\r\n")
            head = head[: len(head) - len(rest)].replace(b"\r\n", b"") + rest
            if head[:1] in {b"\r", b"\n"} and head != b"\r":
                raise invalid(NOT_HTTP)
        if len(head) > MAX_HEAD:
            raise invalid(HEAD_TOO_LARGE)
        self._head = head

    def _head_without_upgrade(self) -> bytes:
        """Return the head of a request that offers another protocol, without the offer.

        The parser takes what follows such a head for the other protocol: so it gets another head.
        """
        method = self.parser.get_method()
        if method == b"CONNECT":
            raise invalid("this is no proxy")
        version = self.parser.get_http_version().encode()
        headers = [header for header in self.headers if header[0] != b"upgrade"]
        lines = b"".join(b"%s: %s\r\n" % header for header in headers)
        return b"%s %s HTTP/%s\r\n%s\r\n" % (method, self.url, version, lines)

    def _refuse_size(self) -> NoReturn:
        """Refuse what has come of a request: it is too much already. Raises ApiError."""
        if self._has_head and self._tail_size > MAX_TAIL:
            raise invalid("the body is too large")
        raise invalid(TOO_MANY_HEADERS)

    # --- What ends a connection -----------------------------------------------------------------

    @property
    def scheme(self) -> str:
        """How the client reaches this."""
        return "http" if self._tls is None else "https"

    @property
    def tls_group(self) -> str:
        """What TLS has agreed on; nothing without TLS."""
        return "" if self._tls is None else self._tls.group

    @property
    def client(self) -> tuple[str, int] | None:
        """The other end's address and port."""
        peer = self.transport.get_extra_info("peername")
        return (str(peer[0]), int(peer[1])) if isinstance(peer, tuple) else None

    @property
    def server(self) -> tuple[str, int] | None:
        """This end's address and port."""
        own = self.transport.get_extra_info("sockname")
        return (str(own[0]), int(own[1])) if isinstance(own, tuple) else None

    @property
    def unread(self) -> int:
        """How many bytes of answers wait in memory until the client reads."""
        waits = self._has_arrived and self.flow.write_paused and not self._is_lost
        return self.gathering.get_write_buffer_size() if waits else 0

    def is_answering(self) -> bool:
        """Return whether an answer is owed, or under way."""
        request = self.request
        if request is None or request.response_complete:
            return False
        return request.response_started or request.is_whole

    def check_deadline(self, now: float) -> bool:
        """End what its phase has no more time for; ``now`` is the event loop's time.

        A phase's time begins with the first check that finds the connection in it. Returns whether
        that time was over.
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
        """Read nothing more; answer what was asked before, then this, and close."""
        self._refusal = error.without_frames()
        if not self.is_answering():
            self._hang_up(error)

    def _hang_up(self, error: ApiError) -> None:
        """Answer a request that no endpoint will see, and close."""
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
