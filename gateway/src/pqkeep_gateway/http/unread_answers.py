"""Answers that clients do not read: what all of them together keep in memory has a bound.

One client that asks for ten thousand keys on each of its connections, and reads nothing, would have
tens of megabytes kept for each until its time is over.
"""

import heapq
from collections.abc import Iterable
from typing import Protocol, TypeVar

from pqkeep_gateway.access.source_address import network_of


class Answered(Protocol):
    """A connection over which answers are sent."""

    @property
    def address(self) -> str:
        """The client's."""
        ...

    @property
    def unread(self) -> int:
        """How many bytes of answers wait in memory until the client reads."""
        ...


A = TypeVar("A", bound=Answered)


def to_end(connections: Iterable[A], at_most: int) -> list[A]:
    """Return which connections to end, so that the others have no more than so many bytes unread.

    Those of whoever has the most, by the client's network, and of these the largest first.
    """
    held: dict[str, list[tuple[int, int, A]]] = {}
    networks: dict[str, str] = {}
    for number, each in enumerate(connections):
        if unread := each.unread:
            address = each.address
            network = networks.get(address) or networks.setdefault(address, network_of(address))
            held.setdefault(network, []).append((unread, number, each))
    most = [(-sum(unread for unread, _, _ in found), name) for name, found in held.items()]
    heapq.heapify(most)
    for found in held.values():
        found.sort()
    excess = -sum(size for size, _ in most) - at_most
    ended: list[A] = []
    while excess > 0:
        size, name = heapq.heappop(most)
        largest, _, connection = held[name].pop()
        ended.append(connection)
        excess -= largest
        if held[name]:
            heapq.heappush(most, (size + largest, name))
    return ended
