"""Writes that wait for the end of the event loop's turn, so that they go out together.

uvicorn writes a response's head and its body one after the other, and the event loop sends at once
what it is given: two calls of the kernel, two packets, and a client that is woken for the head.
"""

import asyncio
from collections.abc import Iterable
from typing import Any


class GatheringTransport(asyncio.Transport):
    """Another transport, written to once a turn."""

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
