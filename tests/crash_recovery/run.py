"""A run: a real installation is killed repeatedly under load, and its data is checked."""

import json
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import httpx2
from tests.crash_recovery import invariants
from tests.crash_recovery.client import Caller, Ledger, client, responses_of
from tests.crash_recovery.random_choices import SeededRandom
from tests.crash_recovery.snapshot import read, urls_of
from tests.crash_recovery.state import State, create_state
from tests.crash_recovery.workload import Worker
from tests.fixtures.caller import API
from tests.fixtures.installation import Installation, running

from pqkeep_server.initialise import IN_FILES, Stores

VICTIMS = ("pqkeep_gateway", "pqkeep_keyservice")
EXPORT = "export.jsonl"
POLL_SECONDS = 0.01
SETTLE_SECONDS = 30.0
OUTBOX_SECONDS = 1.2
"""The outbox is delivered every second."""
EXPORT_SECONDS = 600.0


@dataclass(frozen=True, slots=True)
class Plan:
    """The size of a run."""

    operations: int = 100_000
    kills: int = 50
    threads: int = 16
    seed: str = "1"


@dataclass(frozen=True)
class Report:
    """The parameters and results of a run."""

    seed: str
    database: str
    operations: int
    kills: dict[str, int]
    seconds: float
    responses: dict[str, int]
    broken: int
    records: int
    checkpoints: int
    findings: dict[str, list[str]]


def run(plan: Plan, folder: Path, databases: Stores = IN_FILES) -> Report:
    """Run an installation under load, kill it, let it settle, stop it, and check its data."""
    ledgers = [Ledger() for _ in range(plan.threads + 1)]
    began = time.monotonic()
    with running(folder, databases=databases) as installation:
        with client(installation.base_url, ledgers[-1]) as first:
            state = create_state(first, installation.ready["operator_key"], plan.threads)
        with at_work(installation.base_url, state, ledgers, plan.seed):
            kills = _kill(installation, ledgers, plan)
        seconds = time.monotonic() - began
        exported = _settle(installation, state.operator)
        (folder / EXPORT).write_bytes(exported)
    snapshot = read(*urls_of(databases, folder / "data"))
    promises = [promise for ledger in ledgers for promise in ledger.promises]
    found = invariants.everything(snapshot, promises)
    found["answers"] = [wrong for ledger in ledgers for wrong in ledger.wrong]
    found["export"] = list(invariants.the_export_is_the_log(snapshot, exported))
    report = Report(
        seed=plan.seed,
        database="sqlite" if databases == IN_FILES else "postgresql",
        operations=len(promises),
        kills=dict(kills),
        seconds=round(seconds, 1),
        responses=responses_of(ledgers),
        broken=sum(ledger.broken for ledger in ledgers),
        records=len(snapshot.records),
        checkpoints=len(snapshot.checkpoints),
        findings=found,
    )
    (folder / "report.json").write_text(json.dumps(asdict(report), indent=2))
    return report


@contextmanager
def at_work(
    base_url: str, state: State, ledgers: Sequence[Ledger], seed: str, pause: float = 0.0
) -> Iterator[None]:
    """Run a thread for each tenant that is not always busy, until the block ends.

    ``pause``: seconds between two requests of a thread.
    """
    stop = threading.Event()

    def work(number: int, idle: Caller) -> None:
        with client(base_url, ledgers[number]) as mine:
            Worker(state, mine, SeededRandom(f"{seed} {number}"), idle).run(stop, pause)

    with ThreadPoolExecutor(len(state.idle)) as pool:
        threads = [pool.submit(work, number, idle) for number, idle in enumerate(state.idle)]
        try:
            yield
        finally:
            stop.set()
        for thread in threads:
            thread.result()


def _kill(installation: Installation, ledgers: Sequence[Ledger], plan: Plan) -> Counter[str]:
    """Kill one of the two processes after every some operations; return after the last."""
    random = SeededRandom(f"{plan.seed} kills")
    kills: Counter[str] = Counter()
    step = plan.operations // (plan.kills + 1)
    for turn in range(1, plan.kills + 1):
        _until(ledgers, turn * step)
        time.sleep(random.below(100) / 1000)
        victim = random.one_of(VICTIMS)
        while (process := installation.children().get(victim)) is None:
            time.sleep(POLL_SECONDS)
        os.kill(process, signal.SIGKILL)
        kills[victim] += 1
    _until(ledgers, plan.operations)
    return kills


def _until(ledgers: Sequence[Ledger], operations: int) -> None:
    last, since = 0, time.monotonic()
    while (done := sum(ledger.operations for ledger in ledgers)) < operations:
        if done != last:
            last, since = done, time.monotonic()
        if time.monotonic() - since > SETTLE_SECONDS:
            raise TimeoutError(f"the service does not come back after {done} operations")
        time.sleep(POLL_SECONDS)


def _settle(installation: Installation, operator: Caller) -> bytes:
    """Wait until the service is complete, have the log signed, and return its export."""
    headers = {"X-API-Key": operator.credential}
    deadline = time.monotonic() + SETTLE_SECONDS
    with httpx2.Client(
        base_url=installation.base_url + API, headers=headers, timeout=600, trust_env=False
    ) as asking:
        while True:
            time.sleep(2)  # whatever waits in the outbox is brought every second
            try:
                if asking.post("/audit/checkpoints", json={}).is_success:
                    break
            except httpx2.TransportError:
                if time.monotonic() > deadline:
                    raise
        return asking.get("/audit/export").raise_for_status().content
