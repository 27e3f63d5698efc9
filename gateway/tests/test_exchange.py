"""The responses of ASGI applications, byte for byte."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import uvloop
from gateway.tests.served import Server
from starlette.types import Receive, Scope, Send

KEPT = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
CLOSED = b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
LENGTH = (b"content-length", b"2")
IN_CHUNKS = b"2\r\n{}\r\n0\r\n\r\n"
CHUNKED = [LENGTH, (b"transfer-encoding", b"chunked")]
Headers = Sequence[tuple[bytes, bytes]]


async def _answer(request: bytes, headers: Headers) -> bytes:
    """Return all bytes until the connection is closed or the response has ended."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 201, "headers": headers})
        await send({"type": "http.response.body", "body": b"{}"})

    server = Server()
    async with server.serving(app):
        client = await server.sent(request)
        received = b""
        while not received.endswith((b"{}", b"0\r\n\r\n")):
            piece = await asyncio.get_running_loop().sock_recv(client, 65536)
            if not piece:
                break
            received += piece
        client.close()
        await server.until(lambda: not server.state.connections)
    return received


CLOSE = b"connection: close\r\n"


@pytest.mark.parametrize("request_", [KEPT, CLOSED], ids=["kept", "closed"])
@pytest.mark.parametrize(
    ("headers", "sent", "body"),
    [
        ([LENGTH, (b"x-request-id", b"a")], b"content-length: 2\r\nx-request-id: a\r\n", b"{}"),
        ([LENGTH, (b"connection", b"close")], b"content-length: 2\r\nconnection: close\r\n", b"{}"),
        ([(b"a", b"b")], b"a: b\r\ntransfer-encoding: chunked\r\n", IN_CHUNKS),
        (CHUNKED, b"content-length: 2\r\ntransfer-encoding: chunked\r\n", IN_CHUNKS),
    ],
    ids=["of known length", "that closes", "of unknown length", "in chunks"],
)
def test_an_answer_is_sent_as_it_is(
    request_: bytes, headers: Headers, sent: bytes, body: bytes
) -> None:
    """The gateway adds framing and connection headers; everything else is unchanged."""
    close = CLOSE if request_ is CLOSED and CLOSE not in sent else b""
    expected = b"HTTP/1.1 201 Created\r\n" + sent + close + b"\r\n" + body
    assert sorted(expected.split(b"\r\n")) == sorted(
        uvloop.run(_answer(request_, headers)).split(b"\r\n")
    )


@pytest.mark.parametrize(
    "end", [b"\r\n", b"\r", b"\n", b"\0", b"\x7f"], ids=["CRLF", "CR", "LF", "NUL", "DEL"]
)
@pytest.mark.parametrize(
    "header",
    [lambda end: (b"x", b"a" + end + b"set-cookie: b"), lambda end: (b"x" + end + b"y", b"a")],
    ids=["value", "name"],
)
def test_a_control_character_in_a_header_is_not_sent(
    header: Callable[[bytes], tuple[bytes, bytes]], end: bytes
) -> None:
    """A header with a control character is refused, and no part of the response is sent."""
    refused: list[Any] = []

    async def ask() -> None:
        async def app(scope: Scope, receive: Receive, send: Send) -> None:
            start = {"type": "http.response.start", "status": 200, "headers": [LENGTH, header(end)]}
            with pytest.raises(RuntimeError):
                await send(start)
            refused.append(send.__self__.response_started)  # type: ignore[attr-defined]

        server = Server()
        async with server.serving(app):
            client = await server.sent(KEPT)
            await server.until(lambda: bool(refused))
            client.close()
            await server.until(lambda: not server.state.connections)

    uvloop.run(ask())
    assert refused == [False]
