"""Whose process is at the other end of a Unix socket, as the kernel tells it."""

import socket
import struct
from typing import NamedTuple, Protocol

_UCRED = struct.Struct("=iII")  # pid, uid, gid; see unix(7), SO_PEERCRED


class UnixConnection(Protocol):
    """A connected Unix socket, of the standard library or of asyncio."""

    def getsockopt(self, level: int, option: int, size: int, /) -> bytes:
        """See ``socket.socket.getsockopt``."""


class Peer(NamedTuple):
    """A process."""

    pid: int
    uid: int


def peer_of(connection: UnixConnection) -> Peer:
    """Return the process that connected, or listens. Raises OSError."""
    pid, uid, _ = _UCRED.unpack(
        connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size)
    )
    return Peer(pid, uid)
