"""A run: an installation is loaded while its parts fail in turn, and is then checked."""

from __future__ import annotations

import json
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from statistics import median

import httpx2
import psycopg
import sqlalchemy as sa
from tests.cluster.faults import Fault, faults
from tests.cluster.installation import SHARDS, Cluster, running, until
from tests.cluster.probe import Probe
from tests.crash_recovery import invariants
from tests.crash_recovery.client import Caller, Client, Ledger, Promise, client, responses_of
from tests.crash_recovery.random_choices import SeededRandom
from tests.crash_recovery.run import at_work
from tests.crash_recovery.snapshot import DRIVER, Snapshot, read
from tests.crash_recovery.state import (
    OPERATOR_TENANT,
    Made,
    State,
    create_state,
    new_api_key,
    new_tenant,
)
from tests.fixtures.caller import API

from pqkeep.audit import verify

POLL_SECONDS = 0.02
CALM = 10
"""Responses that each probe needs before the next fault."""
SETTLE_SECONDS = 60.0
BATCH = 100


@dataclass(frozen=True, slots=True)
class Plan:
    """The size of a run."""

    seconds: float = 300.0
    kills: int = 0
    """Above 0: only this many kills, spread over this many operations."""
    operations: int = 100_000
    threads: int = 6
    pause: float = 0.02
    """Seconds between two requests of a thread."""
    seed: str = "1"


@dataclass
class Keeping(State):
    """A State that keeps all ciphertexts."""

    kept: list[Made] = field(default_factory=list)

    def remember(self, operation: str, made: Made) -> None:
        super().remember(operation, made)
        if operation == "decrypt":
            self.kept.append(made)


@dataclass
class Row:
    """The effect of one kind of fault on the clients of its shards."""

    part: str
    way: str
    goal: str
    seconds: list[float] = field(default_factory=list)
    """The longest time without a response for a client that keeps sending requests."""


@dataclass(frozen=True)
class Report:
    """The parameters and results of a run."""

    seed: str
    seconds: float
    operations: int
    requests_a_second: float
    faults: int
    responses: dict[str, int]
    refused_connections: int
    broken: int
    """Requests with a broken connection or without a response in time."""
    opened: int
    """The ciphertexts that were decrypted at the end: all acknowledged ones."""
    records: dict[str, int]
    epochs: dict[str, int]
    rows: list[Row]
    findings: dict[str, list[str]]

    def table(self) -> str:
        """Return the times as a table in Markdown."""
        lines = [
            "| what | how | times | shortest | median | longest |",
            "|---|---|---|---|---|---|",
        ]
        for row in self.rows:
            least, middle, most = min(row.seconds), median(row.seconds), max(row.seconds)
            numbers = f"{least:.1f} s | {middle:.1f} s | {most:.1f} s"
            lines.append(f"| {row.part} | {row.way} | {len(row.seconds)} | {numbers} |")
        return "\n".join(lines) + "\n"


def run(plan: Plan, folder: Path) -> Report:
    """Run an installation under load, cause faults, stop it, and check its data."""
    ledgers = [Ledger() for _ in range(plan.threads + 1)]
    with running(folder) as cluster:
        with client(cluster.base_url, ledgers[-1]) as first:
            state = _state(first, cluster.operator_key, plan.threads)
            probes = {
                shard: Probe(cluster.base_url, caller)
                for shard, caller in _probing(cluster, first, state).items()
            }
        began = time.monotonic()
        with ExitStack() as stack:
            stack.enter_context(at_work(cluster.base_url, state, ledgers, plan.seed, plan.pause))
            for probe in probes.values():
                stack.enter_context(probe.asking())
            rows = _have_faults(cluster, probes, ledgers, plan)
        seconds = time.monotonic() - began
        ledgers += [probe.ledger for probe in probes.values()]
        operations = sum(ledger.operations for ledger in ledgers)
        unopened, opened, batches = _open_all(cluster, state)
        exports = {shard: _export(cluster, shard, folder) for shard in SHARDS}
        shard_of = _placements(cluster)
        epochs = {shard: _epoch(url) for shard, url in cluster.stores.items()}
        for part in cluster.parts():
            part.stop()
        snapshots = {shard: _snapshot(cluster, shard, shard_of) for shard in SHARDS}
    promises: dict[str, list[Promise]] = defaultdict(list)
    for ledger in ledgers:
        for promise in ledger.promises:
            promises[shard_of[promise.tenant_id]].append(promise)
    findings = {
        "answers": [wrong for ledger in ledgers for wrong in ledger.wrong],
        "opened": unopened,
    }
    for shard, snapshot in snapshots.items():
        found = invariants.everything(snapshot, promises[shard])
        found["nothing twice"] = [each for each in found["nothing twice"] if each not in batches]
        found["export"] = list(
            invariants.the_export_is_the_log(snapshot, exports[shard].read_bytes())
        )
        found["verifier"] = [str(each) for each in verify([exports[shard]]).findings]
        findings |= {f"{shard}: {check}": wrong for check, wrong in found.items()}
    responses = responses_of(ledgers)
    report = Report(
        seed=plan.seed,
        seconds=round(seconds, 1),
        operations=operations,
        requests_a_second=round(sum(responses.values()) / seconds, 1),
        faults=sum(len(row.seconds) for row in rows),
        responses=responses,
        refused_connections=sum(ledger.refused for ledger in ledgers),
        broken=sum(ledger.broken for ledger in ledgers),
        opened=opened,
        records={shard: len(each.records) for shard, each in snapshots.items()},
        epochs=epochs,
        rows=rows,
        findings=findings,
    )
    (folder / "report.json").write_text(json.dumps(asdict(report), indent=2))
    return report


def _state(first: Client, operator_key: str, threads: int) -> Keeping:
    made = create_state(first, operator_key, threads)
    return Keeping(**{name: getattr(made, name) for name in made.__dataclass_fields__})


def _probing(cluster: Cluster, first: Client, state: State) -> Mapping[str, Caller]:
    """Make tenants with a key until each shard has one; return one of each."""
    found: dict[str, Caller] = {}
    while len(found) < len(SHARDS):
        tenant = new_tenant(first, state, "enterprise_plus")
        caller = new_api_key(first, state, tenant)
        change = {"requests_per_minute": 100_000}
        made = first.ask(state.operator, "PATCH", f"/tenants/{tenant}", change)
        assert made is not None
        assert made.is_success, made
        first.promised(made, Caller(tenant, "operator", ""), "set-rate-limit")
        body = {"algorithm": "Kyber768"}
        made = first.ask(caller, "POST", "/kms/keys/generate", body)
        assert made is not None
        assert made.is_success, made
        first.promised(made, caller, "generate-key", key_version=1)
        found.setdefault(_placements(cluster)[tenant], caller)
    return found


def _have_faults(
    cluster: Cluster, probes: Mapping[str, Probe], ledgers: Sequence[Ledger], plan: Plan
) -> list[Row]:
    """Cause one fault after another; return the times without a response."""
    rows: dict[tuple[str, str], Row] = {}
    random = SeededRandom(f"{plan.seed} faults")
    deadline = time.monotonic() + plan.seconds
    done = 0

    def is_over() -> bool:
        return done >= plan.kills if plan.kills else time.monotonic() > deadline

    possible = [each for each in faults(cluster) if each.is_kill or not plan.kills]
    while not is_over():
        waiting = list(possible)
        while waiting and not is_over():
            fault = waiting.pop(random.below(len(waiting)))
            if plan.kills:
                operations = (done + 1) * plan.operations // (plan.kills + 1)
                _until_operations(ledgers, operations)
            _calm(cluster, probes)
            row = rows.setdefault((fault.part, fault.way), Row(fault.part, fault.way, fault.goal))
            row.seconds.append(_away(cluster, probes, fault))
            done += 1
    if plan.kills:
        _until_operations(ledgers, plan.operations)
    _calm(cluster, probes)
    return sorted(rows.values(), key=lambda row: (row.part, row.way))


def _until_operations(ledgers: Sequence[Ledger], count: int) -> None:
    while sum(ledger.operations for ledger in ledgers) < count:
        time.sleep(POLL_SECONDS)


def _away(cluster: Cluster, probes: Mapping[str, Probe], fault: Fault) -> float:
    """Cause a fault and repair it; return the longest time without a response."""
    began = time.monotonic()

    def wait(shard: str) -> None:
        until(lambda: probes[shard].has_answered_since(began), f"{fault}: {shard} is gone")

    with fault.away(wait):
        pass
    _calm(cluster, probes)
    now = time.monotonic()
    return max(probes[shard].longest_without_response(began, now) for shard in fault.shards)


def _calm(cluster: Cluster, probes: Mapping[str, Probe]) -> None:
    """Wait until all parts are there, and every shard responds."""
    cluster.until_whole()
    now = time.monotonic()
    for shard, probe in probes.items():
        until(lambda: probe.has_answered_since(now, CALM), f"{shard} does not answer")  # noqa: B023


def _operator(cluster: Cluster) -> httpx2.Client:
    headers = {"X-API-Key": cluster.operator_key}
    url = cluster.base_url + API
    return httpx2.Client(base_url=url, headers=headers, timeout=600, trust_env=False)


def _export(cluster: Cluster, shard: str, folder: Path) -> Path:
    """Wait for pending records, have the shard's log signed, and write its export."""
    until(lambda: _outbox(cluster) == 0, "events still wait for the log")
    params = {"shard": shard}
    with _operator(cluster) as operator:
        operator.post("/audit/checkpoints", json=params).raise_for_status()
        exported = operator.get("/audit/export", params=params).raise_for_status().content
    path = folder / f"export-{shard}.jsonl"
    path.write_bytes(exported)
    return path


def _open_all(cluster: Cluster, state: Keeping) -> tuple[list[str], int, list[str]]:
    """Decrypt every acknowledged ciphertext, in batches.

    Return the errors, the number of ciphertexts, and what the log must say about the batches.
    """
    by_key: dict[Caller, list[Made]] = defaultdict(list)
    for each in state.kept:
        by_key[each.caller].append(each)
    wrong: list[str] = []
    batches: list[str] = []
    for caller, made in by_key.items():
        headers = {"X-API-Key": caller.credential}
        url = cluster.base_url + API
        with httpx2.Client(base_url=url, headers=headers, timeout=600, trust_env=False) as asking:
            for first in range(0, len(made), BATCH):
                some = made[first : first + BATCH]
                items = {"items": [each.body for each in some]}
                response = asking.post("/kem/decrypt/batch", json=items).raise_for_status()
                request = response.json()["request_id"]
                batches.append(invariants.records_of_one("request_id", request, len(some)))
                for each, result in zip(some, response.json()["data"]["results"], strict=True):
                    found = result.get("data", {}).get("plaintext")
                    if found != each.expected["plaintext"]:
                        wrong.append(f"{each.body}: {result}")
    return wrong, len(state.kept), batches


def _outbox(cluster: Cluster) -> int:
    with psycopg.connect(cluster.accounts) as connection:
        (found,) = connection.execute("SELECT count(*) FROM audit_outbox").fetchone() or (0,)
    return int(found)


def _placements(cluster: Cluster) -> dict[str, str]:
    """Return the shard of each tenant. Records without a tenant are in the first shard."""
    with psycopg.connect(cluster.accounts) as connection:
        found = connection.execute("SELECT id, shard FROM tenants").fetchall()
    return {OPERATOR_TENANT: SHARDS[0], **{str(tenant): shard for tenant, shard in found}}


def _epoch(url: str) -> int:
    with psycopg.connect(url) as connection:
        (found,) = connection.execute("SELECT epoch FROM service_epoch").fetchone() or (0,)
    return int(found)


def _snapshot(cluster: Cluster, shard: str, shard_of: Mapping[str, str]) -> Snapshot:
    """Return a shard's log and keys, with its tenants."""
    urls = (sa.make_url(each) for each in (cluster.accounts, cluster.stores[shard]))
    accounts, keys = (each.set(drivername=DRIVER) for each in urls)
    found = read(accounts, keys)
    return replace(
        found,
        tenants=[each for each in found.tenants if shard_of[str(each.id)] == shard],
        api_keys=[each for each in found.api_keys if shard_of[str(each.tenant_id)] == shard],
    )
