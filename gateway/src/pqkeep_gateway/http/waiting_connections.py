"""Connections that wait at the sockets of other gateways on the same port.

The kernel divides new connections among the gateways' sockets, also of one that was killed and is
being started again, or that hangs. Each gateway looks at the others' sockets from time to time, and
takes what waits there. One that serves leaves nothing waiting for so long.
"""

import asyncio
import socket
from collections.abc import Callable, Sequence
from contextlib import suppress

SECONDS = 0.1
MOST = 32
"""Connections of one socket that are taken at a time, so that others take some, too."""


async def take(
    listeners: Sequence[socket.socket], protocol: Callable[[], asyncio.Protocol]
) -> None:
    """Take what waits at these sockets, until cancelled. What was accepted by then is served."""
    loop = asyncio.get_running_loop()
    for each in listeners:
        each.settimeout(0)
    while listeners:
        await asyncio.sleep(SECONDS)
        for each in listeners:
            with suppress(OSError):  # none waits, or no more files may be opened
                for _ in range(MOST):
                    connection, _ = each.accept()
                    connection.settimeout(0)
                    await asyncio.shield(loop.connect_accepted_socket(protocol, connection))
