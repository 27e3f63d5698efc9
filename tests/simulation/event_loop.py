"""An event loop with a virtual clock, for several processes that can be paused and killed.

There is no I/O: if nothing is ready, the clock moves to the next timer. Functions for threads run
on the loop after a delay. The seed decides the order of simultaneous timers, and all delays.
Callbacks keep asyncio's order.
"""

from __future__ import annotations

import asyncio
import contextvars
import heapq
from collections import deque
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor
from typing import Any, TypeVar, TypeVarTuple

from tests.simulation.choices import Choices

T = TypeVar("T")
Arguments = TypeVarTuple("Arguments")

STEP_SECONDS = 20e-6
"""The longest duration of one round of callbacks."""

LATE = 0.15
"""The probability that a function waits long for its thread."""


class Process:
    """The process of the callbacks. While it is paused, callbacks wait and time passes."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.is_stopped = False
        self.is_killed = False
        self.kept: list[asyncio.Handle] = []
        self.tasks: list[asyncio.Task[Any]] = []
        """All tasks.

        Without this list, Python would end a killed process's tasks in an orderly way.
        """
        self.on_kill: Callable[[], None] = lambda: None
        self.context = contextvars.copy_context()
        self.context.run(PROCESS.set, self)

    def pause(self) -> None:
        """Act like SIGSTOP."""
        self.is_stopped = True

    def kill(self) -> None:
        """Act like SIGKILL. Other connections' peers must be told."""
        self.is_stopped = self.is_killed = True
        self.on_kill()


PROCESS: contextvars.ContextVar[Process | None] = contextvars.ContextVar("process", default=None)


class StalledError(Exception):
    """Nothing is ready and no timer runs, so every waiting task would wait forever."""


class SimulatedLoop(asyncio.BaseEventLoop):
    """See above."""

    def __init__(self, choices: Choices) -> None:
        super().__init__()
        self._choices = choices
        self._now = 0.0
        self._soon: deque[asyncio.Handle] = deque()
        self._timers: list[tuple[float, float, int, asyncio.TimerHandle]] = []
        self._count = 0
        self.network: Any = None
        """The network for connections; see network.py."""

    def time(self) -> float:
        return self._now

    def call_soon(
        self,
        callback: Callable[[*Arguments], object],
        *args: *Arguments,
        context: contextvars.Context | None = None,
    ) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, self, context)
        self._soon.append(handle)
        return handle

    def call_at(
        self,
        when: float,
        callback: Callable[[*Arguments], object],
        *args: *Arguments,
        context: contextvars.Context | None = None,
    ) -> asyncio.TimerHandle:
        timer = asyncio.TimerHandle(when, callback, args, self, context)
        self._count += 1
        heapq.heappush(self._timers, (when, self._choices.fraction(), self._count, timer))
        return timer

    def create_task(self, coro: Any, **settings: Any) -> Any:
        task = super().create_task(coro, **settings)
        process = PROCESS.get()
        if process is not None:
            process.tasks.append(task)
        return task

    def start(self, process: Process, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Run a coroutine as a task of a process."""
        task: asyncio.Task[Any] = process.context.copy().run(self.create_task, work)
        return task

    def run_in_executor(
        self, executor: Executor | None, func: Callable[[*Arguments], T], *args: *Arguments
    ) -> asyncio.Future[T]:
        """Run a function on the loop, later; its thread stops with its process."""
        done: asyncio.Future[T] = self.create_future()

        def run() -> None:
            if done.done():
                return
            try:
                result = func(*args)
            except Exception as error:  # noqa: BLE001 - whoever waits gets it
                done.set_exception(error)
            else:
                done.set_result(result)

        is_late = self._choices.happens(LATE)
        self.call_later(self._choices.delay(0.0001, 3.0 if is_late else 0.002), run)
        return done

    def resume(self, process: Process) -> None:
        """Act like SIGCONT."""
        process.is_stopped = False
        self._soon.extend(process.kept)
        process.kept.clear()

    async def create_unix_server(
        self, protocol_factory: Any, path: Any = None, *, sock: Any = None, **_: Any
    ) -> Any:
        return self.network.listen(protocol_factory, sock)

    async def create_unix_connection(
        self, protocol_factory: Any, path: Any = None, **_: Any
    ) -> Any:
        return await self.network.connect(protocol_factory, path)

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """Do nothing. A cancelled timer is skipped when it is due."""

    def _run_once(self) -> None:
        timers, soon = self._timers, self._soon
        while timers and timers[0][-1].cancelled():
            heapq.heappop(timers)
        if not soon:
            if not timers:
                raise StalledError
            self._now = max(self._now, timers[0][0])
        while timers and timers[0][0] <= self._now:
            soon.append(heapq.heappop(timers)[-1])
        for _ in range(len(soon)):
            handle = soon.popleft()
            if handle.cancelled():
                continue
            process = handle._context.get(PROCESS)  # type: ignore[attr-defined]  # of every Handle
            if process is not None and process.is_stopped:
                process.kept.append(handle)
            else:
                handle._run()
        self._now += self._choices.fraction() * STEP_SECONDS
