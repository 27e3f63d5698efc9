"""Threads for what waits for the disk, or computes without the interpreter lock.

They do no more than that needs: ``loop.run_in_executor`` costs twice the CPU time.
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
    """Runs functions in the order in which they come, each for a coroutine that waits for it."""

    def __init__(self, name: str, count: int = 1) -> None:
        """Start so many threads."""
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._is_closed = False
        self._threads = [
            threading.Thread(target=self._work, name=name, daemon=True) for _ in range(count)
        ]
        for each in self._threads:
            each.start()

    async def run(self, function: Callable[[*Arguments], T], *arguments: *Arguments) -> T:
        """Return what a function returns, or raise what it raises. It runs even if cancelled.

        Raises RuntimeError once the threads were told to end.
        """
        if self._is_closed:
            raise RuntimeError("the threads have ended")
        loop = asyncio.get_running_loop()
        done: asyncio.Future[T] = loop.create_future()
        self._jobs.put((function, arguments, loop, done))
        try:
            return await done
        finally:
            del done  # its exception has this frame, and so the arguments

    def close(self) -> None:
        """Wait for the functions that were given, and end the threads."""
        self._is_closed = True
        for _ in self._threads:
            self._jobs.put(None)
        for each in self._threads:
            each.join()

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            function, arguments, loop, done = job
            try:
                finish, outcome = done.set_result, function(*arguments)
            except BaseException as error:  # noqa: BLE001 - whatever it is, the coroutine raises it
                finish, outcome = done.set_exception, error
            with suppress(RuntimeError):  # the event loop has ended
                loop.call_soon_threadsafe(_finish, done, finish, outcome)
            del job, function, arguments, done, finish, outcome


def _finish(done: "asyncio.Future[Any]", finish: Callable[[Any], None], outcome: Any) -> None:
    if not done.done():  # otherwise the coroutine was cancelled
        finish(outcome)
