"""The rules of connections also apply to TLS connections, from their first byte."""

from __future__ import annotations

import ssl
import time
from collections.abc import Callable
from contextlib import ExitStack

import pytest
from tests.connections import test_deadlines
from tests.connections.conftest import Client, Gateway

GET = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"
LATEST = 20.0
"""Seconds. The timeouts take three; the reserve is for a machine with other work."""
INSIDE: tuple[Callable[[Client], None], ...] = (
    test_deadlines.nothing,
    test_deadlines.half_a_head,
    test_deadlines.no_body,
    test_deadlines.half_a_body,
    test_deadlines.nothing_more,
    test_deadlines.half_a_head_after_a_response,
    test_deadlines.body_after_its_refusal,
    test_deadlines.nothing_after_a_refusal,
    test_deadlines.nothing_after_an_error,
)
"""Clients that stop after their handshake."""


def client_hello() -> bytes:
    """Return a client's first message."""
    outgoing = ssl.MemoryBIO()
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).wrap_bio(
        ssl.MemoryBIO(), outgoing, server_hostname="x"
    )
    with pytest.raises(ssl.SSLWantReadError):
        client.do_handshake()
    return outgoing.read()


def half_a_client_hello(client: Client) -> None:
    """Stop inside the first message."""
    client.send(client_hello()[:50])


def a_client_hello(client: Client) -> None:
    """Stop before the end of the handshake."""
    client.send(client_hello())


def plain_http(client: Client) -> None:
    """Send a request without TLS, and do not close."""
    client.send(GET)


def another_version(client: Client) -> None:
    """Send a first message that is not TLS, and do not close."""
    client.send(b"\x16\3\1\0\5hello")


OUTSIDE: tuple[Callable[[Client], None], ...] = (
    test_deadlines.nothing,
    half_a_client_hello,
    a_client_hello,
    plain_http,
    another_version,
    test_deadlines.without_end(0.2, b"\1", client_hello()[:50]),
)
"""Clients that stop inside the handshake, or send without end."""


@pytest.mark.threat("stranger")
def test_a_client_that_does_no_more_is_hung_up_on(secured: Gateway) -> None:
    """A client that stops during or after its handshake is disconnected in time."""
    with ExitStack() as stack:
        clients = []
        for do in INSIDE:
            clients.append(stack.enter_context(secured.client()))
            do(clients[-1])
        for do in OUTSIDE:
            clients.append(stack.enter_context(secured.raw_client()))
            do(clients[-1])
        assert sum(client.closed_after() for client in clients) < LATEST


@pytest.mark.parametrize(
    "do", [test_deadlines.unread_pipeline, test_deadlines.unread_last_response]
)
def test_a_client_that_reads_nothing_is_hung_up_on(
    secured: Gateway, do: Callable[[Client], None]
) -> None:
    """Unread responses end the connection and free the memory."""
    before = secured.connections()
    with secured.client(read_buffer=4096) as client:
        do(client)
        deadline = time.monotonic() + LATEST
        while secured.connections() > before:
            assert time.monotonic() < deadline
            time.sleep(0.05)
