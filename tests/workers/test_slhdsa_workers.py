"""Real key service processes with killed, flooded and busy SLH-DSA workers."""

import asyncio
import itertools
import os
import signal
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from tests.fixtures.processes import Process
from tests.patience import PATIENCE

from pqkeep_keyservice.live import MAX_WAITING
from pqkeep_protocol.administration import AnyAdministrationResult
from pqkeep_protocol.algorithms import ALGORITHMS, Algorithm
from pqkeep_protocol.audit import AnyAuditResult
from pqkeep_protocol.codec import (
    TO_GATEWAY,
    Answer,
    Call,
    FramedConnection,
    Refusal,
    ToGateway,
    Unreadable,
)
from pqkeep_protocol.errors import ErrorKind
from pqkeep_protocol.keys import KeyVersion, TenantId
from pqkeep_protocol.messages import (
    AnyKeylessResult,
    AnyRequest,
    AnyResult,
    Attribution,
    BatchResults,
    Destructions,
    Encapsulate,
    Encapsulated,
    GenerateKey,
    Key,
    Sign,
    Signed,
    Verified,
    Verify,
)
from pqkeep_protocol.metrics import Metrics

pytestmark = pytest.mark.campaign

Start = Callable[[str], tuple[Process, Path]]
Outcome = AnyResult | AnyKeylessResult | BatchResults | ErrorKind

SLOW = Algorithm.SLH_DSA_SHA2_256S
QUICK = Algorithm.SLH_DSA_SHA2_128F
QUEUED = Algorithm.SLH_DSA_SHA2_128S
"""Takes half as long as the slow one, for tests that wait for several."""
ONE = KeyVersion(1)
POLL_SECONDS = 0.01
MESSAGE = b"a message"
FEW_TURNS = 5
STAT_PPID, STAT_UTIME, STAT_STIME = 1, 11, 12
"""Fields of /proc/PID/stat, counted after the name: see proc_pid_stat(5)."""


class Service:
    """One key service process, with one connection like a gateway's."""

    def __init__(self, process: Process, socket: Path) -> None:
        self.process = process
        self._socket = socket
        self._ids = itertools.count(1)
        self._waiting: dict[
            int,
            asyncio.Future[
                Outcome | Destructions | AnyAuditResult | AnyAdministrationResult | Metrics
            ],
        ] = {}
        self._connection: FramedConnection[ToGateway] | None = None

    async def connect(self) -> None:
        """Connect as soon as it serves."""
        async with asyncio.timeout(PATIENCE):
            while self._connection is None:
                assert self.process.poll() is None, self._socket.with_name("output").read_text()
                try:
                    loop = asyncio.get_running_loop()
                    _, self._connection = await loop.create_unix_connection(
                        lambda: FramedConnection(
                            TO_GATEWAY, on_frame=self._receive, on_lost=_nothing
                        ),
                        str(self._socket),
                    )
                except OSError:
                    await asyncio.sleep(0.05)

    def close(self) -> None:
        """Hang up."""
        if self._connection is not None:
            self._connection.close()

    async def ask(self, request: AnyRequest, seconds: float = PATIENCE) -> Outcome:
        """Return the result, or the kind of the refusal. It must arrive by the deadline."""
        assert self._connection is not None
        number = next(self._ids)
        self._waiting[number] = asyncio.get_running_loop().create_future()
        attribution = Attribution("request-1", "api-key:3", "192.0.2.7", "plan-allows")
        self._connection.send(Call(number, int(seconds * 1000), attribution, request))
        async with asyncio.timeout(PATIENCE):
            outcome = await self._waiting[number]
        unasked = Destructions | AnyAuditResult | AnyAdministrationResult | Metrics
        assert not isinstance(outcome, unasked)
        return outcome

    async def new_tenant(self, *algorithms: Algorithm) -> TenantId:
        """Return a tenant with these keys."""
        tenant = TenantId(uuid4())
        for algorithm in algorithms:
            made = await self.ask(GenerateKey(tenant=tenant, algorithm=algorithm, quota=None))
            assert isinstance(made, Key)
        return tenant

    async def warm_up(self) -> None:
        """Start every signing worker, by work of several tenants at once."""
        tenants = [await self.new_tenant(QUICK) for _ in range(max(2, os.cpu_count() or 1))]
        await asyncio.gather(
            *(self.ask(_sign(tenant, QUICK)) for tenant in tenants for _ in (1, 2))
        )

    def workers(self) -> dict[int, int]:
        """Return the processor time of each worker in ticks, by process id."""
        return {
            pid: ticks
            for pid, ticks in _children(self.process.pid).items()
            if b"multiprocessing.spawn" in _command(pid)
        }

    async def time_to_sign(self, tenant: TenantId) -> float:
        """Return the present seconds of a queued signature."""
        before = time.monotonic()
        assert isinstance(await self.ask(_sign(tenant, QUEUED)), Signed)
        return time.monotonic() - before

    async def first_worker(self) -> int:
        """Return a worker process as soon as one exists."""
        async with asyncio.timeout(PATIENCE):
            while True:
                for pid in self.workers():
                    return pid
                await asyncio.sleep(POLL_SECONDS)

    async def busy_worker(self, before: dict[int, int]) -> int:
        """Return a worker that has used CPU time since ``before``, or is new."""
        async with asyncio.timeout(PATIENCE):
            while True:
                for pid, ticks in self.workers().items():
                    if ticks >= before.get(pid, 0) + 5:
                        return pid
                await asyncio.sleep(POLL_SECONDS)

    def _receive(self, frame: ToGateway | Unreadable) -> None:
        match frame:
            case Answer(id=number, result=result):
                self._waiting.pop(number).set_result(result)
            case Refusal(id=number, kind=kind):
                self._waiting.pop(number).set_result(kind)
            case _:
                pytest.fail("nobody asked for this")


def _nothing(*_: object) -> None:
    """Ignore a lost connection."""


def _stat(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def _command(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def _children(parent: int) -> dict[int, int]:
    """Return the processor time of each living child process."""
    found: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            stat = _stat(int(entry.name))
            if stat and stat[0] not in "ZX" and stat[STAT_PPID] == str(parent):
                found[int(entry.name)] = int(stat[STAT_UTIME]) + int(stat[STAT_STIME])
    return found


def _is_alive(pid: int) -> bool:
    stat = _stat(pid)
    return bool(stat) and stat[0] not in "ZX"


async def _until_gone(pids: Sequence[int]) -> list[int]:
    """Return the processes that are left after some seconds."""
    for _ in range(500):
        if any(map(_is_alive, pids)):
            await asyncio.sleep(POLL_SECONDS)
    return [pid for pid in pids if _is_alive(pid)]


def _sign(tenant: TenantId, algorithm: Algorithm) -> Sign:
    return Sign(tenant=tenant, algorithm=algorithm, version=None, message=MESSAGE)


async def _assert_signs(service: Service, tenant: TenantId, algorithm: Algorithm = SLOW) -> None:
    made = await service.ask(_sign(tenant, algorithm))
    assert isinstance(made, Signed)
    assert len(made.signature) == ALGORITHMS[algorithm].output_size
    request = Verify(
        tenant=tenant,
        algorithm=algorithm,
        version=made.version,
        message=MESSAGE,
        signature=made.signature,
    )
    assert await service.ask(request) == Verified()


@pytest.fixture(scope="module")
def running(start_key_service: Start) -> tuple[Process, Path]:
    """Run one key service for all tests that leave it alive."""
    return start_key_service("")


@pytest.fixture
async def service(running: tuple[Process, Path]) -> AsyncIterator[Service]:
    """Connect to that key service, with its signing workers started."""
    async with _connected(*running) as made:
        yield made


@pytest.fixture
async def victim(start_key_service: Start) -> AsyncIterator[Service]:
    """Run and connect to a key service for one test, which may end it."""
    async with _connected(*start_key_service("")) as made:
        yield made


@asynccontextmanager
async def _connected(process: Process, socket: Path) -> AsyncIterator[Service]:
    made = Service(process, socket)
    await made.connect()
    await made.warm_up()
    yield made
    made.close()


async def test_a_worker_killed_once_changes_nothing(service: Service) -> None:
    """After kill -9 of a worker during a signature, the caller still gets a valid one."""
    tenant = await service.new_tenant(SLOW)
    before = service.workers()
    signing = asyncio.create_task(service.ask(_sign(tenant, SLOW)))
    killed = await service.busy_worker(before)
    assert not signing.done()
    os.kill(killed, signal.SIGKILL)
    made = await signing
    assert isinstance(made, Signed)
    assert killed not in service.workers()
    request = Verify(
        tenant=tenant, algorithm=SLOW, version=ONE, message=MESSAGE, signature=made.signature
    )
    assert await service.ask(request) == Verified()
    await _assert_signs(service, tenant)


async def test_a_worker_killed_twice_is_unavailable_and_the_next_signature_is_made(
    service: Service,
) -> None:
    """A second kill -9 during one signature returns UNAVAILABLE; the next signature succeeds."""
    tenant = await service.new_tenant(SLOW)
    before = service.workers()
    signing = asyncio.create_task(service.ask(_sign(tenant, SLOW)))
    first = await service.busy_worker(before)
    os.kill(first, signal.SIGKILL)
    second = await service.busy_worker({**before, **service.workers(), first: 10**9})
    assert second not in before
    os.kill(second, signal.SIGKILL)
    assert await signing is ErrorKind.UNAVAILABLE
    await _assert_signs(service, tenant)


async def test_every_worker_killed_at_once_is_replaced(service: Service) -> None:
    """After kill -9 of all workers both tenants get responses, and later signatures."""
    tenants = [await service.new_tenant(SLOW) for _ in range(2)]
    before = service.workers()
    signing = [asyncio.create_task(service.ask(_sign(tenant, SLOW))) for tenant in tenants]
    await service.busy_worker(before)
    for pid in service.workers():
        os.kill(pid, signal.SIGKILL)
    for response in await asyncio.gather(*signing):
        assert isinstance(response, Signed) or response is ErrorKind.UNAVAILABLE
    for tenant in tenants:
        await _assert_signs(service, tenant, SLOW)


async def test_a_killed_key_service_leaves_no_process(victim: Service) -> None:
    """Kill -9 of a signing key service ends all its processes."""
    tenant = await victim.new_tenant(SLOW)
    before = victim.workers()
    signing = asyncio.create_task(victim.ask(_sign(tenant, SLOW)))
    await victim.busy_worker(before)
    children = list(_children(victim.process.pid))
    assert len(children) >= 2
    victim.process.kill()
    victim.process.wait()
    left = await _until_gone(children)
    signing.cancel()
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    assert left == []


async def test_a_key_service_killed_while_a_worker_starts_leaves_no_process(
    start_key_service: Start,
) -> None:
    """Kill -9 of a key service that has just spawned a worker ends the worker too."""
    service = Service(*start_key_service(""))
    await service.connect()
    request = GenerateKey(tenant=TenantId(uuid4()), algorithm=QUICK, quota=None)
    asking = asyncio.create_task(service.ask(request))
    await service.first_worker()
    children = list(_children(service.process.pid))
    service.process.kill()
    service.process.wait()
    left = await _until_gone(children)
    asking.cancel()
    service.close()
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    assert left == []


async def test_a_stopped_key_service_leaves_no_process(victim: Service) -> None:
    """SIGTERM during a signature: the signature is returned, and every process ends."""
    tenant = await victim.new_tenant(SLOW)
    before = victim.workers()
    signing = asyncio.create_task(victim.ask(_sign(tenant, SLOW)))
    await victim.busy_worker(before)
    children = list(_children(victim.process.pid))
    victim.process.send_signal(signal.SIGTERM)
    assert isinstance(await signing, Signed)
    await asyncio.to_thread(victim.process.wait, PATIENCE)
    assert victim.process.returncode == 0
    assert await _until_gone(children) == []


async def test_forty_queued_signatures_do_not_stop_another_tenant(service: Service) -> None:
    """With 40 queued signatures of one tenant, another tenant's comes after a few of them."""
    busy, other = await service.new_tenant(QUEUED), await service.new_tenant(QUICK)
    seconds = FEW_TURNS * await service.time_to_sign(busy)
    order: list[TenantId] = []

    async def run(request: Coroutine[Any, Any, Outcome], tenant: TenantId) -> Outcome:
        response = await request
        order.append(tenant)
        return response

    queued = [
        asyncio.create_task(run(service.ask(_sign(busy, QUEUED), seconds), busy)) for _ in range(40)
    ]
    await asyncio.sleep(0.1)
    made = await run(service.ask(_sign(other, QUICK)), other)
    assert isinstance(made, Signed)
    assert order.count(busy) <= FEW_TURNS < 40 // 2
    assert sum(task.done() for task in queued) <= FEW_TURNS
    kinds = {type(response) for response in await asyncio.gather(*queued)}
    assert kinds == {Signed, ErrorKind}, "the queue was not kept busy"
    await _assert_signs(service, busy, QUEUED)


async def test_a_tenants_queue_is_bounded_and_each_wait_too(service: Service) -> None:
    """Signatures above the queue's limit are OVERLOADED at once; late ones are given up.

    Other algorithms continue at once, and SLH-DSA afterwards.
    """
    busy = await service.new_tenant(QUEUED, Algorithm.ML_KEM_768)
    seconds = FEW_TURNS * await service.time_to_sign(busy)
    too_many = 5
    asked = [
        asyncio.create_task(service.ask(_sign(busy, QUEUED), seconds))
        for _ in range(1 + MAX_WAITING + too_many)
    ]
    await asyncio.sleep(0.1)
    request = Encapsulate(tenant=busy, algorithm=Algorithm.ML_KEM_768, version=ONE)
    assert isinstance(await service.ask(request), Encapsulated)
    assert not all(task.done() for task in asked)
    responses = await asyncio.gather(*asked)
    counts = Counter(
        response if isinstance(response, ErrorKind) else "signed" for response in responses
    )
    assert counts[ErrorKind.OVERLOADED] == too_many
    assert counts["signed"] >= 1
    assert counts[ErrorKind.DEADLINE_EXCEEDED] == len(asked) - too_many - counts["signed"] > 0
    assert all(response is ErrorKind.OVERLOADED for response in responses[-too_many:])
    await _assert_signs(service, busy, QUEUED)


async def test_waiting_signatures_do_not_use_up_the_connection(service: Service) -> None:
    """If any number of tenants fill their SLH-DSA queues, another's Kyber768 still works."""
    busy = [await service.new_tenant(QUICK) for _ in range(4)]
    other = await service.new_tenant(Algorithm.ML_KEM_768)
    asked = [
        asyncio.create_task(service.ask(_sign(tenant, QUICK), seconds=2.0))
        for tenant in busy
        for _ in range(1 + MAX_WAITING)
    ]
    await asyncio.sleep(0)
    request = Encapsulate(tenant=other, algorithm=Algorithm.ML_KEM_768, version=ONE)
    response = await service.ask(request)
    await asyncio.gather(*asked)
    assert isinstance(response, Encapsulated)
