"""Every window holds at most the limit's events, in memory and in Redis."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

import pytest
import redis
from hypothesis import given, settings
from hypothesis import strategies as st

from pqkeep_gateway.access.clock import Clock
from pqkeep_gateway.access.rate_limit import (
    MAX_WINDOWS,
    MINUTE,
    SIGN_UPS,
    ChangedError,
    Limit,
    MemoryRateLimiter,
    RateLimiter,
    Usage,
)
from pqkeep_gateway.storage.redis_rate_limiter import RedisRateLimiter

LIMIT = Limit(5, 60)
EIGHTHS = st.integers(min_value=0, max_value=8 * 90)
PATTERNS = st.lists(EIGHTHS, min_size=1, max_size=60)
"""Pauses between events, in eighths of a second: none, some, or more than a whole window."""
EARLY = st.sampled_from([0.001, 0.125, 1.0, 7.5, 30.0])
LIMITS = st.builds(Limit, st.integers(1, 6), st.sampled_from([1, 10, 60]))


@dataclass
class Setting:
    """Windows of one kind, and their clock."""

    rate_limiter: RateLimiter
    now: float = 1000.0

    async def enter(self, subject: str = "a", limit: Limit = LIMIT) -> float | None:
        """Count an event now."""
        return await self.rate_limiter.enter(subject, limit)

    async def admitted(self, subject: str = "a", limit: Limit = LIMIT) -> int:
        """Return how many events are allowed now."""
        many = 0
        while await self.enter(subject, limit) is None:
            many += 1
        return many


Kind = Callable[[Clock], RateLimiter]


@pytest.fixture(params=["memory", "redis"])
def kind(request: pytest.FixtureRequest) -> Kind:
    """Every kind of windows, empty."""
    if request.param == "memory":
        return MemoryRateLimiter
    address: str = request.getfixturevalue("redis_server")
    with redis.Redis.from_url(f"redis://{address}") as server:
        server.flushall()
    return lambda clock: RedisRateLimiter(f"redis://{address}", None, clock)


@pytest.fixture
async def setting(kind: Kind) -> AsyncIterator[Setting]:
    """New windows with a clock."""
    made: list[Setting] = []
    rate_limiter = kind(lambda: made[0].now)
    made.append(Setting(rate_limiter))
    yield made[0]
    await rate_limiter.close()


async def test_so_many_and_no_more(setting: Setting) -> None:
    """The fifth event is allowed; the sixth only 60 seconds after the first."""
    assert [await setting.enter() for _ in range(5)] == 5 * [None]
    for setting.now, wait in ((1000.0, 60.0), (1010.0, 50.0), (1059.0, 1.0)):
        assert await setting.enter() == pytest.approx(wait, abs=1e-5)
    setting.now = 1060.001
    assert await setting.admitted() == 5


async def test_what_is_left_of_the_limit(setting: Setting) -> None:
    """Each event returns the remaining events, and the time until the first one leaves."""

    async def count() -> tuple[int, float, bool]:
        _, remaining, reset, is_refused = await setting.rate_limiter.count("a", LIMIT)
        return remaining, round(reset, 4), is_refused

    for remaining, setting.now in ((4, 1000.0), (3, 1010.0), (2, 1020.0), (1, 1020.0), (0, 1030.0)):
        assert await count() == (remaining, 1060.0 - setting.now, False)
    assert await count() == (0, 30.0, True)
    setting.now = 1075.0
    assert await count() == (1, 5.0, False)
    setting.now = 2000.0
    assert await count() == (4, 60.0, False)


async def test_several_events_happen_all_or_not_at_all(setting: Setting) -> None:
    """With a limit of five, three events are allowed, three more refused, and then two allowed."""

    async def count(events: int) -> tuple[int, float, bool]:
        _, remaining, reset, is_refused = await setting.rate_limiter.count(
            "a", LIMIT, events=events
        )
        return remaining, round(reset, 4), is_refused

    assert await count(3) == (2, 60.0, False)
    setting.now += 10
    assert await count(3) == (0, 50.0, True)
    assert await count(2) == (0, 50.0, False)
    assert await count(1) == (0, 50.0, True)
    setting.now += 50.001
    assert await count(4) == (0, 9.999, True)
    assert await count(3) == (0, 9.999, False)
    setting.now += 60.001
    assert await count(5) == (0, 60.0, False)


async def test_each_subject_has_its_own_window(setting: Setting) -> None:
    """Subjects with similar names have separate windows."""
    assert await setting.admitted("a") == 5
    for other in ("b", "A", "a:", ":a", "a b", "*", "", "é", "a\0", "a" * 500):
        assert await setting.admitted(other) == 5
    assert await setting.admitted("a") == 0


async def test_what_is_refused_does_not_count(setting: Setting) -> None:
    """Refused events do not lengthen the wait."""
    await setting.admitted()
    for setting.now in range(1001, 1060):
        assert await setting.enter() is not None
    setting.now = 1060.001
    assert await setting.enter() is None


async def test_a_limit_that_is_lowered_holds_at_once(setting: Setting) -> None:
    """A lower limit refuses events until enough earlier ones have left the window."""
    for setting.now in (1000.0, 1010.0, 1020.0, 1030.0):
        await setting.enter()
    lowered = Limit(2, 60)
    assert await setting.enter(limit=lowered) == pytest.approx(50.0, abs=1e-5)
    setting.now = 1079.0
    assert await setting.enter(limit=lowered) == pytest.approx(1.0, abs=1e-5)
    setting.now = 1080.5
    assert await setting.admitted(limit=lowered) == 1


async def test_a_limit_that_is_raised_holds_at_once(setting: Setting) -> None:
    """A higher limit allows the difference at once; earlier events still count."""
    await setting.admitted()
    setting.now = 1001.0
    assert await setting.admitted(limit=Limit(8, 60)) == 3
    setting.now = 1060.5
    assert await setting.admitted(limit=Limit(8, 60)) == 5


async def test_a_limit_that_goes_down_and_up_again_forgets_nothing(setting: Setting) -> None:
    """A temporarily lower limit does not allow more events than the higher one."""
    for setting.now in (1000.0, 1020.0, 1040.0, 1041.0):
        await setting.enter()
    setting.now = 1085.0
    assert await setting.admitted(limit=Limit(3, 60)) == 1
    assert await setting.admitted() == 2


async def test_at_once(setting: Setting) -> None:
    """Of a hundred simultaneous events, exactly the limit's number is allowed."""
    outcomes = await asyncio.gather(*(setting.enter(limit=Limit(30, 60)) for _ in range(100)))
    assert outcomes.count(None) == 30


async def test_a_change_is_noticed_and_nothing_counted(setting: Setting) -> None:
    """A caller with an outdated change counter gets an error, and nothing is counted."""
    rate_limiter = setting.rate_limiter
    as_of = await rate_limiter.changes()
    assert await rate_limiter.enter("a", LIMIT, as_of) is None
    await rate_limiter.announce_change()
    for stale in (as_of, as_of - 1, as_of + 2):
        for _ in range(20):
            with pytest.raises(ChangedError):
                await rate_limiter.enter("a", LIMIT, stale)
    assert await rate_limiter.enter("a", LIMIT, await rate_limiter.changes()) is None
    assert await setting.admitted() == 3


async def test_a_change_comes_before_the_limit(setting: Setting) -> None:
    """An outdated change counter is reported before a used-up limit, which may have changed."""
    as_of = await setting.rate_limiter.changes()
    await setting.admitted()
    await setting.rate_limiter.announce_change()
    with pytest.raises(ChangedError):
        await setting.rate_limiter.enter("a", LIMIT, as_of)


async def test_every_change_is_another_number(setting: Setting) -> None:
    """A change counter never repeats, and reading it does not change it."""
    seen = []
    for _ in range(10):
        seen.append(await setting.rate_limiter.changes())
        assert await setting.rate_limiter.changes() == seen[-1]
        await setting.rate_limiter.announce_change()
    assert len(set(seen)) == 10


async def _check_exact(setting: Setting, pauses: list[float], limit: Limit) -> None:
    """Check that no window exceeds the limit, and that no event is refused without need."""
    happened: list[float] = []
    subject = str(uuid4())
    for pause in pauses:
        setting.now += pause
        inside = sum(time > setting.now - limit.seconds for time in happened)
        if await setting.enter(subject, limit) is None:
            assert inside < limit.events
            happened.append(setting.now)
        else:
            assert inside == limit.events


async def _check_waits(setting: Setting, pauses: list[float], limit: Limit, early: float) -> None:
    """Check that an event is allowed after each wait, and not much earlier."""
    subject = str(uuid4())
    for pause in pauses:
        setting.now += pause
        wait = await setting.enter(subject, limit)
        if wait is not None:
            assert 0 < wait <= limit.seconds
            end = setting.now + wait
            if early < wait:
                setting.now = end - early
                again = await setting.enter(subject, limit)
                assert again == pytest.approx(early, abs=1e-5)
            setting.now = end + 1e-5
            assert await setting.enter(subject, limit) is None


def _in_memory(check: Callable[[Setting], Coroutine[Any, Any, None]]) -> None:
    setting: list[Setting] = []
    setting.append(Setting(MemoryRateLimiter(lambda: setting[0].now)))
    asyncio.run(check(setting[0]))


def _in_redis(address: str, check: Callable[[Setting], Coroutine[Any, Any, None]]) -> None:
    async def run() -> None:
        setting: list[Setting] = []
        rate_limiter = RedisRateLimiter(f"redis://{address}", None, lambda: setting[0].now)
        setting.append(Setting(rate_limiter))
        await check(setting[0])
        await rate_limiter.close()

    asyncio.run(run())


@given(PATTERNS, LIMITS)
def test_memory_is_exact_for_every_pattern(pauses: list[int], limit: Limit) -> None:
    """No window in memory exceeds the limit, and only events that would exceed it are refused."""
    _in_memory(lambda setting: _check_exact(setting, [pause / 8 for pause in pauses], limit))


@settings(max_examples=40)
@given(PATTERNS, LIMITS)
def test_redis_is_exact_for_every_pattern(
    redis_server: str, pauses: list[int], limit: Limit
) -> None:
    """No window in Redis exceeds the limit, and only events that would exceed it are refused."""
    apart = [pause / 8 + 1e-4 for pause in pauses]  # a microsecond is rounded: none is at an edge
    _in_redis(redis_server, lambda setting: _check_exact(setting, apart, limit))


@given(PATTERNS, LIMITS, EARLY)
def test_memory_tells_the_right_wait(pauses: list[int], limit: Limit, early: float) -> None:
    """An event is allowed after the wait that memory reports, and not a moment earlier."""
    _in_memory(lambda setting: _check_waits(setting, [pause / 8 for pause in pauses], limit, early))


@settings(max_examples=40)
@given(PATTERNS, LIMITS, EARLY)
def test_redis_tells_the_right_wait(
    redis_server: str, pauses: list[int], limit: Limit, early: float
) -> None:
    """An event is allowed after the wait that Redis reports, and not a moment earlier."""
    apart = [pause / 8 + 1e-4 for pause in pauses]
    _in_redis(redis_server, lambda setting: _check_waits(setting, apart, limit, early))


@pytest.mark.parametrize("wait", [0.125, 1.0, 59.875])
async def test_in_memory_the_edge_belongs_to_the_next_window(wait: float) -> None:
    """An event exactly 60 seconds ago does not count, so a Retry-After in seconds is exact."""
    setting: list[Setting] = []
    setting.append(Setting(MemoryRateLimiter(lambda: setting[0].now)))
    await setting[0].enter(limit=Limit(1, 60))
    setting[0].now += 60 - wait
    assert await setting[0].enter(limit=Limit(1, 60)) == wait
    setting[0].now += wait
    assert await setting[0].enter(limit=Limit(1, 60)) is None


async def test_waits_are_told_however_old_the_clock_is() -> None:
    """A clock younger than two windows reports the same waits as an older one."""
    now = [100.0]
    rate_limiter = MemoryRateLimiter(lambda: now[0])
    assert await rate_limiter.count("a", Limit(1, 60)) == Usage(Limit(1, 60), 0, 60.0)
    now[0] = 110.0
    refused = Usage(Limit(1, 60), 0, 50.0, is_refused=True)
    assert await rate_limiter.count("a", Limit(1, 60)) == refused


async def test_several_events_wait_for_as_many_to_leave() -> None:
    """Two events without capacity wait until the second earlier one leaves."""
    now = [100.0]
    rate_limiter = MemoryRateLimiter(lambda: now[0])
    limit = Limit(5, 60)
    for now[0] in (100.0, 101.0, 102.0, 103.0, 104.0):
        await rate_limiter.enter("a", limit)
    now[0] = 110.0
    refused = Usage(limit, 0, 51.0, is_refused=True)
    assert await rate_limiter.count("a", limit, events=2) == refused


async def test_nothing_is_left_of_what_was_withdrawn() -> None:
    """Taking back a subject's only event removes its window."""
    rate_limiter = MemoryRateLimiter(lambda: 1000.0)
    await rate_limiter.enter("a", LIMIT)
    await rate_limiter.withdraw("a")
    assert not rate_limiter._windows
    assert await rate_limiter.enter("b", LIMIT) is None


async def test_nothing_has_changed_when_it_starts() -> None:
    """The change counter starts at 0."""
    assert await MemoryRateLimiter(lambda: 0.0).changes() == 0


def test_an_address_signs_up_twenty_tenants_an_hour() -> None:
    """An address can create 20 tenants in 3,600 seconds."""
    assert Limit(20, 3600) == SIGN_UPS
    assert MINUTE == 60


async def test_windows_in_memory_let_go_of_who_is_idle() -> None:
    """Expired windows are freed soon, in spite of many new subjects."""
    now = [1000.0]
    rate_limiter = MemoryRateLimiter(lambda: now[0])
    most = 0
    for number in range(20_000):
        now[0] += 0.5  # so 120 subjects are in their window at any moment
        await rate_limiter.enter(f"subject {number}", LIMIT)
        most = max(most, len(rate_limiter._windows))
    assert most <= 2 * 120


async def test_windows_in_memory_are_examined_in_turn() -> None:
    """Long windows do not prevent the removal of expired ones."""
    now = [1000.0]
    rate_limiter = MemoryRateLimiter(lambda: now[0])
    for number in range(10):
        await rate_limiter.enter(f"slow {number}", Limit(1, 3600))
    for number in range(1000):
        now[0] += 2
        await rate_limiter.enter(f"subject {number}", Limit(1, 1))
    assert len(rate_limiter._windows) <= 20


async def test_windows_in_memory_last_as_long_as_their_newest_event() -> None:
    """A window is kept until its newest event has left."""
    now = [1000.0]
    rate_limiter = MemoryRateLimiter(lambda: now[0])
    limit = Limit(2, 60)
    for now[0] in (1000.0, 1050.0, 1060.0):
        assert await rate_limiter.enter("busy", limit) is None
    now[0] = 1115.0
    for number in range(5000):
        await rate_limiter.enter(f"subject {number}", LIMIT)
    assert await rate_limiter.enter("busy", limit) is None
    assert await rate_limiter.enter("busy", limit) == 5.0


async def test_windows_in_memory_are_bounded_within_one_window() -> None:
    """Many simultaneous subjects do not exceed the limit of windows."""
    rate_limiter = MemoryRateLimiter(lambda: 1000.0)
    for number in range(MAX_WINDOWS + 10_000):
        await rate_limiter.enter(str(number), LIMIT)
    assert len(rate_limiter._windows) == MAX_WINDOWS


async def test_a_flood_of_subjects_makes_no_used_up_limit_forgotten() -> None:
    """A used-up limit is still known after ten times as many subjects as fit."""
    rate_limiter = MemoryRateLimiter(lambda: 1000.0, at_most=100)
    setting = Setting(rate_limiter)
    await setting.admitted("busy")
    for number in range(1000):
        await rate_limiter.enter(f"subject {number}", LIMIT)
    assert await rate_limiter.enter("busy", LIMIT) == 60.0
    assert len(rate_limiter._windows) == 100


async def test_windows_in_memory_keep_who_is_not_idle() -> None:
    """A used-up limit remains used up in spite of many new subjects."""
    now = [1000.0]
    rate_limiter = MemoryRateLimiter(lambda: now[0])
    setting = Setting(rate_limiter)
    await setting.admitted("busy")
    now[0] = 1059.0
    for number in range(5000):
        await rate_limiter.enter(f"subject {number}", LIMIT)
    assert await rate_limiter.enter("busy", LIMIT) == 1.0
    assert len(rate_limiter._windows) == 5001


async def test_a_long_window_is_kept_for_as_long_as_it_is() -> None:
    """Each window is removed by its own length."""
    now = [1000.0]
    rate_limiter = MemoryRateLimiter(lambda: now[0])
    hour = Limit(1, 3600)
    await rate_limiter.enter("slow", hour)
    now[0] = 4500.0
    for number in range(5000):
        now[0] += 0.01
        await rate_limiter.enter(f"subject {number}", Limit(1, 1))
    assert await rate_limiter.enter("slow", hour) == pytest.approx(4600.0 - now[0])


async def test_what_is_withdrawn_does_not_count(setting: Setting) -> None:
    """An event that is taken back can be used again; taking back none changes nothing."""
    await setting.rate_limiter.withdraw("a")
    assert await setting.admitted() == LIMIT.events
    for _ in range(2):
        await setting.rate_limiter.withdraw("a")
    await setting.rate_limiter.withdraw("another")
    assert await setting.admitted() == 2
    for _ in range(2 * LIMIT.events):
        await setting.rate_limiter.withdraw("a")
    assert await setting.admitted() == LIMIT.events
