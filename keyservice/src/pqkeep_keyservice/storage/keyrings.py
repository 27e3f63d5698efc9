"""Keyrings in memory, so that a request does not ask the database what the last one asked."""

from cachetools import LRUCache

from pqkeep_keyservice.keyring import Keyring
from pqkeep_keyservice.storage.store import KeyStore
from pqkeep_protocol.algorithms import Algorithm
from pqkeep_protocol.keys import TenantId

CAPACITY = 10_000


class Keyrings:
    """The current keyrings. This process is the only one that changes them."""

    def __init__(self, store: KeyStore) -> None:
        """Start empty."""
        self._store = store
        self._known: LRUCache[tuple[TenantId, Algorithm], Keyring] = LRUCache(CAPACITY)

    async def get(self, tenant: TenantId, algorithm: Algorithm) -> Keyring:
        """Return the current keyring; an empty one where there are no keys."""
        known = self._known.get((tenant, algorithm))
        if known is not None:
            return known
        loaded = await self._store.load(tenant, algorithm)
        return self.put(loaded)

    def put(self, ring: Keyring) -> Keyring:
        """Take note of a keyring, unless a newer one is known; return the newer of the two."""
        known = self._known.get((ring.tenant, ring.algorithm))
        if known is not None and known.revision > ring.revision:
            return known
        self._known[ring.tenant, ring.algorithm] = ring
        return ring

    def forget(self, ring: Keyring) -> None:
        """Ask the database next time."""
        self._known.pop((ring.tenant, ring.algorithm), None)
