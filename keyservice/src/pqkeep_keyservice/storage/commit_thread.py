"""The thread in which SQLite's commits wait for the disk.

It has no more than that needs: a commit by ``loop.run_in_executor`` costs twice the CPU time.
"""

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue
from typing import Any, TypeVar

T = TypeVar("T")

_Job = tuple[Callable[[], Any], asyncio.AbstractEventLoop, "asyncio.Future[Any]"]


class CommitThread:
    """Runs functions one by one, each for a coroutine that waits for it."""

    def __init__(self) -> None:
        """Start the thread."""
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._is_closed = False
        self._thread = threading.Thread(target=self._work, name="commit", daemon=True)
        self._thread.start()

    async def run(self, function: Callable[[], T]) -> T:
        """Return what a function returns, or raise what it raises. It runs even if cancelled.

        Raises RuntimeError once the thread was told to end.
        """
        if self._is_closed:
            raise RuntimeError("the thread has ended")
        loop = asyncio.get_running_loop()
        done: asyncio.Future[T] = loop.create_future()
        self._jobs.put((function, loop, done))
        return await done

    def close(self) -> None:
        """Wait for the functions that were given, and end the thread."""
        self._is_closed = True
        self._jobs.put(None)
        self._thread.join()

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            function, loop, done = job
            try:
                finish, outcome = done.set_result, function()
            except BaseException as error:  # noqa: BLE001 - whatever it is, the coroutine raises it
                finish, outcome = done.set_exception, error
            with suppress(RuntimeError):  # the event loop has ended
                loop.call_soon_threadsafe(_finish, done, finish, outcome)
            del job, done, finish, outcome


def _finish(done: "asyncio.Future[Any]", finish: Callable[[Any], None], outcome: Any) -> None:
    if not done.done():  # otherwise the coroutine was cancelled
        finish(outcome)
