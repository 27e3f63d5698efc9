"""A task that watches all connections of a listener: their deadlines, and unread responses."""

import asyncio
import heapq
from collections.abc import Collection, Sequence

from pqkeep_gateway.access.networks import network_of
from pqkeep_gateway.http.connection import LIMITS, ConnectionLimits, HttpConnection
from pqkeep_protocol.startup.logs import logger

_LOG = logger(__name__)

CHECK_SECONDS = 0.5
"""The time between two checks of a connection. Its deadline is exceeded by at most this, or twice
this for unread responses."""
CHECKED_AT_ONCE = 64
"""Connections that are checked in one event-loop turn: about 0.05 ms."""
ENDED_AT_ONCE = 4
"""Connections that are closed in one event-loop turn: about 0.1 ms each."""


async def watch_connections(
    connections: Collection[HttpConnection], limits: ConnectionLimits = LIMITS
) -> None:
    """Check the deadlines and unread bytes of all connections, until cancelled.

    The checks of many connections are spread over the period. Otherwise connections that were
    opened together would all be closed in one turn of the event loop.
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
    """Close connections with unread responses until the other responses are within the limit."""
    chosen = to_end([(holder.address, holder.unread) for holder in connections], at_most)
    for number in chosen:
        connections[number].end_unread()
        await asyncio.sleep(CHECK_SECONDS / len(chosen))


def _check(connection: HttpConnection, now: float) -> bool:
    """Check one connection; return whether it was closed."""
    try:
        return connection.check_deadline(now)
    except Exception:  # noqa: BLE001 - an error in one connection must not affect the others
        _LOG.exception("a connection could not be checked")
        connection.evict()
        return True


def to_end(unread: Sequence[tuple[str, int]], at_most: int) -> list[int]:
    """Return the connections to close so that the others have at most ``at_most`` unread bytes.

    ``unread`` has the client's address and the unread bytes of each connection; the result has
    indexes into it. The network with the most bytes loses its largest response first. Without this,
    a client that requests ten thousand keys on each connection and reads nothing would fill tens of
    megabytes for each.
    """
    held: dict[str, list[tuple[int, int]]] = {}
    networks: dict[str, str] = {}
    for number, (address, size) in enumerate(unread):
        if size:
            network = networks.get(address) or networks.setdefault(address, network_of(address))
            held.setdefault(network, []).append((size, number))
    most = [(-sum(size for size, _ in responses), name) for name, responses in held.items()]
    heapq.heapify(most)
    for responses in held.values():
        responses.sort()
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
