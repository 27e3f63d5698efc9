"""Pipelined requests, and the cleanup after a disconnected client."""

from __future__ import annotations

import asyncio
import gc
import re
import socket
import struct
import time
from collections.abc import AsyncGenerator
from contextlib import suppress

import pytest
import uvloop
from gateway.tests.served import Server
from starlette.types import ASGIApp, Receive, Scope, Send

from pqkeep_gateway.access.rate_limit import Limit
from pqkeep_gateway.access.source_budget import SourceBudget
from pqkeep_gateway.http.connection import LIMITS, HttpConnection, Request
from pqkeep_gateway.http.connections import Connections
from pqkeep_gateway.http.endpoint import JsonLines
from pqkeep_gateway.http.responses import WholeResponse, send_lines

GET = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
POST = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}"
LARGE = 16 * 1024 * 1024
"""Bytes of an answer that fits into no buffer of the kernel's."""
RESET = struct.pack("ii", 1, 0)
"""SO_LINGER with a time of zero: close() sends RST."""


def leave(client: socket.socket, *, reset: bool) -> None:
    """Close a connection."""
    if reset:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
    client.close()


def protocols() -> int:
    """Return the number of connection objects."""
    gc.collect()
    return sum(type(thing) is HttpConnection for thing in gc.get_objects())


async def _leave_before_the_first_response(server: Server, requests: int, *, reset: bool) -> int:
    """Send requests at once and disconnect; return the number of executed ones."""
    executed = 0
    gone = asyncio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        nonlocal executed
        executed += 1
        await receive()
        await gone.wait()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"x"})

    async with server.serving(app):
        client = await server.sent(requests * GET)
        await server.until(lambda: executed == 1)
        leave(client, reset=reset)
        await server.until(lambda: not server.state.connections)
        gone.set()
        await server.until(lambda: not server.state.tasks)
    return executed


@pytest.mark.parametrize("reset", [False, True], ids=["closed", "reset"])
def test_requests_of_a_client_that_has_gone_are_not_executed(*, reset: bool) -> None:
    """After a lost connection, none of ten pipelined requests begins."""
    executed = uvloop.run(_leave_before_the_first_response(Server(), 10, reset=reset))
    assert executed == 1


@pytest.mark.parametrize("reset", [False, True], ids=["closed", "reset"])
def test_a_lost_connection_leaves_nothing(*, reset: bool) -> None:
    """A connection that is lost before its pipelined responses leaves no objects."""

    async def lose() -> int:
        before = protocols()
        for _ in range(5):
            await _leave_before_the_first_response(Server(), 4, reset=reset)
        return protocols() - before

    assert uvloop.run(lose()) == 0


@pytest.mark.parametrize("reset", [False, True], ids=["closed", "reset"])
@pytest.mark.parametrize("is_answered", [False, True], ids=["before the answer", "after it"])
def test_an_ended_connection_needs_no_collector(*, is_answered: bool, reset: bool) -> None:
    """An ended connection leaves no reference cycles, whose collection would delay all clients."""

    async def ask(server: Server) -> None:
        async with server.serving(_echo):
            client = await server.sent(GET)
            await _responses(client, 1)
            leave(client, reset=reset)
            await server.until(lambda: not server.state.connections)

    async def left() -> int:
        server = Server()
        before = protocols()
        gc.disable()
        try:
            if is_answered:
                await ask(server)
            else:
                await _leave_before_the_first_response(server, 2, reset=reset)
            await asyncio.sleep(0)  # in which uvloop lets go of it
            return sum(type(thing) is HttpConnection for thing in gc.get_objects()) - before
        finally:
            gc.enable()

    assert uvloop.run(left()) == 0


def test_pipelined_requests_wait_as_bytes() -> None:
    """Of ten pipelined requests, one is parsed and nine wait as bytes."""

    async def ask() -> int:
        begun, go_on = asyncio.Event(), asyncio.Event()

        async def app(scope: Scope, receive: Receive, send: Send) -> None:
            begun.set()
            await go_on.wait()
            await _echo(scope, receive, send)

        server = Server()
        async with server.serving(app):
            client = await server.sent(10 * GET)
            await begun.wait()
            parsed = sum(isinstance(thing, Request) for thing in gc.get_objects())
            go_on.set()
            await _responses(client, 10)
            client.close()
            await server.until(lambda: not server.state.connections)
        return parsed

    assert uvloop.run(ask()) == 1


@pytest.mark.parametrize("request_", [GET, POST], ids=["without bodies", "with bodies"])
def test_what_waits_behind_requests_has_a_bound(request_: bytes) -> None:
    """The memory for waiting requests does not grow with a client that keeps sending."""

    async def ask() -> int:
        answered, most = 0, 0

        async def app(scope: Scope, receive: Receive, send: Send) -> None:
            nonlocal answered, most
            await _echo(scope, receive, send)
            answered += 1
            for connection in server.state.connections:
                assert isinstance(connection, HttpConnection)
                most = max(most, len(connection.flow.waiting))

        def send_much(client: socket.socket) -> None:
            client.settimeout(None)
            with suppress(OSError):
                while True:
                    client.sendall(1000 * request_)

        def read_all(client: socket.socket) -> None:
            with suppress(OSError):
                while client.recv(1_048_576):
                    pass

        server = Server()
        async with server.serving(app):
            client = await server.sent(b"")
            both = [asyncio.to_thread(act, client) for act in (send_much, read_all)]
            running = asyncio.gather(*both)
            await server.until(lambda: answered >= 200)
            client.shutdown(socket.SHUT_RDWR)
            await running
            client.close()
            await server.until(lambda: not server.state.connections)
        return most

    assert uvloop.run(ask()) <= 1_048_576


@pytest.mark.threat("stranger")
@pytest.mark.parametrize("requests", [1, 2], ids=["first request", "equal head again"])
def test_an_answered_request_keeps_no_body(requests: int) -> None:
    """A body that its endpoint did not read is gone once the response is sent; idle clients pin none."""
    body = bytes(60_000)
    post = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)

    async def app(_: Scope, __: Receive, send: Send) -> None:
        headers = [(b"content-length", b"1")]
        await send({"type": "http.response.start", "status": 404, "headers": headers})
        await send({"type": "http.response.body", "body": b"x"})

    async def ask() -> list[int]:
        server = Server()
        async with server.serving(app):
            client = await server.sent(b"")
            for _ in range(requests):
                await asyncio.get_running_loop().sock_sendall(client, post)
                await _responses(client, 1)
            kept = [len(each.request.body) for each in server.state.connections if each.request]
            client.close()
            await server.until(lambda: not server.state.connections)
        return kept

    assert uvloop.run(ask()) == [0]


CHUNKED = b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"


@pytest.mark.parametrize("first", [GET, CHUNKED], ids=["behind a head", "behind chunks"])
def test_nothing_is_begun_while_an_answer_is_not_read(first: bytes) -> None:
    """The second request begins only when the client has read the first response."""

    async def ask() -> list[int]:
        begun = 0

        async def app(scope: Scope, receive: Receive, send: Send) -> None:
            nonlocal begun
            begun += 1
            await _echo(scope, receive, send, bytes(LARGE))

        server = Server()
        async with server.serving(app):
            client = await server.sent(first + GET)
            await server.until(lambda: begun > 0)
            await asyncio.sleep(0.1)
            before = begun
            await _responses(client, 2)
            client.close()
            await server.until(lambda: not server.state.connections)
        return [before, begun]

    assert uvloop.run(ask()) == [1, 2]


PIPELINED = (
    b"GET /1 HTTP/1.1\r\nHost: x\r\n\r\n"
    b"POST /2 HTTP/1.1\r\nHost: x\r\nContent-Length: 8\r\n\r\n\r\n\r\n\r\n\r\n"
    b"\r\nPOST /3 HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
    b"4\r\n\r\n\r\n\r\n0\r\nX: y\r\n\r\n"
    b"GET /4 HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n"
    b"POST /5 HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n"
    b"GET /6 HTTP/1.1\r\nHost: x\r\n\r\n"
)
BODIES = [b"/1 0", b"/2 8", b"/3 4", b"/4 0", b"/5 0", b"/6 0"]


def test_pipelined_requests_may_be_cut_anywhere() -> None:
    """Six requests with bodies that look like heads get responses, wherever the bytes are cut."""

    async def ask() -> None:
        server = Server()
        async with server.serving(_echo):
            client = await server.sent(b"")
            for cut in range(1, len(PIPELINED)):
                for piece in (PIPELINED[:cut], PIPELINED[cut:]):
                    await asyncio.get_running_loop().sock_sendall(client, piece)
                    await asyncio.sleep(0.0005)
                assert await _responses(client, len(BODIES)) == BODIES, cut
            client.close()
            await server.until(lambda: not server.state.connections)

    uvloop.run(ask())


LINE_ENDS = 262_144 * b"\r\n\r\n"


@pytest.mark.parametrize(
    ("sent", "body"),
    [
        (b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n", b"/ 1048576"),
        (b"", b"/ 0"),
    ],
    ids=["in a body", "before a request"],
)
def test_line_ends_are_parsed_together(
    sent: bytes, body: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A mebibyte of line ends is parsed in about a hundred pieces."""
    pieces, parse = 0, HttpConnection._parse

    def counted(protocol: HttpConnection, piece: bytes) -> None:
        nonlocal pieces
        pieces += 1
        parse(protocol, piece)

    monkeypatch.setattr(HttpConnection, "_parse", counted)

    async def ask() -> list[bytes]:
        server = Server()
        async with server.serving(_echo):
            head = sent % len(LINE_ENDS) if sent else b""
            client = await server.sent(b"")
            await asyncio.get_running_loop().sock_sendall(client, head + LINE_ENDS + GET)
            answered = await _responses(client, 2 if sent else 1)
            client.close()
            await server.until(lambda: not server.state.connections)
        return answered

    assert uvloop.run(ask())[0] == body
    assert pieces < 1000


MANY = 40_000
HEADERS = b"GET / HTTP/1.1\r\nHost: x\r\n" + MANY * b"a:b\r\n"
CHUNKS = CHUNKED.removesuffix(b"0\r\n\r\n") + MANY * b"1\r\nx\r\n" + b"0\r\n"


@pytest.mark.threat("stranger")
@pytest.mark.parametrize(
    "sent",
    [HEADERS + b"\r\n", HEADERS, CHUNKED.removesuffix(b"\r\n") + MANY * b"a:b\r\n"],
    ids=["a head", "a head without end", "trailers"],
)
def test_too_many_headers_are_not_parsed(sent: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """A request with forty thousand headers is refused after only some are parsed."""
    parsed, parse = 0, HttpConnection.on_header

    def counted(protocol: HttpConnection, name: bytes, value: bytes) -> None:
        nonlocal parsed
        parsed += 1
        parse(protocol, name, value)

    monkeypatch.setattr(HttpConnection, "on_header", counted)
    (response,) = uvloop.run(_ask(_echo, sent, 1))
    assert b"ERR_INVALID_001" in response
    assert parsed < MANY / 20


def test_a_body_is_not_parsed_when_it_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only a part of a refused body in small chunks is parsed."""
    chunks = _counted_chunks(monkeypatch)

    async def refuse(scope: Scope, receive: Receive, send: Send) -> None:
        headers = [(b"content-length", b"0")]
        await send({"type": "http.response.start", "status": 401, "headers": headers})
        await send({"type": "http.response.body", "body": b""})

    assert uvloop.run(_ask(refuse, CHUNKS + b"\r\n", 1)) == [b""]
    assert len(chunks) < MANY / 20


@pytest.mark.threat("stranger")
def test_small_chunks_are_parsed_in_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Eight clients send bodies in small chunks: most event-loop turns parse a part of one."""
    chunks = _counted_chunks(monkeypatch)
    turns: list[int] = []

    async def watch() -> None:
        while True:
            before = len(chunks)
            await asyncio.sleep(0)
            turns.append(len(chunks) - before)

    async def ask() -> list[bytes]:
        watching = asyncio.create_task(watch())
        responses = await _ask(_echo, CHUNKS + b"\r\n", 8)
        watching.cancel()
        return responses

    assert uvloop.run(ask()) == 8 * [b"/ %d" % MANY]
    busy = sorted(turn for turn in turns if turn)
    assert busy[len(busy) // 2] < MANY / 20
    assert busy[-1] < MANY / 4


def test_a_body_in_small_chunks_may_be_cut_anywhere() -> None:
    """A body of 200 chunks and the next request get responses, wherever the bytes are cut."""
    sent = CHUNKED.removesuffix(b"0\r\n\r\n") + 200 * b"1\r\nx\r\n" + b"0\r\n\r\n" + GET

    async def ask() -> None:
        server = Server()
        async with server.serving(_echo):
            client = await server.sent(b"")
            for cut in range(1, len(sent), 5):
                for piece in (sent[:cut], sent[cut:]):
                    await asyncio.get_running_loop().sock_sendall(client, piece)
                    await asyncio.sleep(0.0005)
                assert await _responses(client, 2) == [b"/ 200", b"/ 0"], cut
            client.close()
            await server.until(lambda: not server.state.connections)

    uvloop.run(ask())


def _counted_chunks(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a function that collects the sizes of parsed chunks."""
    chunks: list[int] = []
    parse = HttpConnection.on_body

    def counted(protocol: HttpConnection, body: bytes) -> None:
        chunks.append(len(body))
        parse(protocol, body)

    monkeypatch.setattr(HttpConnection, "on_body", counted)
    return chunks


async def _ask(app: ASGIApp, sent: bytes, clients: int) -> list[bytes]:
    """Return the responses to requests that several clients send at once."""
    loop, server = asyncio.get_running_loop(), Server()
    async with server.serving(app):
        sockets = [await server.sent(b"") for _ in range(clients)]

        async def ask(client: socket.socket) -> bytes:
            sending = asyncio.create_task(loop.sock_sendall(client, sent))
            (response,) = await _responses(client, 1)
            await asyncio.gather(sending, return_exceptions=True)
            client.close()
            return response

        responses = await asyncio.gather(*map(ask, sockets))
        await server.until(lambda: not server.state.connections)
    return list(responses)


async def _echo(scope: Scope, receive: Receive, send: Send, padding: bytes = b"") -> None:
    """Respond with the path and the size of the body."""
    body = bytearray()
    while (message := await receive())["type"] == "http.request":
        body += message["body"]
        if not message["more_body"]:
            break
    response = b"%s %d" % (scope["path"].encode(), len(body)) + padding
    headers = [(b"content-length", b"%d" % len(response))]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": response})


async def _responses(client: socket.socket, count: int) -> list[bytes]:
    """Return the bodies of several responses."""
    reader, received = asyncio.get_running_loop(), bytearray()
    bodies: list[bytes] = []
    while len(bodies) < count:
        piece = await reader.sock_recv(client, 1_048_576)
        assert piece, bodies
        received += piece
        while b"\r\n\r\n" in received:
            head, _, rest = received.partition(b"\r\n\r\n")
            size = int(head.lower().partition(b"content-length: ")[2].split()[0])
            if len(rest) < size:
                break
            bodies.append(bytes(rest[:size]))
            received = rest[size:]
    return bodies


@pytest.mark.parametrize("requests", [1, 2])
@pytest.mark.parametrize("reset", [False, True], ids=["closed", "reset"])
def test_lines_end_with_their_client(requests: int, *, reset: bool) -> None:
    """A streamed response stops when its client has gone, even with further requests waiting."""

    async def lose() -> None:
        ended = asyncio.Event()

        async def lines() -> AsyncGenerator[bytes, None]:
            try:
                while True:
                    yield b"x" * 1000 + b"\n"
                    await asyncio.sleep(0)
            finally:
                ended.set()

        async def app(scope: Scope, receive: Receive, send: Send) -> None:
            await send_lines(receive, send, JsonLines("x", lines()), "1")

        server = Server()
        async with server.serving(app):
            client = await server.sent(requests * GET)
            await asyncio.get_running_loop().sock_recv(client, 1)
            leave(client, reset=reset)
            await server.until(ended.is_set)
            await server.until(lambda: not server.state.tasks)

    uvloop.run(lose())


KEPT = b"POST /a?b=1 HTTP/1.1\r\nHost: x\r\nX-Api-Key: abc\r\nContent-Length: 4\r\n\r\nbody"
OTHERS = b"\0\t\r\n :?%aPX0159\x7f\xff"
"""Bytes with a meaning in a head, and some bytes without a meaning."""


def _say(request: Request) -> None:
    """Respond with everything known about a complete request."""
    request.on_body = lambda: _say(request)
    if request.is_whole:
        known = (request.method, request.version, request.path, request.query)
        text = repr((*known, request.header_list, request.headers, bytes(request.body)))
        request.respond(WholeResponse(200, b"text/plain", b"", text.encode()))


async def _said(server: Server, *pieces: bytes) -> bytes:
    """Return the last response to a client that sends these pieces and then closes its side."""
    client, loop = await server.sent(b""), asyncio.get_running_loop()
    for piece in pieces[:-1]:
        await loop.sock_sendall(client, piece)
        await _responses(client, 1)
    await loop.sock_sendall(client, pieces[-1])
    client.shutdown(socket.SHUT_WR)
    response = bytearray()
    while piece := await loop.sock_recv(client, 65_536):
        response += piece
    client.close()
    return _without_identifiers(bytes(response))


def _without_identifiers(response: bytes) -> bytes:
    """Return a response without its unique values."""
    return re.sub(rb'[0-9a-f-]{36}|"timestamp":"[^"]*"', b"", response)


def test_no_head_is_taken_for_another() -> None:
    """One changed byte in a head gets the same response on an old connection as on a new one."""

    async def ask() -> int:
        server, differing = Server(), 0
        async with server.serving(_echo):
            server.state.respond = _say
            server.state.counted = _unlimited()
            own = await _said(server, KEPT)
            for place in range(len(KEPT)):
                for other in OTHERS:
                    changed = KEPT[:place] + bytes([other]) + KEPT[place + 1 :]
                    alone = await _said(server, changed)
                    assert await _said(server, KEPT, changed) == alone, changed
                    differing += alone != own
            for changed in (KEPT[:-1], KEPT + b"x", KEPT + KEPT, KEPT[1:], b"\r\n" + KEPT):
                assert await _said(server, KEPT, changed) == await _said(server, changed), changed
        return differing

    assert uvloop.run(ask()) > len(KEPT) * (len(OTHERS) - 3)


@pytest.mark.parametrize(
    "first",
    [
        KEPT,
        KEPT.replace(b"Content-Length: 4", b"Connection: close\r\nContent-Length: 4"),
        KEPT.replace(b"HTTP/1.1", b"HTTP/1.0"),
        b"\r\n\r\n" + KEPT,
        KEPT.replace(b"Content-Length: 4", b"Expect: 100-continue\r\nContent-Length: 4"),
        KEPT.replace(b"Content-Length: 4", b"Transfer-Encoding: chunked").replace(
            b"body", b"4\r\nbody\r\n0\r\n\r\n"
        ),
        KEPT.replace(
            b"Content-Length: 4", b"Connection: Upgrade\r\nUpgrade: a\r\nContent-Length: 4"
        ),
        KEPT.replace(b"Content-Length: 4", b"Content-Length: 8").replace(
            b"body", b"\r\n\r\n\r\n\r\n"
        ),
        GET,
        GET.replace(b"/", b"http://x/", 1),
    ],
)
def test_the_same_head_again_is_the_same_request(first: bytes) -> None:
    """A repeated head gets the same response, wherever the request is cut."""

    async def ask() -> None:
        server = Server()
        async with server.serving(_echo):
            server.state.respond = _say
            server.state.counted = _unlimited()
            alone = await _said(server, first)
            assert b"200 OK" in alone
            if b"HTTP/1.0" in first or b"close" in first:
                return
            assert await _said(server, first, first, first) == alone
            for cut in range(1, len(first), 9):
                client, loop = await server.sent(first), asyncio.get_running_loop()
                (response,) = await _responses(client, 1)
                for piece in (first[:cut], first[cut:]):
                    await loop.sock_sendall(client, piece)
                    await asyncio.sleep(0.0005)
                assert await _responses(client, 1) == [response], cut
                client.close()

    uvloop.run(ask())


def test_the_same_head_again_is_not_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of ten equal heads one is parsed; a different head causes two more parses."""
    parsed: list[bytes] = []
    parse = HttpConnection.on_headers_complete

    def counted(protocol: HttpConnection) -> None:
        parsed.append(protocol.url)
        parse(protocol)

    monkeypatch.setattr(HttpConnection, "on_headers_complete", counted)

    async def ask() -> None:
        server = Server()
        async with server.serving(_echo):
            server.state.respond = _say
            await _said(server, *[KEPT] * 10, GET, KEPT)

    uvloop.run(ask())
    assert parsed == [b"/a?b=1", b"/", b"/a?b=1"]


def _unlimited() -> Connections:
    """Return a connection counter without a rate limit for one client."""
    arrivals = SourceBudget(Limit(1_000_000, 1), time.monotonic)
    return Connections(LIMITS.connections, LIMITS.per_address, arrivals)
