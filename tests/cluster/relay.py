"""Relays between processes, which can be cut or stalled. One thread runs all of them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from enum import StrEnum
from typing import Self, TypeVar

from tests.fixtures.processes import HOST

T = TypeVar("T")


class Way(StrEnum):
    """The state of a relay's connections."""

    PASSING = "passing"
    CUT = "cut"
    """Reset all connections, and new ones too, like a rejecting firewall or a restarted host."""
    STALLED = "stalled"
    """Drop everything silently, like an unplugged cable."""


class _End(asyncio.Protocol):
    """One end of a connection. It forwards received bytes to the other end."""

    def __init__(self, relay: Relay) -> None:
        self._relay = relay
        self.transport: asyncio.Transport | None = None
        self.other: _End | None = None
        self._early = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self._relay.opened(self)

    def data_received(self, data: bytes) -> None:
        if self.other is None or self.other.transport is None:
            self._early += data
        else:
            self.other.transport.write(data)

    def connection_lost(self, exc: Exception | None) -> None:
        del exc
        self._relay.ends.discard(self)
        if self.other is not None and self.other.transport is not None:
            self.other.transport.close()

    def join(self, other: _End) -> None:
        """Connect this end to another, and forward earlier bytes first."""
        self.other, other.other = other, self
        assert other.transport is not None
        other.transport.write(self._early)
        self._early = b""


class Relay:
    """Relays connections to a port of this host from its own port."""

    def __init__(self, loop: asyncio.AbstractEventLoop, target: int) -> None:
        self._loop = loop
        self._target = target
        self._passing = asyncio.Event()
        self._passing.set()
        self._way = Way.PASSING
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None
        self.ends: set[_End] = set()
        self.port = 0

    async def start(self) -> None:
        """Listen."""
        self._server = await self._loop.create_server(lambda: _End(self), HOST, 0)
        self.port = self._server.sockets[0].getsockname()[1]

    def turn(self, way: Way) -> None:
        """Change the state of present and new connections."""
        self._way = way
        if way is Way.PASSING:
            self._passing.set()
        else:
            self._passing.clear()
        for end in tuple(self.ends):
            if end.transport is not None:
                self._apply(end.transport)

    def opened(self, end: _End) -> None:
        """Add a new connection at one end."""
        self.ends.add(end)
        assert end.transport is not None
        self._apply(end.transport)
        if end.other is None and not end.transport.is_closing():
            task = self._loop.create_task(self._connect(end))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def _apply(self, transport: asyncio.Transport) -> None:
        if self._way is Way.CUT:
            transport.abort()
        elif not transport.is_closing():
            with suppress(RuntimeError):  # it is so already
                if self._way is Way.STALLED:
                    transport.pause_reading()
                else:
                    transport.resume_reading()

    async def _connect(self, end: _End) -> None:
        await self._passing.wait()
        far = _End(self)
        far.other = end  # so that it does not connect in its turn
        try:
            await self._loop.create_connection(lambda: far, HOST, self._target)
        except OSError:
            assert end.transport is not None
            end.transport.abort()
        else:
            end.join(far)


class Relays:
    """A thread with an event loop for relays."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    def new(self, target: int) -> Relay:
        """Return a listening relay to a port."""
        relay = Relay(self._loop, target)
        asyncio.run_coroutine_threadsafe(relay.start(), self._loop).result()
        return relay

    def turn(self, way: Way, *relays: Relay) -> None:
        """Change the state of some relays' connections."""
        for relay in relays:
            self._do(lambda: relay.turn(way))  # noqa: B023 - it is done at once

    def _do(self, function: Callable[[], T]) -> T:
        async def do() -> T:
            return function()

        return asyncio.run_coroutine_threadsafe(do(), self._loop).result()
