"""How often: exact sliding windows.

Every window of so many seconds, wherever it begins, holds at most so many events; events that
were refused do not count.
"""

import math
from collections import OrderedDict, deque
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple, Protocol

from pqkeep_gateway.access.clock import Clock
from pqkeep_gateway.rehearsal import is_rehearsal

MINUTE = 60
HOUR = 3600

MAX_WINDOWS = 65_536
"""Subjects that a gateway's memory has a window of: about 70 MB, if each has one event."""
EXAMINED = 4
"""Windows that are examined for each new one: more than one, so that empty ones do not add up."""


@dataclass(frozen=True, slots=True)
class Limit:
    """So many events in so many seconds."""

    events: int
    seconds: int


SIGN_UPS = Limit(20, HOUR)
"""New tenants from one address."""


class Usage(NamedTuple):
    """What one event finds of its limit."""

    limit: Limit
    remaining: int
    """How many more events may happen now, at the least."""
    reset: float
    """Seconds until an event leaves the window; if they were refused, until they may happen."""
    is_refused: bool = False


class ChangedError(Exception):
    """Something changed since; nothing was counted."""


class TooManyAttemptsError(Exception):
    """A limit of this file is reached."""

    def __init__(self, limit: Limit, wait: float) -> None:
        """Carry the limit, and the seconds until the next attempt is allowed."""
        super().__init__()
        self.limit = limit
        self.wait = wait


class RateLimiter(Protocol):
    """Counts the events of subjects, and the changes that all gateways must notice.

    All methods raise UnavailableError if the counts are unavailable.
    """

    cache_seconds: float
    """For how long a gateway may remember what it looked up, whatever the number of changes says:
    who can write that number could keep it where it was."""

    async def count(
        self, subject: str, limit: Limit, as_of: int | None = None, *, events: int = 1
    ) -> Usage:
        """Count events of a subject, if all may happen; return what there is of the limit.

        There are at most as many as the limit has. Raises ChangedError unless there have been
        exactly ``as_of`` changes so far; None: whatever there have been.
        """
        ...

    def count_now(
        self, subject: str, limit: Limit, as_of: int | None, now: float, *, events: int = 1
    ) -> Usage | None:
        """Count events as ``count`` does, from this process's memory alone.

        ``now`` is by the limiter's clock. None: the counts are elsewhere, and nothing was counted.
        Raises ChangedError.
        """
        ...

    async def enter(self, subject: str, limit: Limit, as_of: int | None = None) -> float | None:
        """Count one event likewise; return None, or the seconds until one may happen."""
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
    """The counts of a single gateway, in memory. They are empty when it starts.

    With each new window some others are examined, in turn, and removed if they are over. If there
    are too many in spite of that, the one with the fewest events of those is removed: a flood of
    subjects that come once makes no subject's many events forgotten.
    """

    cache_seconds = math.inf

    def __init__(self, clock: Clock, *, at_most: int = MAX_WINDOWS) -> None:
        """Measure time by a clock that does not jump."""
        self._clock = clock
        self._at_most = at_most
        self._windows: OrderedDict[str, tuple[deque[float], int]] = OrderedDict()
        self._changes = 0

    async def count(
        self, subject: str, limit: Limit, as_of: int | None = None, *, events: int = 1
    ) -> Usage:
        """Count events of a subject, if all may happen; return what there is of the limit."""
        return self.count_now(subject, limit, as_of, self._clock(), events=events)

    def count_now(
        self, subject: str, limit: Limit, as_of: int | None, now: float, *, events: int = 1
    ) -> Usage:
        """Count events at once."""
        if as_of is not None and as_of != self._changes:
            raise ChangedError
        known = self._windows.get(subject)
        if known is None:
            self._make_room(now)
            known = self._windows[subject] = (deque(), limit.seconds)
        times, _ = known
        begin = now - limit.seconds
        while times and times[0] <= begin:
            times.popleft()
        excess = len(times) + events - limit.events
        if excess > 0:
            return Usage(limit, 0, times[excess - 1] - begin, is_refused=True)
        times.extend([now] * events)
        return Usage(limit, limit.events - len(times), times[0] - begin)

    async def enter(self, subject: str, limit: Limit, as_of: int | None = None) -> float | None:
        """Count one event likewise; return None, or the seconds until one may happen."""
        usage = await self.count(subject, limit, as_of)
        return usage.reset if usage.is_refused else None

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
        if not is_rehearsal():
            self._changes += 1

    async def close(self) -> None:
        """Do nothing: there are no connections."""

    def _make_room(self, now: float) -> None:
        """Remove those of the windows whose turn it is that are over, or one if there are too many."""
        examined = list(islice(self._windows.items(), EXAMINED))
        for subject, (times, seconds) in examined:
            if times[-1] <= now - seconds:
                del self._windows[subject]
            else:
                self._windows.move_to_end(subject)
        if len(self._windows) >= self._at_most:
            fewest, _ = min(examined, key=lambda window: len(window[1][0]))
            del self._windows[fewest]
