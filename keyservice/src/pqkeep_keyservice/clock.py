"""The wall clock, for recorded times and scheduled changes.

Deadlines use the event loop's time instead, which a change of the machine's clock does not move.
"""

import time
from datetime import UTC, datetime, timedelta

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def now_us() -> int:
    """Return the current time in microseconds since 1970."""
    return time.time_ns() // 1000


def now() -> datetime:
    """Return the current time in UTC, to the microsecond."""
    return _EPOCH + timedelta(microseconds=now_us())
