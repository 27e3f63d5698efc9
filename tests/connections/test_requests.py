"""Ambiguous requests are refused, and offers of clients are declined."""

from __future__ import annotations

import pytest
from tests.connections.conftest import Gateway

HOST = b"Host: x\r\n"
HEALTH = b"GET /healthz HTTP/1.1\r\n" + HOST + b"\r\n"
CHUNKED = b"Transfer-Encoding: chunked\r\n"
H2C = (
    b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\n"
    b"HTTP2-Settings: AAMAAABkAAQCAAAAAAIAAAAA\r\n"
)


def _get(headers: bytes, path: bytes = b"/healthz") -> bytes:
    return b"GET " + path + b" HTTP/1.1\r\n" + headers + b"\r\n"


def _post(headers: bytes, body: bytes = b"") -> bytes:
    return b"POST /api/v1/kem/encrypt HTTP/1.1\r\n" + HOST + headers + b"\r\n" + body


REFUSED = [
    pytest.param(_get(HOST + b"X-Long: " + 33_000 * b"x" + b"\r\n"), id="head of 33,000 bytes"),
    pytest.param(_get(HOST, b"/" + 33_000 * b"x"), id="target of 33,000 bytes"),
    pytest.param(_get(HOST + 200 * b"X: y\r\n"), id="200 headers"),
    pytest.param(
        HEALTH + _get(HOST + b"X: " + 33_000 * b"x" + b"\r\n"), id="second head too large"
    ),
    pytest.param(_get(b""), id="no Host"),
    pytest.param(_get(HOST + b"Host: y\r\n"), id="two Hosts"),
    pytest.param(_get(HOST + HOST), id="one Host twice"),
    pytest.param(_get(HOST + b"X-API-Key: a\r\nX-API-Key: b\r\n"), id="two X-API-Keys"),
    pytest.param(_get(HOST + b"x-api-key: a\r\nX-API-KEY: a\r\n"), id="one X-API-Key twice"),
    pytest.param(_get(HOST + b"X-Request-ID: a\r\nX-Request-ID: b\r\n"), id="two X-Request-IDs"),
    pytest.param(_get(HOST + 2 * b"Idempotency-Key: a\r\n"), id="Idempotency-Key twice"),
    pytest.param(_post(2 * b"Content-Length: 2\r\n", b"{}"), id="Content-Length twice"),
    pytest.param(_post(b"Content-Length: 2, 2\r\n", b"{}"), id="Content-Length of two"),
    pytest.param(_post(b"Content-Length: +2\r\n", b"{}"), id="Content-Length with a sign"),
    pytest.param(_post(2 * CHUNKED, b"2\r\n{}\r\n0\r\n\r\n"), id="Transfer-Encoding twice"),
    pytest.param(
        _post(b"Content-Length: 2\r\n" + CHUNKED, b"2\r\n{}\r\n0\r\n\r\n"),
        id="Content-Length and Transfer-Encoding",
    ),
    pytest.param(_post(b"Transfer-Encoding: gzip\r\n", b"{}"), id="another Transfer-Encoding"),
    pytest.param(_get(HOST, b"/api/v1%2fkms/keys"), id="%2f"),
    pytest.param(_get(HOST, b"/api/v1%2Fkms/keys"), id="%2F"),
    pytest.param(b"CONNECT x:443 HTTP/1.1\r\n" + HOST + b"\r\n", id="CONNECT"),
    pytest.param(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", id="HTTP/2"),
]


@pytest.mark.threat("hostile-proxy")
@pytest.mark.parametrize("sent", REFUSED)
def test_what_can_be_understood_in_two_ways_is_refused(gateway: Gateway, sent: bytes) -> None:
    """An ambiguous request is 400 ERR_INVALID_001 with the usual headers, and the connection is closed."""
    with gateway.client() as client:
        client.send(sent)
        if sent.startswith(HEALTH):
            assert client.respond().status == 503
        response = client.respond()
        assert (response.status, response.code) == (400, "ERR_INVALID_001")
        assert response.headers["connection"] == "close"
        assert response.headers["x-content-type-options"] == "nosniff"
        assert client.socket.recv(1) == b""


@pytest.mark.parametrize(
    "name", ["x-api-key", "content-type", "idempotency-key", "x-step-up-token", "x-request-id"]
)
def test_a_header_that_is_there_twice_is_named(gateway: Gateway, name: str) -> None:
    """A repeated single-value header, in any case of letters, is the error's field."""
    with gateway.client() as client:
        twice = f"{name}: a\r\n{name.upper()}: a\r\n".encode()
        response = client.ask(_post(twice + b"Content-Length: 2\r\n", b"{}"))
        assert (response.status, response.code, response.field) == (400, "ERR_INVALID_001", name)
        assert f"{name} occurs twice" in response.message


def test_a_large_head_cannot_hide_behind_another_request(gateway: Gateway) -> None:
    """A head that begins in another request's segment is refused at 32 KiB, also in pieces."""
    head = _get(HOST + b"X: " + 33_000 * b"x" + b"\r\n")
    with gateway.client() as client:
        assert client.ask(HEALTH + head[:20_000]).status == 503
        response = client.ask(head[20_000:])
        assert (response.status, response.code) == (400, "ERR_INVALID_001")


def test_a_large_body_beside_its_head_is_no_large_head(gateway: Gateway) -> None:
    """40,000 bytes of a body in the same segment do not count as a head."""
    body = 40_000 * b" " + b"{}"
    request = _post(b"Content-Length: %d\r\n" % len(body), body)
    with gateway.client() as client:
        client.send(request + HEALTH[:20])
        assert client.respond().status == 401
        client.send(HEALTH[20:])
        assert client.respond().status == 503


def test_a_slash_in_a_query_may_be_encoded(gateway: Gateway) -> None:
    """A head and the first 40,000 bytes of its body may arrive together."""
    with gateway.client() as client:
        assert client.ask(_get(HOST, b"/api/v1/kms/keys?algorithm=a%2fb")).status == 401


def test_a_trailer_is_no_header(gateway: Gateway) -> None:
    """A credential in a trailer is ignored."""
    with gateway.client() as client:
        request = b"POST /api/v1/tenants HTTP/1.1\r\n" + HOST + CHUNKED + b"\r\n"
        trailer = b"X-API-Key: " + gateway.operator_key.encode() + b"\r\n"
        response = client.ask(request + b"2\r\n{}\r\n0\r\n" + trailer + b"\r\n")
        assert response.status == 401


def test_trailers_are_bounded(gateway: Gateway) -> None:
    """An endless trailer ends the connection."""
    with gateway.client() as client:
        client.send(_post(b"X-API-Key: " + gateway.operator_key.encode() + b"\r\n" + CHUNKED))
        client.send(b"2\r\n{}\r\n0\r\nX: ")
        with pytest.raises(ConnectionError):
            client.send(1000 * 65_536 * b"x")


def test_pipelined_requests_are_answered_in_order(gateway: Gateway) -> None:
    """Pipelined requests get their responses in order, and the connection stays open."""
    other = b"GET /nowhere HTTP/1.1\r\n" + HOST + b"\r\n"
    with gateway.client() as client:
        for _ in range(3):
            client.send(HEALTH + other + HEALTH)
            assert [client.respond().status for _ in range(3)] == [503, 404, 503]


def test_many_pipelined_requests_are_answered(gateway: Gateway) -> None:
    """A thousand pipelined requests get their responses, and the connection stays open."""
    with gateway.client() as client:
        client.send(1_000 * HEALTH)
        assert [client.respond().status for _ in range(1_000)] == 1_000 * [503]
        assert client.ask(HEALTH).status == 503


def test_any_number_of_requests_waits_behind_a_body(gateway: Gateway) -> None:
    """A hundred requests after a body, sized or chunked, get their responses."""
    unread = b"0\r\n\r\n" + 100 * HEALTH
    for headers in (b"Content-Length: 5\r\n", CHUNKED):
        with gateway.client() as client:
            client.send(_post(headers, unread))
            assert [client.respond().status for _ in range(101)] == [401] + 100 * [503]


@pytest.mark.parametrize(
    "offer", [H2C, b"Connection: upgrade\r\nUpgrade: websocket\r\n", b"Upgrade: h2c\r\n"]
)
@pytest.mark.parametrize("pieces", [1, 2])
def test_an_offer_to_upgrade_is_declined(gateway: Gateway, offer: bytes, pieces: int) -> None:
    """A request with an upgrade is served normally with its body, and the connection stays open."""
    credential = b"X-API-Key: " + gateway.operator_key.encode() + b"\r\n"
    head = b"POST /api/v1/tenants HTTP/1.1\r\n" + HOST + credential + offer
    body = b'{"name":""}'
    request = head + b"Content-Length: %d\r\n\r\n" % len(body) + body
    half = len(request) - 5
    with gateway.client() as client:
        for _ in range(2):
            if pieces == 1:
                client.send(request + _get(HOST + offer) + HEALTH)
            else:
                client.send(request[:half])
                client.send(request[half:] + _get(HOST + offer) + HEALTH)
            response = client.respond()
            assert (response.status, response.code) == (400, "ERR_INVALID_001")
            assert b'"field":"name"' in response.body
            assert client.respond().status == 503
            assert client.respond().status == 503


@pytest.mark.parametrize(
    "path", [b"/healthz", b"/api/v1/tenants", b"/api/v1/kms/keys/1", b"/nowhere", b"/docs"]
)
def test_head_is_get_without_its_body(gateway: Gateway, path: bytes) -> None:
    """HEAD has the status and headers of GET, no body, and the connection stays open."""
    credential = b"X-API-Key: " + gateway.operator_key.encode() + b"\r\n"
    request = _get(HOST + credential + b"X-Request-ID: 1\r\n", path)
    with gateway.client() as client:
        for _ in range(2):
            of_get = client.ask(request)
            client.send(request.replace(b"GET", b"HEAD"))
            of_head = client.respond(to_head=True)
            assert (of_head.status, of_head.body) == (of_get.status, b"")
            assert of_head.headers.keys() == of_get.headers.keys()
            assert of_head.headers["content-length"] == of_get.headers["content-length"]


def test_allow_names_head_where_get_is(gateway: Gateway) -> None:
    """Allow in a 405 names HEAD where GET is allowed."""
    with gateway.client() as client:
        response = client.ask(b"PUT /api/v1/tenants HTTP/1.1\r\n" + HOST + b"\r\n")
        assert response.status == 405
        assert set(response.headers["allow"].split(", ")) == {"GET", "HEAD", "POST"}


@pytest.mark.parametrize("path", [b"/healthz", b"/docs", b"/nowhere", b"/api/v1/openapi.json"])
def test_every_answer_is_what_it_says(gateway: Gateway, path: bytes) -> None:
    """Each response has X-Content-Type-Options: nosniff exactly once."""
    with gateway.client() as client:
        assert client.ask(_get(HOST, path)).headers["x-content-type-options"] == "nosniff"


def test_401_names_a_scheme(gateway: Gateway) -> None:
    """A 401 has WWW-Authenticate, as RFC 9110 requires."""
    with gateway.client() as client:
        response = client.ask(_get(HOST, b"/api/v1/kms/keys"))
        assert (response.status, response.headers["www-authenticate"]) == (
            401,
            'ApiKey realm="pqkeep"',
        )


@pytest.mark.parametrize("around", [b"", b" ", b"\t", b" \t "])
def test_space_around_a_credential_is_ignored(gateway: Gateway, around: bytes) -> None:
    """Spaces and tabs around the value of X-API-Key are removed."""
    credential = around + gateway.operator_key.encode() + around
    with gateway.client() as client:
        response = client.ask(_get(HOST + b"X-API-Key:" + credential + b"\r\n", b"/api/v1/tenants"))
        assert response.status == 200


def _lines(gateway: Gateway) -> list[str]:
    """Return the log lines, without those about the missing key service."""
    lines = gateway.output.read_text().splitlines()
    return [line for line in lines if "key_client" not in line and "audit_events" not in line]


def test_strangers_write_no_log(gateway: Gateway) -> None:
    """A request that is refused before its credential is checked writes no log line."""
    before = _lines(gateway)
    for sent in (b"GARBAGE\r\n\r\n", _get(b""), _get(HOST + H2C), _post(b"", b""), HEALTH[:9]):
        for _ in range(20):
            with gateway.client() as client:
                client.send(sent)
                if sent not in HEALTH:
                    client.respond()
    assert _lines(gateway) == before
