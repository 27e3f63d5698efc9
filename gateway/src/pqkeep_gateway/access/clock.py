"""The time that decisions are made by: it runs on steadily when the machine's clock is changed."""

import time
from collections.abc import Callable
from datetime import UTC, datetime

Clock = Callable[[], float]
"""Seconds since 1970, UTC."""


def steady_clock() -> Clock:
    """Return a clock that is right now, and never jumps afterwards.

    An hour back, or a day on, would otherwise open rate limits or shut tenants out, and give
    credentials more time than they have, or less.
    """
    # The time since boot goes on while the machine sleeps.
    read, since_boot = time.clock_gettime, time.CLOCK_BOOTTIME
    offset = time.time() - read(since_boot)
    return lambda: offset + read(since_boot)


def date_of(seconds: float) -> datetime:
    """Return a clock's reading as a date in UTC."""
    return datetime.fromtimestamp(seconds, UTC)
