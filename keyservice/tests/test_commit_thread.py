"""Functions run in the commit thread one by one, and their callers get what becomes of them."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING

import pytest

from pqkeep_keyservice.storage.commit_thread import CommitThread

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def thread() -> Iterator[CommitThread]:
    """Start a thread, and end it."""
    started = CommitThread()
    yield started
    started.close()


async def test_results_and_errors_come_back(thread: CommitThread) -> None:
    """Each caller gets its function's result or error, and the thread goes on after an error."""
    assert await thread.run(lambda: 1) == 1
    with pytest.raises(ZeroDivisionError):
        await thread.run(lambda: 1 // 0)
    assert await asyncio.gather(*(thread.run(lambda n=n: n) for n in range(20))) == [*range(20)]  # type: ignore[misc]


async def test_a_cancelled_caller_disturbs_nobody(thread: CommitThread) -> None:
    """The function of a cancelled caller runs to its end; the next caller is answered."""
    may_end = threading.Event()
    ended: list[int] = []

    def work() -> None:
        may_end.wait(60)
        ended.append(1)

    cancelled = asyncio.create_task(thread.run(work))
    await asyncio.sleep(0)
    cancelled.cancel()
    with pytest.raises(asyncio.CancelledError):
        await cancelled
    may_end.set()
    assert await thread.run(ended.copy) == [1]


def test_it_outlives_an_event_loop() -> None:
    """What was given by an event loop that has ended is done; another loop is served then."""
    thread = CommitThread()
    may_end = threading.Event()

    async def leave() -> None:
        task = asyncio.create_task(thread.run(lambda: may_end.wait(60)))
        await asyncio.sleep(0)
        task.cancel()

    asyncio.run(leave())
    may_end.set()
    assert asyncio.run(thread.run(lambda: 2)) == 2
    thread.close()


async def test_a_thread_that_has_ended_says_so() -> None:
    """Nobody waits for what nobody does any more."""
    thread = CommitThread()
    thread.close()
    with pytest.raises(RuntimeError):
        await thread.run(lambda: 1)
