"""No subject can keep others from the slots or out of the queue."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pqkeep_protocol.fair_queue import FairQueue, QueueFullError, QueueTimeoutError

MAX_WAITING = 6
Queue = FairQueue[str, int]


class Visit:
    """One attempt at a slot. It holds the slot until ``leave``."""

    def __init__(self, queue: Queue, subject: str) -> None:
        self.subject = subject
        self.is_served = False
        self._leaves = asyncio.Event()
        self.task = asyncio.create_task(self._run(queue))

    async def _run(self, queue: Queue) -> None:
        slot = await queue.acquire(self.subject)
        self.is_served = True
        try:
            await self._leaves.wait()
        finally:
            queue.release(self.subject, slot)

    @property
    def is_refused(self) -> bool:
        """Whether the queue was full."""
        is_over = self.task.done() and not self.task.cancelled()
        return is_over and isinstance(self.task.exception(), QueueFullError)

    async def leave(self) -> None:
        """Give the slot back."""
        self._leaves.set()
        await self.task
        await settle()


async def settle() -> None:
    """Let every task run until it waits."""
    for _ in range(5):
        await asyncio.sleep(0)


async def arrive(queue: Queue, subjects: Sequence[str]) -> list[Visit]:
    """Let visitors arrive in this order."""
    visits = [Visit(queue, subject) for subject in subjects]
    await settle()
    return visits


def waiting(visits: Sequence[Visit]) -> list[str]:
    """Return the subjects of the visits that still wait."""
    return [visit.subject for visit in visits if not visit.task.done() and not visit.is_served]


async def end(visits: Sequence[Visit]) -> None:
    """Cancel all visits that wait or hold a slot."""
    for visit in visits:
        visit.task.cancel()
    await asyncio.gather(*(visit.task for visit in visits), return_exceptions=True)


async def test_a_subject_that_fills_the_queue_keeps_nobody_out() -> None:
    """If two subjects fill the queue, a third gets in, and one of theirs is refused."""
    queue = Queue([1, 2], per_subject=1, max_waiting=MAX_WAITING)
    visits = await arrive(queue, ["a"] * 7 + ["b"] * 4)
    assert waiting(visits).count("a") == waiting(visits).count("b") == 3
    (third,) = await arrive(queue, ["c"])
    assert not third.is_refused
    assert len(waiting([*visits, third])) == MAX_WAITING
    await end([*visits, third])


async def test_a_third_subject_gets_the_next_slot_but_one() -> None:
    """Behind two subjects with long queues, a third waits for at most two others."""
    queue = Queue([1, 2], per_subject=1, max_waiting=100)
    visits = await arrive(queue, ["a", "b"] * 20 + ["c"])
    served_before = 0
    while not visits[-1].is_served:
        current = next(visit for visit in visits if visit.is_served and not visit.task.done())
        await current.leave()
        served_before += 1
    assert served_before <= 3
    await end(visits)


async def test_a_subject_alone_leaves_a_slot_free() -> None:
    """A subject with a long queue holds no more than its share of the slots."""
    queue = Queue([1, 2, 3], per_subject=2, max_waiting=MAX_WAITING)
    busy = await arrive(queue, ["a"] * 5)
    assert [visit.is_served for visit in busy] == [True, True, False, False, False]
    (other,) = await arrive(queue, ["b"])
    assert other.is_served
    await end([*busy, other])


async def test_among_equals_the_newcomer_is_refused() -> None:
    """If every subject has one waiting, the newcomer is refused."""
    queue = Queue([1], per_subject=1, max_waiting=MAX_WAITING)
    visits = await arrive(queue, ["held", *"abcdefg"])
    assert [visit.subject for visit in visits if visit.is_refused] == ["g"]
    await end(visits)


async def test_a_deadline_ends_the_wait() -> None:
    """A visit past its deadline is refused and leaves the queue, and no slot is lost."""
    queue = Queue([1], per_subject=1, max_waiting=MAX_WAITING)
    (holder,) = await arrive(queue, ["a"])
    for _ in range(2 * MAX_WAITING):
        with pytest.raises(QueueTimeoutError):
            await queue.acquire("a", asyncio.get_running_loop().time())
    await holder.leave()
    assert await queue.acquire("b") == 1


ARRIVES = st.sampled_from("abcd").map(lambda subject: ("arrives", subject))
LEAVES = st.integers(0, 9).map(lambda number: ("leaves", str(number)))
GIVES_UP = st.integers(0, 9).map(lambda number: ("gives up", str(number)))


@given(st.lists(ARRIVES | LEAVES | GIVES_UP, max_size=60), st.integers(1, 3), st.integers(1, 2))
def test_every_history_is_fair(steps: list[tuple[str, str]], slots: int, share: int) -> None:
    """After any history the limits hold, no permitted slot is idle, and none is lost.

    A refused subject always has the most visits waiting.
    """

    async def run() -> None:
        queue = Queue(range(slots), per_subject=share, max_waiting=MAX_WAITING)
        visits: list[Visit] = []
        for what, which in steps:
            refused_before = [visit for visit in visits if visit.is_refused]
            if what == "arrives":
                visits += await arrive(queue, [which])
            else:
                is_leaving = what == "leaves"
                present = [
                    visit
                    for visit in visits
                    if not visit.task.done() and visit.is_served is is_leaving
                ]
                if present:
                    visit = present[int(which) % len(present)]
                    await (visit.leave() if is_leaving else end([visit]))
                    await settle()
            left = waiting(visits)
            held = [visit.subject for visit in visits if visit.is_served and not visit.task.done()]
            assert len(left) <= MAX_WAITING
            assert all(held.count(subject) <= share for subject in held)
            if len(held) < slots:
                assert all(held.count(subject) == share for subject in left)
            for visit in visits:
                if visit.is_refused and visit not in refused_before:
                    longest = max(left.count(subject) for subject in "abcd")
                    assert left.count(visit.subject) + 1 >= longest
        await end(visits)
        await settle()
        now = asyncio.get_running_loop().time()
        free = {await queue.acquire(str(number), now + 60) for number in range(slots)}
        assert free == set(range(slots))

    asyncio.run(run())


class Work:
    """The work that a slot is for."""


async def _refused(queue: Queue, _: Work) -> bool:
    try:
        await queue.acquire("a")
    except QueueFullError:
        return True
    return False


async def test_nothing_is_left_of_what_is_refused() -> None:
    """A refused visit is freed at once, without the cycle collector."""
    queue = Queue([], per_subject=1, max_waiting=0)
    work = Work()
    left = weakref.ref(work)
    gc.disable()
    try:
        assert await _refused(queue, work)
        del work
        assert left() is None
    finally:
        gc.enable()
