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
    by_network: dict[str, list[A]] = {}
    for each in connections:
        if each.unread:
            by_network.setdefault(network_of(each.address), []).append(each)
    unread = {name: sum(each.unread for each in held) for name, held in by_network.items()}
    for held in by_network.values():
        held.sort(key=lambda each: each.unread)
    most = [(-size, name) for name, size in unread.items()]
    heapq.heapify(most)
    excess = sum(unread.values()) - at_most
    ended: list[A] = []
    while excess > 0:
        size, name = heapq.heappop(most)
        largest = by_network[name].pop()
        ended.append(largest)
        excess -= largest.unread
        if by_network[name]:
            heapq.heappush(most, (size + largest.unread, name))
    return ended
