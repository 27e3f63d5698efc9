"""What goes on, and what stays in memory, when a client has gone."""

from __future__ import annotations

import asyncio
import gc
import socket
import struct
from collections.abc import AsyncGenerator

import pytest
import uvloop
from gateway.tests.served import Server
from starlette.types import Receive, Scope, Send

from pqkeep_gateway.http.endpoint import JsonLines
from pqkeep_gateway.http.protocol import BoundedHttpProtocol
from pqkeep_gateway.http.responses import send_response

GET = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
RESET = struct.pack("ii", 1, 0)
"""SO_LINGER with a time of zero: close() sends RST."""


def leave(client: socket.socket, *, reset: bool) -> None:
    """Close a connection."""
    if reset:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
    client.close()


def protocols() -> int:
    """Return how many connections' objects there are."""
    gc.collect()
    return sum(type(each) is BoundedHttpProtocol for each in gc.get_objects())


async def _leave_before_the_first_answer(server: Server, requests: int, *, reset: bool) -> int:
    """Send requests at once and leave; return how many of them are executed."""
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
    """Of ten pipelined requests none is begun after the connection has been lost."""
    executed = uvloop.run(_leave_before_the_first_answer(Server(), 10, reset=reset))
    assert executed == 1


@pytest.mark.parametrize("reset", [False, True], ids=["closed", "reset"])
def test_a_lost_connection_leaves_nothing(*, reset: bool) -> None:
    """A connection that is lost before its pipelined requests are answered is forgotten."""

    async def lose() -> int:
        before = protocols()
        for _ in range(5):
            await _leave_before_the_first_answer(Server(), 4, reset=reset)
        return protocols() - before

    assert uvloop.run(lose()) == 0


@pytest.mark.parametrize("requests", [1, 2])
@pytest.mark.parametrize("reset", [False, True], ids=["closed", "reset"])
def test_lines_end_with_their_client(requests: int, *, reset: bool) -> None:
    """A file of lines is made no further when its client has gone, whatever it had asked beside."""

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
            await send_response(receive, send, 200, JsonLines("x", lines()), "1")

        server = Server()
        async with server.serving(app):
            client = await server.sent(requests * GET)
            await asyncio.get_running_loop().sock_recv(client, 1)
            leave(client, reset=reset)
            await server.until(ended.is_set)
            await server.until(lambda: not server.state.tasks)

    uvloop.run(lose())
