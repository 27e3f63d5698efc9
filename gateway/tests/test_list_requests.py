"""Vault's method LIST, which the HTTP parser does not know: accepted under /v1/, and only there."""

from __future__ import annotations

import asyncio
import re

import pytest
import uvloop
from gateway.tests.served import Server
from starlette.types import Receive, Scope, Send
from tests.patience import PATIENCE

HEADERS = b"Host: x\r\n\r\n"
LIST = b"LIST /v1/transit/keys HTTP/1.1\r\n" + HEADERS
GET = b"GET /v1/transit/keys?list=true HTTP/1.1\r\n" + HEADERS
POST = b"POST /v1/transit/keys/a HTTP/1.1\r\nContent-Length: 4\r\n" + HEADERS + b"LIST"
SEEN_LIST = ("LIST", "/v1/transit/keys")
REFUSED = b"HTTP/1.1 400 "


async def _ask(server: Server, *pieces: bytes) -> tuple[list[tuple[str, str]], bytes]:
    """Send pieces one by one; return the requests that arrived, and the bytes of all responses."""
    seen: list[tuple[str, str]] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        seen.append((scope["method"], scope["path"]))
        while (await receive()).get("more_body"):
            pass
        headers = [(b"content-length", b"2")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b"ok"})

    async with server.serving(app):
        client = await server.sent(b"")
        loop = asyncio.get_running_loop()
        for piece in pieces:
            await loop.sock_sendall(client, piece)
            await asyncio.sleep(0)
        received = b""
        async with asyncio.timeout(PATIENCE):
            while received.count(b"HTTP/1.1 ") < _expected(pieces):
                received += await loop.sock_recv(client, 65536)
        client.close()
        await server.until(lambda: not server.state.connections)
    return seen, received


def _expected(pieces: tuple[bytes, ...]) -> int:
    """Return the number of requests in these bytes."""
    return len(re.findall(rb"^[A-Za-z]+ +\S+ HTTP/1\.1\r$", b"".join(pieces), re.MULTILINE))


def ask(*pieces: bytes, takes_lists: bool = True) -> tuple[list[tuple[str, str]], bytes]:
    """Send pieces to a new server."""
    return uvloop.run(_ask(Server(takes_lists=takes_lists), *pieces))


@pytest.mark.parametrize("cut", [*range(1, 12), len(LIST) - 1])
def test_a_list_request_arrives_in_two_pieces(cut: int) -> None:
    """LIST is understood wherever the network cuts it."""
    assert ask(LIST[:cut], LIST[cut:])[0] == [SEEN_LIST]


def test_a_list_request_arrives_byte_by_byte() -> None:
    """LIST is understood if each byte comes alone."""
    assert ask(*(LIST[at : at + 1] for at in range(len(LIST))))[0] == [SEEN_LIST]


def test_list_requests_between_others() -> None:
    """Pipelined requests keep their order and methods; a body is no request line."""
    seen, received = ask(LIST + GET + LIST + POST + LIST)
    assert [method for method, _ in seen] == ["LIST", "GET", "LIST", "POST", "LIST"]
    assert received.count(b"HTTP/1.1 200 ") == 5


def test_repeated_list_requests() -> None:
    """The same head, sent again, is the same method: it is not parsed again."""
    assert ask(LIST, LIST, b"\r\n" + LIST, LIST)[0] == [SEEN_LIST] * 4


def test_a_list_request_that_offers_another_protocol() -> None:
    """An offer of another protocol is ignored, as in each request."""
    offer = b"LIST /v1/a HTTP/1.1\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n" + HEADERS
    assert ask(offer + LIST)[0] == [("LIST", "/v1/a"), SEEN_LIST]


@pytest.mark.parametrize(
    "line",
    [
        b"LIST / HTTP/1.1",
        b"LIST /v1 HTTP/1.1",
        b"LIST /v2/transit/keys HTTP/1.1",
        b"LIST /api/v1/kms/keyrings HTTP/1.1",
        b"LIST  /v1/transit/keys HTTP/1.1",
        b"LIST http://x/v1/transit/keys HTTP/1.1",
        b"list /v1/transit/keys HTTP/1.1",
        b"LISTS /v1/transit/keys HTTP/1.1",
        b"LIS /v1/transit/keys HTTP/1.1",
    ],
)
def test_other_lists_are_not_http(line: bytes) -> None:
    """The method is known at the beginning of the one prefix, in its one form."""
    seen, received = ask(line + b"\r\n" + HEADERS)
    assert (seen, received[: len(REFUSED)]) == ([], REFUSED)


def test_other_methods_that_begin_with_the_same_letter() -> None:
    """What the parser knows arrives as before."""
    seen, _ = ask(b"LO", b"CK /v1/a HTTP/1.1\r\n" + HEADERS + b"LINK /v1/b HTTP/1.1\r\n" + HEADERS)
    assert seen == [("LOCK", "/v1/a"), ("LINK", "/v1/b")]


def test_without_the_setting_it_is_not_http() -> None:
    """Where no client of Vault is expected, LIST is refused as before."""
    seen, received = ask(LIST, takes_lists=False)
    assert (seen, received[: len(REFUSED)]) == ([], REFUSED)
