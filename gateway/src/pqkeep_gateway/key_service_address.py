"""Where the key service is: a Unix socket of this host, or another host behind mutual TLS."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from pqkeep_protocol.codec import ToGateway
from pqkeep_protocol.connection import Accepts, FramedConnection
from pqkeep_protocol.link import HANDSHAKE_SECONDS, LinkTls
from pqkeep_protocol.startup.settings import NetworkAddress

NewConnection = Callable[[Accepts], FramedConnection[ToGateway]]
"""Makes a connection to whomever it accepts."""


class KeyServiceAddress(Protocol):
    """An address at which the key service can be reached."""

    async def connect(self, new_connection: NewConnection) -> FramedConnection[ToGateway]:
        """Return an open connection. Raises OSError."""


@dataclass(frozen=True, slots=True)
class UnixSocket:
    """A Unix socket. Who may serve on it is decided by the folder that it is in."""

    path: str

    async def connect(self, new_connection: NewConnection) -> FramedConnection[ToGateway]:
        """Return an open connection. Raises OSError."""
        _, connection = await asyncio.get_running_loop().create_unix_connection(
            lambda: new_connection(lambda _: True), self.path
        )
        return connection


@dataclass(frozen=True, slots=True)
class RemoteHost:
    """Another host, whose certificate has the key service's role and this name."""

    address: NetworkAddress
    name: str
    link: LinkTls

    async def connect(self, new_connection: NewConnection) -> FramedConnection[ToGateway]:
        """Return an open connection to a verified key service. Raises OSError."""
        try:
            async with asyncio.timeout(HANDSHAKE_SECONDS):
                _, connection = await asyncio.get_running_loop().create_connection(
                    lambda: new_connection(self.link.accepts),
                    self.address.host,
                    self.address.port,
                    ssl=self.link.context,
                    server_hostname=self.name,
                )
        except TimeoutError:
            raise TimeoutError(f"no answer within {HANDSHAKE_SECONDS:.0f} seconds") from None
        return connection
