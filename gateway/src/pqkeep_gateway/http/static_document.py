"""Documents that stay the same while the gateway runs."""

from collections.abc import Mapping
from hashlib import sha256

from starlette.types import Receive, Scope, Send

from pqkeep_gateway.http.errors import method_not_allowed
from pqkeep_gateway.http.responses import request_id_of, send_error

METHODS = ("GET", "HEAD")
REVALIDATE = "no-cache"
"""May be cached, but must be revalidated with its ETag."""
PIECE = 32_768
"""Bytes per write. A client that does not read costs only this buffer."""


class StaticDocument:
    """An ASGI application for one document. It needs no credential."""

    def __init__(
        self,
        body: bytes,
        content_type: str,
        headers: Mapping[str, str],
        *,
        cache_control: str = REVALIDATE,
        gzipped: bytes | None = None,
    ) -> None:
        """Serve a body with a type and further headers, gzipped for clients that accept it."""
        self._body = body
        self._gzipped = gzipped
        self._etag = f'"{sha256(body).hexdigest()[:32]}"'.encode()
        self._headers = (
            (b"content-type", content_type.encode()),
            (b"cache-control", cache_control.encode()),
            (b"etag", self._etag),
            *((name.lower().encode(), value.encode()) for name, value in headers.items()),
            *(() if gzipped is None else ((b"vary", b"accept-encoding"),)),
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        headers: dict[bytes, bytes] = dict(scope["headers"])
        request_id = request_id_of(headers)
        if scope["method"] not in METHODS:
            await send_error(send, method_not_allowed(", ".join(METHODS)), request_id)
            return
        known = self._etag in [
            tag.strip().removeprefix(b"W/")
            for tag in headers.get(b"if-none-match", b"").split(b",")
        ]
        content = self._body
        encoding: tuple[tuple[bytes, bytes], ...] = ()
        if self._gzipped is not None and b"gzip" in headers.get(b"accept-encoding", b""):
            content, encoding = self._gzipped, ((b"content-encoding", b"gzip"),)
        size = () if known else ((b"content-length", b"%d" % len(content)), *encoding)
        sent = (*self._headers, *size, (b"x-request-id", request_id.encode()))
        body = memoryview(b"" if known or scope["method"] == "HEAD" else content)
        await send(
            {"type": "http.response.start", "status": 304 if known else 200, "headers": sent}
        )
        while len(body) > PIECE:
            await send({"type": "http.response.body", "body": body[:PIECE], "more_body": True})
            body = body[PIECE:]
        await send({"type": "http.response.body", "body": body})
