"""Rate limits with exact sliding windows, and limits for work that runs at the same time.

Any period of the window's length holds at most the limit's events. Refused events do not count.
"""

import math
from collections import Counter, OrderedDict, deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from itertools import islice
from typing import NamedTuple, Protocol

from pqkeep_gateway.access.clock import Clock
from pqkeep_gateway.rehearsal import is_rehearsal
from pqkeep_gateway.unavailable import OverloadedError
from pqkeep_protocol.keys import TenantId

MINUTE = 60
HOUR = 3600

MAX_WINDOWS = 65_536
"""The most windows in a gateway's memory: about 70 MB with one event each."""
EXAMINED = 4
"""Windows that are examined for each new window. With only one, empty windows would accumulate."""


@dataclass(frozen=True, slots=True)
class Limit:
    """The most events in a number of seconds."""

    events: int
    seconds: int


SIGN_UPS = Limit(20, HOUR)
"""New tenants from one address."""


class Usage(NamedTuple):
    """The state of a limit after an event."""

    limit: Limit
    remaining: int
    """The least number of further events that are allowed now."""
    reset: float
    """Seconds until an event leaves the window; after a refusal, until the events are allowed."""
    is_refused: bool = False


NEAR = 0.8
"""The used part of a limit or quota that counts as nearly used."""


class Closeness(StrEnum):
    """How close to its limit a tenant was with a request."""

    NEAR = "near"
    REACHED = "reached"


class ChangedError(Exception):
    """A change was announced since; nothing was counted."""


class TooManyAttemptsError(Exception):
    """A limit on attempts is reached."""

    def __init__(self, limit: Limit, wait: float) -> None:
        """Take the limit, and the seconds until the next attempt is allowed."""
        super().__init__()
        self.limit = limit
        self.wait = wait


class RateLimiter(Protocol):
    """Counts the events of subjects, and the changes that all gateways must notice.

    All methods raise UnavailableError if the counts are unavailable.
    """

    cache_seconds: float
    """How long a gateway may cache a look-up even if the change counter stays the same. An attacker
    with write access to the counter could keep it unchanged."""

    async def count(
        self, subject: str, limit: Limit, as_of: int | None = None, *, events: int = 1
    ) -> Usage:
        """Count all events of a subject or none; return the state of the limit.

        ``events`` is at most the limit. Raises ChangedError if the change counter is not ``as_of``;
        None skips the comparison.
        """
        ...

    def count_now(
        self, subject: str, limit: Limit, as_of: int | None, now: float, *, events: int = 1
    ) -> Usage | None:
        """Count events like ``count``, from this process's memory alone.

        ``now`` is by the limiter's clock. Returns None, without counting, if the counts are
        elsewhere. Raises ChangedError.
        """
        ...

    async def enter(self, subject: str, limit: Limit, as_of: int | None = None) -> float | None:
        """Count one event; return None, or the seconds until an event is allowed."""
        ...

    async def withdraw(self, subject: str) -> None:
        """Take back one counted event of a subject."""
        ...

    async def changes(self) -> int:
        """Return the change counter."""
        ...

    async def announce_change(self) -> None:
        """Make all gateways discard their cached look-ups."""
        ...

    async def check(self) -> None:
        """Raise UnavailableError, with the cause, if the counts cannot be read and written."""
        ...

    async def close(self) -> None:
        """Close the connections."""
        ...


class MemoryRateLimiter:
    """The counts of a single gateway, in memory. They start empty.

    For each new window some others are examined in turn, and removed if they are empty. If the
    memory is still full, the examined window with the fewest events is removed. So a flood of new
    subjects does not evict a subject with many events.
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
        """Count all events of a subject or none; return the state of the limit."""
        return self.count_now(subject, limit, as_of, self._clock(), events=events)

    def count_now(
        self, subject: str, limit: Limit, as_of: int | None, now: float, *, events: int = 1
    ) -> Usage:
        """Count events at once."""
        if as_of is not None and as_of != self._changes:
            raise ChangedError
        refusal = self.refusal(subject, limit, now, events)
        if refusal is not None:
            return refusal
        known = self._windows.get(subject)
        if known is None:
            self._make_space(now)
            known = self._windows[subject] = (deque(), limit.seconds)
        times, _ = known
        times.extend([now] * events)
        return Usage(limit, limit.events - len(times), times[0] - now + limit.seconds)

    def refusal(self, subject: str, limit: Limit, now: float, events: int = 1) -> Usage | None:
        """Return the state of the limit if it refuses events now. Nothing is counted."""
        known = self._windows.get(subject)
        if known is None:
            return None
        times, _ = known
        begin = now - limit.seconds
        while times and times[0] <= begin:
            times.popleft()
        excess = len(times) + events - limit.events
        if excess <= 0:
            return None
        return Usage(limit, 0, times[excess - 1] - begin, is_refused=True)

    async def enter(self, subject: str, limit: Limit, as_of: int | None = None) -> float | None:
        """Count one event; return None, or the seconds until an event is allowed."""
        usage = await self.count(subject, limit, as_of)
        return usage.reset if usage.is_refused else None

    async def withdraw(self, subject: str) -> None:
        """Take back one counted event of a subject."""
        times, _ = self._windows.get(subject, (deque(), 0))
        if times:
            times.pop()
        if not times:
            self._windows.pop(subject, None)

    async def changes(self) -> int:
        """Return the change counter."""
        return self._changes

    async def announce_change(self) -> None:
        """Make this gateway discard its cached look-ups."""
        if not is_rehearsal():
            self._changes += 1

    async def check(self) -> None:
        """Do nothing: memory is available."""

    async def close(self) -> None:
        """Do nothing: there are no connections."""

    def _make_space(self, now: float) -> None:
        """Remove the examined windows that are empty, or one window at capacity."""
        examined = list(islice(self._windows.items(), EXAMINED))
        for subject, (times, seconds) in examined:
            if times[-1] <= now - seconds:
                del self._windows[subject]
            else:
                self._windows.move_to_end(subject)
        if len(self._windows) >= self._at_most:
            fewest, _ = min(examined, key=lambda window: len(window[1][0]))
            del self._windows[fewest]


class ConcurrencyLimit:
    """Counts running work."""

    def __init__(self, of_a_tenant: int, in_all: int) -> None:
        self._of_a_tenant = of_a_tenant
        self._in_all = in_all
        self._running: Counter[TenantId] = Counter()

    def __len__(self) -> int:
        return self._running.total()

    @contextmanager
    def run(self, tenant: TenantId) -> Iterator[None]:
        """Count one more while a block runs. Raises OverloadedError."""
        if self._running[tenant] >= self._of_a_tenant or len(self) >= self._in_all:
            raise OverloadedError
        self._running[tenant] += 1
        try:
            yield
        finally:
            self._running[tenant] -= 1
            self._running += Counter()  # drops tenants at zero
