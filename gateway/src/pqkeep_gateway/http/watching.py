"""One task that watches all connections of a listener: their deadlines, and answers nobody reads."""

import asyncio
import heapq
from collections.abc import Collection, Sequence

from pqkeep_gateway.access.networks import network_of
from pqkeep_gateway.http.connection import LIMITS, ConnectionLimits, HttpConnection
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
    connections: Collection[HttpConnection], limits: ConnectionLimits = LIMITS
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
                ended += _check(connection, loop.time())
                unread += connection.unread
                if ended == ENDED_AT_ONCE:
                    ended = 0
                    await asyncio.sleep(0)
        if unread > limits.unread:
            await _end_unread(watched, limits.unread)


async def _end_unread(connections: Sequence[HttpConnection], at_most: int) -> None:
    """End connections whose clients do not read, until the answers to all others fit."""
    chosen = to_end([(each.address, each.unread) for each in connections], at_most)
    for number in chosen:
        connections[number].end_unread()
        await asyncio.sleep(CHECK_SECONDS / len(chosen))


def _check(connection: HttpConnection, now: float) -> bool:
    """Check one connection; return whether it was ended."""
    try:
        return connection.check_deadline(now)
    except Exception:  # noqa: BLE001 - one connection's fault must not unwatch the others
        _LOG.exception("a connection could not be checked")
        connection.evict()
        return True


def to_end(unread: Sequence[tuple[str, int]], at_most: int) -> list[int]:
    """Return which connections to end, so that the others have no more than ``at_most`` bytes unread.

    ``unread`` has the client's address and the unread bytes of each connection, and the result its
    positions there. The network with the most loses its largest first. One client that asks for ten
    thousand keys on each of its connections, and reads nothing, would otherwise have tens of
    megabytes kept for each until its time is over.
    """
    held: dict[str, list[tuple[int, int]]] = {}
    networks: dict[str, str] = {}
    for number, (address, size) in enumerate(unread):
        if size:
            network = networks.get(address) or networks.setdefault(address, network_of(address))
            held.setdefault(network, []).append((size, number))
    most = [(-sum(size for size, _ in found), name) for name, found in held.items()]
    heapq.heapify(most)
    for found in held.values():
        found.sort()
    excess = -sum(size for size, _ in most) - at_most
    ended: list[int] = []
    while excess > 0:
        size, name = heapq.heappop(most)
        largest, number = held[name].pop()
        ended.append(number)
        excess -= largest
        if held[name]:
            heapq.heappush(most, (size + largest, name))
    return ended
