"""Where work runs that would hold the event loop up.

ML-KEM takes tens of microseconds and runs on the loop. ML-DSA takes up to a few milliseconds and
releases the interpreter lock: it runs in threads.
"""

import asyncio
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar, TypeVarTuple

T = TypeVar("T")
Arguments = TypeVarTuple("Arguments")


class Workers:
    """Threads for computation, one a core."""

    def __init__(self) -> None:
        """Start nothing yet; threads come with the first work."""
        self._threads = ThreadPoolExecutor(os.cpu_count() or 1, thread_name_prefix="crypto")

    async def in_thread(self, function: Callable[[*Arguments], T], *arguments: *Arguments) -> T:
        """Run a function that releases the interpreter lock, and wait for it."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, function, *arguments)

    def close(self) -> None:
        """Wait for what runs."""
        self._threads.shutdown()
