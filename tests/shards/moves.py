"""Moves all tenants of a shard to another one under load, and checks that nothing is lost.

``python -m tests.shards.moves --tenants 1000``, or ``make moves``; with ``--postgresql`` the
databases are on a server. Exit status 1: a ciphertext does not open, a log does not verify, a
response has no record or several, or a response is undocumented.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import quantiles
from uuid import uuid4

import httpx2
from tests.crash_recovery.client import Caller, Client, Ledger, client, responses_of
from tests.crash_recovery.random_choices import SeededRandom
from tests.fixtures.caller import API, TLS
from tests.fixtures.installation import Installation, running
from tests.fixtures.postgresql import KEYS_ROLE, new_databases, running_postgresql
from tests.patience import PATIENCE

from pqkeep.audit import verify
from pqkeep_server.initialise import IN_FILES, Layout
from pqkeep_server.shards import ShardMoves

SOURCE, TARGET = "default", "shard-2"
SHARDS = (SOURCE, TARGET)
THREADS = 3
PAUSE_SECONDS = 0.01
"""Seconds between two requests of a thread."""
PROBE_SECONDS = 0.003
PROBES = 4
ALGORITHM = "Kyber768"
PLAINTEXT = "YSBzZWNyZXQ="
BATCH = 100
BEGINS, ENDS = "refusing its requests", "serving it there"
"""The command's output before it refuses a tenant's requests, and before it serves them again."""


@dataclass
class Tenant:
    """A tenant with its ciphertexts."""

    caller: Caller
    ciphertexts: list[dict[str, object]] = field(default_factory=list)


@dataclass(frozen=True)
class Report:
    """The parameters and results of a run."""

    database: str
    tenants: int
    seconds: float
    """The duration of the command."""
    operations: int
    """Requests with a response during the command."""
    responses: dict[str, int]
    without_response: int
    move: list[float]
    """The milliseconds of a move: median, 95th percentile, and maximum."""
    unavailable: list[float]
    """The same for the time from a tenant's first refusal to its next 200."""
    opened: int
    records: dict[str, int]
    findings: dict[str, list[str]]


class Moving:
    """The command that drains a shard, in its own process, with its output."""

    def __init__(
        self, directory: Path, began: Callable[[str, float, threading.Event], None]
    ) -> None:
        self._directory = directory
        self._began = began
        self.seconds: list[float] = []
        """The duration of each move."""
        self.moved = 0

    def run(self) -> None:
        """Drain the shard. Raises RuntimeError."""
        receiving, sending = multiprocessing.Pipe(duplex=False)
        # The load's threads would be in a fork.
        process = multiprocessing.get_context("spawn").Process(
            target=_drain, args=(self._directory, sending)
        )
        process.start()
        sending.close()
        is_over = threading.Event()
        since = 0.0
        with receiving:
            for at, said in _said(receiving):
                if isinstance(said, int):
                    self.moved = said
                elif not said.endswith(BEGINS):
                    continue
                if since:
                    self.seconds.append(at - since)
                is_over.set()
                if isinstance(said, str):
                    is_over, since = threading.Event(), at
                    self._began(said.removeprefix("tenant ").partition(":")[0], at, is_over)
        process.join()
        if process.exitcode:
            raise RuntimeError("the command failed")


def _drain(directory: Path, sending: Connection) -> None:
    moves = ShardMoves(Layout(directory), lambda said: sending.send((time.monotonic(), said)))
    moved = moves.drain(SOURCE)
    sending.send((time.monotonic(), moved))


def _said(receiving: Connection) -> Iterator[tuple[float, str | int]]:
    while True:
        try:
            yield receiving.recv()
        except EOFError:
            return


class Run:
    """Tenants of an installation, and their load."""

    def __init__(self, installation: Installation, count: int, seed: str) -> None:
        self._url = installation.base_url
        self._operator = Caller("", "operator", installation.ready["operator_key"])
        self._seed = seed
        self.ledgers = [Ledger() for _ in range(2 * THREADS + PROBES)]
        self.unavailable: list[float] = []
        with ThreadPoolExecutor(THREADS) as pool:
            made = pool.map(self._some, range(THREADS), _shares(count))
        self.tenants = {each.caller.tenant_id: each for some in made for each in some}
        self._idle_ledgers = self.ledgers[2 * THREADS :]

    def _some(self, number: int, count: int) -> list[Tenant]:
        with client(self._url, self.ledgers[number]) as mine:
            return [self._tenant(mine) for _ in range(count)]

    def _tenant(self, mine: Client) -> Tenant:
        body = {"name": f"tenant {uuid4()}", "plan": "enterprise_plus", "shard": SOURCE}
        made = mine.ask(self._operator, "POST", "/tenants", body)
        assert made is not None
        assert made.is_success, made
        tenant_id = made.data["id"]
        made = mine.ask(self._operator, "POST", f"/tenants/{tenant_id}/api-keys", {})
        assert made is not None
        assert made.is_success, made
        tenant = Tenant(Caller(tenant_id, "", made.data["api_key"]))
        self._ask(mine, tenant, "generate-key", "/kms/keys/generate", {"algorithm": ALGORITHM})
        self._encrypt(mine, tenant)
        return tenant

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """Use random tenants' keys for a block."""
        stop = threading.Event()
        with ThreadPoolExecutor(THREADS) as pool:
            threads = [pool.submit(self._work, number, stop) for number in range(THREADS)]
            try:
                yield
            finally:
                stop.set()
            for thread in threads:
                thread.result()

    def _work(self, number: int, stop: threading.Event) -> None:
        random, tenants = SeededRandom(f"{self._seed} {number}"), [*self.tenants.values()]
        with client(self._url, self.ledgers[THREADS + number]) as mine:
            while not stop.wait(PAUSE_SECONDS):
                tenant = random.one_of(tenants)
                match random.below(20):
                    case 0:
                        body: dict[str, object] = {"algorithm": ALGORITHM}
                        self._ask(mine, tenant, "rotate-key", "/kms/keys/rotate", body)
                    case choice if choice < 10:
                        self._encrypt(mine, tenant)
                    case _:
                        self._decrypt(mine, tenant, random.one_of(tenant.ciphertexts))

    def probe(self, tenant_id: str, since: float, is_over: threading.Event) -> None:
        """Encrypt repeatedly until it succeeds after a move; record the time."""
        ledger = self._idle_ledgers.pop()
        tenant, refused = self.tenants[tenant_id], False
        with client(self._url, ledger) as mine:
            mine.retry_seconds = PROBE_SECONDS
            while True:
                was_over = is_over.is_set()
                if not self._encrypt(mine, tenant):
                    refused = True
                elif refused or was_over:
                    self.unavailable.append(time.monotonic() - since if refused else 0.0)
                    break
                time.sleep(PROBE_SECONDS)
        self._idle_ledgers.append(ledger)

    def _encrypt(self, mine: Client, tenant: Tenant) -> bool:
        made = self._ask(mine, tenant, "encrypt", "/kem/encrypt", {"plaintext": PLAINTEXT})
        if made is not None:
            tenant.ciphertexts.append({name: made[name] for name in ("ciphertext", "key_version")})
        return made is not None

    def _decrypt(self, mine: Client, tenant: Tenant, ciphertext: dict[str, object]) -> None:
        made = self._ask(mine, tenant, "decrypt", "/kem/decrypt", ciphertext)
        if made is not None and made["plaintext"] != PLAINTEXT:
            mine.ledger.wrong.append(f"{tenant.caller.tenant_id}: another plaintext")

    def _ask(
        self, mine: Client, tenant: Tenant, operation: str, path: str, body: dict[str, object]
    ) -> dict[str, object] | None:
        response = mine.ask(tenant.caller, "POST", path, body)
        if response is None:
            return None
        if not response.is_success:
            mine.ledger.wrong.append(f"{path}: {response.status} {response.code}")
            return None
        mine.promised(response, tenant.caller, operation)
        return response.data

    def open_all(self) -> Iterator[str]:
        """Decrypt every ciphertext; yield the errors."""
        url = self._url + API
        for tenant in self.tenants.values():
            headers = {"X-API-Key": tenant.caller.credential}
            with httpx2.Client(
                base_url=url, headers=headers, timeout=PATIENCE, trust_env=False, verify=TLS
            ) as mine:
                for first in range(0, len(tenant.ciphertexts), BATCH):
                    some = {"items": tenant.ciphertexts[first : first + BATCH]}
                    response = mine.post("/kem/decrypt/batch", json=some).raise_for_status()
                    for result in response.json()["data"]["results"]:
                        if result.get("data", {}).get("plaintext") != PLAINTEXT:
                            yield f"{tenant.caller.tenant_id}: {result}"

    def export(self, shard: str, folder: Path) -> Path:
        """Have a shard's log signed, and write its export."""
        headers = {"X-API-Key": self._operator.credential}
        url, params = self._url + API, {"shard": shard}
        with httpx2.Client(base_url=url, headers=headers, timeout=600, trust_env=False) as mine:
            mine.post("/audit/checkpoints", json=params).raise_for_status()
            content = mine.get("/audit/export", params=params).raise_for_status().content
        path = folder / f"{shard}.jsonl"
        path.write_bytes(content)
        return path


def run(folder: Path, count: int, *, on_server: bool = False, seed: str = "1") -> Report:
    """Run two shards, make tenants in the first, and move them to the second under load."""
    with ExitStack() as stack:
        databases, further = IN_FILES, []
        if on_server:
            server = stack.enter_context(running_postgresql())
            server.sql("ALTER ROLE pqkeep_keyservice CONNECTION LIMIT 20")  # ten for each shard
            databases = stack.enter_context(new_databases(server))
            further = ["--keys-database", server.url(KEYS_ROLE, server.new_database(KEYS_ROLE))]
        installation = stack.enter_context(
            running(folder, databases=databases, shards=len(SHARDS), options=further)
        )
        load = Run(installation, count, seed)
        before = Counter(responses_of(load.ledgers))
        probes: list[Future[None]] = []
        with ThreadPoolExecutor(PROBES) as pool, load.at_work():

            def probe(tenant_id: str, since: float, is_over: threading.Event) -> None:
                if tenant_id in load.tenants:  # and not the first tenant of pqkeepd dev
                    probes.append(pool.submit(load.probe, tenant_id, since, is_over))

            moving = Moving(installation.data, probe)
            began = time.monotonic()
            moving.run()
            seconds = time.monotonic() - began
            for each in probes:
                each.result()
        during = Counter(responses_of(load.ledgers)) - before
        unopened = list(load.open_all())
        unfinished = [
            f"{each.stored.name} has {each.stored.tenants} tenants and {each.unfinished} bundles"
            for each in ShardMoves(Layout(installation.data), lambda _: None).list()
            if each.unfinished or (each.stored.name == SOURCE and each.stored.tenants)
        ]
        exports = {shard: load.export(shard, folder) for shard in SHARDS}
    records = {shard: _records(path) for shard, path in exports.items()}
    findings = {
        "answers": [wrong for ledger in load.ledgers for wrong in ledger.wrong],
        "ciphertexts": unopened,
        "unfinished": unfinished,
        "records": list(_not_recorded_once(load.ledgers, records.values())),
        **{
            f"{shard}: verifier": [str(each) for each in verify([path]).findings]
            for shard, path in exports.items()
        },
    }
    return Report(
        database="postgresql" if on_server else "sqlite",
        tenants=moving.moved,
        seconds=round(seconds, 1),
        operations=sum(during.values()),
        responses=dict(during),
        without_response=sum(ledger.broken for ledger in load.ledgers),
        move=_summary(moving.seconds),
        unavailable=_summary(load.unavailable),
        opened=sum(len(each.ciphertexts) for each in load.tenants.values()),
        records={shard: sum(found.values()) for shard, found in records.items()},
        findings=findings,
    )


def _shares(count: int) -> list[int]:
    return [count // THREADS + (number < count % THREADS) for number in range(THREADS)]


def _records(export: Path) -> Counter[str]:
    """Return the number of a log's records of each request."""
    lines = (json.loads(line) for line in export.read_bytes().splitlines())
    return Counter(line["record"]["request_id"] for line in lines if "record" in line)


def _not_recorded_once(
    ledgers: Sequence[Ledger], records: Collection[Counter[str]]
) -> Iterator[str]:
    for ledger in ledgers:
        for promise in ledger.promises:
            found = sum(each[promise.request_ids[-1]] for each in records)
            if found != 1:
                yield f"{promise}: {found} records"


def _summary(seconds: Sequence[float]) -> list[float]:
    """Return the median, the 95th percentile and the longest, in milliseconds."""
    hundredths = quantiles(seconds, n=100, method="inclusive")
    return [round(1000 * each, 1) for each in (hundredths[49], hundredths[94], max(seconds))]


def main() -> int:
    """Do one run and print its report."""
    parser = argparse.ArgumentParser(prog="python -m tests.shards.moves", description=__doc__)
    parser.add_argument("--tenants", type=int, default=1000)
    parser.add_argument("--seed", default="1")
    parser.add_argument("--postgresql", action="store_true", help="keep all databases there")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        report = run(
            Path(folder),
            arguments.tenants,
            on_server=arguments.postgresql,
            seed=arguments.seed,
        )
    sys.stdout.write(json.dumps(asdict(report), indent=2) + "\n")
    return 1 if any(report.findings.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
