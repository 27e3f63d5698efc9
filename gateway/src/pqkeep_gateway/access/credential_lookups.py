"""Looking credentials up in the database, so that unknown ones cost it little.

An address whose credentials are unknown has a budget, which is asked before the database is. What
has been accepted before is outside the budget: an address may be a whole company's.
"""

from collections.abc import Awaitable, Callable
from typing import TypeVar

from cachetools import LRUCache, TTLCache

from pqkeep_gateway.access.clock import Clock
from pqkeep_gateway.access.rate_limit import MINUTE, Limit
from pqkeep_gateway.access.source_budget import SourceBudget

T = TypeVar("T")

UNKNOWN_CREDENTIALS = Limit(300, MINUTE)
"""Of one source address, each counted once in UNKNOWN_SECONDS."""
UNKNOWN_SECONDS = 5.0
"""For how long a credential stays unknown. Its owner never waits for that: credentials are shown
after they have been stored, and this gateway's own are accepted at once."""
UNKNOWN_CAPACITY = 10_000
ACCEPTED_CAPACITY = 100_000


class TooManyUnknownCredentialsError(Exception):
    """An address has used up its budget of unknown credentials."""

    def __init__(self, limit: Limit, wait: float) -> None:
        """Carry the limit, and the seconds until the next look-up is allowed."""
        super().__init__()
        self.limit = limit
        self.wait = wait


class CredentialLookups:
    """Bounds how often credentials that nobody has reach the database.

    Credentials are known by their digests (32 bytes).
    """

    def __init__(self, clock: Clock) -> None:
        self._budget = SourceBudget(UNKNOWN_CREDENTIALS, clock)
        self._accepted: LRUCache[bytes, None] = LRUCache(ACCEPTED_CAPACITY)
        self._unknown: TTLCache[bytes, None] = TTLCache(UNKNOWN_CAPACITY, UNKNOWN_SECONDS, clock)

    async def find(
        self, digest: bytes, source_address: str, look_up: Callable[[bytes], Awaitable[T | None]]
    ) -> T | None:
        """Return what ``look_up`` finds; None without asking it if it has just found nothing.

        Raises TooManyUnknownCredentialsError, and what ``look_up`` raises.
        """
        if digest in self._unknown:
            return None
        if digest in self._accepted:
            found = await look_up(digest)
        else:
            found = await self._look_up_new(digest, source_address, look_up)
        if found is None:
            self._accepted.pop(digest, None)
            self._unknown[digest] = None
        else:
            self._accepted[digest] = None
        return found

    async def is_known(
        self, digest: bytes, source_address: str, look_up: Callable[[bytes], Awaitable[bool]]
    ) -> bool:
        """Return likewise whether a credential is known."""

        async def found(digest: bytes) -> bool | None:
            return await look_up(digest) or None

        return await self.find(digest, source_address, found) is not None

    def accept(self, digest: bytes) -> None:
        """Look a new credential up whenever it is shown, from now on."""
        self._unknown.pop(digest, None)
        self._accepted[digest] = None

    async def _look_up_new(
        self, digest: bytes, source_address: str, look_up: Callable[[bytes], Awaitable[T | None]]
    ) -> T | None:
        """Count before the look-up, so that many at once are bounded too; uncount if it is known."""
        wait = self._budget.spend(source_address)
        if wait is not None:
            raise TooManyUnknownCredentialsError(self._budget.limit, wait)
        is_unknown = False
        try:
            found = await look_up(digest)
            is_unknown = found is None
        finally:
            if not is_unknown:
                self._budget.release(source_address)
        return found
