"""The queue before the worker processes, and the processes, with tiny work."""

import asyncio
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import TypeVar, TypeVarTuple
from uuid import uuid4

import pytest
from tests.patience import PATIENCE

from pqkeep_keyservice.live import MAX_WAITING
from pqkeep_keyservice.live.worker_processes import WorkerPool, WorkerProcess
from pqkeep_protocol.errors import ErrorKind, KeyServiceError
from pqkeep_protocol.keys import TenantId

T = TypeVar("T")
Arguments = TypeVarTuple("Arguments")
WORKERS = 2


class Held(WorkerProcess):
    """A worker without a process, which ends its work on the test's command."""

    def __init__(self) -> None:
        super().__init__(time.sleep, 0)
        self.release = asyncio.Event()

    async def run(self, function: Callable[[*Arguments], T], *arguments: *Arguments) -> T:
        await self.release.wait()
        return function(*arguments)


def _tenant() -> TenantId:
    return TenantId(uuid4())


def _soon(seconds: float = PATIENCE) -> float:
    return asyncio.get_running_loop().time() + seconds


async def _kind(work: asyncio.Task[T]) -> ErrorKind | None:
    """Return the kind of a refusal; None if the work was done."""
    try:
        await work
    except KeyServiceError as refusal:
        return refusal.kind
    return None


@pytest.fixture
def worker() -> Iterator[WorkerProcess]:
    """One real worker process."""
    with closing(WorkerProcess(time.sleep, 0)) as made:
        yield made


async def test_work_runs_in_another_process(worker: WorkerProcess) -> None:
    """A function runs in another process, and its exception is raised here."""
    first = await worker.run(os.getpid)
    with pytest.raises(ValueError, match="invalid literal"):
        await worker.run(int, "no number")
    assert await worker.run(os.getpid) == first != os.getpid()


async def test_a_worker_that_dies_once_is_replaced_and_tried_again(worker: WorkerProcess) -> None:
    """A worker that is killed during work is replaced, and the caller gets the result."""
    pid = await worker.run(os.getpid)
    work = asyncio.create_task(worker.run(time.sleep, 0.5))
    await asyncio.sleep(0.1)
    os.kill(pid, signal.SIGKILL)
    await work
    assert await worker.run(os.getpid) != pid


async def test_a_worker_that_dies_twice_is_unavailable_once(worker: WorkerProcess) -> None:
    """Work that always ends its process is UNAVAILABLE; the next work is done."""
    with pytest.raises(KeyServiceError) as refusal:
        await worker.run(os._exit, 3)
    assert refusal.value.kind is ErrorKind.UNAVAILABLE
    assert await worker.run(os.getpid) != os.getpid()


async def test_a_worker_that_cannot_start_is_unavailable() -> None:
    """If a worker's initialisation always ends it, work is UNAVAILABLE, and never hangs."""
    with closing(WorkerProcess(os._exit, 3)) as broken:
        for _ in range(2):
            with pytest.raises(KeyServiceError) as refusal:
                await broken.run(os.getpid)
            assert refusal.value.kind is ErrorKind.UNAVAILABLE


async def test_a_tenant_with_much_work_does_not_hold_another_up() -> None:
    """With 20 queued items of one tenant, another's single item is done after a few."""
    with closing(
        WorkerPool([WorkerProcess(time.sleep, 0) for _ in range(WORKERS)], per_tenant=1)
    ) as queue:
        busy, other = _tenant(), _tenant()
        started = (queue.run(each, _soon(), time.sleep, 0.2) for each in (busy, other))
        await asyncio.gather(*started)
        done: list[TenantId] = []

        async def run(tenant: TenantId) -> None:
            await queue.run(tenant, _soon(), time.sleep, 0.05)
            done.append(tenant)

        work = [asyncio.create_task(run(busy)) for _ in range(20)]
        await asyncio.sleep(0)
        await run(other)
        assert done.count(busy) <= 3
        await asyncio.gather(*work)
        assert done.count(busy) == 20


async def test_tenants_take_turns() -> None:
    """After the running item, each tenant is served once before any is again."""
    worker = Held()
    with closing(WorkerPool([worker], per_tenant=1)) as queue:
        tenants = [_tenant() for _ in range(3)]
        order: list[int] = []

        async def run(index: int) -> None:
            await queue.run(tenants[index], _soon(), int)
            order.append(index)

        work = [asyncio.create_task(run(index)) for index in (0, 0, 0, 1, 1, 1, 2, 2, 2)]
        await asyncio.sleep(0)
        worker.release.set()
        await asyncio.gather(*work)
        assert sorted(order) == [0, 0, 0, 1, 1, 1, 2, 2, 2]
        assert order[0] == 0
        assert set(order[1:4]) == set(order[4:7]) == {0, 1, 2}


async def test_no_tenant_has_more_than_its_share_running() -> None:
    """Of three workers one tenant gets two; the third stays free for another."""
    workers = [Held() for _ in range(3)]
    with closing(WorkerPool(workers, per_tenant=2)) as queue:
        busy, other = _tenant(), _tenant()
        work = [asyncio.create_task(queue.run(busy, _soon(), int)) for _ in range(5)]
        await asyncio.sleep(0)
        late = asyncio.create_task(queue.run(other, _soon(), int))
        await asyncio.sleep(0)
        assert sum(worker in queue._queue._free for worker in workers) == 0
        workers[0].release.set()
        await asyncio.wait_for(late, PATIENCE)
        for worker in workers:
            worker.release.set()
        assert await asyncio.gather(*work) == [0] * 5
        assert sum(worker in queue._queue._free for worker in workers) == 3


async def test_a_tenants_queue_is_bounded() -> None:
    """One item above a tenant's limit is OVERLOADED at once; another tenant has its own limit."""
    worker = Held()
    with closing(WorkerPool([worker], per_tenant=1)) as queue:
        busy, other = _tenant(), _tenant()
        work = [asyncio.create_task(queue.run(busy, _soon(), int)) for _ in range(1 + MAX_WAITING)]
        await asyncio.sleep(0)
        with pytest.raises(KeyServiceError) as refusal:
            await queue.run(busy, _soon(), int)
        assert refusal.value.kind is ErrorKind.OVERLOADED
        late = asyncio.create_task(queue.run(other, _soon(), int))
        assert await _kind(work.pop()) is ErrorKind.OVERLOADED
        worker.release.set()
        assert await late == 0
        assert await asyncio.gather(*work) == [0] * len(work)
        assert await queue.run(busy, _soon(), int) == 0


async def test_the_whole_queue_is_bounded() -> None:
    """When the whole queue is full, each tenant's next item is OVERLOADED; later it is not."""
    worker = Held()
    with closing(WorkerPool([worker], per_tenant=1)) as queue:
        tenants = [_tenant() for _ in range(MAX_WAITING + 1)]
        work = [asyncio.create_task(queue.run(tenant, _soon(), int)) for tenant in tenants]
        await asyncio.sleep(0)
        with pytest.raises(KeyServiceError) as refusal:
            await queue.run(_tenant(), _soon(), int)
        assert refusal.value.kind is ErrorKind.OVERLOADED
        worker.release.set()
        assert await asyncio.gather(*work) == [0] * len(work)
        assert await queue.run(_tenant(), _soon(), int) == 0


async def test_a_turn_that_comes_too_late_is_given_up() -> None:
    """An item that waits past its deadline is DEADLINE_EXCEEDED in time; the queue continues."""
    worker = Held()
    with closing(WorkerPool([worker], per_tenant=1)) as queue:
        tenant = _tenant()
        running = asyncio.create_task(queue.run(tenant, _soon(), int))
        await asyncio.sleep(0)
        late = [asyncio.create_task(queue.run(tenant, _soon(0.05), int)) for _ in range(5)]
        refusals = [await _kind(each) for each in late]
        assert set(refusals) == {ErrorKind.DEADLINE_EXCEEDED}
        assert not running.done()
        worker.release.set()
        assert await running == 0
        assert await queue.run(tenant, _soon(), int) == 0


async def test_no_worker_is_lost_where_turn_and_deadline_come_together() -> None:
    """A turn at the moment of its deadline is used or passed on, never lost."""
    worker = Held()
    with closing(WorkerPool([worker], per_tenant=1)) as queue:
        tenant = _tenant()
        running = asyncio.create_task(queue.run(tenant, _soon(), int))
        late = asyncio.create_task(queue.run(tenant, _soon(0.2), int))
        await asyncio.sleep(0.1)
        worker.release.set()
        time.sleep(0.15)  # noqa: ASYNC251 - the loop is late: both events are in its next round
        assert await running == 0
        assert await _kind(late) in (None, ErrorKind.DEADLINE_EXCEEDED)
        async with asyncio.timeout(PATIENCE):
            assert await queue.run(tenant, _soon(1.0), int) == 0
        assert not queue._queue._held[tenant]


async def test_no_worker_is_lost_where_a_caller_gives_up() -> None:
    """A caller that is cancelled while waiting or running leaves the queue intact."""
    workers = [Held(), Held()]
    with closing(WorkerPool(workers, per_tenant=1)) as queue:
        tenant = _tenant()
        work = [asyncio.create_task(queue.run(tenant, _soon(), int)) for _ in range(3)]
        await asyncio.sleep(0)
        for each in (work[1], work[0]):
            each.cancel()
        await asyncio.sleep(0.01)
        for worker in workers:
            worker.release.set()
        assert await work[2] == 0
        assert await queue.run(tenant, _soon(1.0), int) == 0
        assert len(queue._queue._free) == len(workers)


async def test_no_worker_is_lost_where_a_caller_gives_up_at_its_turn() -> None:
    """A caller that is cancelled at the moment of its turn passes the worker on."""
    worker = Held()
    with closing(WorkerPool([worker], per_tenant=1)) as queue:
        first, second = _tenant(), _tenant()
        running = asyncio.create_task(queue.run(first, _soon(), int))
        waiting = asyncio.create_task(queue.run(second, _soon(), int))
        await asyncio.sleep(0)
        worker.release.set()
        asyncio.get_running_loop().call_soon(waiting.cancel)  # right after the turn is given
        assert await running == 0
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert await queue.run(first, _soon(1.0), int) == 0
