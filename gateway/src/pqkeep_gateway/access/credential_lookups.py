"""Credential look-ups in the database, with a limit for unknown credentials.

Each source address has a budget of unknown credentials, which is checked before the database.
Credentials that were accepted before are outside the budget, because many clients can share an
address.
"""

from collections.abc import Awaitable, Callable
from typing import TypeVar

from cachetools import LRUCache, TTLCache

from pqkeep_gateway.access.clock import Clock
from pqkeep_gateway.access.rate_limit import MINUTE, Limit
from pqkeep_gateway.access.source_budget import SourceBudget

T = TypeVar("T")

UNKNOWN_CREDENTIALS = Limit(300, MINUTE)
"""Per source address. A credential counts once in UNKNOWN_SECONDS."""
UNKNOWN_SECONDS = 5.0
"""The time for which a credential is remembered as unknown. It never delays the owner: a credential
is stored before it is shown, and this gateway accepts its own at once."""
UNKNOWN_CAPACITY = 10_000
ACCEPTED_CAPACITY = 100_000


class TooManyUnknownCredentialsError(Exception):
    """An address has used up its budget of unknown credentials."""

    def __init__(self, limit: Limit, wait: float) -> None:
        """Take the limit, and the seconds until the next look-up is allowed."""
        super().__init__()
        self.limit = limit
        self.wait = wait


class CredentialLookups:
    """Limits how often unknown credentials reach the database.

    Credentials are identified by their digests (32 bytes).
    """

    def __init__(self, clock: Clock) -> None:
        self._budget = SourceBudget(UNKNOWN_CREDENTIALS, clock)
        self._accepted: LRUCache[bytes, None] = LRUCache(ACCEPTED_CAPACITY)
        self._unknown: TTLCache[bytes, None] = TTLCache(UNKNOWN_CAPACITY, UNKNOWN_SECONDS, clock)

    async def find(
        self, digest: bytes, source_address: str, look_up: Callable[[bytes], Awaitable[T | None]]
    ) -> T | None:
        """Return the result of ``look_up``.

        If it returned None recently, return None without a call.

        Raises TooManyUnknownCredentialsError, and the errors of ``look_up``.
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
        """Return whether a credential is known, within the same limits as ``find``."""

        async def found(digest: bytes) -> bool | None:
            return await look_up(digest) or None

        return await self.find(digest, source_address, found) is not None

    def accept(self, digest: bytes) -> None:
        """Mark a new credential as known, so that it is looked up at once."""
        self._unknown.pop(digest, None)
        self._accepted[digest] = None

    async def _look_up_new(
        self, digest: bytes, source_address: str, look_up: Callable[[bytes], Awaitable[T | None]]
    ) -> T | None:
        """Count the attempt before the look-up, so that concurrent attempts are limited too.

        A known credential is not counted.
        """
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
