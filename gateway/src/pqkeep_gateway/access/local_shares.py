"""Rate limits while the gateways' common store is away: each gateway enforces its share.

The share is the limit divided by the number of gateways. A request to a share costs no wait. Shares
keep their windows between absences, so an attacker who interrupts the store gets no new window.

No cached look-up is valid meanwhile, because announcements of changes do not arrive: each admitted
request reads its credential in the database. A request beyond the share is refused without that.
"""

import asyncio
from contextvars import Context

from pqkeep_gateway.access.clock import Clock
from pqkeep_gateway.access.rate_limit import (
    ChangedError,
    Limit,
    MemoryRateLimiter,
    RateLimiter,
    Usage,
)
from pqkeep_gateway.unavailable import UnavailableError
from pqkeep_protocol.startup.logs import logger

_LOG = logger(__name__)

RETRY_SECONDS = 0.5
"""The pause before the store is tried again."""
NO_CHANGES = 0
"""A change counter that no store has."""


class LocalShares:
    """A RateLimiter that counts in a store, or in memory while the store is unavailable."""

    def __init__(
        self,
        store: RateLimiter,
        gateways: int,
        clock: Clock,
        *,
        retry_seconds: float = RETRY_SECONDS,
    ) -> None:
        """Take the store, and the number of gateways that share a limit."""
        self._store = store
        self._gateways = gateways
        self._clock = clock
        self._retry_seconds = retry_seconds
        self._memory = MemoryRateLimiter(clock)
        self._returning: asyncio.Task[None] | None = None
        """The task that waits for the store. It is None while the store is used."""
        self.cache_seconds = store.cache_seconds

    async def count(
        self, subject: str, limit: Limit, as_of: int | None = None, *, events: int = 1
    ) -> Usage:
        """Count all events of a subject or none; return the state of the limit."""
        if self._returning is None:
            try:
                return await self._store.count(subject, limit, as_of, events=events)
            except UnavailableError as error:
                self._leave(error)
        share = Limit(max(1, limit.events // self._gateways), limit.seconds)
        if events > share.events:
            return Usage(share, 0, share.seconds, is_refused=True)
        now = self._clock()
        refusal = self._memory.refusal(subject, share, now, events)
        if refusal is not None:
            return refusal
        if as_of is not None:
            raise ChangedError
        return self._memory.count_now(subject, share, None, now, events=events)

    def count_now(
        self, subject: str, limit: Limit, as_of: int | None, now: float, *, events: int = 1
    ) -> Usage | None:
        """Return None: the counts are in the store, or no cached look-up is valid."""
        return None

    async def enter(self, subject: str, limit: Limit, as_of: int | None = None) -> float | None:
        """Count one event; return None, or the seconds until an event is allowed."""
        usage = await self.count(subject, limit, as_of)
        return usage.reset if usage.is_refused else None

    async def withdraw(self, subject: str) -> None:
        """Take back one counted event of a subject."""
        if self._returning is None:
            try:
                return await self._store.withdraw(subject)
            except UnavailableError as error:
                self._leave(error)
        return await self._memory.withdraw(subject)

    async def changes(self) -> int:
        """Return the change counter; NO_CHANGES while the store is away."""
        if self._returning is None:
            try:
                return await self._store.changes()
            except UnavailableError as error:
                self._leave(error)
        return NO_CHANGES

    async def announce_change(self) -> None:
        """Make all gateways discard their cached look-ups.

        A gateway without the store has no valid look-ups, and announces a change when the store is
        back. So this method always tries the store, for the gateways that can reach it.
        """
        try:
            await self._store.announce_change()
        except UnavailableError as error:
            self._leave(error)

    async def check(self) -> None:
        """Raise UnavailableError if the store is unavailable."""
        await self._store.check()

    async def close(self) -> None:
        """Close the connections."""
        if self._returning is not None:
            self._returning.cancel()
            await asyncio.gather(self._returning, return_exceptions=True)
        await self._store.close()

    def _leave(self, error: UnavailableError) -> None:
        if self._returning is None:
            _LOG.error(
                "this gateway enforces its share of the rate limits",
                gateways=self._gateways,
                problem=error.problem.value,
                cause=error.cause,
            )
            # A new context: a rehearsed request must not make the announcement a rehearsal.
            self._returning = asyncio.create_task(self._return(), context=Context())

    async def _return(self) -> None:
        """Wait for the store; announce the changes of its absence."""
        while True:
            await asyncio.sleep(self._retry_seconds)
            try:
                await self._store.check()
                await self._store.announce_change()
            except UnavailableError:
                continue
            self._returning = None
            _LOG.info("the rate limits' server is used again")
            return
