"""Some worker processes behind one queue, fair between tenants."""

from collections.abc import Callable, Sequence
from typing import TypeVar, TypeVarTuple

from pqkeep_keyservice.live import MAX_WAITING
from pqkeep_keyservice.live.worker_process import WorkerProcess
from pqkeep_protocol.errors import ErrorKind, KeyServiceError
from pqkeep_protocol.fair_queue import FairQueue, QueueFullError, QueueTimeoutError
from pqkeep_protocol.keys import TenantId

T = TypeVar("T")
Arguments = TypeVarTuple("Arguments")


class WorkerPool:
    """Runs functions in worker processes. No tenant has more than ``per_tenant`` running at once."""

    def __init__(self, workers: Sequence[WorkerProcess], *, per_tenant: int) -> None:
        self._workers = workers
        self._queue = FairQueue[TenantId, WorkerProcess](
            workers, per_subject=per_tenant, max_waiting=MAX_WAITING
        )

    @property
    def waiting(self) -> int:
        """How many functions wait for a worker."""
        return self._queue.waiting

    async def run(
        self,
        tenant: TenantId,
        deadline: float,
        function: Callable[[*Arguments], T],
        *arguments: *Arguments,
    ) -> T:
        """Run a function as soon as the tenant may have a worker.

        Raises OVERLOADED if too much of the tenant's waits, DEADLINE_EXCEEDED if no worker is free
        before the deadline (in the event loop's time), UNAVAILABLE if the worker dies.
        """
        try:
            worker = await self._queue.acquire(tenant, deadline)
        except QueueFullError:
            raise KeyServiceError(ErrorKind.OVERLOADED) from None
        except QueueTimeoutError:
            raise KeyServiceError(ErrorKind.DEADLINE_EXCEEDED) from None
        try:
            return await worker.run(function, *arguments)
        finally:
            self._queue.release(tenant, worker)

    def close(self) -> None:
        """Wait for what runs and end the processes."""
        for worker in self._workers:
            worker.close()
