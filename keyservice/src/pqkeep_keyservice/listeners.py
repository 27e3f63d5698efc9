"""The key service's sockets: who may connect to each, and what may be asked there.

The kernel says whose process a peer is (SO_PEERCRED). What is not in a socket's list is refused.
"""

import asyncio
import os
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

from msgspec import Struct

from pqkeep_keyservice.config import Config
from pqkeep_protocol.administration import AnyAdministrationRequest
from pqkeep_protocol.audit import AnyAuditRequest
from pqkeep_protocol.link import peer_of
from pqkeep_protocol.messages import AnyRequest, Batch, ListDestructions
from pqkeep_protocol.metrics import GetMetrics
from pqkeep_protocol.startup.logs import logger
from pqkeep_protocol.startup.settings import ConfigError

_LOG = logger(__name__)

GATEWAY_REQUESTS: frozenset[type[Struct]] = frozenset(
    {*get_args(AnyRequest | AnyAuditRequest), Batch, GetMetrics, ListDestructions}
)
OPERATOR_REQUESTS: frozenset[type[Struct]] = frozenset(get_args(AnyAdministrationRequest))

MAX_SOCKET_PATH = 107


@dataclass(frozen=True, slots=True)
class Listener:
    """A Unix socket."""

    path: Path
    users: frozenset[int]
    """The user ids whose processes may connect."""
    requests: frozenset[type[Struct]]
    """The requests that are answered."""
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
                self.path.unlink()  # left over from a process that was killed
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
        """Return whether the process at the other end of a connection may connect."""
        uid = peer_of(transport.get_extra_info("socket")).uid
        if uid in self.users:
            return True
        _LOG.warning("refused a connection from another user's process", user=uid)
        return False


def listeners(settings: Config) -> Iterator[Listener]:
    """Yield the sockets that the settings name.

    Raises ConfigError where the gateway would run as this process's user.
    """
    own = os.geteuid()
    gateway = settings.gateway_uid
    if gateway == own:
        raise ConfigError(
            f"gateway_uid: the key service runs as user {own} too; it needs a user of its own, or"
            " whoever takes the gateway over can read the root key"
        )
    match settings.socket, gateway:
        case Path() as path, "same":
            _LOG.warning("one user runs both processes: for development only")
            yield Listener(path, frozenset({own}), GATEWAY_REQUESTS, 0o600)
        case Path() as path, int():
            yield Listener(path, frozenset({gateway}), GATEWAY_REQUESTS, 0o660)
        case _:  # gateways of other hosts only
            pass
    if settings.operator_socket is not None:
        yield Listener(settings.operator_socket, frozenset({0, own}), OPERATOR_REQUESTS, 0o600)
