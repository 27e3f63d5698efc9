"""A process for work that holds the interpreter lock."""

import asyncio
import multiprocessing
import tempfile
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import TypeVar, TypeVarTuple

from pqkeep_protocol.errors import ErrorKind, KeyServiceError

SEMAPHORES = "/dev/shm"  # noqa: S108 - where the C library keeps them
T = TypeVar("T")
Arguments = TypeVarTuple("Arguments")


class WorkerProcess:
    """One process that runs one function at a time, and is replaced when it dies.

    It is spawned, never forked: it starts with nothing of this process's memory.
    """

    def __init__(self, initialise: Callable[..., None], *arguments: object) -> None:
        """Start nothing yet; the process starts with the first work, and runs ``initialise``.

        Raises OSError where it could not be started: a pool has semaphores, and these are files. A
        pool has a process beside it that removes them, too, so none is made before it is needed.
        """
        self._initialise = initialise
        self._arguments = arguments
        self._pool: ProcessPoolExecutor | None = None
        with tempfile.TemporaryFile(dir=SEMAPHORES):
            pass

    async def run(self, function: Callable[[*Arguments], T], *arguments: *Arguments) -> T:
        """Run a function there, once more if the process dies. Raises UNAVAILABLE after that."""
        loop = asyncio.get_running_loop()
        for _ in range(2):
            if self._pool is None:
                self._pool = self._new_pool()
            try:
                return await loop.run_in_executor(self._pool, function, *arguments)
            except BrokenProcessPool:
                self._pool.shutdown(wait=False)
                self._pool = None
        raise KeyServiceError(ErrorKind.UNAVAILABLE)

    def close(self) -> None:
        """Wait for what runs and end the process."""
        if self._pool is not None:
            self._pool.shutdown()

    def _new_pool(self) -> ProcessPoolExecutor:
        return ProcessPoolExecutor(
            1,
            mp_context=multiprocessing.get_context("spawn"),
            initializer=self._initialise,
            initargs=self._arguments,
        )
