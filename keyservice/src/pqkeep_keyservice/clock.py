"""The wall clock: what is recorded, and when something is due, is by it.

Deadlines are not: they are in the event loop's time, which no change of the machine's clock moves.
"""

import time
from datetime import UTC, datetime, timedelta

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def now_us() -> int:
    """Return the time in microseconds since 1970."""
    return time.time_ns() // 1000


def now() -> datetime:
    """Return the time, in UTC, to the microsecond."""
    return _EPOCH + timedelta(microseconds=now_us())
