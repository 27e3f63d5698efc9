"""The key service's sockets, with the users and requests that each accepts.

The kernel identifies a peer's user (SO_PEERCRED). A socket refuses every other user and request.

Gateways on other hosts connect by mutual TLS. An attacker can open connections without finishing
their handshakes. So the number of handshakes and the time of each are limited. Above the limit, the
address with the most handshakes loses its oldest. Only after the peer's certificate is verified, a
connection gets its buffers and its first frame is read.
"""

import asyncio
import os
import socket
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import cast, get_args

from msgspec import Struct

from pqkeep_keyservice.config import Config
from pqkeep_protocol.administration import AnyAdministrationRequest
from pqkeep_protocol.audit import AnyAuditRequest, ListWitnesses
from pqkeep_protocol.link import HANDSHAKE_SECONDS, LinkTls, peer_of, reason
from pqkeep_protocol.messages import (
    AnyKeylessRequest,
    AnyRequest,
    Batch,
    CancelArchive,
    CancelDestruction,
    ListDestructions,
    ListRules,
    OverrideRule,
    RestoreKeyring,
)
from pqkeep_protocol.metrics import GetMetrics
from pqkeep_protocol.startup.logs import logger
from pqkeep_protocol.startup.settings import ConfigError, NetworkAddress

_LOG = logger(__name__)

BACKLOG = 1024
MAX_HANDSHAKES = 64
"""Handshakes at once."""
PAUSE_SECONDS = 0.1
"""The pause before the next connection if the process has no free file descriptor."""


class LinkListener:
    """Listens on one address. Each verified peer gets a connection from ``new_connection``."""

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
        """The port of the listening socket."""
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
                self._drop_handshake()
            handshake = asyncio.create_task(self._verify(peer, address[0]))
            self._handshakes[handshake] = address[0]
            handshake.add_done_callback(self._forget)
            await asyncio.sleep(0)  # sock_accept returns at once while connections wait

    def _drop_handshake(self) -> None:
        """End the oldest handshake of the address with the most handshakes."""
        ((crowded, _),) = Counter(self._handshakes.values()).most_common(1)
        oldest = next(task for task, address in self._handshakes.items() if address == crowded)
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
    """Stands for a connection during its handshake, and then hands over to it."""

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
    listener.settimeout(0)  # the event loop waits for it
    return listener


OPERATORS_ONLY: frozenset[type[Struct]] = frozenset({OverrideRule})
"""Operations with which an administrator of the machine lifts what a gateway has restricted."""
DESTRUCTION_REQUESTS: frozenset[type[Struct]] = frozenset(
    {ListDestructions, CancelDestruction, RestoreKeyring, CancelArchive}
)
"""Operations on both sockets, because an administrator of the machine can always stop a
destruction."""
GATEWAY_REQUESTS: frozenset[type[Struct]] = (
    frozenset(
        {
            *get_args(AnyRequest | AnyKeylessRequest | AnyAuditRequest),
            Batch,
            GetMetrics,
            ListDestructions,
        }
    )
    - OPERATORS_ONLY
)
OPERATOR_REQUESTS: frozenset[type[Struct]] = frozenset(
    {
        *get_args(AnyAdministrationRequest),
        *DESTRUCTION_REQUESTS,
        *OPERATORS_ONLY,
        ListRules,
        ListWitnesses,
    }
)

MAX_SOCKET_PATH = 107


@dataclass(frozen=True, slots=True)
class Listener:
    """A Unix socket."""

    path: Path
    users: frozenset[int]
    """The user ids that may connect."""
    requests: frozenset[type[Struct]]
    """The types of requests that the socket accepts."""
    mode: int

    def bind(self) -> socket.socket:
        """Create the socket, with the group of its folder. Raises ConfigError."""
        path = str(self.path)
        if len(os.fsencode(path)) > MAX_SOCKET_PATH:
            raise ConfigError(f"the socket's path is longer than {MAX_SOCKET_PATH} bytes: {path}")
        bound = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        umask = os.umask(0o777)
        try:
            if self.path.is_socket():
                self.path.unlink()  # a killed process left it behind
            bound.bind(path)
            if self.mode & 0o070:
                os.chown(path, -1, self.path.parent.stat().st_gid)
            self.path.chmod(self.mode)
        except OSError as error:
            bound.close()
            raise ConfigError(f"cannot serve on {path}: {error.strerror}") from None
        finally:
            os.umask(umask)
        return bound

    def accepts(self, transport: asyncio.Transport) -> bool:
        """Return whether a peer's user may connect."""
        uid = peer_of(transport.get_extra_info("socket")).uid
        if uid in self.users:
            return True
        _LOG.warning("refused a connection from another user's process", user=uid)
        return False


def listeners(settings: Config) -> Iterator[Listener]:
    """Yield the sockets of the settings.

    Raises ConfigError if the gateway would run as this process's user.
    """
    own = os.geteuid()
    gateway = settings.gateway_uid
    if gateway == own:
        raise ConfigError(
            f"gateway_uid must differ from the key service's own user {own}: otherwise an attacker"
            " who controls the gateway could read the root key"
        )
    match settings.socket, gateway:
        case Path() as path, "same":
            yield Listener(path, frozenset({own}), GATEWAY_REQUESTS, 0o600)
        case Path() as path, int():
            yield Listener(path, frozenset({gateway}), GATEWAY_REQUESTS, 0o660)
        case _:  # only gateways on other hosts
            pass
    if settings.operator_socket is not None:
        yield Listener(settings.operator_socket, frozenset({0, own}), OPERATOR_REQUESTS, 0o600)
