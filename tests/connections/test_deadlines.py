"""Every connection ends in time, with any behaviour of the client."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest
from tests.connections.conftest import Client, Gateway

HEALTH = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"
LARGE = b"GET /api/v1/openapi.json HTTP/1.1\r\nHost: x\r\n\r\n"
LOGIN = (
    b"POST /api/v1/auth/login HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    b"Content-Length: 100\r\n\r\n"
)
LATEST = 20.0
"""Seconds. The timeouts take three; the reserve is for a machine with other work."""


def nothing(client: Client) -> None:
    """Say nothing."""


def half_a_head(client: Client) -> None:
    """Stop inside the head."""
    client.send(HEALTH[:20])


def no_body(client: Client) -> None:
    """Stop before the body."""
    client.send(LOGIN)


def half_a_body(client: Client) -> None:
    """Stop inside the body."""
    client.send(LOGIN + b'{"email":')


def nothing_more(client: Client) -> None:
    """Stop after a response."""
    assert client.ask(HEALTH).status == 503


def line_end_after_a_response(client: Client) -> None:
    """Send a line end after a response."""
    assert client.ask(HEALTH).status == 503
    client.send(b"\r\n")


def half_a_head_after_a_response(client: Client) -> None:
    """Stop inside the head of the second request."""
    assert client.ask(HEALTH).status == 503
    client.send(HEALTH[:20])


def half_a_head_with_a_request(client: Client) -> None:
    """Stop inside the head of the second request, which began in the first one's segment."""
    client.send(HEALTH + HEALTH[:20])


def body_after_its_refusal(client: Client) -> None:
    """Begin to send a body after its refusal."""
    assert client.ask(LOGIN.replace(b"auth/login", b"kem/encrypt")).status == 401
    client.send(b'{"email":')


def nothing_after_a_refusal(client: Client) -> None:
    """Send nothing of a refused body, and do not close."""
    assert client.ask(LOGIN.replace(b"auth/login", b"kem/encrypt")).status == 401


def nothing_after_an_error(client: Client) -> None:
    """Do not close after bytes that are not HTTP."""
    assert client.ask(b"GARBAGE\r\n\r\n").status == 400


def unread_pipeline(client: Client) -> None:
    """Send requests without reading, until the gateway accepts no more."""
    client.socket.settimeout(0.5)
    try:
        while True:
            client.send(LARGE)
    except OSError:
        pass


def unread_last_response(client: Client) -> None:
    """Leave responses unread that fit into the buffers, and send nothing more."""
    client.send(4 * LARGE)


def without_end(every: float, piece: bytes, begin: bytes = b"") -> Callable[[Client], None]:
    """Send a piece again and again."""

    def send(client: Client) -> None:
        def drip() -> None:
            try:
                while True:
                    time.sleep(every)
                    client.socket.send(piece)
            except OSError:
                return

        client.send(begin)
        threading.Thread(target=drip, daemon=True).start()

    send.__name__ = f"{piece!r} without end"
    return send


ENDINGS = [
    nothing,
    half_a_head,
    no_body,
    half_a_body,
    nothing_more,
    line_end_after_a_response,
    half_a_head_after_a_response,
    half_a_head_with_a_request,
    body_after_its_refusal,
    nothing_after_a_refusal,
    nothing_after_an_error,
    without_end(0.2, b"\r\n"),
    without_end(0.2, b"X: y\r\n", HEALTH[:-2]),
    without_end(0.2, b" ", LOGIN),
    without_end(0.2, b"\r\n", HEALTH),
]


@pytest.mark.threat("stranger")
@pytest.mark.parametrize("do", ENDINGS, ids=lambda do: do.__name__)
def test_a_client_that_does_no_more_is_hung_up_on(
    hasty: Gateway, do: Callable[[Client], None]
) -> None:
    """A client that stops anywhere, or sends without end, is disconnected in time."""
    with hasty.client() as client:
        do(client)
        assert client.closed_after() < LATEST


@pytest.mark.parametrize("do", [unread_pipeline, unread_last_response])
def test_a_client_that_reads_nothing_is_hung_up_on(
    hasty: Gateway, do: Callable[[Client], None]
) -> None:
    """Unread responses end the connection and free the memory."""
    before = hasty.connections()
    with hasty.client(read_buffer=4096) as client:
        do(client)
        deadline = time.monotonic() + LATEST
        while hasty.connections() > before:
            assert time.monotonic() < deadline
            time.sleep(0.05)


def test_the_kernel_takes_little_of_what_is_not_read(hasty: Gateway) -> None:
    """The kernel buffers few bytes of unread responses, because copying megabytes would delay others."""
    with hasty.client(read_buffer=4096) as client:
        client.send(8 * LARGE)
        taken = 0
        deadline = time.monotonic() + LATEST
        while hasty.unsent() > taken or not taken:
            assert time.monotonic() < deadline
            taken = hasty.unsent()
            time.sleep(0.2)
        assert taken < 512 * 1024


def test_a_client_that_goes_on_is_served(hasty: Gateway) -> None:
    """Slow requests in pieces, each in time, get responses."""
    with hasty.client() as client:
        for _ in range(5):
            for piece in (HEALTH[:10], HEALTH[10:]):
                client.send(piece)
                time.sleep(0.4)
            assert client.respond().status == 503


def test_a_body_has_as_long_as_a_head(hasty: Gateway) -> None:
    """The timeout of a request covers its body; a late one is 400."""
    with hasty.client() as client:
        client.send(LOGIN)
        response = client.respond()
        assert (response.status, response.code) == (400, "ERR_INVALID_001")
        assert response.headers["connection"] == "close"
