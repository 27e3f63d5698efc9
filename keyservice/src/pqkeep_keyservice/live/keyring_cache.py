"""Keyrings in memory, so that a request does not ask the database what the last one asked."""

from cachetools import LRUCache

from pqkeep_keyservice.keys.keyring import Keyring
from pqkeep_keyservice.storage.store import KeyStore
from pqkeep_protocol.algorithms import Algorithm
from pqkeep_protocol.keys import TenantId

CAPACITY = 10_000


class KeyringCache:
    """The current keyrings. In one epoch this process is the only one that changes them."""

    def __init__(self, store: KeyStore) -> None:
        """Start empty."""
        self._store = store
        self._epoch = store.epoch
        self._known: LRUCache[tuple[TenantId, Algorithm], Keyring] = LRUCache(CAPACITY)

    @property
    def epoch(self) -> int:
        """The epoch that is now; what was known in the one before it is forgotten."""
        if self._epoch != self._store.epoch:
            self._epoch = self._store.epoch
            self._known.clear()
        return self._epoch

    async def get(self, tenant: TenantId, algorithm: Algorithm) -> Keyring:
        """Return the current keyring; an empty one where there are no keys.

        Raises DatabaseUnavailableError.
        """
        epoch = self.epoch
        known = self._known.get((tenant, algorithm))
        if known is not None:
            return known
        loaded = await self._store.find_keyring(tenant, algorithm)
        return self.put(loaded, epoch)

    def put(self, keyring: Keyring, epoch: int) -> Keyring:
        """Take note of a keyring, unless a newer one is known; return the newer of the two.

        Nothing is kept of an epoch that is over.
        """
        if epoch != self.epoch:
            return keyring
        known = self._known.get((keyring.tenant, keyring.algorithm))
        if known is not None and known.revision > keyring.revision:
            return known
        self._known[keyring.tenant, keyring.algorithm] = keyring
        return keyring

    def forget(self, keyring: Keyring) -> None:
        """Ask the database next time."""
        self._known.pop((keyring.tenant, keyring.algorithm), None)
