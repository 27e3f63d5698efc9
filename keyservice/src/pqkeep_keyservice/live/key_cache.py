"""Keys and keyrings in memory, so that a request needs no query."""

from collections.abc import Awaitable, Callable, Hashable
from typing import Generic, Protocol, TypeAlias, TypeVar

from pqkeep_keyservice.keys.key_versions import KeyName, KeyVersions
from pqkeep_keyservice.keys.keyring import Keyring, KeyringId
from pqkeep_keyservice.storage.writer import Writer

CAPACITY = 10_000

N = TypeVar("N", bound=Hashable)
N_co = TypeVar("N_co", bound=Hashable, covariant=True)


class Revisioned(Protocol[N_co]):
    """What has a name and counts its changes."""

    @property
    def name(self) -> N_co:
        """Which one it is."""
        ...

    @property
    def revision(self) -> int:
        """How often it was changed."""
        ...


V = TypeVar("V", bound=Revisioned[Hashable])


class RevisionCache(Generic[N, V]):
    """The current values. Within one epoch, this process is the only one that changes them."""

    def __init__(self, writer: Writer, find: Callable[[N], Awaitable[V]]) -> None:
        """Cache what ``find`` returns, until the writer's epoch ends."""
        self._writer = writer
        self._find = find
        self._cached: dict[Hashable, V] = {}
        """The oldest first. Which was used last is not noted: that takes longer than all the rest."""
        writer.on_change(self.clear)

    def clear(self) -> None:
        """Forget everything."""
        self._cached.clear()

    def known(self, name: N) -> V | None:
        """Return the current value, if it is in memory."""
        return self._cached.get(name)

    async def get(self, name: N) -> V:
        """Return the current value. Raises DatabaseUnavailableError and what ``find`` raises."""
        cached = self._cached.get(name)
        if cached is not None:
            return cached
        epoch = self._writer.epoch
        return self.update(await self._find(name), epoch)

    def update(self, value: V, epoch: int) -> V:
        """Cache a value unless a newer revision is cached; return the newer of the two.

        A value of an epoch that is over is returned and not cached.
        """
        if epoch != self._writer.epoch:
            return value
        cached = self._cached.get(value.name)
        if cached is not None and cached.revision > value.revision:
            return cached
        if cached is None and len(self._cached) >= CAPACITY:
            del self._cached[next(iter(self._cached))]
        self._cached[value.name] = value
        return value

    def invalidate(self, value: V) -> None:
        """Load the value from the store the next time."""
        self._cached.pop(value.name, None)


KeyCache: TypeAlias = RevisionCache[KeyName, KeyVersions]
"""The versions of each key, none if there is no key. Raises DamagedKeyError."""
KeyringCache: TypeAlias = RevisionCache[KeyringId, Keyring]
"""Keyrings. Raises KEYRING_NOT_FOUND and DamagedKeyError."""
