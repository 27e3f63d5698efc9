"""One change at a time for each key.

Without the locks, concurrent changes of one key would all but one be stale, and tried again.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from weakref import WeakValueDictionary

from pqkeep_keyservice.keys.key_versions import KeyName
from pqkeep_keyservice.live import MAX_WAITING
from pqkeep_protocol.errors import ErrorKind, KeyServiceError
from pqkeep_protocol.keys import TenantId

MAX_PER_TENANT = 64


class KeyLocks:
    """A bounded queue of changes for each key."""

    def __init__(self) -> None:
        self._locks: WeakValueDictionary[KeyName, asyncio.Lock] = WeakValueDictionary()
        self._changes: Counter[TenantId] = Counter()

    @asynccontextmanager
    async def lock(self, name: KeyName, deadline: float) -> AsyncIterator[None]:
        """Hold the key's lock.

        Raises OVERLOADED if too many changes wait or run, and DEADLINE_EXCEEDED if the lock is not free
        before the deadline (in the event loop's time).
        """
        tenant = name.tenant
        if self._changes[tenant] >= MAX_PER_TENANT or self._changes.total() >= MAX_WAITING:
            raise KeyServiceError(ErrorKind.OVERLOADED)
        lock = self._locks.setdefault(name, asyncio.Lock())
        self._changes[tenant] += 1
        try:
            try:
                async with asyncio.timeout_at(deadline):
                    await lock.acquire()
            except TimeoutError:
                raise KeyServiceError(ErrorKind.DEADLINE_EXCEEDED) from None
            try:
                yield
            finally:
                lock.release()
        finally:
            self._changes[tenant] -= 1
            if not self._changes[tenant]:
                del self._changes[tenant]
