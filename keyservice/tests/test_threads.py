"""Functions run in threads in order, and their callers get the outcomes."""

from __future__ import annotations

import asyncio
import gc
import threading
import weakref
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest
from tests.patience import PATIENCE

from pqkeep_keyservice.threads import Threads

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def thread() -> Iterator[Threads]:
    """Start a thread, and end it."""
    started = Threads("test")
    yield started
    started.close()


async def test_results_and_errors_come_back(thread: Threads) -> None:
    """Each caller gets its function's result or error, and the thread keeps running."""
    assert await thread.run(lambda: 1) == 1
    with pytest.raises(ZeroDivisionError):
        await thread.run(lambda: 1 // 0)
    assert await asyncio.gather(*(thread.run(lambda n=n: n) for n in range(20))) == [*range(20)]  # type: ignore[misc]


class Message:
    """An argument of a function."""


async def test_nothing_is_left_of_a_function_that_fails(thread: Threads) -> None:
    """Its arguments are freed at once, without the cycle collector."""

    def refuse(_: Message) -> None:
        raise ValueError

    message = Message()
    left = weakref.ref(message)
    gc.disable()
    try:
        with suppress(ValueError):
            await thread.run(refuse, message)
        del message
        await thread.run(int)  # the thread has let go of it
        assert left() is None
    finally:
        gc.enable()


async def test_several_threads_work_at_once() -> None:
    """Two functions that wait for each other end with two threads, which then end."""
    threads = Threads("test", 2)
    meeting = threading.Barrier(2)
    places = await asyncio.gather(*(threads.run(meeting.wait, 60) for _ in range(2)))
    assert sorted(places) == [0, 1]
    threads.close()
    with pytest.raises(RuntimeError):
        await threads.run(meeting.wait, 60)


async def test_a_cancelled_caller_disturbs_nobody(thread: Threads) -> None:
    """A cancelled caller's function runs to its end, and the next caller is served."""
    may_end = threading.Event()
    ended: list[int] = []

    def work() -> None:
        may_end.wait(PATIENCE)
        ended.append(1)

    cancelled = asyncio.create_task(thread.run(work))
    await asyncio.sleep(0)
    cancelled.cancel()
    with pytest.raises(asyncio.CancelledError):
        await cancelled
    may_end.set()
    assert await thread.run(ended.copy) == [1]


def test_it_outlives_an_event_loop() -> None:
    """Work from an ended event loop is done, and another loop is served."""
    thread = Threads("test")
    may_end = threading.Event()

    async def leave() -> None:
        task = asyncio.create_task(thread.run(lambda: may_end.wait(PATIENCE)))
        await asyncio.sleep(0)
        task.cancel()

    asyncio.run(leave())
    may_end.set()
    assert asyncio.run(thread.run(lambda: 2)) == 2
    thread.close()


async def test_a_thread_that_has_ended_says_so() -> None:
    """A closed thread refuses work."""
    thread = Threads("test")
    thread.close()
    with pytest.raises(RuntimeError):
        await thread.run(lambda: 1)
