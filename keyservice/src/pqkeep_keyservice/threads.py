"""Threads for functions that wait for the disk, or that compute without the interpreter lock.

They are minimal, because ``loop.run_in_executor`` costs twice the CPU time.
"""

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue
from typing import Any, TypeVar, TypeVarTuple

T = TypeVar("T")
Arguments = TypeVarTuple("Arguments")

_Job = tuple[Callable[..., Any], tuple[Any, ...], asyncio.AbstractEventLoop, "asyncio.Future[Any]"]


class Threads:
    """Runs functions in order of arrival, each for a waiting coroutine."""

    def __init__(self, name: str, count: int = 1) -> None:
        """Start ``count`` threads."""
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._is_closed = False
        self._threads = [
            threading.Thread(target=self._work, name=name, daemon=True) for _ in range(count)
        ]
        for thread in self._threads:
            thread.start()

    async def run(self, function: Callable[[*Arguments], T], *arguments: *Arguments) -> T:
        """Run a function in a thread; return its result or raise its error.

        It runs even if the caller is cancelled. Raises RuntimeError after ``close``.
        """
        if self._is_closed:
            raise RuntimeError("the threads have ended")
        loop = asyncio.get_running_loop()
        done: asyncio.Future[T] = loop.create_future()
        self._jobs.put((function, arguments, loop, done))
        try:
            return await done
        finally:
            del done  # its exception refers to this frame, and so to the arguments

    def close(self) -> None:
        """Wait for all submitted functions, and end the threads."""
        self._is_closed = True
        for _ in self._threads:
            self._jobs.put(None)
        for thread in self._threads:
            thread.join()

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            function, arguments, loop, done = job
            try:
                finish, outcome = done.set_result, function(*arguments)
            except BaseException as error:  # noqa: BLE001 - the coroutine raises every error
                finish, outcome = done.set_exception, error
            with suppress(RuntimeError):  # the event loop has ended
                loop.call_soon_threadsafe(_finish, done, finish, outcome)
            del job, function, arguments, done, finish, outcome


def _finish(done: "asyncio.Future[Any]", finish: Callable[[Any], None], outcome: Any) -> None:
    if not done.done():  # otherwise the coroutine was cancelled
        finish(outcome)
