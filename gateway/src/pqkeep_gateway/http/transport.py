"""A connection's transport: it gathers writes, and closes without losing its last response."""

import asyncio
from collections.abc import Iterable
from typing import Any

from pqkeep_gateway.http.tls_session import TlsSession

GATHERED = 32_768
"""Bytes that are gathered before they are sent, so that writing can still be paused."""


class GatheringTransport(asyncio.Transport):
    """Wraps a transport and writes to it once per turn of the event loop.

    Pages send a response's head and body separately, and the event loop sends each write at once.
    That would cost two system calls, two packets, and a wake-up of the client for the head alone.
    """

    def __init__(
        self,
        transport: asyncio.Transport,
        loop: asyncio.AbstractEventLoop,
        tls: TlsSession | None = None,
    ) -> None:
        super().__init__()
        self._transport = transport
        self._loop = loop
        self._tls = tls
        self._gathered: list[bytes | bytearray | memoryview] = []
        self._size = 0
        self.is_closed = False
        """Whether this side has closed it."""
        self.expects_more = False
        """Whether the client is sending bytes that will not be read."""

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Send bytes at the end of this turn, or now if they are many."""
        if not self._gathered:
            self._loop.call_soon(self._flush)
        self._gathered.append(data)
        self._size += len(data)
        if self._size >= GATHERED:
            self._flush()

    def send(self, data: bytes) -> None:
        """Send a complete response: at once, unless earlier bytes are gathered."""
        if self._gathered or self._tls is not None or self.is_closed:
            self.write(data)
            self._flush()
        elif not self._transport.is_closing():
            self._transport.write(data)

    def writelines(self, list_of_data: Iterable[bytes | bytearray | memoryview]) -> None:
        """Send bytes like ``write``."""
        for data in list_of_data:
            self.write(data)

    def close(self) -> None:
        """Send the gathered bytes, and close.

        While the client is still sending, only this side is closed. Otherwise the kernel would
        reset the connection, and the client would lose a response that it has not read yet.
        """
        if self.is_closed:
            return
        self._flush()
        self.is_closed = True
        if self._tls is not None:
            self._tls.end()
            self.send_tls(self._tls)
        if self.expects_more and not self._transport.is_closing():
            self._transport.write_eof()
            self._transport.resume_reading()
        else:
            self._transport.close()

    def send_tls(self, tls: TlsSession) -> None:
        """Send TLS's own bytes to the client."""
        if (data := tls.to_send()) and not self._transport.is_closing():
            self._transport.write(data)

    def abort(self) -> None:
        """Close immediately, without sending gathered bytes."""
        self.is_closed = True
        self._gathered.clear()
        self._transport.abort()

    def is_closing(self) -> bool:
        """Return whether it is closed or closing."""
        return self.is_closed or self._transport.is_closing()

    def is_gone(self) -> bool:
        """Return whether nothing can be received any more."""
        return self._transport.is_closing()

    def get_write_buffer_size(self) -> int:
        """Return the number of bytes that wait until the client reads."""
        return self._transport.get_write_buffer_size()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """Return the transport's information."""
        if self._tls is not None and name == "sslcontext":
            return self._tls.context
        return self._transport.get_extra_info(name, default)

    def pause_reading(self) -> None:
        """Stop reading."""
        self._transport.pause_reading()

    def resume_reading(self) -> None:
        """Resume reading."""
        self._transport.resume_reading()

    def _flush(self) -> None:
        gathered, self._gathered, self._size = self._gathered, [], 0
        if gathered and not self.is_closed and not self._transport.is_closing():
            if self._tls is None:
                self._transport.writelines(gathered)
            else:
                self._tls.send(gathered)
                self.send_tls(self._tls)
