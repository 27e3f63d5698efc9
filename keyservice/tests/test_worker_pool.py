"""The queue for worker processes loses no worker, for any behaviour of callers."""

import asyncio
import time
from collections.abc import Callable
from typing import Any, cast
from uuid import UUID

import pytest

from pqkeep_keyservice.live.worker_processes import WorkerPool, WorkerProcess
from pqkeep_protocol.errors import ErrorKind, KeyServiceError
from pqkeep_protocol.keys import TenantId

TENANT = TenantId(UUID(int=1))


class Inline:
    """A worker that runs its work on the event loop once a gate opens."""

    def __init__(self) -> None:
        self.gate: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def run(self, function: Callable[..., Any], *arguments: Any) -> Any:
        await self.gate
        return function(*arguments)


async def test_a_turn_that_comes_too_late_is_passed_on() -> None:
    """If a caller gives up just as a worker becomes free, the next caller gets that worker."""
    now = asyncio.get_running_loop().time
    worker = Inline()
    queue = WorkerPool([cast(WorkerProcess, worker)], per_tenant=1)
    holder = asyncio.create_task(queue.run(TENANT, now() + 60, int))
    await asyncio.sleep(0.01)
    waiter = asyncio.create_task(queue.run(TENANT, now() + 0.05, int))
    await asyncio.sleep(0.01)
    worker.gate.set_result(None)
    time.sleep(0.1)  # noqa: ASYNC251 - a busy loop: both happen before anyone runs again
    assert await holder == 0
    with pytest.raises(KeyServiceError) as refused:
        await waiter
    assert refused.value.kind is ErrorKind.DEADLINE_EXCEEDED
    assert await queue.run(TENANT, now() + 60, int) == 0


async def test_a_waiter_that_gives_up_leaves_the_queue() -> None:
    """A caller past its deadline is refused, and the next one gets the worker."""
    now = asyncio.get_running_loop().time
    worker = Inline()
    queue = WorkerPool([cast(WorkerProcess, worker)], per_tenant=1)
    holder = asyncio.create_task(queue.run(TENANT, now() + 60, int))
    await asyncio.sleep(0.01)
    with pytest.raises(KeyServiceError) as refused:
        await queue.run(TENANT, now() + 0.02, int)
    assert refused.value.kind is ErrorKind.DEADLINE_EXCEEDED
    worker.gate.set_result(None)
    assert await holder == 0
    assert await queue.run(TENANT, now() + 60, int) == 0
