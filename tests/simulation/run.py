"""One run: the seed decides everything, so a run can be repeated."""

from __future__ import annotations

import asyncio
import shutil
import sqlite3
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache, partial
from hashlib import sha256
from pathlib import Path
from typing import Any, ClassVar

import sqlalchemy as sa
from tests.fixtures.schema import migrated
from tests.simulation import responses
from tests.simulation.choices import Choices
from tests.simulation.database import Server, Session
from tests.simulation.event_loop import Process, SimulatedLoop, StalledError
from tests.simulation.faults import Faults
from tests.simulation.gateways import Gateway, Placements
from tests.simulation.history import FindingError, History, Whereabouts
from tests.simulation.installation import (
    PATHS,
    Installation,
    Paths,
    WallClock,
    deterministic,
)
from tests.simulation.network import Network
from tests.simulation.shard import Shard
from tests.simulation.workload import (
    KEM,
    TENANTS,
    Acknowledged,
    Client,
    decrypting,
    verifying,
)

from pqkeep_keyservice.keys.key_versions import IDEMPOTENCY_KEY_LIFETIME
from pqkeep_keyservice.storage.schema import KEYS, migrate
from pqkeep_protocol.keys import DEFAULT_SHARD, TenantId
from pqkeep_protocol.messages import Batch, BatchResults, GetActiveKey, Item, ListKeys

CLIENTS = 4
STEPS = 14
"""The number of steps of each."""
LAST_SECONDS = 600.0
"""Seconds within which a run must end."""
RECOVERY_SECONDS = 90.0
"""Seconds after the end of all faults within which everything responds again."""
LATER_DAYS = 40
"""More days than the archiving schedule needs."""
SCHEDULE_SECONDS = 700.0
"""More than twice the seconds before a failed change of a key is retried."""
AT_ONCE = 100
NEXT_SEED = 1 << 40
"""Added to the seed for the draws of each further shard."""

Line = tuple[object, ...]


@dataclass
class Report:
    """The result of one run."""

    seed: int
    trace: list[Line] = field(default_factory=list)
    finding: str | None = None
    invariant: str | None = None
    records: int = 0
    responses: int = 0
    seconds: float = 0.0
    """Virtual ones."""

    @property
    def digest(self) -> str:
        """SHA-256 of the trace."""
        return sha256("\n".join(map(repr, self.trace)).encode()).hexdigest()


@cache
def template() -> bytes:
    """Return a database with the schema."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "keys.sqlite3"
        migrated(f"sqlite:///{path}", migrate)
        with closing(sqlite3.connect(path)) as connection:
            connection.execute("PRAGMA journal_mode = WAL")
        return path.read_bytes()


@contextmanager
def new_folder() -> Iterator[Path]:
    """Yield a folder, in memory if there is one."""
    memory = Path("/dev/shm")  # noqa: S108 - a folder of its own is made there
    folder = tempfile.mkdtemp(dir=memory if memory.is_dir() else None)
    try:
        yield Path(folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def run(seed: int, kind: type[Simulation] | None = None) -> Report:
    """Simulate once: an installation with one shard, or of another class."""
    report = Report(seed)
    with new_folder() as folder:
        file = folder / "keys.sqlite3"
        file.write_bytes(template())
        loop = SimulatedLoop(Choices(seed, "loop"))
        wall_clock = WallClock(loop)
        with deterministic(wall_clock):
            simulation = (kind or Simulation)(seed, loop, file, wall_clock, report)
            try:
                loop.run_until_complete(simulation.main())
            except FindingError as finding:
                report.invariant, report.finding = finding.invariant, str(finding)
            except StalledError:
                report.invariant = report.finding = "progress"
            finally:
                report.seconds = loop.time()
                report.records = sum(len(each.records) for each in simulation.histories)
                simulation.close()
    return report


class Simulation:
    """An installation, its clients, and its faults."""

    paths: ClassVar[Mapping[str, Paths]] = {DEFAULT_SHARD: PATHS}
    """The addresses of key services, by shard."""
    placed: ClassVar[Mapping[TenantId, str]] = dict.fromkeys(TENANTS, DEFAULT_SHARD)
    """The first shard of each tenant."""

    def __init__(
        self, seed: int, loop: SimulatedLoop, file: Path, wall_clock: WallClock, report: Report
    ) -> None:
        self._loop = loop
        self._report = report
        self._wall_clock = wall_clock
        self._problem: asyncio.Future[None] = loop.create_future()
        self._is_closing = False
        loop.set_exception_handler(self._handle)
        self._network = Network(loop, seed, self.tell)
        processes = [Process(f"gateway {number}") for number in range(2)]
        self.shards = self._new_shards(seed, file, processes)
        self._placements = Placements(self.placed, Choices(seed, "placements"))
        gateways = [
            Gateway(
                process,
                {name: each.installation.clients[process] for name, each in self.shards.items()},
                self._placements,
            )
            for process in processes
        ]
        self._acknowledged = Acknowledged()
        self._clients = [
            Client(
                f"client{number}",
                gateways[number % 2],
                Choices(seed, f"client {number}"),
                self.shards,
                self._acknowledged,
                self.tell,
            )
            for number in range(CLIENTS)
        ]

    def _new_shards(
        self, seed: int, file: Path, gateways: Sequence[Process]
    ) -> Mapping[str, Shard]:
        shards: dict[str, Shard] = {}
        whereabouts = Whereabouts(self.placed)
        for number, (name, paths) in enumerate(self.paths.items()):
            own = seed + number * NEXT_SEED
            place = shutil.copyfile(file, file.with_name(f"{name}.sqlite3"))
            server = Server(place, self._loop, own, self.tell)
            history = History(server, whereabouts, name)
            server.committed = partial(self._committed, history)
            installation = Installation(
                self._loop, own, self._network, server, self.tell, paths, name, gateways
            )
            faults = Faults(self._loop, own, installation, server, self._wall_clock)
            shards[name] = Shard(server, history, installation, faults)
        return shards

    @property
    def histories(self) -> Sequence[History]:
        """The commits, by shard."""
        return [each.history for each in self.shards.values()]

    def tell(self, *said: object) -> None:
        """Add a line to the trace."""
        if not self._is_closing:
            self._report.trace.append((round(self._loop.time() * 1_000_000), *said))
            self._report.responses += said[0] == "answered"

    async def main(self) -> None:
        """Run everything to its end. Raises FindingError."""
        outside = [
            asyncio.create_task(shard.installation.supervise(path))
            for shard in self.shards.values()
            for path in shard.installation.paths
        ]
        troubles = self._start_troubles()
        work = asyncio.gather(
            *(self._loop.start(each.gateway.process, each.work(STEPS)) for each in self._clients)
        )
        await self._until(work)
        for task in troubles:
            task.cancel()
        for shard in self.shards.values():
            shard.faults.heal()
        self.tell("healed")
        await self._until(asyncio.ensure_future(self._end()))
        for task in (*outside, *troubles):
            if task.done() and not task.cancelled():
                task.result()

    def _start_troubles(self) -> list[asyncio.Task[None]]:
        """Start the tasks that run until all clients are done."""
        return [asyncio.create_task(each.faults.run()) for each in self.shards.values()]

    async def _until(self, work: asyncio.Future[Any]) -> None:
        await asyncio.wait(
            [work, self._problem], timeout=LAST_SECONDS, return_when=asyncio.FIRST_COMPLETED
        )
        if self._problem.done():
            self._problem.result()
        if not work.done():
            raise FindingError("progress", f"not over after {LAST_SECONDS} seconds")
        work.result()

    async def _end(self) -> None:
        """Check the final invariants. Raises FindingError."""
        for client in self._clients[:2]:
            await self._recovered(client)
        self._wall_clock.days += LATER_DAYS
        await self._schedule_is_carried_out()
        client = self._clients[0]
        for tenant in TENANTS:
            secrets = [each for each in self._acknowledged.secrets if each.tenant == tenant]
            for begin in range(0, len(secrets), AT_ONCE):
                some = secrets[begin : begin + AT_ONCE]
                items = tuple(Item(decrypting(secret)) for secret in some)
                response = await client.ask(Batch(tenant=tenant, items=items))
                if not isinstance(response, BatchResults):
                    raise FindingError("progress", f"decryption is refused: {response}")
                for secret, result in zip(some, response.results, strict=True):
                    responses.require_plaintext(secret.plaintext, result)
            response = await client.repeat(
                ListKeys(tenant=tenant, algorithm=None, status=None, all_keyrings=True)
            )
            if responses.is_unknown(response):
                raise FindingError("damaged", f"the keys of {tenant} cannot be listed: {response}")
        for statement in self._acknowledged.statements[-3:]:
            await client.ask(verifying(statement))
        self._check_once()

    async def _recovered(self, client: Client, tenant: TenantId = TENANTS[0]) -> None:
        until = self._loop.time() + RECOVERY_SECONDS
        while self._loop.time() < until:
            response = await client.ask(GetActiveKey(tenant=tenant, algorithm=KEM))
            if not responses.is_temporary(response):
                return
            for connection in self._network.connections:
                if connection.is_open and connection.client is client.gateway.process:
                    connection.cut()  # to a key service that waits for the lock
            await asyncio.sleep(1.0)
        raise FindingError("progress", f"nothing is answered {RECOVERY_SECONDS} seconds later")

    async def _schedule_is_carried_out(self) -> None:
        until = self._loop.time() + SCHEDULE_SECONDS
        while overdue := [
            name
            for history in self.histories
            for name, versions in history.keys.items()
            for version in versions
            if version.archive_at_us is not None
            and version.archive_at_us <= self._wall_clock.now_us()
        ]:
            if self._loop.time() > until:
                raise FindingError("schedule", f"{overdue} are not archived")
            await asyncio.sleep(5.0)

    def _check_once(self) -> None:
        """Check that nothing was done twice, with or without a response. Raises FindingError."""
        for request_id, count in self._acknowledged.asked.items():
            made = [len(each.carried_out(request_id)) for each in self.histories]
            if max(made) not in (0, count) or sum(map(bool, made)) > 1:
                raise FindingError("one record", f"{request_id} has another number of records")
        records = [each for history in self.histories for each in history.records]
        events = [each.event_id for each in records if each.event_id is not None]
        if len(set(events)) != len(events):
            raise FindingError("once", "an event is recorded twice")
        missing = set(self._acknowledged.events) - set(events)
        if missing:
            raise FindingError("lost", f"events are not recorded: {missing}")
        for shard in self.shards.values():
            self._check_idempotency(shard.server.reader)

    def _check_idempotency(self, reader: sa.Connection) -> None:
        lifetime = IDEMPOTENCY_KEY_LIFETIME.total_seconds() * 1_000_000
        columns = KEYS.c.tenant_id, KEYS.c.idempotency_key, KEYS.c.created_at_us
        query = sa.select(*columns).where(KEYS.c.idempotency_key.is_not(None)).order_by(*columns)
        last: tuple[object, object, int] = (None, None, 0)
        for tenant, key, created_at_us in reader.execute(query):
            if (tenant, key) == last[:2] and created_at_us - last[2] < lifetime:
                raise FindingError("once", "one Idempotency-Key made two versions")
            last = tenant, key, created_at_us

    def _committed(self, history: History, session: Session, has_changes: bool) -> None:  # noqa: FBT001
        before = len(history.records)
        history.committed(session, has_changes=has_changes)
        new = history.records[before:]
        said = [f"{each.operation}:{each.outcome}" for each in new]
        self.tell("commit", session.process.name, *said)

    def _handle(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Record an exception of a callback or of an abandoned task."""
        error = context.get("exception")
        if self._is_closing or self._problem.done() or error is None:
            return
        if not isinstance(error, FindingError):
            finding = FindingError("unexpected", f"{context['message']}: {error!r}")
            finding.__cause__ = error
            error = finding
        self._problem.set_exception(error)

    def close(self) -> None:
        """End all tasks, also those of killed processes, and close the file."""
        self._is_closing = True
        if self._problem.done():
            self._problem.exception()
        for shard in self.shards.values():
            shard.server.down_until = float("inf")
            for process in shard.installation.all_processes:
                self._loop.resume(process)
        self._end_tasks()
        for shard in self.shards.values():
            shard.server.close()
        self._loop.close()

    def _end_tasks(self) -> None:
        async def end() -> None:
            for _ in range(100):
                others = asyncio.all_tasks() - {asyncio.current_task()}
                if not others:
                    return
                for task in others:
                    task.cancel()
                await asyncio.wait(others, timeout=1.0)

        with suppress(StalledError):
            self._loop.run_until_complete(end())
