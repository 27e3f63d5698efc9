"""The clock for decisions starts at the right time and never reads the system time again."""

import sys
import time
from datetime import UTC, datetime

import pytest

from pqkeep_gateway.access.clock import Clock, date_of, steady_clock


def _since_boot() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def _calls_of(clock: Clock) -> list[object]:
    """Return the built-in functions that reading a clock calls."""
    called: list[object] = []

    def note(_: object, event: str, function: object) -> None:
        if event == "c_call":
            called.append(function)

    sys.setprofile(note)
    try:
        clock()
    finally:
        sys.setprofile(None)
    return called


def test_it_starts_right() -> None:
    """A new clock shows the machine's time in UTC."""
    before = time.time()
    shown = steady_clock()()
    assert before - 1 < shown < time.time() + 1


def test_it_reads_the_wall_never_again() -> None:
    """Reading it uses only the time since boot, which changes of the system time do not affect."""
    called = _calls_of(steady_clock())
    assert time.clock_gettime in called
    assert {time.time, time.time_ns, time.gmtime, time.localtime}.isdisjoint(called)


def test_it_is_the_time_since_boot_and_a_constant() -> None:
    """Each reading is the time since boot plus the same constant."""
    clock = steady_clock()
    least, most = -1e12, 1e12
    for _ in range(100):
        before, shown, after = _since_boot(), clock(), _since_boot()
        least, most = max(least, shown - after), min(most, shown - before)
    assert least <= most + 1e-6


@pytest.mark.parametrize(
    ("seconds", "date"),
    [
        (0.0, datetime(1970, 1, 1, tzinfo=UTC)),
        (1_798_761_599.875, datetime(2026, 12, 31, 23, 59, 59, 875_000, tzinfo=UTC)),
        (1_798_761_600.0, datetime(2027, 1, 1, tzinfo=UTC)),
    ],
)
def test_dates_are_in_utc(seconds: float, date: datetime) -> None:
    """A reading is a date in UTC in any time zone."""
    assert date_of(seconds) == date
    assert date_of(seconds).utcoffset() == date.utcoffset()
