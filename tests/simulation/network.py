"""Sockets between simulated processes: bytes arrive late, in other pieces, slowly, or never.

Like TCP, they keep the order of bytes and deliver each byte once.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections import deque
from collections.abc import Callable
from math import inf, nextafter
from typing import Any, cast

from tests.simulation.choices import Choices
from tests.simulation.event_loop import PROCESS, Process, SimulatedLoop

HIGH_WATER = 16 * 1024
LOW_WATER = 4 * 1024


class Listening:
    """A server's listening socket."""

    def __init__(self, network: Network, path: str) -> None:
        self._network = network
        self._path = path

    def close(self) -> None:
        """Take no more connections."""
        self._network.servers.pop(self._path, None)


class Network:
    """The addresses and connections of processes."""

    def __init__(self, loop: SimulatedLoop, seed: int, tell: Callable[..., None]) -> None:
        self.loop = loop
        self.tell = tell
        self.servers: dict[str, tuple[Process, Callable[[], asyncio.BufferedProtocol]]] = {}
        self.connections: list[Connection] = []
        self._seed = seed
        loop.network = self

    def listen(self, new_protocol: Callable[[], asyncio.BufferedProtocol], path: str) -> Listening:
        """Listen at a path, for the running process."""
        process = PROCESS.get()
        assert process is not None
        self.servers[path] = process, new_protocol
        return Listening(self, path)

    async def connect(
        self, new_protocol: Callable[[], asyncio.BufferedProtocol], path: str
    ) -> tuple[asyncio.Transport, asyncio.BufferedProtocol]:
        """Connect the running process. Raises OSError."""
        client = PROCESS.get()
        choices = Choices(self._seed, f"connection {len(self.connections)}")
        await asyncio.sleep(choices.delay(0.0001, 0.005))
        server, new_peer = self.servers.get(path, (None, None))
        if client is None or server is None or new_peer is None or server.is_killed:
            raise ConnectionRefusedError("connection refused")
        connection = Connection(self, len(self.connections), choices, client, server)
        self.connections.append(connection)
        self.tell("connected", client.name, server.name)
        protocol = new_protocol()
        near, far = connection.ends
        near.begin(protocol)

        def accept() -> None:
            far.begin(new_peer())

        self.loop.call_soon(accept, context=server.context.copy())
        return near, protocol

    def kill(self, process: Process) -> None:
        """End the connections of a process that was killed."""
        for path in [path for path, (each, _) in self.servers.items() if each is process]:
            del self.servers[path]
        for connection in self.connections:
            connection.end_of(process)


class Connection:
    """Two ends, with possible faults between them."""

    def __init__(
        self, network: Network, number: int, choices: Choices, client: Process, server: Process
    ) -> None:
        self.network = network
        self.number = number
        self.client = client
        self.server = server
        self.choices = choices
        self.slow_until = 0.0
        """The time until which nothing arrives."""
        near, far = End(self, client), End(self, server)
        near.other, far.other = far, near
        self.ends = near, far

    @property
    def is_open(self) -> bool:
        """True if both ends are open."""
        return not any(end.is_lost or end.is_closing() for end in self.ends)

    def cut(self) -> None:
        """Lose all bytes on the way. Both ends notice after their own delay."""
        for end in self.ends:
            end.lose(ConnectionResetError("connection reset"), self.choices.delay(0.0, 0.01))

    def end_of(self, process: Process) -> None:
        """Tell the other end that one end's process has ended."""
        for end in self.ends:
            if end.process is process:
                end.is_lost = True
                end.other.lose(ConnectionResetError("connection reset"), 0.0)


class End(asyncio.Transport):
    """One end of a connection: a transport for asyncio's protocols."""

    other: End

    def __init__(self, connection: Connection, process: Process) -> None:
        super().__init__()
        self._connection = connection
        self._loop = connection.network.loop
        self.process = process
        self.is_lost = False
        self._is_closing = False
        self._protocol: asyncio.BufferedProtocol | None = None
        self._arrived: deque[bytes] = deque()
        """Readable pieces. An empty one is the end."""
        self._is_reading = True
        self._read_is_planned = False
        self._unread = 0
        """Written bytes that the other end has not read."""
        self._is_blocked = False
        self._newest_arrival = 0.0

    def begin(self, protocol: asyncio.BufferedProtocol) -> None:
        """Give a new connection its protocol."""
        self._protocol = protocol
        protocol.connection_made(self)
        if self.is_lost:
            protocol.connection_lost(None)
        self._plan_read()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return default

    def is_closing(self) -> bool:
        return self._is_closing or self.is_lost

    def write(self, data: Any) -> None:
        if self.is_closing():
            return
        rest = bytes(data)
        self._unread += len(rest)
        while rest:
            size = 1 + self._connection.choices.below(2 * len(rest))
            self._send(rest[:size])
            rest = rest[size:]
        if self._unread > HIGH_WATER and not self._is_blocked and self._protocol is not None:
            self._is_blocked = True
            self._protocol.pause_writing()

    def pause_reading(self) -> None:
        self._is_reading = False

    def resume_reading(self) -> None:
        self._is_reading = True
        self._plan_read()

    def close(self) -> None:
        if self.is_closing():
            return
        self._is_closing = True
        self._send(b"")
        self._soon(self._connection_lost, None)

    def abort(self) -> None:
        self._is_closing = True
        self._soon(self._connection_lost, None)
        self.other.lose(ConnectionResetError("connection reset"), 0.0)

    def lose(self, error: Exception, after: float) -> None:
        """Make this end notice an error."""
        self._loop.call_later(after, self._soon, self._connection_lost, error, context=_outside)

    def _send(self, data: bytes) -> None:
        """Deliver bytes after all bytes that were sent earlier."""
        delay = self._connection.choices.delay(0.00005, 0.002)
        when = max(
            self._loop.time() + delay,
            self._connection.slow_until,
            nextafter(self._newest_arrival, inf),
        )
        self._newest_arrival = when
        self._loop.call_at(when, self.other._arrive, data, context=_outside)

    def _arrive(self, data: bytes) -> None:
        if not self.is_lost:
            self._arrived.append(data)
            self._plan_read()

    def _plan_read(self) -> None:
        if self._arrived and not self._read_is_planned and self._protocol is not None:
            self._read_is_planned = True
            self._soon(self._read)

    def _read(self) -> None:
        """Read arrived bytes like a real transport: one piece at a time."""
        self._read_is_planned = False
        if not self._is_reading or self.is_closing() or not self._arrived:
            return
        assert self._protocol is not None
        data = self._arrived.popleft()
        if not data:
            if not self._protocol.eof_received():
                self.close()
            return
        space = cast(memoryview, self._protocol.get_buffer(-1))
        space[: len(data)] = data
        self._protocol.buffer_updated(len(data))
        self.other._was_read(len(data))
        self._plan_read()

    def _was_read(self, size: int) -> None:
        self._unread -= size
        if self._is_blocked and self._unread <= LOW_WATER:
            self._is_blocked = False
            self._soon(self._resume_writing)

    def _resume_writing(self) -> None:
        if not self.is_lost and self._protocol is not None:
            self._protocol.resume_writing()

    def _connection_lost(self, error: Exception | None) -> None:
        if self.is_lost:
            return
        self.is_lost = True
        self._connection.network.tell("lost", self.process.name, self._connection.number)
        if self._protocol is not None:
            self._protocol.connection_lost(error)

    def _soon(self, callback: Callable[..., Any], *arguments: Any) -> None:
        """Call a function in this end's process."""
        self._loop.call_soon(callback, *arguments, context=self.process.context.copy())


_outside = contextvars.copy_context()
