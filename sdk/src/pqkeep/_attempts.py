"""When to ask again, and when to give up: the attempts of one call.

Everything may be asked again: what changes something carries an Idempotency-Key. Worth it is what
errors.RETRIED names. A pause doubles with each attempt, half of it at random, so that many clients
do not come back at once; where the service says how long to wait, it is that and a little.
"""

import time
from secrets import SystemRandom

from pqkeep.errors import RETRIED, PqkeepError

FIRST_PAUSE = 0.1
LONGEST_PAUSE = 5.0
ATTEMPT_SECONDS = 15.0
"""How long one attempt waits: the service answers within 10 seconds, if only that it cannot."""
CONNECT_SECONDS = 5.0

_RANDOM = SystemRandom()


class Attempts:
    """Counts the attempts of one call, and keeps its deadline."""

    def __init__(self, seconds: float, retries: int) -> None:
        """Begin now: so many seconds for everything, and so many attempts after the first."""
        self._ends = time.monotonic() + seconds
        self._retries = retries
        self._made = 0

    @property
    def is_over(self) -> bool:
        """Whether the deadline is over."""
        return time.monotonic() >= self._ends

    def left(self) -> float:
        """Return how many seconds are left for the attempt that begins now."""
        return max(self._ends - time.monotonic(), 0.001)

    def pause_after(self, error: PqkeepError) -> float | None:
        """Return for how many seconds to wait before the next attempt; None if there is none."""
        if not isinstance(error, RETRIED) or self._made >= self._retries:
            return None
        usual = min(FIRST_PAUSE * 2**self._made, LONGEST_PAUSE)
        jitter = _RANDOM.uniform(0, usual / 2)
        pause = usual / 2 + jitter if error.retry_after is None else error.retry_after + jitter
        self._made += 1
        return pause if pause < self._ends - time.monotonic() else None
