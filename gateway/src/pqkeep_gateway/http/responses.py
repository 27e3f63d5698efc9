"""Sending responses over ASGI."""

import asyncio
import math
import zlib
from collections.abc import Mapping, Sequence
from contextlib import aclosing
from http import HTTPStatus
from secrets import token_hex

from starlette.types import Receive, Scope, Send

from pqkeep_gateway.access.rate_limit import Usage
from pqkeep_gateway.http import envelope
from pqkeep_gateway.http.disconnection import until_gone
from pqkeep_gateway.http.endpoint import (
    JSON,
    JSON_LINES,
    Document,
    Existing,
    JsonLines,
    Response,
    WithCookies,
)
from pqkeep_gateway.http.errors import ApiError, not_found

Headers = Sequence[tuple[bytes, bytes]]

MAX_REQUEST_ID = 128
_VARIANTS = {f"{digit:x}": f"{digit & 3 | 8:x}" for digit in range(16)}
"""The digit of a UUID that says its variant (RFC 9562), by a random one."""
_MADE_AT_ONCE = 64
_DIGITS: list[str] = []
"""The random digits of the next identifiers: asking the kernel for each takes as long as the rest."""
LEVEL = 1
"""The fastest: exports compress to about a third with it, and little further with any other."""
_GZIP = 16 + zlib.MAX_WBITS
CHALLENGE = (b"www-authenticate", b'ApiKey realm="pqkeep"')
"""What RFC 9110 wants to be in every 401. No browser has a dialog for this scheme."""


def accepts_gzip(headers: Mapping[bytes, bytes]) -> bool:
    """Return whether a request names gzip among its encodings, and not with the weight 0."""
    for each in headers.get(b"accept-encoding", b"").lower().split(b","):
        coding, *parameters = (part.strip() for part in each.split(b";"))
        if coding == b"gzip":
            return not any(is_zero(parameter) for parameter in parameters)
    return False


def is_zero(parameter: bytes) -> bool:
    """Return whether a parameter is the weight 0."""
    name, _, weight = parameter.partition(b"=")
    return name.strip() == b"q" and not weight.strip().strip(b"0.")


class GzipStream:
    """Compresses chunks with gzip (RFC 9110, section 12.5.3), holding no more of them than zlib's window (some 300 KB)."""

    def __init__(self) -> None:
        self._compressor = zlib.compressobj(LEVEL, zlib.DEFLATED, _GZIP)

    async def compress(self, chunk: bytes) -> bytes:
        """Return what is to be sent of the chunks so far; it may be nothing."""
        return await asyncio.to_thread(self._compressor.compress, chunk)

    def end(self) -> bytes:
        """Return the rest."""
        return self._compressor.flush()


def request_id_of(headers: Mapping[bytes, bytes]) -> str:
    """Return the identifier that a request carries, or a new one."""
    given = headers.get(b"x-request-id", b"").decode("latin-1")
    usable = 0 < len(given) <= MAX_REQUEST_ID and given.isascii() and given.isprintable()
    return given if usable else new_request_id()


def new_request_id() -> str:
    """Return a random UUID (version 4) as text, for a fraction of the CPU that ``uuid`` takes."""
    if not _DIGITS:
        digits = token_hex(16 * _MADE_AT_ONCE)
        _DIGITS.extend(digits[begin : begin + 32] for begin in range(0, len(digits), 32))
    digits = _DIGITS.pop()
    variant = _VARIANTS[digits[16]]
    return f"{digits[:8]}-{digits[8:12]}-4{digits[13:16]}-{variant}{digits[17:20]}-{digits[20:]}"


async def send_response(
    receive: Receive,
    send: Send,
    status: int,
    response: Response,
    request_id: str,
    *,
    usage: Usage | None = None,
    is_head: bool = False,
    gzip: bool = False,
) -> None:
    """Send what a handler returned. The body of an answer to HEAD is left out where it is sent."""
    headers = () if usage is None else _usage_headers(usage)
    match response:
        case JsonLines():
            stream = GzipStream() if gzip else None
            await _send_lines(receive, send, response, request_id, headers, stream, is_head=is_head)
        case Document(content_type=content_type, body=body):
            await _send(send, status, body, request_id, headers, content_type)
        case Existing(data=data):
            body = envelope.success(data, request_id)
            await _send(send, HTTPStatus.OK, body, request_id, headers)
        case WithCookies(data=data, cookies=cookies):
            set_cookies = [(b"set-cookie", cookie.encode()) for cookie in cookies]
            body = envelope.success(data, request_id)
            await _send(send, status, body, request_id, (*headers, *set_cookies))
        case _:
            await _send(send, status, envelope.success(response, request_id), request_id, headers)


async def send_error(
    send: Send, error: ApiError, request_id: str, usage: Usage | None = None
) -> None:
    """Send an error in the envelope. One about a limit names that limit, and no other."""
    body = envelope.failure(error, request_id)
    headers = [(name.lower().encode(), value.encode()) for name, value in error.headers.items()]
    headers += [(b"set-cookie", cookie.encode()) for cookie in error.cookies]
    if error.code.status == HTTPStatus.UNAUTHORIZED:
        headers.append(CHALLENGE)
    if usage is not None and error.code.status != HTTPStatus.TOO_MANY_REQUESTS:
        headers.extend(_usage_headers(usage))
    await _send(send, error.code.status, body, request_id, headers)


async def send_redirect(send: Send, location: str, cookies: Sequence[str], request_id: str) -> None:
    """Send a browser elsewhere. Nobody is told where it came from: that may have a code in it."""
    headers = [
        (b"location", location.encode("ascii")),
        (b"content-length", b"0"),
        (b"cache-control", b"no-store"),
        (b"referrer-policy", b"no-referrer"),
        (b"x-request-id", request_id.encode()),
        *((b"set-cookie", each.encode()) for each in cookies),
    ]
    await send({"type": "http.response.start", "status": HTTPStatus.FOUND, "headers": headers})
    await send({"type": "http.response.body", "body": b""})


async def send_not_found(scope: Scope, receive: Receive, send: Send) -> None:
    """Answer for every path that does not exist: an ASGI application."""
    await send_error(send, not_found("no such path"), request_id_of(dict(scope["headers"])))


def _usage_headers(usage: Usage) -> Headers:
    return (
        (b"ratelimit-limit", b"%d" % usage.limit.events),
        (b"ratelimit-remaining", b"%d" % usage.remaining),
        (b"ratelimit-reset", b"%d" % math.ceil(usage.reset)),
    )


async def _send_lines(
    receive: Receive,
    send: Send,
    lines: JsonLines,
    request_id: str,
    headers: Headers,
    gzip: GzipStream | None,
    *,
    is_head: bool,
) -> None:
    """Send a file of lines as they are made, until the client has gone; for HEAD make none.

    If they cannot go on, the connection is cut: a file that is whole has its last line.
    """
    start = {
        "type": "http.response.start",
        "status": HTTPStatus.OK,
        "headers": [
            (b"content-type", JSON_LINES.encode("ascii")),
            (b"content-disposition", f'attachment; filename="{lines.name}"'.encode()),
            (b"cache-control", b"no-store"),
            (b"x-request-id", request_id.encode()),
            (b"vary", b"accept-encoding"),
            *(() if gzip is None else ((b"content-encoding", b"gzip"),)),
            *headers,
        ],
    }
    end = {"type": "http.response.body", "body": b""}
    if is_head:
        await send(start)
        await send(end)
        return
    async with aclosing(lines.chunks) as chunks:
        chunk = await anext(chunks)  # what goes wrong here is answered in the envelope
        await send(start)
        gone = asyncio.create_task(until_gone(receive))

        async def pass_on(chunk: bytes) -> None:
            body = chunk if gzip is None else await gzip.compress(chunk)
            await send({"type": "http.response.body", "body": body, "more_body": True})

        try:
            await pass_on(chunk)
            async for chunk in chunks:
                if gone.done():
                    return
                await pass_on(chunk)
            await send(end if gzip is None else {**end, "body": gzip.end()})
        finally:
            gone.cancel()


async def _send(
    send: Send,
    status: int,
    body: bytes,
    request_id: str,
    headers: Headers,
    content_type: str = JSON,
) -> None:
    await send(
        {
            "type": "http.response.start",
            "status": status,
            "headers": [
                (b"content-type", content_type.encode("ascii")),
                (b"content-length", str(len(body)).encode()),
                (b"cache-control", b"no-store"),
                (b"x-request-id", request_id.encode()),
                *headers,
            ],
        }
    )
    await send({"type": "http.response.body", "body": body})
