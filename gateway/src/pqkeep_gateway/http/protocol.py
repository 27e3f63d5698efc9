"""uvicorn's HTTP protocol, bounded: requests in time, heads in size, connections in number.

As shipped it collects a head of any size, waits for the rest of a request and for a client that
reads nothing for ever, and answers what is no HTTP in plain text. The size of bodies is bounded in
``body``.

``watching`` checks each connection from its beginning to its end. What a connection waits for, and
how long, is its phase: which one that is, and how far it has come, is found out when it is checked,
so that a request costs no timer.
"""

import asyncio
import math
import re
from dataclasses import dataclass
from typing import Any, Literal
from urllib.parse import unquote

import httptools
from uvicorn._types import ASGI3Application
from uvicorn.config import Config
from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT, FlowControl
from uvicorn.protocols.http.httptools_impl import (
    STATUS_LINE,
    HttpToolsProtocol,
    RequestResponseCycle,
)
from uvicorn.server import ServerState

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
from pqkeep_gateway.http.responses import new_request_id
from pqkeep_gateway.http.tls_server import TlsServer
from pqkeep_gateway.http.tls_session import TlsError, TlsSession
from pqkeep_gateway.http.transport import GatheringTransport

HEAD_END = b"\r\n\r\n"
STEP = 4096
"""Bytes of a head, or of a body in chunks, that are parsed at once: in between it is found that there
are too many headers, or that the body has an answer already."""
MANY_CHUNKS = 64
"""Chunks, or pieces, of one step. A body that has more is parsed in turns with others that have: 256 KB in chunks
of one byte take some 15 ms."""
MAX_HEAD = 32 * 1024
MAX_TAIL = 8 * 1024 * 1024
"""Bytes after a head, with all that chunks and trailers add to a body, read or thrown away."""
_OTHERS = {b"connection", b"transfer-encoding"}
"""Headers that say more of the connection than this reads."""
_CONTROLS = re.compile(rb"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")
"""Control characters but for the tab and the line ends, which are counted."""
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


class _Flow(FlowControl):
    """When a connection is read, and written to."""

    waiting = b""
    """What has come and is not parsed yet."""

    def resume_reading(self) -> None:
        """Read on, unless much waits: each request asks for it, also of those behind others."""
        if len(self.waiting) < HIGH_WATER_LIMIT:
            super().resume_reading()


class Exchange(RequestResponseCycle):
    """One request and its answer: uvicorn's, with the answer's head made in one step.

    uvicorn looks at each header of an answer by itself, twice with a regular expression and once for
    each that means something to it, which takes more than all that is made of a small body.
    """

    async def send(self, message: Any) -> None:
        """Send a part of the answer."""
        if message["type"] == "http.response.start":
            named = dict(message["headers"])
            if self._is_plain(named):
                self._start(message, named[b"content-length"])
                return
        await super().send(message)

    def _is_plain(self, named: dict[bytes, bytes]) -> bool:
        """Return whether an answer begins as nearly all do: now, with a body of known length."""
        if self.response_started or self.disconnected or self.flow.write_paused:
            return False
        return b"content-length" in named and named.keys().isdisjoint(_OTHERS)

    def _start(self, start: Any, length: bytes) -> None:
        """Send the head. Raises RuntimeError if a header has a control character in it."""
        headers = [*self.default_headers, *start["headers"]]
        if not self.keep_alive:
            headers.append((b"connection", b"close"))
        lines = b"".join([b"%b: %b\r\n" % each for each in headers])
        is_whole = len(headers) == lines.count(b"\r") == lines.count(b"\n")
        if not is_whole or _CONTROLS.search(lines):
            raise RuntimeError("a header has a control character in it")
        self.response_started = True
        self.waiting_for_100_continue = False
        self.chunked_encoding = False
        self.expected_content_length = int(length)
        self.transport.write(b"%b%b\r\n" % (STATUS_LINE[start["status"]], lines))


class BoundedHttpProtocol(HttpToolsProtocol):
    """One connection."""

    flow: _Flow

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
        *,
        limits: ConnectionLimits,
        counted: Connections,
        observer: RequestObserver,
        tls: TlsServer | None = None,
    ) -> None:
        """Take what uvicorn gives each connection, and what is the same for all of them."""
        super().__init__(config, server_state, app_state, _loop)
        self.was_used = False
        self._counted = counted
        self._tls_server = tls
        self._tls: TlsSession | None = None
        self._observer = observer
        self._seconds: dict[Phase, float] = {
            "new": limits.request_seconds,
            "request": limits.request_seconds,
            "answer": math.inf,
            "idle": limits.idle_seconds,
            "write": limits.write_seconds,
            "close": limits.close_seconds,
        }
        self._address = ""
        self._has_arrived = False
        self._phase: Phase = "new"
        self._progress = 0
        self._checked_progress = -1
        self._deadline = 0.0
        self._executed: RequestResponseCycle | None = None
        self._is_lost = False
        self._is_receiving = False
        self._has_head = False
        self._offers_upgrade = False
        self._head = b""
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
        self._address = peer[0] if isinstance(peer, tuple) else ""
        if not self._counted.may_arrive(self._address):
            transport.abort()
            return
        self._has_arrived = True
        if self._tls_server is not None:
            self._tls = self._tls_server.session()
        self._gathering = GatheringTransport(transport, self.loop, self._tls)
        super().connection_made(self._gathering)
        self.flow = _Flow(self._gathering)
        if not self._counted.add(self, self._address):
            self._hang_up(unavailable())

    def connection_lost(self, exc: Exception | None) -> None:
        if not self._has_arrived:
            return
        self._is_lost = True
        self.flow.waiting = b""
        self._counted.remove(self, self._address)
        if self._executed is not None:  # uvicorn tells the latest request only
            self._executed.disconnected = True
            self._executed.message_event.set()
        super().connection_lost(exc)
        # A request knows its connection. Thousands of these cycles take the collector a tenth of a
        # second, for which everybody waits.
        self._executed = self.cycle = self.scope = None  # type: ignore[assignment]

    def data_received(self, data: bytes) -> None:
        if self._gathering.is_closed or self._refusal is not None:
            self._tail_size += len(data)
            if self._tail_size > MAX_TAIL:
                self.transport.abort()
            else:
                self._counted.unread_bodies.wait(self._gathering)
            return
        if self._tls is not None:
            data = self._decrypt(self._tls, data)
            if not data:
                return
        data, self.flow.waiting = self.flow.waiting + data, b""
        if self._has_a_turn:
            self._wait(data)
        else:
            self._parse_received(data)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._progress += 1
        self._go_on()

    def shutdown(self) -> None:
        self._is_draining = True
        self._gathering.expects_more = False
        super().shutdown()

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
        super().on_message_begin()
        self.scope["state"]["connection"] = self
        if self._tls is not None:
            self.scope["state"]["tls_group"] = self._tls.group
        self._progress += 1
        self._is_receiving = True
        self._has_head = False
        self._offers_upgrade = False
        self._tail_size = 0

    def on_headers_complete(self) -> None:
        if self.parser.should_upgrade():
            self._offers_upgrade = True
            return
        self._begin()
        self._has_head = True
        self._head = b""
        self.headers = []  # what comes is trailers: they must not stand in for headers
        # An answer before the end of the body is the connection's last: what is left of the body
        # would have to be read to come to the next request.
        self._keeps_alive = self.cycle.keep_alive
        self.cycle.keep_alive = False
        self._gathering.expects_more = True

    def _begin(self) -> None:
        """Have the request answered, as uvicorn does for an application that is mounted nowhere.

        Raises ApiError if its head is refused.
        """
        method, version = self.parser.get_method(), self.parser.get_http_version()
        line = self._head.partition(b"\r\n")[0]
        headers = check_head(line, method, self.url, version, self.headers)
        path, query = path_of(self.url, headers.get(b"host"))
        self._body_left = int(headers.get(b"content-length", 0))
        self.scope["method"] = method.decode("ascii")
        self.scope["http_version"] = version
        self.scope["path"] = unquote(path.decode("ascii"))
        self.scope["raw_path"] = path
        self.scope["query_string"] = query
        self.cycle = Exchange(
            scope=self.scope,
            transport=self.transport,
            flow=self.flow,
            logger=self.logger,
            access_logger=self.access_logger,
            access_log=False,
            default_headers=self.server_state.default_headers,
            message_event=asyncio.Event(),
            expect_100_continue=self.expect_100_continue and version != "1.0",
            keep_alive=version != "1.0" and self.parser.should_keep_alive(),
            on_response=self.on_response_complete,
        )
        self._start_asgi_task(self.cycle, self.app)

    def on_body(self, body: bytes) -> None:
        self._chunks += 1
        self._body_left -= len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        if self._offers_upgrade:
            return
        if len(self.headers) > MAX_HEADERS:
            raise invalid(TOO_MANY_HEADERS)
        super().on_message_complete()
        self._is_receiving = False
        self._gathering.expects_more = False
        if not self.cycle.response_started and not self._is_draining:
            self.cycle.keep_alive = self._keeps_alive

    def on_response_complete(self) -> None:
        self.server_state.total_requests += 1
        self.was_used = True
        if self._is_lost:
            return
        if not self._gathering.is_closed:
            self.flow.resume_reading()
            if self._refusal is not None:
                self._hang_up(self._refusal)
            if self.flow.waiting:
                self.loop.call_soon(self._go_on)  # when the answer has been written

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        self._executed = cycle
        super()._start_asgi_task(cycle, app)

    # --- What is received -----------------------------------------------------------------------

    def _decrypt(self, tls: TlsSession, data: bytes) -> bytes:
        """Return the HTTP in what has come, and let TLS answer. Close what TLS ends."""
        received = b""
        try:
            received = tls.receive(data)
        except TlsError as error:
            if self._tls_server is not None:
                self._tls_server.count_failure(error)
            self._gathering.expects_more = True
            self.transport.close()
        self._gathering.send_tls(tls)
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
        begin = step_begin = self._chunks = 0
        try:
            while begin < len(data) and not self._gathering.is_closed and self._refusal is None:
                if self.flow.write_paused or self.is_answering():
                    self._wait(data[begin:])
                    return
                piece = self._piece(data, begin)
                begin += len(piece)
                self._chunks += 1
                self._parse(piece)
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
                self.parser = httptools.HttpRequestParser(self)  # the other one is at its end
            else:
                break
        if self._is_receiving:
            self._check_size()

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
        headers = [each for each in self.headers if each[0] != b"upgrade"]
        lines = b"".join(b"%s: %s\r\n" % each for each in headers)
        return b"%s %s HTTP/%s\r\n%s\r\n" % (method, self.url, version, lines)

    def _check_size(self) -> None:
        """Refuse what has come of a request, if it is too much already."""
        if self._has_head and self._tail_size > MAX_TAIL:
            raise invalid("the body is too large")
        if len(self.headers) > MAX_HEADERS:
            raise invalid(TOO_MANY_HEADERS)

    # --- What ends a connection -----------------------------------------------------------------

    @property
    def address(self) -> str:
        """The client's address."""
        return self._address

    @property
    def unread(self) -> int:
        """How many bytes of answers wait in memory until the client reads."""
        waits = self._has_arrived and self.flow.write_paused and not self._is_lost
        return self._gathering.get_write_buffer_size() if waits else 0

    def is_answering(self) -> bool:
        """Return whether an answer is owed, or under way."""
        cycle = self._latest
        if cycle is None or cycle.response_complete:
            return False
        return cycle.response_started or not cycle.more_body

    @property
    def _latest(self) -> RequestResponseCycle | None:
        """The request that came last, if there has been one."""
        return self.cycle

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
            self._deadline = now + self._seconds[phase]
            return False
        if now < self._deadline:
            return False
        self._expire()
        return True

    def _current_phase(self) -> Phase:
        if self._gathering.is_closed:
            return "close"
        if self.flow.write_paused:
            return "write"
        if self.is_answering():
            return "answer"
        if self._is_receiving:
            return "request"
        return "new" if self._latest is None else "idle"

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
        if self._gathering.is_closed:
            return
        latest = self._latest
        if latest is not None and not latest.response_complete:
            latest.disconnected = True
            latest.message_event.set()
        request_id = new_request_id()
        body = envelope.failure(error, request_id)
        headers = (
            *self.server_state.default_headers,
            (b"content-type", b"application/json"),
            (b"content-length", b"%d" % len(body)),
            (b"cache-control", b"no-store"),
            (b"x-request-id", request_id.encode()),
            (b"connection", b"close"),
        )
        lines = b"".join(b"%s: %s\r\n" % header for header in headers)
        self.transport.write(STATUS_LINE[error.code.status] + lines + b"\r\n" + body)
        self._observer.refuse(error, request_id, self._address)
        self._gathering.expects_more = error is self._refusal or self._is_receiving
        self.transport.close()
