"""How often: exact sliding windows.

Every window of so many seconds, wherever it begins, holds at most so many events; events that
were refused do not count.
"""

from collections import deque
from dataclasses import dataclass
from typing import Protocol

from pqkeep_gateway.access.clock import Clock

MINUTE = 60
HOUR = 3600


@dataclass(frozen=True, slots=True)
class Limit:
    """So many events in so many seconds."""

    events: int
    seconds: int


SIGN_UPS = Limit(20, HOUR)
"""New tenants from one address."""


class ChangedError(Exception):
    """Something changed since; nothing was counted."""


class RateLimiter(Protocol):
    """Counts the events of subjects, and the changes that all gateways must notice.

    All methods raise UnavailableError if the counts are unavailable.
    """

    async def enter(self, subject: str, limit: Limit, as_of: int | None = None) -> float | None:
        """Count one event of a subject, if it may happen, and return None.

        Otherwise return the seconds until one may. Raises ChangedError unless there have been
        exactly ``as_of`` changes so far; None: whatever there have been.
        """
        ...

    async def withdraw(self, subject: str) -> None:
        """Take one event of a subject back: it does not count after all."""
        ...

    async def changes(self) -> int:
        """Return how often something changed that gateways remember."""
        ...

    async def announce_change(self) -> None:
        """Make every gateway look up again what it remembers, from now on."""
        ...

    async def close(self) -> None:
        """Close the connections."""
        ...


class MemoryRateLimiter:
    """The counts of a single gateway, in memory. They are empty when it starts."""

    def __init__(self, clock: Clock) -> None:
        """Measure time by a clock that does not jump."""
        self._clock = clock
        self._windows: dict[str, tuple[deque[float], int]] = {}
        self._changes = 0
        self._sweep_at = 1024

    async def enter(self, subject: str, limit: Limit, as_of: int | None = None) -> float | None:
        """Count one event of a subject, if it may happen; otherwise return how long to wait."""
        if as_of is not None and as_of != self._changes:
            raise ChangedError
        now = self._clock()
        known = self._windows.get(subject)
        if known is None:
            self._sweep(now)
            known = self._windows[subject] = (deque(), limit.seconds)
        times, _ = known
        begin = now - limit.seconds
        while times and times[0] <= begin:
            times.popleft()
        if len(times) >= limit.events:
            return times[len(times) - limit.events] - begin
        times.append(now)
        return None

    async def withdraw(self, subject: str) -> None:
        """Take one event of a subject back: it does not count after all."""
        times, _ = self._windows.get(subject, (deque(), 0))
        if times:
            times.pop()
        if not times:
            self._windows.pop(subject, None)

    async def changes(self) -> int:
        """Return how often something changed that gateways remember."""
        return self._changes

    async def announce_change(self) -> None:
        """Make this gateway look up again what it remembers."""
        self._changes += 1

    async def close(self) -> None:
        """Do nothing: there are no connections."""

    def _sweep(self, now: float) -> None:
        """Remove empty windows each time the number of windows has doubled."""
        if len(self._windows) < self._sweep_at:
            return
        self._windows = {
            subject: (times, seconds)
            for subject, (times, seconds) in self._windows.items()
            if times[-1] > now - seconds
        }
        self._sweep_at = max(1024, 2 * len(self._windows))
