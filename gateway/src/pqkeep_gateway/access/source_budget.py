"""A budget for each source address, cheap enough for a check before all others."""

from pqkeep_gateway.access.clock import Clock
from pqkeep_gateway.access.networks import network_of
from pqkeep_gateway.access.rate_limit import Limit

CAPACITY = 100_000
"""Source addresses with a count. Beyond it, all counts are reset."""


class SourceBudget:
    """Limits the events of each source address in each period, in this process.

    Periods are consecutive, and all counts are discarded when a period ends. A RateLimiter has
    exact windows instead: it keeps the time of each event, and may be in another process.
    """

    def __init__(self, limit: Limit, clock: Clock) -> None:
        """Measure time by a clock that does not jump."""
        self.limit = limit
        self._clock = clock
        self._period = 0.0
        self._counts: dict[str, int] = {}

    def spend(self, source_address: str) -> float | None:
        """Count one event and return None, or the seconds until the next one is allowed."""
        period, elapsed = divmod(self._clock(), self.limit.seconds)
        if period != self._period or len(self._counts) >= CAPACITY:
            self._period = period
            self._counts.clear()
        network = network_of(source_address)
        count = self._counts.get(network, 0)
        if count >= self.limit.events:
            return self.limit.seconds - elapsed
        self._counts[network] = count + 1
        return None

    def release(self, source_address: str) -> None:
        """Take back one counted event."""
        network = network_of(source_address)
        count = self._counts.get(network, 0)
        if count > 1:
            self._counts[network] = count - 1
        else:
            self._counts.pop(network, None)
