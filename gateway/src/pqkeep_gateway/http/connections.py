"""Which connections there are, and which has to go when there are too many.

Behind a proxy or a translator of addresses many clients have one address, so nobody is refused
because an address has many connections: a new one takes the place of one that is of no use. A
trusted proxy's address has no limit of its own. What is of no use is found as in the clock
algorithm for pages of memory: the oldest goes, unless it has been used since it was looked at last.
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
"""How many connections are looked at, at most, to find one that can go."""


class Turns:
    """Does one piece of work of many connections in each turn, in the order in which they came.

    What costs little for one client would keep everybody else waiting if hundreds sent it at once.
    """

    def __init__(self) -> None:
        self._waiting: deque[Callable[[], object]] = deque()

    def wait(self, work: Callable[[], object]) -> None:
        """Have some work done when it is its turn."""
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
    """Reads bodies that were refused and are sent all the same, and throws them away, in turns.

    Whoever refuses a body has to take it from the client, which could lose the answer otherwise. A
    hundred clients that send as fast as they can would have the event loop do nothing else.
    """

    def __init__(self) -> None:
        self._turns = Turns()

    def wait(self, transport: GatheringTransport) -> None:
        """Read nothing more of a connection until it is its turn."""
        transport.pause_reading()
        self._turns.wait(partial(_read_on, transport))


def _read_on(transport: GatheringTransport) -> None:
    if not transport.is_gone():
        transport.resume_reading()


class Connection(Protocol):
    """One connection of a client's."""

    was_used: bool
    """Whether it has had an answer since it was looked at last."""

    def is_answering(self) -> bool:
        """Return whether an answer is owed."""
        ...

    def evict(self) -> None:
        """Close at once."""
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
        """Take the budget of new connections, and the addresses that have no limit of their own."""
        self._at_most = at_most
        self._arrivals = arrivals
        self._proxies = proxies
        self._per_address = per_address
        self.unread_bodies = UnreadBodies()
        self.small_chunks = Turns()
        self.count = 0
        """How many there are."""
        self.closed = {"too_fast": 0, "full": 0, "evicted": 0, "unread": 0}
        """How many were closed because they, or their answers, were too many; by what was done."""
        self._by_network: dict[str, dict[Connection, None]] = {}  # each: the oldest first
        self._by_size: dict[int, dict[str, None]] = {}
        self._most = 0
        """Of one network. Networks are kept by how many they have: the fullest is found at once."""

    def may_arrive(self, address: str) -> bool:
        """Return whether an address may open a connection now."""
        if address in self._proxies or self._arrivals.spend(address) is None:
            return True
        self.closed["too_fast"] += 1
        return False

    def add(self, connection: Connection, address: str) -> bool:
        """Count a new connection; return whether there is room for it."""
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
        """Count a connection no more, if it was counted."""
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
            candidates[connection] = None  # at the end
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
