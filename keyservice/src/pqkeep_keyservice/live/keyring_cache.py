"""Keyrings in memory, so that a request needs no query."""

from cachetools import LRUCache

from pqkeep_keyservice.keys.keyring import Keyring
from pqkeep_keyservice.storage.store import KeyStore
from pqkeep_protocol.algorithms import Algorithm
from pqkeep_protocol.keys import TenantId

CAPACITY = 10_000


class KeyringCache:
    """The current keyrings. Within one epoch, this process is the only one that changes them."""

    def __init__(self, store: KeyStore) -> None:
        self._store = store
        self._epoch = store.epoch
        self._cached: LRUCache[tuple[TenantId, Algorithm], Keyring] = LRUCache(CAPACITY)

    @property
    def epoch(self) -> int:
        """The store's current epoch. A new one empties the cache."""
        if self._epoch != self._store.epoch:
            self._epoch = self._store.epoch
            self._cached.clear()
        return self._epoch

    async def get(self, tenant: TenantId, algorithm: Algorithm) -> Keyring:
        """Return the current keyring, empty if there are no keys.

        Raises DatabaseUnavailableError and DamagedKeyError.
        """
        epoch = self.epoch
        cached = self._cached.get((tenant, algorithm))
        if cached is not None:
            return cached
        return self.update(await self._store.find_keyring(tenant, algorithm), epoch)

    def update(self, keyring: Keyring, epoch: int) -> Keyring:
        """Cache a keyring unless a newer revision is cached; return the newer of the two.

        A keyring of an epoch that is over is returned and not cached.
        """
        if epoch != self.epoch:
            return keyring
        cached = self._cached.get((keyring.tenant, keyring.algorithm))
        if cached is not None and cached.revision > keyring.revision:
            return cached
        self._cached[keyring.tenant, keyring.algorithm] = keyring
        return keyring

    def invalidate(self, keyring: Keyring) -> None:
        """Load the keyring from the store the next time."""
        self._cached.pop((keyring.tenant, keyring.algorithm), None)
