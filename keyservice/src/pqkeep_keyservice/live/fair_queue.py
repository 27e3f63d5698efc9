"""One bounded queue before some worker processes, fair between tenants."""

import asyncio
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Sequence
from typing import TypeVar, TypeVarTuple

from pqkeep_keyservice.live.worker_process import WorkerProcess
from pqkeep_protocol.errors import ErrorKind, KeyServiceError
from pqkeep_protocol.keys import TenantId

T = TypeVar("T")
Arguments = TypeVarTuple("Arguments")

MAX_WAITING = 96
"""Well below MAX_IN_FLIGHT of a connection: other requests never wait behind a queue."""
MAX_WAITING_PER_TENANT = 64


class FairQueue:
    """Runs functions in worker processes, round-robin by tenant.

    No tenant has more than ``per_tenant`` functions running at once.
    """

    def __init__(self, workers: Sequence[WorkerProcess], *, per_tenant: int) -> None:
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
        """Run a function as soon as the tenant may have a worker.

        Raises OVERLOADED if too much waits already, DEADLINE_EXCEEDED if no worker is free before
        the deadline (in the event loop's time), UNAVAILABLE if the worker dies.
        """
        worker = await self._acquire(tenant, deadline)
        try:
            return await worker.run(function, *arguments)
        finally:
            self._release(tenant, worker)

    def close(self) -> None:
        """Wait for what runs and end the processes."""
        for worker in self._workers:
            worker.close()

    async def _acquire(self, tenant: TenantId, deadline: float) -> WorkerProcess:
        waiting = {
            each: sum(not future.cancelled() for future in queue)
            for each, queue in self._waiting.items()
        }
        if waiting.get(tenant, 0) >= MAX_WAITING_PER_TENANT or sum(waiting.values()) >= MAX_WAITING:
            raise KeyServiceError(ErrorKind.OVERLOADED)
        future: asyncio.Future[WorkerProcess] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(tenant, deque()).append(future)
        self._assign()
        try:
            async with asyncio.timeout_at(deadline):
                return await future
        except (TimeoutError, asyncio.CancelledError) as ended:
            if future.done() and not future.cancelled():  # assigned at the same moment
                self._release(tenant, future.result())
            if isinstance(ended, TimeoutError):
                raise KeyServiceError(ErrorKind.DEADLINE_EXCEEDED) from None
            raise

    def _release(self, tenant: TenantId, worker: WorkerProcess) -> None:
        self._free.append(worker)
        self._running[tenant] -= 1
        self._assign()

    def _assign(self) -> None:
        """Hand free workers to those who wait, one tenant after the other."""
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
                self._running += Counter()  # drops tenants at zero
