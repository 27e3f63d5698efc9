"""Invalid or unusual HTTP, byte by byte over a socket."""

from __future__ import annotations

import json
import socket
from typing import Any
from urllib.parse import urlsplit

import pytest
from tests.fixtures.installation import Installation
from tests.patience import PATIENCE

NOT_HTTP = [
    pytest.param(b"GARBAGE\r\n\r\n", id="no request line"),
    pytest.param(b"\x16\x03\x01\x02\x00\x01\x00\x01", id="TLS"),
    pytest.param(b"BREW /api/v1/kem/encrypt HTTP/1.1\r\nHost: x\r\n\r\n", id="unknown method"),
    pytest.param(b"GET / HTTP/1.1\r\nHost: x\r\nno colon\r\n\r\n", id="no header"),
    pytest.param(
        b"GET / HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
        id="two lengths",
    ),
    pytest.param(
        b"GET / HTTP/1.1\r\nHost: x\r\nX-Long: " + 40_000 * b"x", id="head of 40,000 bytes"
    ),
]


def _exchange(base_url: str, sent: bytes) -> tuple[int, dict[str, str], dict[str, Any]]:
    """Return status, headers and body of the response before the connection closes."""
    url = urlsplit(base_url)
    assert url.hostname is not None
    with socket.create_connection((url.hostname, url.port), PATIENCE) as connection:
        connection.sendall(sent)
        received = b""
        while chunk := connection.recv(65_536):
            received += chunk
    head, _, body = received.partition(b"\r\n\r\n")
    first, *lines = head.decode("ascii").split("\r\n")
    headers = dict(line.lower().split(": ", 1) for line in lines)
    return int(first.split()[1]), headers, json.loads(body)


@pytest.mark.parametrize("sent", NOT_HTTP)
def test_what_is_no_http_is_answered_in_the_envelope(
    installation: Installation, sent: bytes
) -> None:
    """Bytes that are not HTTP get 400 ERR_INVALID_001 in the envelope, and the connection closes."""
    status, headers, body = _exchange(installation.base_url, sent)
    assert status == 400
    assert headers["content-type"] == "application/json"
    assert headers["connection"] == "close"
    assert body.keys() == {"error", "request_id", "timestamp"}
    assert body["error"]["error_code"] == "ERR_INVALID_001"


def test_the_answer_to_what_is_no_http_has_the_usual_headers(installation: Installation) -> None:
    """That response too has its request id in a header, and no-store."""
    _, headers, body = _exchange(installation.base_url, b"GARBAGE\r\n\r\n")
    assert headers["x-request-id"] == body["request_id"]
    assert headers["cache-control"] == "no-store"


def test_a_request_for_another_protocol_is_answered_as_http(installation: Installation) -> None:
    """A request for an unsupported upgrade is served as usual."""
    status, _, body = _exchange(
        installation.base_url,
        b"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: Upgrade, close\r\n"
        b"Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
        b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n",
    )
    assert status == 200
    assert body["data"] == {"status": "ok"}


def test_http_1_0_is_answered(installation: Installation) -> None:
    """A client of HTTP/1.0 gets its response, and the connection closes."""
    status, _, body = _exchange(installation.base_url, b"GET /api/v1/kms/keys HTTP/1.0\r\n\r\n")
    assert status == 401
    assert body["error"]["error_code"] == "ERR_AUTH_001"


def test_an_answer_arrives_in_one_piece(installation: Installation) -> None:
    """Head and body are sent in one write, for each of several requests."""
    url = urlsplit(installation.base_url)
    with socket.create_connection((url.hostname or "", url.port or 0), PATIENCE) as connection:
        for _ in range(20):
            connection.sendall(b"GET /api/v1/kms/keys HTTP/1.1\r\nHost: x\r\n\r\n")
            head, _, body = connection.recv(65_536).partition(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 401 ")
            assert json.loads(body)["error"]["error_code"] == "ERR_AUTH_001"
