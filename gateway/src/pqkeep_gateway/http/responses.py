"""The form of responses, and streamed responses."""

import asyncio
import math
import re
import zlib
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from email.utils import format_datetime
from http import HTTPStatus
from secrets import token_hex
from typing import NamedTuple

from starlette.types import Message, Receive, Scope, Send

from pqkeep_gateway.access.rate_limit import Usage
from pqkeep_gateway.http import envelope
from pqkeep_gateway.http.endpoint import (
    JSON,
    JSON_LINES,
    Document,
    Existing,
    Filed,
    JsonLines,
    Warned,
    WithCookies,
)
from pqkeep_gateway.http.envelope import Data
from pqkeep_gateway.http.errors import ApiError, not_found, until_gone
from pqkeep_protocol.rules import RuleNotice

Headers = Sequence[tuple[bytes, bytes]]

MAX_REQUEST_ID = 128
RULES = "/api/v1/rules/algorithms"
"""The path of a tenant's rules, for links."""
_VARIANTS = {f"{digit:x}": f"{digit & 3 | 8:x}" for digit in range(16)}
"""The variant digit of a UUID (RFC 9562), by a random digit."""
_MADE_AT_ONCE = 64
_DIGITS: list[str] = []
"""Random digits for the next identifiers: a system call for each would double their cost."""
LEVEL = 1
"""The fastest level. Exports shrink to about a third; higher levels gain little."""
_GZIP = 16 + zlib.MAX_WBITS
_CONTROLS = re.compile(rb"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")
"""Control characters, except the tab and the line ends, which are counted."""
_JSON = JSON.encode("ascii")
_START = b"cache-control: no-store\r\nx-request-id: %b\r\n"
_USAGE = b"ratelimit-limit: %d\r\nratelimit-remaining: %d\r\nratelimit-reset: %d\r\n"
CHALLENGE = (b"www-authenticate", b'ApiKey realm="pqkeep"')
"""Required by RFC 9110 in every 401. No browser opens a dialog for this scheme."""


def accepts_gzip(headers: Mapping[bytes, bytes]) -> bool:
    """Return whether a request accepts gzip with a weight other than 0."""
    return accepts(headers.get(b"accept-encoding", b""), b"gzip")


def accepts(value: bytes, wanted: bytes) -> bool:
    """Return whether an Accept header names a choice with a weight other than 0."""
    for choice in value.lower().split(b","):
        name, *parameters = (part.strip() for part in choice.split(b";"))
        if name == wanted:
            return not any(is_zero(parameter) for parameter in parameters)
    return False


def is_zero(parameter: bytes) -> bool:
    """Return whether a parameter is the weight 0."""
    name, _, weight = parameter.partition(b"=")
    return name.strip() == b"q" and not weight.strip().strip(b"0.")


class GzipStream:
    """Compresses chunks with gzip (RFC 9110, section 12.5.3) in at most 300 KB of memory."""

    def __init__(self) -> None:
        self._compressor = zlib.compressobj(LEVEL, zlib.DEFLATED, _GZIP)

    async def compress(self, chunk: bytes) -> bytes:
        """Return compressed bytes that are ready to be sent; possibly none."""
        return await asyncio.to_thread(self._compressor.compress, chunk)

    def end(self) -> bytes:
        """Return the remaining bytes."""
        return self._compressor.flush()


def request_id_of(headers: Mapping[bytes, bytes]) -> str:
    """Return the identifier in a request, or a new one."""
    given = headers.get(b"x-request-id", b"").decode("latin-1")
    usable = 0 < len(given) <= MAX_REQUEST_ID and given.isascii() and given.isprintable()
    return given if usable else new_request_id()


def new_request_id() -> str:
    """Return a random UUID (version 4) as text, with a fraction of the CPU time of ``uuid``."""
    if not _DIGITS:
        digits = token_hex(16 * _MADE_AT_ONCE)
        _DIGITS.extend(digits[begin : begin + 32] for begin in range(0, len(digits), 32))
    digits = _DIGITS.pop()
    variant = _VARIANTS[digits[16]]
    return f"{digits[:8]}-{digits[8:12]}-4{digits[13:16]}-{variant}{digits[17:20]}-{digits[20:]}"


Whole = Data | Document | Existing | Filed | WithCookies | Warned
"""Responses that are complete before they are sent."""


class WholeResponse(NamedTuple):
    """A complete response."""

    status: int
    content_type: bytes
    lines: bytes
    """The other headers, without the length."""
    body: bytes


def response_of(
    status: int,
    response: Whole,
    request_id: str,
    usage: Usage | None = None,
) -> WholeResponse:
    """Return the response for a handler's result."""
    content_type, cookies = _JSON, b""
    match response:
        case Document(content_type=named, body=body, status=other):
            content_type = named.encode("ascii")
            status = other or status
        case Existing(data=data):
            status = HTTPStatus.OK
            body = envelope.success(data, request_id)
        case Filed(data=data):
            status = HTTPStatus.ACCEPTED
            body = envelope.success(data, request_id)
        case Warned(response=warned, notice=notice):
            whole = response_of(status, warned, request_id, usage)
            return whole._replace(lines=whole.lines + _notice_lines(notice))
        case WithCookies(data=data, cookies=values):
            cookies = lines_of([(b"set-cookie", value.encode()) for value in values])
            body = envelope.success(data, request_id)
        case _:
            body = envelope.success(response, request_id)
    limits = b"" if usage is None else _usage_lines(usage)
    return WholeResponse(
        status, content_type, _START % request_id.encode() + limits + cookies, body
    )


def error_response(error: ApiError, request_id: str, usage: Usage | None = None) -> WholeResponse:
    """Return the response for an error. An error about a limit names only that limit."""
    headers = [(name.lower().encode(), value.encode()) for name, value in error.headers.items()]
    headers += [(b"set-cookie", cookie.encode()) for cookie in error.cookies]
    if error.code.status == HTTPStatus.UNAUTHORIZED:
        headers.append(CHALLENGE)
    lines = lines_of(headers)
    if usage is not None and error.code.status != HTTPStatus.TOO_MANY_REQUESTS:
        lines += _usage_lines(usage)
    body = envelope.failure(error, request_id)
    return WholeResponse(error.code.status, _JSON, _START % request_id.encode() + lines, body)


def lines_of(headers: Sequence[tuple[bytes, bytes]]) -> bytes:
    """Return headers as lines. Raises RuntimeError if one contains a control character."""
    lines = b"".join([b"%b: %b\r\n" % header for header in headers])
    is_whole = len(headers) == lines.count(b"\r") == lines.count(b"\n")
    if not is_whole or _CONTROLS.search(lines):
        raise RuntimeError("a header contains a control character")
    return lines


async def send_error(send: Send, error: ApiError, request_id: str) -> None:
    """Send an error of a page over ASGI."""
    answer = error_response(error, request_id)
    lines = [line.partition(b": ") for line in answer.lines.split(b"\r\n")[:-1]]
    headers = [
        (b"content-type", answer.content_type),
        (b"content-length", b"%d" % len(answer.body)),
        *((name, value) for name, _, value in lines),
    ]
    await send({"type": "http.response.start", "status": answer.status, "headers": headers})
    await send({"type": "http.response.body", "body": answer.body})


async def send_redirect(send: Send, location: str, cookies: Sequence[str], request_id: str) -> None:
    """Redirect a browser without a referrer, because its current address may contain a code."""
    headers = [
        (b"location", location.encode("ascii")),
        (b"content-length", b"0"),
        (b"cache-control", b"no-store"),
        (b"referrer-policy", b"no-referrer"),
        (b"x-request-id", request_id.encode()),
        *((b"set-cookie", cookie.encode()) for cookie in cookies),
    ]
    await send({"type": "http.response.start", "status": HTTPStatus.FOUND, "headers": headers})
    await send({"type": "http.response.body", "body": b""})


async def send_not_found(scope: Scope, receive: Receive, send: Send) -> None:
    """Respond 404 to any path: an ASGI application."""
    await send_error(send, not_found("no such path"), request_id_of(dict(scope["headers"])))


def _notice_lines(notice: RuleNotice) -> bytes:
    """Return the headers of RFC 9745 and RFC 8594, and a link to the rule."""
    link = f'<{RULES}/{notice.rule}>; rel="deprecation"; type="{JSON}"'
    headers = [
        (b"deprecation", b"@%d" % notice.deprecation.timestamp()),
        (b"link", link.encode("ascii")),
    ]
    if notice.sunset is not None:
        headers.append((b"sunset", format_datetime(notice.sunset, usegmt=True).encode("ascii")))
    return lines_of(headers)


def _usage_lines(usage: Usage) -> bytes:
    return _USAGE % (usage.limit.events, usage.remaining, math.ceil(usage.reset))


def _usage_headers(usage: Usage) -> Headers:
    lines = _usage_lines(usage).split(b"\r\n")[:-1]
    return [(name, value) for name, _, value in (line.partition(b": ") for line in lines)]


async def send_lines(
    receive: Receive,
    send: Send,
    lines: JsonLines,
    request_id: str,
    usage: Usage | None = None,
    *,
    is_head: bool = False,
    gzips: bool = False,
) -> None:
    """Send lines as they are created, until the client has gone; no lines for HEAD.

    If they cannot continue, the connection is closed: a complete file has its last line.
    """
    gzip = GzipStream() if gzips else None
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
            *(() if usage is None else _usage_headers(usage)),
        ],
    }
    if is_head:
        await send(start)
        await send({"type": "http.response.body", "body": b""})
        return
    await send_chunks(receive, send, start, lines.chunks, gzip)


async def send_chunks(
    receive: Receive,
    send: Send,
    start: Message,
    chunks: AsyncGenerator[bytes, None],
    gzip: GzipStream | None = None,
) -> None:
    """Send a response as its content is created, until the client has gone.

    An error before the first chunk is raised before anything is sent.
    """
    async with aclosing(chunks):
        chunk = await anext(chunks)
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
            await send({"type": "http.response.body", "body": b"" if gzip is None else gzip.end()})
        finally:
            gone.cancel()
