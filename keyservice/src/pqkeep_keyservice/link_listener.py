"""Accepts gateways of other hosts by mutual TLS.

A stranger can open connections and leave their handshakes half done. What these cost is bounded:
the number of handshakes, of which the oldest of the address with the most gives way, and the time
of each. A connection gets its buffers, and a frame is read, only once the peer's certificate has
been verified.
"""

import asyncio
import socket
from collections import Counter
from collections.abc import Callable
from typing import cast

from pqkeep_protocol.link import HANDSHAKE_SECONDS, LinkTls, reason
from pqkeep_protocol.startup.logs import logger
from pqkeep_protocol.startup.settings import ConfigError, NetworkAddress

_LOG = logger(__name__)

BACKLOG = 1024
MAX_HANDSHAKES = 64
"""At a time."""
PAUSE_SECONDS = 0.1
"""Before the next connection, where the process has no file descriptor for one."""


class LinkListener:
    """Listens at one address. Each verified peer gets a connection from ``new_connection``."""

    def __init__(
        self,
        link: LinkTls,
        address: NetworkAddress,
        new_connection: Callable[[], asyncio.BaseProtocol],
    ) -> None:
        """Listen. Raises ConfigError."""
        self._link = link
        self._new_connection = new_connection
        self._socket = _listen(address)
        self._handshakes: dict[asyncio.Task[None], str] = {}
        self._accepting: asyncio.Task[None] | None = None

    @property
    def port(self) -> int:
        """The port that it listens on."""
        port: int = self._socket.getsockname()[1]
        return port

    def start(self) -> None:
        """Start to accept connections."""
        self._accepting = asyncio.create_task(self._accept())

    async def close(self) -> None:
        """Accept no more connections, and end handshakes. Verified connections stay."""
        tasks = [*self._handshakes, *(() if self._accepting is None else (self._accepting,))]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        self._socket.close()

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                peer, address = await loop.sock_accept(self._socket)
            except OSError as error:
                _LOG.warning("cannot accept a connection of the link", error=error.strerror)
                await asyncio.sleep(PAUSE_SECONDS)
                continue
            if len(self._handshakes) >= MAX_HANDSHAKES:
                self._make_room()
            handshake = asyncio.create_task(self._verify(peer, address[0]))
            self._handshakes[handshake] = address[0]
            handshake.add_done_callback(self._forget)
            await asyncio.sleep(0)  # accepting does not wait while there are connections

    def _make_room(self) -> None:
        """End the oldest handshake of the address that has the most."""
        ((crowded, _),) = Counter(self._handshakes.values()).most_common(1)
        oldest = next(task for task, each in self._handshakes.items() if each == crowded)
        del self._handshakes[oldest]
        oldest.cancel()

    def _forget(self, handshake: asyncio.Task[None]) -> None:
        self._handshakes.pop(handshake, None)

    async def _verify(self, peer: socket.socket, address: str) -> None:
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: _Verified(self._new_connection),
                peer,
                ssl=self._link.context,
                ssl_handshake_timeout=HANDSHAKE_SECONDS,
            )
        except OSError as error:  # ssl.SSLError is one
            _LOG.warning("a handshake of the link failed", address=address, error=reason(error))


class _Verified(asyncio.Protocol):
    """Stands for a connection until the handshake is done, and then gives way to it."""

    def __init__(self, new_connection: Callable[[], asyncio.BaseProtocol]) -> None:
        self._new_connection = new_connection

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        connection = self._new_connection()
        cast(asyncio.Transport, transport).set_protocol(connection)
        connection.connection_made(transport)


def _listen(address: NetworkAddress) -> socket.socket:
    try:
        (family, kind, _, _, resolved), *_ = socket.getaddrinfo(
            address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        listener = socket.socket(family, kind)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(resolved)
            listener.listen(BACKLOG)
        except OSError:
            listener.close()
            raise
    except OSError as error:
        raise ConfigError(
            f"cannot listen on {address.host}, port {address.port}: {error.strerror}"
        ) from None
    listener.settimeout(0)  # the loop waits for it
    return listener
