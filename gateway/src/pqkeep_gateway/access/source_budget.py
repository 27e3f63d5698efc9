"""A budget for each source address: cheap enough to be asked before anything else is done."""

from pqkeep_gateway.access.clock import Clock
from pqkeep_gateway.access.networks import network_of
from pqkeep_gateway.access.rate_limit import Limit

CAPACITY = 100_000
"""Source addresses that are counted at a time. One more, and all counts begin anew."""


class SourceBudget:
    """At most so many events of each source address in each period, in this process.

    Periods follow each other, so that a period's counts are discarded at its end. The exact windows
    of a RateLimiter keep the time of each event, and can be in another process.
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
        """Take one event back: it does not count after all."""
        network = network_of(source_address)
        count = self._counts.get(network, 0)
        if count > 1:
            self._counts[network] = count - 1
        else:
            self._counts.pop(network, None)
