"""A worker process makes the encapsulations of a large batch as the event loop would."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import resource
import signal
import time
from collections.abc import Callable, Sequence
from multiprocessing.process import BaseProcess
from typing import TYPE_CHECKING, Any

import pytest
from tests.patience import PATIENCE

from pqkeep_keyservice.crypto.kem import KEMS
from pqkeep_keyservice.live import encapsulation_workers
from pqkeep_protocol.algorithms import Algorithm
from pqkeep_protocol.errors import ErrorKind, KeyServiceError
from pqkeep_protocol.keys import KeyVersion, TenantId
from pqkeep_protocol.messages import (
    Attribution,
    Batch,
    Decapsulate,
    Decapsulated,
    DisableKey,
    Encapsulate,
    Encapsulated,
    Encrypt,
    Encrypted,
    GenerateKey,
    Item,
    ItemRequest,
    KeyService,
    Refused,
)

if TYPE_CHECKING:
    from keyservice.tests.conftest import InProcessService, Serving

    from pqkeep_keyservice.live.encapsulation_workers import EncapsulationWorkers

Sql = Callable[..., list[Any]]
ONE = KeyVersion(1)
KEM = Algorithm.ML_KEM_768
MANY = 20


def batch(tenant: TenantId, requests: Sequence[ItemRequest]) -> Batch:
    """Return a batch of requests."""
    return Batch(tenant=tenant, items=tuple(Item(request, "policy") for request in requests))


def encapsulate(tenant: TenantId, algorithm: Algorithm = KEM) -> Encapsulate:
    """Return a request for the first version of a key."""
    return Encapsulate(tenant=tenant, algorithm=algorithm, version=ONE)


Workers = Callable[[], list[BaseProcess]]


@pytest.fixture(autouse=True)
def running_workers(monkeypatch: pytest.MonkeyPatch) -> Workers:
    """Return the running workers. A key service starts one, however many cores there are."""
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    before = multiprocessing.active_children()
    return lambda: [
        process for process in multiprocessing.active_children() if process not in before
    ]


@pytest.fixture
def workers(service: InProcessService, monkeypatch: pytest.MonkeyPatch) -> EncapsulationWorkers:
    """Return a key service's workers without a pause between starts."""
    monkeypatch.setattr(encapsulation_workers, "SECONDS_BETWEEN_STARTS", 0.0)
    return service.parts.encapsulation_workers


@pytest.fixture
async def owner(tenant: TenantId, keys: KeyService, attribution: Attribution) -> TenantId:
    """Return a tenant with a key for each KEM."""
    for algorithm in KEMS:
        await keys.execute(GenerateKey(tenant=tenant, algorithm=algorithm, quota=None), attribution)
    return tenant


@pytest.fixture
async def made_elsewhere(
    workers: EncapsulationWorkers, owner: TenantId, monkeypatch: pytest.MonkeyPatch
) -> list[int]:
    """Start a worker, and return the list of its jobs' sizes."""
    encapsulated = workers.encapsulate
    public_key = KEMS[KEM].generate().public_bytes()
    now = asyncio.get_running_loop().time
    async with asyncio.timeout(PATIENCE):
        while not await encapsulated(owner, now() + 1, KEM, public_key, 1):  # noqa: ASYNC110
            await asyncio.sleep(0.05)
    numbers: list[int] = []

    async def counted(*arguments: Any) -> Any:
        made = await encapsulated(*arguments)
        numbers.append(len(made))
        return made

    monkeypatch.setattr(workers, "encapsulate", counted)
    return numbers


async def opened(
    keys: KeyService,
    owner: TenantId,
    done: Sequence[Any],
    attribution: Attribution,
    algorithm: Algorithm,
) -> list[bytes]:
    """Return the shared secrets of KEM ciphertexts."""
    requests = [
        Decapsulate(
            tenant=owner, algorithm=algorithm, version=ONE, kem_ciphertext=result.kem_ciphertext
        )
        for result in done
    ]
    results = (await keys.execute(batch(owner, requests), attribution)).results
    return [result.shared_secret for result in results if isinstance(result, Decapsulated)]


@pytest.mark.parametrize("algorithm", KEMS)
async def test_each_has_a_secret_of_its_own_that_the_key_opens(
    *,
    algorithm: Algorithm,
    owner: TenantId,
    keys: KeyService,
    attribution: Attribution,
    made_elsewhere: list[int],
) -> None:
    """For every KEM, each request gets its own secret, which its ciphertext decapsulates to."""
    requests = [encapsulate(owner, algorithm)] * MANY
    done = (await keys.execute(batch(owner, requests), attribution)).results
    assert made_elsewhere == [MANY]
    secrets = [result.shared_secret for result in done if isinstance(result, Encapsulated)]
    assert len(set(secrets)) == MANY
    assert await opened(keys, owner, done, attribution, algorithm) == secrets


async def test_batches_at_once_have_their_own_answers(
    owner: TenantId, keys: KeyService, attribution: Attribution, made_elsewhere: list[int]
) -> None:
    """A worker with jobs of several batches and keys returns the right results to each."""
    algorithms = [*KEMS] * encapsulation_workers.JOBS_OF_A_WORKER
    batches = [batch(owner, [encapsulate(owner, algorithm)] * MANY) for algorithm in algorithms]
    responses = await asyncio.gather(
        *(keys.execute(one_batch, attribution) for one_batch in batches)
    )
    assert made_elsewhere == [MANY] * len(algorithms)
    for algorithm, response in zip(algorithms, responses, strict=True):
        secrets = [
            result.shared_secret for result in response.results if isinstance(result, Encapsulated)
        ]
        assert await opened(keys, owner, response.results, attribution, algorithm) == secrets


async def test_a_worker_that_ends_among_jobs_leaves_none_unanswered(
    *,
    owner: TenantId,
    keys: KeyService,
    attribution: Attribution,
    made_elsewhere: list[int],
    running_workers: Workers,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """If a worker with jobs is killed, all batches succeed, and one line is logged."""
    (worker,) = running_workers()
    assert worker.pid is not None
    os.kill(worker.pid, signal.SIGSTOP)
    many = batch(owner, [encapsulate(owner)] * MANY)
    calls = [asyncio.create_task(keys.execute(many, attribution)) for _ in range(5)]
    await asyncio.sleep(0.1)
    worker.kill()
    for call in calls:
        done = (await call).results
        assert (
            len({result.shared_secret for result in done if isinstance(result, Encapsulated)})
            == MANY
        )
    assert made_elsewhere == [0] * len(calls)
    assert len([message for message in caplog.messages if "has failed" in message]) == 1


async def test_what_is_not_alike_is_answered_in_its_place(
    *,
    owner: TenantId,
    keys: KeyService,
    attribution: Attribution,
    made_elsewhere: list[int],
    sql: Sql,
) -> None:
    """Among many encapsulations, a batch's other requests keep their order and their records."""
    own = KEMS[KEM].generate()
    others: dict[int, ItemRequest] = {
        1: encapsulate(owner, Algorithm.X_WING),
        5: Encrypt(tenant=owner, algorithm=KEM, version=None, plaintext=b""),
        9: Encapsulate(tenant=owner, algorithm=KEM, version=None, public_key=own.public_bytes()),
        12: Encapsulate(tenant=owner, algorithm=KEM, version=KeyVersion(9)),
    }
    requests = [others.get(place, encapsulate(owner)) for place in range(MANY)]
    done = (await keys.execute(batch(owner, requests), attribution)).results
    assert made_elsewhere == [MANY - len(others)]
    assert isinstance(done[5], Encrypted)
    supplied = done[9]
    assert isinstance(supplied, Encapsulated)
    assert own.decapsulate(supplied.kem_ciphertext) == supplied.shared_secret
    assert done[12] == Refused(kind=ErrorKind.KEY_NOT_FOUND)
    hybrid = await opened(keys, owner, done[1:2], attribution, Algorithm.X_WING)
    assert hybrid == [done[1].shared_secret]  # type: ignore[union-attr]
    rows = sql(
        "SELECT operation, algorithm, key_version, outcome, keyring FROM audit_records"
        " WHERE outcome = 'key-not-found' OR algorithm = 'X-Wing' OR keyring IS NULL ORDER BY id"
    )
    assert ("encapsulate", "Kyber768", 9, "key-not-found", "default") in rows
    assert ("encapsulate", "Kyber768", None, "success", None) in rows
    assert ("encapsulate", "X-Wing", 1, "success", "default") in rows


async def test_a_key_that_may_not_be_used_has_none(
    owner: TenantId, keys: KeyService, attribution: Attribution, made_elsewhere: list[int]
) -> None:
    """Requests for a disabled version are refused without a worker."""
    await keys.execute(DisableKey(tenant=owner, algorithm=KEM, version=ONE), attribution)
    with pytest.raises(KeyServiceError) as alone:
        await keys.execute(encapsulate(owner), attribution)
    done = (await keys.execute(batch(owner, [encapsulate(owner)] * MANY), attribution)).results
    assert done == (Refused(kind=alone.value.kind),) * MANY
    assert made_elsewhere == []


async def test_a_worker_that_died_is_done_without_and_replaced(
    owner: TenantId,
    keys: KeyService,
    attribution: Attribution,
    made_elsewhere: list[int],
    running_workers: Workers,
) -> None:
    """After kill -9 the next batch succeeds, and a later one uses a new worker."""
    (worker,) = running_workers()
    assert worker.pid is not None
    os.kill(worker.pid, signal.SIGKILL)
    worker.join()
    async with asyncio.timeout(PATIENCE):
        while made_elsewhere[-1:] != [MANY]:
            requests = [encapsulate(owner)] * MANY
            done = (await keys.execute(batch(owner, requests), attribution)).results
            assert (
                len({result.shared_secret for result in done if isinstance(result, Encapsulated)})
                == MANY
            )
            await asyncio.sleep(0.05)
    assert made_elsewhere[0] == 0


async def test_a_worker_that_hangs_is_ended(
    *,
    owner: TenantId,
    keys: KeyService,
    attribution: Attribution,
    made_elsewhere: list[int],
    running_workers: Workers,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A stopped worker delays a batch for a limited time, and is killed."""
    monkeypatch.setattr(encapsulation_workers, "SECONDS", 0.2)
    (worker,) = running_workers()
    assert worker.pid is not None
    os.kill(worker.pid, signal.SIGSTOP)
    done = (await keys.execute(batch(owner, [encapsulate(owner)] * MANY), attribution)).results
    assert [type(result) for result in done] == [Encapsulated] * MANY
    assert made_elsewhere == [0]
    assert not worker.is_alive()


async def test_an_answer_that_comes_too_late_is_nobody_elses(
    workers: EncapsulationWorkers,
    owner: TenantId,
    made_elsewhere: list[int],
    running_workers: Workers,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A late result is not used for any later job."""
    monkeypatch.setattr(encapsulation_workers, "SECONDS", 0.5)
    first, second = KEMS[KEM].generate(), KEMS[KEM].generate()
    loop = asyncio.get_running_loop()

    def begin(public_key: bytes) -> asyncio.Task[Any]:
        return loop.create_task(
            workers.encapsulate(owner, loop.time() + PATIENCE, KEM, public_key, MANY)
        )

    (worker,) = running_workers()
    assert worker.pid is not None
    os.kill(worker.pid, signal.SIGSTOP)
    late = begin(first.public_bytes())
    await asyncio.sleep(0.3)
    behind = begin(second.public_bytes())
    await asyncio.sleep(0.05)
    os.kill(worker.pid, signal.SIGCONT)
    time.sleep(0.3)  # noqa: ASYNC251 - the event loop sees the answer and the time at once
    made = await behind
    assert all(second.decapsulate(ciphertext) == secret for secret, ciphertext in made)
    assert await late == []


async def test_a_process_that_cannot_be_started_is_done_without(
    workers: EncapsulationWorkers,
    owner: TenantId,
    keys: KeyService,
    attribution: Attribution,
    running_workers: Workers,
) -> None:
    """Without file descriptors for a process, now or later, the event loop does the batch."""
    many = batch(owner, [encapsulate(owner)] * MANY)
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    pair = os.dup(0), os.dup(0)  # the numbers that are free: as many as the sockets take
    for descriptor in pair:
        os.close(descriptor)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(pair) + 1, before[1]))
    try:
        for _ in range(2):
            done = (await keys.execute(many, attribution)).results
            assert [type(result) for result in done] == [Encapsulated] * MANY
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    assert not running_workers()


async def test_a_damaged_key_is_refused_and_recorded_as_one_request_of_it_is(
    serving: Serving, sql: Sql, tenant: TenantId, attribution: Attribution
) -> None:
    """Many requests for a key with a changed row are all UNAVAILABLE, each with its record."""
    async with serving() as keys:
        key = GenerateKey(tenant=tenant, algorithm=KEM, quota=None)
        await keys.execute(key, attribution)
    sql("UPDATE keys SET public_key = ?", KEMS[KEM].generate().public_bytes())
    async with serving() as keys:
        many = batch(tenant, [encapsulate(tenant)] * MANY)
        done = (await keys.execute(many, attribution)).results
    assert done == (Refused(kind=ErrorKind.UNAVAILABLE),) * MANY
    outcomes = sql("SELECT outcome FROM audit_records ORDER BY id DESC")
    assert outcomes[:MANY] == [("unavailable",)] * MANY
