"""One task that watches all connections of a listener: their deadlines, and answers nobody reads."""

import asyncio
from collections.abc import Collection, Iterable

from pqkeep_gateway.http.protocol import LIMITS, BoundedHttpProtocol, ConnectionLimits
from pqkeep_gateway.http.unread_answers import to_end
from pqkeep_protocol.startup.logs import logger

_LOG = logger(__name__)

CHECK_SECONDS = 0.5
"""Between two checks of a connection's deadline, which is by so much later at the most, or twice
that where answers are not read."""
CHECKED_AT_ONCE = 64
"""Connections that are checked before others get their turn: some 0.05 ms."""
ENDED_AT_ONCE = 4
"""Connections that are ended before others get their turn: each takes some 0.1 ms."""


async def watch_connections(
    connections: Collection[object], limits: ConnectionLimits = LIMITS
) -> None:
    """Check all connections, again and again, until cancelled: their deadlines, and what is unread.

    The checks of many connections are spread over the time until the next ones: those that were
    opened together have the same deadline, and would be ended while everybody else waits.
    """
    loop = asyncio.get_running_loop()
    while True:
        watched = list(connections)
        slices = max(1, -(-len(watched) // CHECKED_AT_ONCE))
        unread = 0
        for number in range(slices):
            await asyncio.sleep(CHECK_SECONDS / slices)
            ended = 0
            for connection in watched[number::slices]:
                if isinstance(connection, BoundedHttpProtocol):
                    ended += _check(connection, loop.time())
                    unread += connection.unread
                if ended == ENDED_AT_ONCE:
                    ended = 0
                    await asyncio.sleep(0)
        if unread > limits.unread:
            await _end_unread(watched, limits.unread)


async def _end_unread(connections: Iterable[object], at_most: int) -> None:
    """End connections whose clients do not read, until the answers to all others fit."""
    http = [each for each in connections if isinstance(each, BoundedHttpProtocol)]
    chosen = to_end(http, at_most)
    for connection in chosen:
        connection.end_unread()
        await asyncio.sleep(CHECK_SECONDS / len(chosen))


def _check(connection: BoundedHttpProtocol, now: float) -> bool:
    """Check one connection; return whether it was ended."""
    try:
        return connection.check_deadline(now)
    except Exception:  # noqa: BLE001 - one connection's fault must not unwatch the others
        _LOG.exception("a connection could not be checked")
        connection.evict()
        return True
