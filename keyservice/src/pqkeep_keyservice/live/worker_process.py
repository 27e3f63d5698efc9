"""A process for work that holds the interpreter lock."""

import asyncio
import multiprocessing
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import TypeVar, TypeVarTuple

from pqkeep_protocol.errors import ErrorKind, KeyServiceError

T = TypeVar("T")
Arguments = TypeVarTuple("Arguments")


class WorkerProcess:
    """One process that runs one function at a time, and is replaced when it dies.

    It is spawned, never forked: it starts with nothing of this process's memory.
    """

    def __init__(self, initialise: Callable[..., None], *arguments: object) -> None:
        """Start nothing yet; the process starts with the first work, and runs ``initialise``."""
        self._initialise = initialise
        self._arguments = arguments
        self._pool = self._new_pool()

    async def run(self, function: Callable[[*Arguments], T], *arguments: *Arguments) -> T:
        """Run a function there, once more if the process dies. Raises UNAVAILABLE after that."""
        loop = asyncio.get_running_loop()
        for _ in range(2):
            try:
                return await loop.run_in_executor(self._pool, function, *arguments)
            except BrokenProcessPool:
                self._pool.shutdown(wait=False)
                self._pool = self._new_pool()
        raise KeyServiceError(ErrorKind.UNAVAILABLE)

    def close(self) -> None:
        """Wait for what runs and end the process."""
        self._pool.shutdown()

    def _new_pool(self) -> ProcessPoolExecutor:
        return ProcessPoolExecutor(
            1,
            mp_context=multiprocessing.get_context("spawn"),
            initializer=self._initialise,
            initargs=self._arguments,
        )
