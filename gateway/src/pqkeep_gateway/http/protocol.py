"""uvicorn's HTTP protocol, bounded: requests in time, heads in size, connections in number.

As shipped it collects a head of any size, waits for the rest of a request for ever, and answers
what is no HTTP in plain text. The size of bodies is bounded in ``body``.
"""

import asyncio
import uuid
from collections.abc import Iterable
from typing import Any

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from pqkeep_gateway.http import envelope
from pqkeep_gateway.http.errors import ApiError, invalid, unavailable

MAX_HEAD = 32 * 1024
REQUEST_SECONDS = 10.0
"""How long a request may take to arrive, and a new connection to begin one."""
MAX_CONNECTIONS = 4096


class BoundedHttpProtocol(HttpToolsProtocol):
    """One connection."""

    _head_size = 0
    _timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(GatheringTransport(transport, self.loop))
        if len(self.connections) > MAX_CONNECTIONS:
            self._hang_up(unavailable())
        else:
            self._timer = self.loop.call_later(REQUEST_SECONDS, self._give_up)

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._is_head_whole():
            if not self.cycle.more_body or self.cycle.response_complete:
                if self._timer is not None:
                    self._stop_waiting()
                return
        else:
            self._head_size += len(data)
            if self._head_size > MAX_HEAD:
                self._hang_up(invalid("the request's head is too large"))
                return
        if self._timer is None:
            self._timer = self.loop.call_later(REQUEST_SECONDS, self._give_up)

    def send_400_response(self, msg: str) -> None:
        """Answer what is no HTTP: uvicorn's call."""
        self._hang_up(invalid("the request is not HTTP"))

    def _is_head_whole(self) -> bool:
        # uvicorn makes a scope with a request's first byte and fills it in with its last header.
        scope: dict[str, Any] | None = self.scope  # type: ignore[assignment]
        return scope is not None and "path" in scope

    def _stop_waiting(self) -> None:
        self._head_size = 0
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _give_up(self) -> None:
        if self.scope is None:  # nothing was asked, so there is nothing to answer
            self.transport.close()
        else:
            self._hang_up(invalid("the request did not arrive in time"))

    def _hang_up(self, error: ApiError) -> None:
        self._stop_waiting()
        if self.transport.is_closing():
            return
        request_id = str(uuid.uuid4())
        body = envelope.failure(error, request_id)
        self.transport.write(
            STATUS_LINE[error.code.status]
            + b"content-type: application/json\r\ncontent-length: %d\r\n" % len(body)
            + b"cache-control: no-store\r\nx-request-id: %s\r\n" % request_id.encode()
            + b"connection: close\r\n\r\n"
            + body
        )
        self.transport.close()


class GatheringTransport(asyncio.Transport):
    """Another transport, written to once a turn of the event loop.

    uvicorn writes a response's head and its body one after the other, and the event loop sends at
    once what it is given: two calls of the kernel, two packets, and a client woken for the head.
    """

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        """Gather for a transport on a loop."""
        super().__init__()
        self._transport = transport
        self._loop = loop
        self._gathered: list[bytes | bytearray | memoryview] = []

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Send some bytes at the end of this turn."""
        if not self._gathered:
            self._loop.call_soon(self._flush)
        self._gathered.append(data)

    def writelines(self, list_of_data: Iterable[bytes | bytearray | memoryview]) -> None:
        """Send some bytes at the end of this turn."""
        for data in list_of_data:
            self.write(data)

    def close(self) -> None:
        """Send what is gathered, and close."""
        self._flush()
        self._transport.close()

    def abort(self) -> None:
        """Close at once."""
        self._transport.abort()

    def is_closing(self) -> bool:
        """Return whether it is closed or about to be."""
        return self._transport.is_closing()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """Return what the transport knows."""
        return self._transport.get_extra_info(name, default)

    def pause_reading(self) -> None:
        """Read no more for now."""
        self._transport.pause_reading()

    def resume_reading(self) -> None:
        """Read on."""
        self._transport.resume_reading()

    def _flush(self) -> None:
        gathered, self._gathered = self._gathered, []
        if gathered and not self._transport.is_closing():
            self._transport.writelines(gathered)
