"""A steady clock for decisions: changes of the machine's clock do not affect it."""

import time
from collections.abc import Callable
from datetime import UTC, datetime

Clock = Callable[[], float]
"""Seconds since 1970, UTC."""


def steady_clock() -> Clock:
    """Return a clock that starts at the current time and never jumps.

    A jump would open rate limits, lock tenants out, or change the lifetime of credentials.
    """
    # CLOCK_BOOTTIME advances while the machine sleeps.
    read, since_boot = time.clock_gettime, time.CLOCK_BOOTTIME
    offset = time.time() - read(since_boot)
    return lambda: offset + read(since_boot)


def date_of(seconds: float) -> datetime:
    """Return a clock's reading as a date in UTC."""
    return datetime.fromtimestamp(seconds, UTC)
