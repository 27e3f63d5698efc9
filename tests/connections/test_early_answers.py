"""A response before the end of the request's body ends the connection."""

from __future__ import annotations

import time

import pytest
from tests.connections.conftest import Gateway

BODY = b'{"x":"' + b"x" * 2_000_000 + b'"}'
HEALTH = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"


def _request(target: bytes, *lines: bytes, size: int) -> bytes:
    length = b"Content-Length: %d" % size
    return b"\r\n".join([target + b" HTTP/1.1", b"Host: x", length, *lines, b"", b""])


EARLY = [
    pytest.param(b"POST /api/v1/kem/encrypt", (), 401, id="401"),
    pytest.param(
        b"POST /api/v1/auth/login",
        (b"Sec-Fetch-Site: cross-site", b"Content-Type: application/json"),
        403,
        id="403",
    ),
    pytest.param(b"POST /nowhere", (), 404, id="404"),
    pytest.param(b"PUT /api/v1/kem/encrypt", (), 405, id="405"),
    pytest.param(b"POST /api/v1/auth/login", (), 400, id="too large"),
    pytest.param(b"GET /healthz", (), 503, id="body of a GET"),
    pytest.param(b"GET /docs", (), 200, id="body of a GET for a document"),
]


@pytest.mark.parametrize(("target", "lines", "status"), EARLY)
def test_an_answer_before_the_body_closes(
    gateway: Gateway, target: bytes, lines: tuple[bytes, ...], status: int
) -> None:
    """The response says Connection: close, and the connection is closed."""
    with gateway.client() as client:
        response = client.ask(_request(target, *lines, size=len(BODY)))
        assert (response.status, response.headers["connection"]) == (status, "close")
        assert client.closed_after() < 1


@pytest.mark.parametrize(("target", "lines", "status"), EARLY)
def test_the_answer_is_read_after_the_body_was_sent(
    gateway: Gateway, target: bytes, lines: tuple[bytes, ...], status: int
) -> None:
    """A client that reads only after sending its whole body gets the response, and not a reset."""
    with gateway.client() as client:
        client.send(_request(target, *lines, size=len(BODY)))
        time.sleep(0.1)
        for begin in range(0, len(BODY), 65_536):
            client.send(BODY[begin : begin + 65_536])
            time.sleep(0.001)
        assert client.respond().status == status
        assert client.socket.recv(1) == b""


def test_a_body_that_was_refused_is_no_request(gateway: Gateway) -> None:
    """Bytes after an early response are discarded, even if they look like a request."""
    with gateway.client() as client:
        assert client.ask(_request(b"POST /api/v1/kem/encrypt", size=100)).status == 401
        client.send(HEALTH + b"x" * 100 + HEALTH)
        assert client.socket.recv(1) == b""


def test_what_is_thrown_away_is_bounded(gateway: Gateway) -> None:
    """A client that sends without end after its response is disconnected."""
    with gateway.client() as client:
        assert client.ask(_request(b"POST /nowhere", size=1 << 40)).status == 404
        with pytest.raises(ConnectionError):
            client.send(32 * BODY)


def test_a_small_body_that_came_with_its_head_costs_no_connection(gateway: Gateway) -> None:
    """If the whole request has already arrived, the connection stays open."""
    with gateway.client() as client:
        request = _request(b"POST /api/v1/kem/encrypt", size=2) + b"{}"
        for _ in range(3):
            response = client.ask(request)
            assert response.status == 401
            assert "connection" not in response.headers


def test_a_client_that_waits_for_100_is_answered_without(gateway: Gateway) -> None:
    """A request with Expect: 100-continue gets no 100 if its body will not be read."""
    with gateway.client() as client:
        lines = (b"Expect: 100-continue", b"Content-Type: application/json")
        response = client.ask(_request(b"POST /api/v1/auth/login", *lines, size=20_000))
        assert (response.status, response.headers["connection"]) == (400, "close")
