"""Where work runs that would hold the event loop up.

ML-KEM takes tens of microseconds and runs on the loop. ML-DSA takes up to a few milliseconds and
releases the interpreter lock: it runs in threads. SLH-DSA holds the lock, for up to half a second:
it runs in processes of its own, a lane of them, in which no tenant can keep the others waiting.
"""

import asyncio
import multiprocessing
import os
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import TypeVar, TypeVarTuple

from pqkeep_protocol.errors import ErrorKind, KeyServiceError
from pqkeep_protocol.keys import TenantId

T = TypeVar("T")
Arguments = TypeVarTuple("Arguments")

CORES = os.cpu_count() or 1
MAX_WAITING = 96
"""Well below what may be in flight on a connection: nothing else ever waits behind a lane."""
MAX_WAITING_PER_TENANT = 64


class Threads:
    """Threads for computation that releases the interpreter lock, one a core."""

    def __init__(self) -> None:
        """Start nothing yet; threads come with the first work."""
        self._threads = ThreadPoolExecutor(CORES, thread_name_prefix="crypto")

    async def run(self, function: Callable[[*Arguments], T], *arguments: *Arguments) -> T:
        """Run a function, and wait for it."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, function, *arguments)

    def close(self) -> None:
        """Wait for what runs."""
        self._threads.shutdown()


class WorkerProcess:
    """One process that does one thing at a time, and is replaced when it dies.

    It is spawned, never forked: it starts with nothing of this process's memory.
    """

    def __init__(self, initialise: Callable[..., None], *arguments: object) -> None:
        """Start nothing yet; the process comes with the first work, and initialises itself."""
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


class FairQueue:
    """Worker processes and one bounded queue before them, fair between tenants.

    Tenants take turns, and none has more than ``per_tenant`` pieces of work running.
    """

    def __init__(self, workers: Sequence[WorkerProcess], *, per_tenant: int) -> None:
        """Use these workers."""
        self._workers = workers
        self._free = list(workers)
        self._per_tenant = per_tenant
        self._running: Counter[TenantId] = Counter()
        self._waiting: OrderedDict[TenantId, deque[asyncio.Future[WorkerProcess]]] = OrderedDict()

    async def run(
        self,
        tenant: TenantId,
        deadline: float,
        function: Callable[[*Arguments], T],
        *arguments: *Arguments,
    ) -> T:
        """Run a function when it is the tenant's turn.

        Raises OVERLOADED where too much waits already, DEADLINE_EXCEEDED where the turn does not
        come before the deadline (in the event loop's time), UNAVAILABLE where the worker dies.
        """
        worker = await self._turn(tenant, deadline)
        try:
            return await worker.run(function, *arguments)
        finally:
            self._end_turn(tenant, worker)

    def close(self) -> None:
        """Wait for what runs and end the processes."""
        for worker in self._workers:
            worker.close()

    async def _turn(self, tenant: TenantId, deadline: float) -> WorkerProcess:
        waiting = {
            each: sum(not turn.cancelled() for turn in queue)
            for each, queue in self._waiting.items()
        }
        if waiting.get(tenant, 0) >= MAX_WAITING_PER_TENANT or sum(waiting.values()) >= MAX_WAITING:
            raise KeyServiceError(ErrorKind.OVERLOADED)
        turn: asyncio.Future[WorkerProcess] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(tenant, deque()).append(turn)
        self._give_turns()
        try:
            async with asyncio.timeout_at(deadline):
                return await turn
        except (TimeoutError, asyncio.CancelledError) as ended:
            if turn.done() and not turn.cancelled():  # it came in the same moment
                self._end_turn(tenant, turn.result())
            if isinstance(ended, TimeoutError):
                raise KeyServiceError(ErrorKind.DEADLINE_EXCEEDED) from None
            raise

    def _end_turn(self, tenant: TenantId, worker: WorkerProcess) -> None:
        self._free.append(worker)
        self._running[tenant] -= 1
        self._give_turns()

    def _give_turns(self) -> None:
        for tenant in tuple(self._waiting):
            queue = self._waiting[tenant]
            while queue and queue[0].cancelled():
                del queue[0]
            if queue and self._free and self._running[tenant] < self._per_tenant:
                self._running[tenant] += 1
                queue.popleft().set_result(self._free.pop())
                self._waiting.move_to_end(tenant)
            if not queue:
                del self._waiting[tenant]
                self._running += Counter()  # forgets the tenants at zero
