"""A body costs no more than its endpoint needs."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest
from tests.connections.conftest import Client, Gateway

KIB = 1024
MIB = 1024 * KIB
TEXT_ENDPOINTS = ["/auth/login", "/auth/mfa/verify", "/tenants", "/kms/keys/generate"]
READ = b'{"unknown":1}'
"""A body with a wrong field, which is refused after it was read."""


def _post(path: str, body: bytes, *, credential: str = "", chunked: bool = False) -> bytes:
    lines = [f"POST /api/v1{path} HTTP/1.1", "Host: x", "Content-Type: application/json"]
    if credential:
        lines.append(f"X-API-Key: {credential}")
    if chunked:
        lines.append("Transfer-Encoding: chunked")
        body = b"".join(
            b"%x\r\n%s\r\n" % (len(piece), piece)
            for piece in (body[at : at + 50_000] for at in range(0, len(body), 50_000))
        )
        body += b"0\r\n\r\n"
    else:
        lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join([*lines, "", ""]).encode() + body


def _padded(body: bytes, size: int) -> bytes:
    return body[:-1] + b" " * (size - len(body)) + body[-1:]


@pytest.mark.parametrize("chunked", [False, True], ids=["with its length", "in chunks"])
def test_a_body_of_text_has_16_kib(gateway: Gateway, *, chunked: bool) -> None:
    """Of a body without binary fields, at most 16 KiB are read."""
    with gateway.client() as client:
        fits = client.ask(_post("/auth/login", _padded(READ, 16 * KIB), chunked=chunked))
        assert "unknown field" in fits.message
        over = client.ask(_post("/auth/login", _padded(READ, 16 * KIB + 1), chunked=chunked))
        assert (over.status, over.code) == (400, "ERR_INVALID_001")
        assert "too large" in over.message


@pytest.mark.parametrize("path", TEXT_ENDPOINTS)
def test_a_body_is_refused_by_its_length(gateway: Gateway, path: str) -> None:
    """A body with too large a length is refused before its first byte."""
    head = _post(path, b"", credential=gateway.operator_key if path == "/tenants" else "")
    with gateway.client() as client:
        response = client.ask(head.replace(b"Content-Length: 0", b"Content-Length: 16385"))
        expected = 401 if path.startswith("/kms") else 400
        assert (response.status, response.headers["connection"]) == (expected, "close")


@pytest.mark.threat("stranger")
@pytest.mark.parametrize("chunked", [False, True], ids=["with their length", "in chunks"])
def test_many_large_bodies_at_once_take_no_memory(gateway: Gateway, *, chunked: bool) -> None:
    """100 anonymous clients with 4 MiB each raise the memory by less than 100 MiB."""
    body = b'{"email":[' + b"[]," * (4 * MIB // 3) + b"[]]}"
    request = _post("/auth/login", body, chunked=chunked)

    def send(client: Client) -> int:
        with suppress(ConnectionError):
            client.send(request)
        return client.respond().status

    before = gateway.memory()
    clients = [gateway.client() for _ in range(100)]
    with ThreadPoolExecutor(100) as pool:
        assert set(pool.map(send, clients)) == {400}
    for client in clients:
        client.socket.close()
    assert gateway.memory() - before < 100 * MIB


@pytest.mark.parametrize(
    ("body", "message"),
    [
        pytest.param(b'{"a":' + b"[" * 16 + b"]" * 16 + b"}", "unknown field", id="arrays"),
        pytest.param(b'{"a":' * 17 + b"1" + b"}" * 17, "unknown field", id="objects"),
        pytest.param(b'{"a":' + b"[" * 8000 + b"]" * 8000 + b"}", "", id="8,001 levels"),
    ],
)
def test_what_is_nested_is_refused(gateway: Gateway, body: bytes, message: str) -> None:
    """Arrays and objects in fields are refused without parsing, at any depth."""
    with gateway.client() as client:
        response = client.ask(_post("/auth/login", body))
        assert (response.status, response.code) == (400, "ERR_INVALID_001")
        assert message in response.message


def test_brackets_in_text_are_no_levels(gateway: Gateway) -> None:
    """Brackets inside a text do not count as nesting."""
    body = b'{"unknown":"' + b"[{" * 100 + b'"}'
    with gateway.client() as client:
        assert "unknown field" in client.ask(_post("/auth/login", body)).message


FULL = 16 * KIB - 20
EXPENSIVE = {
    "nested arrays": b'{"email":' + b"[" * (FULL // 2) + b"]" * (FULL // 2) + b"}",
    "nested objects": b'{"email":' * (FULL // 10) + b"1" + b"}" * (FULL // 10),
    "empty arrays": b'{"email":[' + b"[]," * (FULL // 3) + b"1]}",
    "numbers": b'{"email":[' + b"1," * (FULL // 2) + b"1]}",
    "members": b"{" + b",".join(b'"%x":1' % number for number in range(1800)) + b"}",
    "a long number": b'{"email":' + b"1" * FULL + b"}",
    "escapes": b'{"email":"' + rb"\u0000" * (FULL // 6) + b'"}',
    "half pairs": b'{"email":"' + rb"\ud800" * (FULL // 6) + b'"}',
}


@pytest.mark.parametrize("body", EXPENSIVE.values(), ids=EXPENSIVE)
def test_the_costliest_bodies_of_strangers_are_refused(gateway: Gateway, body: bytes) -> None:
    """The most expensive 16 KiB of JSON are refused in the envelope, and the next request is read."""
    assert len(body) <= 16 * KIB
    with gateway.client() as client:
        response = client.ask(_post("/auth/login", body))
        assert response.status in (400, 422)
        assert response.code == "ERR_INVALID_001"
        assert "unknown field" in client.ask(_post("/auth/login", READ)).message
