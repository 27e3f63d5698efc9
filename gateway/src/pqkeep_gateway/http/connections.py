"""Which connections there are, and which has to go when there are too many.

Behind a proxy every client has the proxy's address, so nobody is refused because an address has
many connections: a new one takes the place of one that is of no use. That is found as in the clock
algorithm for pages of memory: the oldest goes, unless it has been used since it was looked at last.
"""

from ipaddress import IPv6Address, ip_address
from itertools import islice
from typing import Protocol

IPV6_SITE_BITS = 64
"""Bits that one subscriber's IPv6 addresses have in common."""
MAX_EXAMINED = 64
"""How many connections are looked at, at most, to find one that can go."""


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

    def __init__(self, at_most: int, per_address: int) -> None:
        self._at_most = at_most
        self._per_address = per_address
        self._count = 0
        self._by_site: dict[str, dict[Connection, None]] = {}  # each: the oldest first

    def add(self, connection: Connection, address: str) -> bool:
        """Count a new connection; return whether there is room for it."""
        site = site_of(address)
        if len(self._by_site.get(site, ())) >= self._per_address and not self._evict_one_of(site):
            return False
        if self._count >= self._at_most:
            fullest = max(self._by_site, key=lambda each: len(self._by_site[each]))
            if not self._evict_one_of(fullest):
                return False
        self._by_site.setdefault(site, {})[connection] = None
        self._count += 1
        return True

    def remove(self, connection: Connection, address: str) -> None:
        """Count a connection no more, if it was counted."""
        site = site_of(address)
        if connection in self._by_site.get(site, ()):
            self._forget(connection, site)

    def _evict_one_of(self, site: str) -> bool:
        candidates = self._by_site[site]
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
            return False
        self._forget(oldest, site)
        oldest.evict()
        return True

    def _forget(self, connection: Connection, site: str) -> None:
        del self._by_site[site][connection]
        self._count -= 1
        if not self._by_site[site]:
            del self._by_site[site]


def site_of(address: str) -> str:
    """Return what addresses have in common that one client can choose from: a /64 of IPv6."""
    if ":" not in address:
        return address
    parsed = ip_address(address.partition("%")[0])
    if not isinstance(parsed, IPv6Address):
        return address
    if parsed.ipv4_mapped is not None:
        return str(parsed.ipv4_mapped)
    return str(IPv6Address(int(parsed) >> IPV6_SITE_BITS << IPV6_SITE_BITS))
