"""Counts connections, and chooses which to close when there are too many.

Behind a proxy or NAT many clients share one address. So an address at its limit is not refused: a
new connection replaces an unused one of the same address. A trusted proxy's address has no limit of
its own. The clock algorithm finds the unused connection: the oldest connection without a use since
its last check.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Container
from functools import partial
from itertools import islice
from typing import Protocol

from pqkeep_gateway.access.networks import network_of
from pqkeep_gateway.access.source_budget import SourceBudget
from pqkeep_gateway.http.transport import GatheringTransport

MAX_EXAMINED = 64
"""The most connections that are examined to find one to close."""


class Turns:
    """Does one piece of work of one connection in each event-loop turn, in order of arrival.

    Work that is cheap for one client would block the event loop if hundreds of clients sent it at
    once.
    """

    def __init__(self) -> None:
        self._waiting: deque[Callable[[], object]] = deque()

    def wait(self, work: Callable[[], object]) -> None:
        """Queue some work."""
        self._waiting.append(work)
        if len(self._waiting) == 1:
            self._next_turn()

    def _go_on(self) -> None:
        work = self._waiting.popleft()
        if self._waiting:
            self._next_turn()
        work()

    def _next_turn(self) -> None:
        asyncio.get_running_loop().call_soon(self._go_on)


class UnreadBodies:
    """Reads and discards refused bodies that are sent nevertheless, in turns.

    A refused body must be read, or the client could lose the response. A hundred fast clients would
    otherwise occupy the event loop.
    """

    def __init__(self) -> None:
        self._turns = Turns()

    def wait(self, transport: GatheringTransport) -> None:
        """Stop reading a connection until its turn."""
        transport.pause_reading()
        self._turns.wait(partial(_read_on, transport))


def _read_on(transport: GatheringTransport) -> None:
    if not transport.is_gone():
        transport.resume_reading()


class Connection(Protocol):
    """One client connection."""

    was_used: bool
    """Whether it has had a response since it was last examined."""

    def is_answering(self) -> bool:
        """Return whether a response is pending."""
        ...

    def evict(self) -> None:
        """Close immediately."""
        ...


class Connections:
    """All connections of one listener, by the client's address."""

    def __init__(
        self,
        at_most: int,
        per_address: int,
        arrivals: SourceBudget,
        proxies: Container[str] = (),
    ) -> None:
        """Take the budget of new connections, and the addresses without a limit of their own."""
        self._at_most = at_most
        self._arrivals = arrivals
        self._proxies = proxies
        self._per_address = per_address
        self.unread_bodies = UnreadBodies()
        self.small_chunks = Turns()
        self.count = 0
        """The number of connections."""
        self.closed = {"too_fast": 0, "full": 0, "evicted": 0, "unread": 0}
        """The number of connections closed because of a limit, by the reason."""
        self._by_network: dict[str, dict[Connection, None]] = {}  # the oldest one first
        self._by_size: dict[int, dict[str, None]] = {}
        self._most = 0
        """The largest number of connections of a network, the index of the fullest ones."""

    def may_arrive(self, address: str) -> bool:
        """Return whether an address may open a connection now."""
        if address in self._proxies or self._arrivals.spend(address) is None:
            return True
        self.closed["too_fast"] += 1
        return False

    def add(self, connection: Connection, address: str) -> bool:
        """Count a new connection; return False if the limit is reached."""
        network = network_of(address)
        is_full = len(self._by_network.get(network, ())) >= self._per_address
        if is_full and address not in self._proxies and not self._evict_one_of(network):
            return False
        if self.count >= self._at_most:
            fullest = next(iter(self._by_size[self._most]))
            if not self._evict_one_of(fullest):
                return False
        found = self._by_network.setdefault(network, {})
        found[connection] = None
        self._resize(network, len(found) - 1, len(found))
        self.count += 1
        return True

    def remove(self, connection: Connection, address: str) -> None:
        """Stop counting a connection, if it was counted."""
        network = network_of(address)
        if connection in self._by_network.get(network, ()):
            self._forget(connection, network)

    def _evict_one_of(self, network: str) -> bool:
        candidates = self._by_network[network]
        oldest = None
        for connection in list(islice(candidates, MAX_EXAMINED)):
            if not connection.is_answering():
                if not connection.was_used:
                    oldest = connection
                    break
                oldest = oldest or connection
            connection.was_used = False
            del candidates[connection]
            candidates[connection] = None  # moves it to the end
        if oldest is None:
            self.closed["full"] += 1
            return False
        self.closed["evicted"] += 1
        self._forget(oldest, network)
        oldest.evict()
        return True

    def _forget(self, connection: Connection, network: str) -> None:
        found = self._by_network[network]
        del found[connection]
        self._resize(network, len(found) + 1, len(found))
        self.count -= 1
        if not found:
            del self._by_network[network]

    def _resize(self, network: str, before: int, after: int) -> None:
        if before:
            del self._by_size[before][network]
            if not self._by_size[before]:
                del self._by_size[before]
        if after:
            self._by_size.setdefault(after, {})[network] = None
        if after > self._most or self._most not in self._by_size:
            self._most = after
