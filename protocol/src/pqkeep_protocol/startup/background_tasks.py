"""Tasks that run as long as their process. If one fails, the process ends and is restarted.

Otherwise the process would go on without, for example, its connection checks, unnoticed.
"""

import asyncio
from collections.abc import Callable, Coroutine

from pqkeep_protocol.startup.logs import logger

_LOG = logger(__name__)

END_SECONDS = 3.0
"""The longest wait for cancelled tasks. With the drain before it, a process ends before it is killed."""


class BackgroundTasks:
    """A process's background tasks. ``stop`` is called when one fails, and ends the process."""

    def __init__(self, stop: Callable[[], None]) -> None:
        self._stop = stop
        self._tasks: list[asyncio.Task[None]] = []
        self.failed = False

    def begin(self, work: Coroutine[None, None, None]) -> Callable[[], object]:
        """Start a task, and return a function that cancels it."""
        task = asyncio.create_task(work, name=getattr(work, "__qualname__", None))
        task.add_done_callback(self._look)
        self._tasks.append(task)
        return task.cancel

    async def end(self) -> None:
        """Cancel all tasks, and return when they have ended, or after END_SECONDS."""
        for task in self._tasks:
            task.cancel()
        if not self._tasks:
            return
        _, pending = await asyncio.wait(self._tasks, timeout=END_SECONDS)
        for task in pending:
            _LOG.error("a background task does not end", task=task.get_name())

    def _look(self, task: asyncio.Task[None]) -> None:
        if task.cancelled() or (error := task.exception()) is None:
            return
        _LOG.critical("a background task failed, and the process ends", exc_info=error)
        self.failed = True
        self._stop()
