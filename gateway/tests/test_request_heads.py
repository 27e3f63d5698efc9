"""Only requests that RFC 9112 makes unambiguous are served."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Literal

import pytest
import uvloop
from gateway.tests.served import Server
from starlette.types import Receive, Scope, Send
from tests.fixtures.certificate import Certificate
from tests.patience import PATIENCE

from pqkeep_gateway.http.tls_server import TlsServer
from pqkeep_gateway.management.app import open_listener, serving
from pqkeep_protocol.startup.background_tasks import BackgroundTasks

Listener = Literal["plain", "TLS", "management"]

HOST = b"Host: 127.0.0.1\r\n"
CHUNKED = b"Transfer-Encoding: chunked\r\n"
CHUNKS = b"2\r\n{}\r\n0\r\n\r\n"
SECOND = b"GET /second HTTP/1.1\r\n" + HOST + b"\r\n"


def _get(line: bytes, headers: bytes = HOST) -> bytes:
    return line + b"\r\n" + headers + b"\r\n"


def _target(target: bytes, headers: bytes = HOST) -> bytes:
    return _get(b"GET " + target + b" HTTP/1.1", headers)


def _header(header: bytes) -> bytes:
    return _target(b"/a", HOST + header)


def _host(value: bytes, version: bytes = b"1.1") -> bytes:
    return _get(b"GET /a HTTP/" + version, b"Host:" + value + b"\r\n")


def _post(headers: bytes, body: bytes = b"{}", version: bytes = b"1.1") -> bytes:
    return b"POST /a HTTP/" + version + b"\r\n" + HOST + headers + b"\r\n" + body


def _chunks(body: bytes) -> bytes:
    return _post(CHUNKED, body)


REFUSED = {
    # RFC 9112, section 6.1
    "gzip, chunked": _post(b"Transfer-Encoding: gzip, chunked\r\n", CHUNKS),
    "gzip": _post(b"Transfer-Encoding: gzip\r\n"),
    "gzip and an offer": _post(
        b"Connection: Upgrade\r\nUpgrade: h2c\r\nTransfer-Encoding: gzip, chunked\r\n", CHUNKS
    ),
    "deflate, chunked": _post(b"Transfer-Encoding: deflate, chunked\r\n", CHUNKS),
    "identity": _post(b"Transfer-Encoding: identity\r\n"),
    "identity, chunked": _post(b"Transfer-Encoding: identity, chunked\r\n", CHUNKS),
    "chunked, chunked": _post(b"Transfer-Encoding: chunked, chunked\r\n", CHUNKS),
    "chunked, gzip": _post(b"Transfer-Encoding: chunked, gzip\r\n", CHUNKS),
    "an empty coding": _post(b"Transfer-Encoding: , chunked\r\n", CHUNKS),
    "chunked with a parameter": _post(b"Transfer-Encoding: chunked;q=1\r\n", CHUNKS),
    "quoted chunked": _post(b'Transfer-Encoding: "chunked"\r\n', CHUNKS),
    "xchunked": _post(b"Transfer-Encoding: xchunked\r\n", CHUNKS),
    "chunked behind a vertical tab": _post(b"Transfer-Encoding: \x0bchunked\r\n", CHUNKS),
    "no coding": _post(b"Transfer-Encoding:\r\n", CHUNKS),
    "two codings": _post(b"Transfer-Encoding: gzip\r\n" + CHUNKED, CHUNKS),
    "chunked twice": _post(2 * CHUNKED, CHUNKS),
    "chunked in HTTP/1.0": _post(CHUNKED, CHUNKS, b"1.0"),
    "length, then chunked": _post(b"Content-Length: 2\r\n" + CHUNKED, CHUNKS),
    "chunked, then length": _post(CHUNKED + b"Content-Length: 2\r\n", CHUNKS),
    "both, and an offer": _post(
        b"Connection: Upgrade\r\nUpgrade: h2c\r\nContent-Length: 2\r\n" + CHUNKED, CHUNKS
    ),
    "space before a colon": _post(b"Transfer-Encoding : chunked\r\n", CHUNKS),
    "folded chunked": _post(b"Transfer-Encoding:\r\n chunked\r\n", CHUNKS),
    # section 6.2
    "length with a sign": _post(b"Content-Length: +2\r\n"),
    "negative length": _post(b"Content-Length: -2\r\n"),
    "length in base 16": _post(b"Content-Length: 0x2\r\n"),
    "list of lengths": _post(b"Content-Length: 2, 2\r\n"),
    "two numbers": _post(b"Content-Length: 2 2\r\n"),
    "fraction": _post(b"Content-Length: 2.0\r\n"),
    "underscore": _post(b"Content-Length: 1_0\r\n"),
    "other digits": _post("Content-Length: \u0662\r\n".encode()),
    "empty length": _post(b"Content-Length:\r\n"),
    "two lengths": _post(b"Content-Length: 2\r\nContent-Length: 3\r\n"),
    "length twice": _post(2 * b"Content-Length: 2\r\n"),
    "length of 26 digits": _post(b"Content-Length: " + 26 * b"9" + b"\r\n"),
    "length of 5,000 zeros": _post(b"Content-Length: " + 5000 * b"0" + b"2\r\n"),
    "tab before a colon": _post(b"Content-Length\t: 2\r\n"),
    # section 7.1
    "chunk with a prefix": _chunks(b"0x2\r\n{}\r\n0\r\n\r\n"),
    "chunk with a sign": _chunks(b"+2\r\n{}\r\n0\r\n\r\n"),
    "chunk without a size": _chunks(b"\r\n{}\r\n0\r\n\r\n"),
    "chunk behind a space": _chunks(b" 2\r\n{}\r\n0\r\n\r\n"),
    "chunk before a space": _chunks(b"2 \r\n{}\r\n0\r\n\r\n"),
    "chunk of 17 digits": _chunks(b"fffffffffffffffff\r\n{}\r\n0\r\n\r\n"),
    "chunk with LF": _chunks(b"2\n{}\r\n0\r\n\r\n"),
    "chunk with LF behind it": _chunks(b"2\r\n{}\n0\r\n\r\n"),
    "chunk with CR": _chunks(b"2\r{}\r\n0\r\n\r\n"),
    "chunk that goes on": _chunks(b"1\r\n{}\r\n0\r\n\r\n"),
    "chunk without an end": _chunks(b"2\r\n{}0\r\n\r\n"),
    "CR in an extension": _chunks(b"2;a\rb\r\n{}\r\n0\r\n\r\n"),
    "LF in an extension": _chunks(b"2;a\nb\r\n{}\r\n0\r\n\r\n"),
    "length as a trailer": _chunks(b"2\r\n{}\r\n0\r\nContent-Length: 5\r\n\r\n"),
    "coding as a trailer": _chunks(b"2\r\n{}\r\n0\r\nTransfer-Encoding: chunked\r\n\r\n"),
    "space in a trailer's name": _chunks(b"2\r\n{}\r\n0\r\nX : y\r\n\r\n"),
    "101 trailers": _chunks(b"2\r\n{}\r\n0\r\n" + 101 * b"X: y\r\n" + b"\r\n"),
    # section 2.3
    "HTTP/2.0": _get(b"GET /a HTTP/2.0"),
    "HTTP/1.2": _get(b"GET /a HTTP/1.2"),
    "HTTP/1.10": _get(b"GET /a HTTP/1.10"),
    "HTTP/01.1": _get(b"GET /a HTTP/01.1"),
    "HTTP/1": _get(b"GET /a HTTP/1"),
    "HTTP/3.0": _get(b"GET /a HTTP/3.0"),
    "HTTP/0.9": _get(b"GET /a HTTP/0.9"),
    "no version": b"GET /a\r\n\r\n",
    "small letters": _get(b"GET /a http/1.1"),
    "RTSP": _get(b"GET /a RTSP/1.0"),
    "ICE": _get(b"SOURCE /a ICE/1.0"),
    "preface of HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "preface in HTTP/1.1": b"PRI * HTTP/1.1\r\n\r\nSM\r\n\r\n",
    "HTTP/2.0 and an offer": _get(
        b"GET /a HTTP/2.0", HOST + b"Connection: Upgrade\r\nUpgrade: h2c\r\n"
    ),
    # section 3
    "two spaces": _get(b"GET  /a HTTP/1.1"),
    "two spaces before the version": _get(b"GET /a  HTTP/1.1"),
    "tab": _get(b"GET\t/a HTTP/1.1"),
    "tab before the version": _get(b"GET /a\tHTTP/1.1"),
    "vertical tab": _get(b"GET\x0b/a HTTP/1.1"),
    "space at the end": _get(b"GET /a HTTP/1.1 "),
    "tab at the end": _get(b"GET /a HTTP/1.1\t"),
    "space at the beginning": _get(b" GET /a HTTP/1.1"),
    "two spaces and an offer": _get(
        b"GET  /a HTTP/1.1", HOST + b"Connection: Upgrade\r\nUpgrade: h2c\r\n"
    ),
    "small method": _get(b"get /a HTTP/1.1"),
    # section 2.2
    "CR before the line": b"\r" + _target(b"/a"),
    "LF before the line": b"\n" + _target(b"/a"),
    "CR CRLF before the line": b"\r\r\n" + _target(b"/a"),
    "line that ends with CR": b"GET /a HTTP/1.1\r" + HOST + b"\r\n",
    "line that ends with LF": b"GET /a HTTP/1.1\n" + HOST + b"\r\n",
    "line that ends with CR CRLF": b"GET /a HTTP/1.1\r\r\n" + HOST + b"\r\n",
    "header that ends with LF": _target(b"/a", HOST + b"X: y\nZ: z\r\n"),
    "head that ends with LF": b"GET /a HTTP/1.1\r\n" + HOST + b"\n",
    "CR in a value": _header(b"X: a\rb\r\n"),
    # sections 3.2 and 3.3
    "target with CR": _target(b"/a\rb"),
    "target with NUL": _target(b"/a\0"),
    "target with a space": _target(b"/a b"),
    "target with a fragment": _target(b"/a#b"),
    "query with a fragment": _target(b"/a?b#c"),
    "target with a backslash": _target(b"/a\\b"),
    "target with a quote": _target(b'/a"b'),
    "target with other letters": _target("/\u00e9".encode()),
    "target with an encoded slash": _target(b"/a%2Fb"),
    "target without a slash": _target(b"a"),
    "only a query": _target(b"?a"),
    "another host": _target(b"http://other/a"),
    "another host over https": _target(b"https://other/a"),
    "another port": _target(b"http://127.0.0.1:8443/a"),
    "user and host": _target(b"http://user@127.0.0.1/a"),
    "address without a host": _target(b"http:///a"),
    "another scheme": _target(b"ftp://127.0.0.1/a"),
    "address without Host": _target(b"http://127.0.0.1/a", b""),
    "address and encoded slash": _target(b"http://127.0.0.1/a%2fb"),
    "asterisk": _target(b"*"),
    "asterisk of OPTIONS": _get(b"OPTIONS * HTTP/1.1"),
    "authority": _target(b"127.0.0.1:80"),
    "CONNECT": _get(b"CONNECT 127.0.0.1:80 HTTP/1.1"),
    "CONNECT with a path": _get(b"CONNECT /a HTTP/1.1"),
    # section 3.2 and RFC 9110, section 7.2
    "no Host": _target(b"/a", b""),
    "empty Host": _host(b""),
    "empty Host in HTTP/1.0": _host(b"", b"1.0"),
    "two Hosts": _target(b"/a", HOST + b"Host: other\r\n"),
    "Host twice": _target(b"/a", 2 * HOST),
    "Host twice in HTTP/1.0": _get(b"GET /a HTTP/1.0", 2 * HOST),
    "list of hosts": _host(b" a, b"),
    "Host with a space": _host(b" a b"),
    "Host with a path": _host(b" a/b"),
    "Host with a query": _host(b" a?b"),
    "Host with a user": _host(b" user@a"),
    "Host with other letters": _host(b" \xe9"),
    "Host with a name as port": _host(b" a:b"),
    "Host with two ports": _host(b" a:1:2"),
    "half an address": _host(b" [::1"),
    # section 5
    "folded value": _header(b"X: a\r\n b\r\n"),
    "value folded with a tab": _header(b"X: a\r\n\tb\r\n"),
    "folded first line": _target(b"/a", b" X: a\r\n" + HOST),
    "folded length": _post(b"Content-Length:\r\n 2\r\n"),
    "space behind a name": _header(b"X : a\r\n"),
    "no name": _header(b": a\r\n"),
    "no colon": _header(b"X\r\n"),
    "NUL in a name": _header(b"X\0: a\r\n"),
    "high byte in a name": _header(b"X\xe9: a\r\n"),
    "parenthesis in a name": _header(b"X(: a\r\n"),
    "NUL in a value": _header(b"X: a\0b\r\n"),
    "control character in a value": _header(b"X: a\x01b\r\n"),
    "101 headers": _header(100 * b"X: y\r\n"),
    # RFC 9110, section 10.1.1
    "another expectation": _post(b"Expect: x\r\nContent-Length: 2\r\n"),
    "two expectations": _post(b"Expect: 100-continue, x\r\nContent-Length: 2\r\n"),
}

CLOSED = {
    "close": b"Connection: close\r\n",
    "CLOSE": b"Connection: CLOSE\r\n",
    "close, keep-alive": b"Connection: close, keep-alive\r\n",
    "keep-alive, close": b"Connection: keep-alive, close\r\n",
    "close before keep-alive": b"Connection: close\r\nConnection: keep-alive\r\n",
    "keep-alive before close": b"Connection: keep-alive\r\nConnection: close\r\n",
}

SERVED = {
    "path": _target(b"/a"),
    "path with escapes": _target(b"/%61"),
    "query": _target(b"/a?b=c&d=[%2f]|"),
    "address": _target(b"http://127.0.0.1/a"),
    "address in large letters": _target(b"HTTPS://LOCALHOST/a", b"Host: localhost\r\n"),
    "empty lines before": 3 * b"\r\n" + _target(b"/a"),
    "name with a port": _host(b" localhost:8443"),
    "address with a port": _host(b" [::1]:8443"),
    "high byte in a value": _header(b"X: \xe9\r\n"),
    "length with zeros": _post(b"Content-Length: 002\r\n"),
    "length with space around": _post(b"Content-Length: \t2 \r\n"),
    "chunked": _post(b"Transfer-Encoding: Chunked\r\n", CHUNKS),
    "extensions": _chunks(b'2;a=b;c="d\\"e"\r\n{}\r\n0;f\r\n\r\n'),
    "trailers": _chunks(b"2\r\n{}\r\n0\r\nX: y\r\n\r\n"),
    "empty line in a chunk": _chunks(b"6\r\n\r\n\r\n{}\r\n0\r\n\r\n"),
    "offer": _header(b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\n"),
    "two offers": _header(b"Connection: Upgrade\r\nUpgrade: h2c\r\nUpgrade: websocket\r\n"),
    "offer before a body": _post(b"Connection: Upgrade\r\nUpgrade: h2c\r\nContent-Length: 2\r\n"),
    "closex": _header(b"Connection: closex\r\n"),
}


async def _app(scope: Scope, receive: Receive, send: Send) -> None:
    """Respond with the path, after reading the body."""
    while (await receive()).get("more_body"):
        pass
    path = scope["path"].encode()
    headers = [(b"content-length", b"%d" % len(path))]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": path})


@asynccontextmanager
async def _listening(listener: Listener, certificate: Certificate) -> AsyncIterator[int]:
    """Serve on a port; yield it."""
    if listener == "management":
        opened = open_listener("127.0.0.1", 0)
        async with serving(_app, opened, BackgroundTasks(lambda: None)):
            yield opened.getsockname()[1]
        return
    tls = None
    if listener == "TLS":
        tls = TlsServer(certificate.path, certificate.key, require_post_quantum=False)
    server = Server(tls)
    async with server.serving(_app):
        yield server.port


async def _ask(listener: Listener, certificate: Certificate, sent: list[bytes]) -> bytes:
    """Return all bytes until the server closes, or the second response ends."""
    tls: ssl.SSLContext | None = certificate.client() if listener == "TLS" else None
    async with _listening(listener, certificate) as port, asyncio.timeout(PATIENCE):
        reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=tls)
        received = b""
        for piece in sent:
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(0)
        while not received.endswith(b"/second"):
            try:
                received += (read := await reader.read(65_536))
            except ConnectionResetError:
                break
            if not read:
                break
        writer.close()
    return received


def _statuses(received: bytes) -> list[bytes]:
    return [response[:3] for response in received.split(b"HTTP/1.1 ")[1:]]


@pytest.mark.threat("hostile-proxy")
@pytest.mark.parametrize("listener", ["plain", "TLS", "management"])
@pytest.mark.parametrize("name", REFUSED)
def test_a_request_that_can_be_read_in_two_ways_is_the_last(
    name: str, listener: Listener, certificate: Certificate
) -> None:
    """An ambiguous request gets 400 in the envelope and a close, and later bytes are not read."""
    received = uvloop.run(_ask(listener, certificate, [REFUSED[name] + SECOND]))
    head, _, body = received.partition(b"\r\n\r\n")
    assert _statuses(received) == [b"400"]
    assert b"\r\nconnection: close" in head
    assert b"ERR_INVALID_001" in body
    assert not body.endswith(b"/second")


@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.parametrize("before", ["a length", "chunks", "chunks with an empty line"])
def test_nor_is_it_served_behind_another_one(
    name: str, before: str, certificate: Certificate
) -> None:
    """An ambiguous request is also refused after a valid one with either kind of body."""
    first = {
        "a length": _post(b"Content-Length: 2\r\n"),
        "chunks": _chunks(CHUNKS),
        "chunks with an empty line": _chunks(
            b"1c\r\n\r\n\r\nGET /a HTTP/1.1\r\nX: \r\n\r\n\r\n0\r\n\r\n"
        ),
    }
    received = uvloop.run(_ask("plain", certificate, [first[before] + REFUSED[name] + SECOND]))
    assert _statuses(received) == [b"200", b"400"]
    assert not received.endswith(b"/second")


@pytest.mark.parametrize("name", CLOSED)
def test_a_connection_that_is_to_be_closed_serves_nothing_more(
    name: str, certificate: Certificate
) -> None:
    """A request with ``close`` and any other options is the last of its connection."""
    received = uvloop.run(_ask("plain", certificate, [_header(CLOSED[name]) + SECOND]))
    assert _statuses(received) == [b"200"]
    assert received.endswith(b"\r\n\r\n/a")


@pytest.mark.parametrize("listener", ["plain", "TLS", "management"])
@pytest.mark.parametrize("name", SERVED)
def test_what_everybody_reads_in_the_same_way_is_served(
    name: str, listener: Listener, certificate: Certificate
) -> None:
    """Unambiguous requests are served, in one piece or byte by byte, with the next request."""
    whole = SERVED[name] + SECOND
    for sent in ([whole], [whole[at : at + 1] for at in range(len(whole))]):
        received = uvloop.run(_ask(listener, certificate, sent))
        assert _statuses(received) == [b"200", b"200"]
        assert b"\r\n\r\n/aHTTP/1.1" in received


def test_http_1_0_is_told_to_continue_by_nobody(certificate: Certificate) -> None:
    """An HTTP/1.0 client with Expect gets only its response: RFC 9110, section 10.1.1."""
    sent = _post(b"Expect: 100-continue\r\nContent-Length: 2\r\n", version=b"1.0")
    assert _statuses(uvloop.run(_ask("plain", certificate, [sent]))) == [b"200"]
