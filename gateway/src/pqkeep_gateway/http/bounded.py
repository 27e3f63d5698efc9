"""uvicorn's HTTP protocol, bounded: heads in size and time, connections in number.

As shipped it collects a head of any size, waits for its end for ever, and answers what is no HTTP
in plain text. Bodies are bounded in ``body``.
"""

import asyncio
import uuid
from typing import Any

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from pqkeep_gateway.http import envelope
from pqkeep_gateway.http.errors import ApiError, Code, unavailable

MAX_HEAD = 32 * 1024
HEAD_SECONDS = 10.0
MAX_CONNECTIONS = 4096


class BoundedHttpProtocol(HttpToolsProtocol):
    """One connection."""

    _head_size = 0
    _head_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Asyncio's call."""
        super().connection_made(transport)
        if len(self.connections) > MAX_CONNECTIONS:
            self._hang_up(unavailable())
        else:
            self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """Asyncio's call."""
        self._head_is_done()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Asyncio's call."""
        super().data_received(data)
        if self._is_head_whole():
            if self._head_timer is not None:
                self._head_is_done()
            return
        self._head_size += len(data)
        if self._head_size > MAX_HEAD:
            self._hang_up(ApiError(Code.INVALID_001, "the request's head is too large"))
        elif self._head_timer is None:
            self._await_head()

    def send_400_response(self, msg: str) -> None:
        """Answer what is no HTTP: uvicorn's call."""
        self._hang_up(ApiError(Code.INVALID_001, "the request is not HTTP"))

    def _is_head_whole(self) -> bool:
        # uvicorn makes a scope with a request's first byte and fills it in with its last header.
        scope: dict[str, Any] | None = self.scope  # type: ignore[assignment]
        return scope is not None and "path" in scope

    def _await_head(self) -> None:
        error = ApiError(Code.INVALID_001, "the request's head did not arrive in time")
        self._head_timer = self.loop.call_later(HEAD_SECONDS, self._hang_up, error)

    def _head_is_done(self) -> None:
        self._head_size = 0
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _hang_up(self, error: ApiError) -> None:
        self._head_is_done()
        if self.transport.is_closing():
            return
        body = envelope.failure(error, str(uuid.uuid4()))
        self.transport.write(
            STATUS_LINE[error.code.status]
            + b"content-type: application/json\r\ncontent-length: %d\r\n" % len(body)
            + b"connection: close\r\n\r\n"
            + body
        )
        self.transport.close()
