"""Tasks that last as long as their process: where one fails, the process ends and is started again.

Without it nobody would notice that connections are not watched any more, or key material kept.
"""

import asyncio
from collections.abc import Callable, Coroutine

from pqkeep_protocol.startup.logs import logger

_LOG = logger(__name__)


class BackgroundTasks:
    """The tasks of a process. ``stop`` is called when one of them fails, and ends the process."""

    def __init__(self, stop: Callable[[], None]) -> None:
        self._stop = stop
        self._tasks: list[asyncio.Task[None]] = []
        self.failed = False

    def begin(self, work: Coroutine[None, None, None]) -> Callable[[], object]:
        """Do some work, and return what cancels it."""
        task = asyncio.create_task(work)
        task.add_done_callback(self._look)
        self._tasks.append(task)
        return task.cancel

    async def end(self) -> None:
        """Cancel all of them, and return when they have ended."""
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    def _look(self, task: asyncio.Task[None]) -> None:
        if task.cancelled() or (error := task.exception()) is None:
            return
        _LOG.critical("a background task failed, and the process ends", exc_info=error)
        self.failed = True
        self._stop()
