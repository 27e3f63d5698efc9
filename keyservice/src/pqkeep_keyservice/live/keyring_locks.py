"""One change at a time for each keyring.

Without it, all but one of the changes that are made at once would be made in vain, and made again.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from weakref import WeakValueDictionary

from pqkeep_protocol.algorithms import Algorithm
from pqkeep_protocol.errors import ErrorKind, KeyServiceError
from pqkeep_protocol.keys import TenantId

MAX_WAITING = 96
"""Well below what may be in flight on a connection: nothing else ever waits behind changes."""
MAX_WAITING_PER_TENANT = 64


class KeyringLocks:
    """Queues of changes."""

    def __init__(self) -> None:
        """Start with nobody waiting."""
        self._locks: WeakValueDictionary[tuple[TenantId, Algorithm], asyncio.Lock] = (
            WeakValueDictionary()
        )
        self._present: Counter[TenantId] = Counter()

    @asynccontextmanager
    async def turn(
        self, tenant: TenantId, algorithm: Algorithm, deadline: float
    ) -> AsyncIterator[None]:
        """Wait for the turn, and have it.

        Raises OVERLOADED where too many wait, and DEADLINE_EXCEEDED where the turn
        does not come before the deadline (in the event loop's time).
        """
        if self._present[tenant] >= MAX_WAITING_PER_TENANT or self._present.total() >= MAX_WAITING:
            raise KeyServiceError(ErrorKind.OVERLOADED)
        lock = self._locks.setdefault((tenant, algorithm), asyncio.Lock())
        self._present[tenant] += 1
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
            self._present[tenant] -= 1
            if not self._present[tenant]:
                del self._present[tenant]
