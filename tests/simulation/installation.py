"""Two key services with one database lock, and two gateways: the product's own parts.

Replaced are parts that are not repeatable or slow: the clock, the length of a batch's slices,
threads, worker processes, and the daily SLH-DSA signature.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, TypeVar, TypeVarTuple

from tests.simulation.choices import Choices
from tests.simulation.database import Server as DatabaseServer
from tests.simulation.database import SimulatedServer
from tests.simulation.event_loop import Process, SimulatedLoop
from tests.simulation.network import Network

from pqkeep_gateway.key_client import KeyClient, NewConnection
from pqkeep_keyservice import batch, clock, metrics, wiring
from pqkeep_keyservice.audit import checkpoint_signer
from pqkeep_keyservice.audit.checkpoint_signer import CheckpointSigner
from pqkeep_keyservice.crypto.secret import Secret
from pqkeep_keyservice.keys.sealing import Sealer
from pqkeep_keyservice.keys.tenant_bundle import TRANSFER_KEY_SIZE, TransferKey
from pqkeep_keyservice.listeners import GATEWAY_REQUESTS, OPERATOR_REQUESTS, Listener
from pqkeep_keyservice.live.worker_processes import WorkerProcesses, WorkerSettings
from pqkeep_keyservice.server import Server
from pqkeep_keyservice.storage.database import DatabaseUnavailableError
from pqkeep_keyservice.storage.fenced_database import FencedDatabase
from pqkeep_keyservice.storage.store import KeyStore
from pqkeep_keyservice.wiring import KeyServiceParts, wire
from pqkeep_protocol import codec
from pqkeep_protocol.codec import FramedConnection, ToGateway

T = TypeVar("T")
Arguments = TypeVarTuple("Arguments")

Paths = tuple[str, str]
PATHS: Paths = ("a", "b")
TRANSFER_KEY = TransferKey(Secret(bytearray(TRANSFER_KEY_SIZE)))
SETTINGS = WorkerSettings("pqcrypto", None)
MAX_FRAME = 128 * 1024
"""Bytes of each connection's buffer. The real size takes a millisecond."""
SIGNING_SECONDS = 3.0
"""Seconds between two checkpoints, which otherwise take a fifth of a run."""
LOGGERS = ("pqkeep_keyservice", "pqkeep_gateway")
DRAIN_SECONDS = 10.0
BEGAN_US = 1_800_000_000_000_000
DAY_US = 24 * 3600 * 1_000_000


@contextmanager
def replaced(owner: object, name: str, value: object) -> Iterator[None]:
    """Replace an attribute for a block."""
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)


class NoWorkers(WorkerProcesses):
    """No worker process, because nothing here uses SLH-DSA."""

    def __init__(self, settings: WorkerSettings, material: object) -> None:
        """Start nothing."""

    def close(self) -> None:
        """Do nothing: there is nothing to end."""


class SimulatedThreads:
    """The event loop in place of threads."""

    def __init__(self, name: str, count: int = 1) -> None:
        """Start nothing."""

    async def run(self, function: Callable[[*Arguments], T], *arguments: *Arguments) -> T:
        """Return a function's result when the seed ends its thread."""
        return await asyncio.get_running_loop().run_in_executor(None, function, *arguments)

    def close(self) -> None:
        """Do nothing: there is nothing to end."""


class WallClock:
    """The machine's clock: the event loop's time plus the skipped days."""

    def __init__(self, loop: SimulatedLoop) -> None:
        self._loop = loop
        self.days = 0

    def now_us(self) -> int:
        """Return the time in microseconds since 1970."""
        return BEGAN_US + self.days * DAY_US + round(self._loop.time() * 1_000_000)


@contextmanager
def deterministic(wall_clock: WallClock) -> Iterator[None]:
    """Replace all sources of chance except the seed."""
    with ExitStack() as stack:
        for owner, name, value in (
            (clock, "now_us", wall_clock.now_us),
            (batch, "SLICE_SECONDS", 0.0),
            (batch, "SIGNERS", 2),
            (checkpoint_signer, "DAY_MICROSECONDS", 1000 * 365 * DAY_US),
            (CheckpointSigner, "seconds", SIGNING_SECONDS),
            (wiring, "WorkerProcesses", NoWorkers),
            (wiring, "Threads", SimulatedThreads),
            (metrics, "version", lambda _: "0"),
            (codec, "MAX_FRAME", MAX_FRAME),
            (codec, "_READ_AHEAD", MAX_FRAME),
        ):
            stack.enter_context(replaced(owner, name, value))
        for name in LOGGERS:
            log = logging.getLogger(name)
            stack.callback(log.setLevel, log.level)
            log.setLevel(logging.CRITICAL + 1)
        yield


class SimulatedListener(Listener):
    """A socket of the simulated network, open to all processes."""

    def bind(self) -> Any:
        return str(self.path)

    def accepts(self, transport: asyncio.Transport) -> bool:
        return True


class AnyAddress:
    """The address of a key service, usually of the database lock's holder."""

    def __init__(self, choices: Choices, database: DatabaseServer, paths: Paths) -> None:
        self._choices = choices
        self._database = database
        self._paths = paths

    async def connect(self, new_connection: NewConnection) -> FramedConnection[ToGateway]:
        """Return an open connection. Raises OSError."""
        holder = self._database.holder
        first = self._choices.below(2)
        if holder is not None and self._choices.happens(0.8):
            first = int(holder.process.name.startswith(f"service {self._paths[1]}"))
        loop = asyncio.get_running_loop()

        def connection() -> FramedConnection[ToGateway]:
            return new_connection(lambda _: True)

        try:
            _, made = await loop.create_unix_connection(connection, self._paths[first])
        except OSError:
            _, made = await loop.create_unix_connection(connection, self._paths[1 - first])
        return made


class KeyService:
    """A key service's process: like ``process.serve``, without signals and settings."""

    def __init__(
        self, path: str, number: int, loop: SimulatedLoop, database: DatabaseServer, shard: str
    ) -> None:
        self.path = path
        self.shard = shard
        self.process = Process(f"service {path}{number}")
        self.stop = asyncio.Event()
        self._loop = loop
        self._database = database
        self.parts: KeyServiceParts | None = None
        self.done = loop.start(self.process, self._serve())

    async def _serve(self) -> None:
        sealer = Sealer({1: Secret(bytearray(32))})
        server = SimulatedServer(self._database, self.process)
        try:
            database = await FencedDatabase.open_or_stand_by(server)
        except DatabaseUnavailableError:
            return
        await self._lock_is_got(database)
        store = KeyStore(database, sealer)
        try:
            self.parts = parts = wire(
                store,
                sealer,
                SETTINGS,
                Path("none"),
                shard=self.shard,
                transfer_key=lambda: TRANSFER_KEY,
                least_destruction_days=0,
            )
            await parts.activation.start(self.shard)
        except DatabaseUnavailableError:
            await database.close()
            return
        serving = Server(
            parts.transactions,
            parts.batches,
            parts.audit_service,
            parts.administration,
            parts.metrics,
            parts.activation,
            shard=self.shard,
        )
        await serving.listen(
            SimulatedListener(Path(self.path), frozenset(), GATEWAY_REQUESTS, 0o600)
        )
        await serving.listen(
            SimulatedListener(Path(operator_path(self.path)), frozenset(), OPERATOR_REQUESTS, 0o600)
        )
        tasks = [
            asyncio.create_task(work)
            for work in (
                parts.activation.run(),
                parts.checkpoint_signer.run(),
                parts.root_keys.run(),
                parts.schedule.run(),
            )
        ]
        await self.stop.wait()
        await serving.drain(DRAIN_SECONDS)
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        await database.close()

    async def _lock_is_got(self, database: FencedDatabase) -> None:
        """Listen only now, because a gateway here has one connection and does not try others."""
        changed = asyncio.Event()
        database.writer.on_change(changed.set)
        if not database.writer.epoch:
            await changed.wait()


def operator_path(path: str) -> str:
    """Return the path of a key service's operator socket."""
    return f"{path} operator"


class Installation:
    """A shard's processes, with a restart of ended key services."""

    def __init__(
        self,
        loop: SimulatedLoop,
        seed: int,
        network: Network,
        database: DatabaseServer,
        tell: Callable[..., None],
        paths: Paths,
        shard: str,
        gateways: Sequence[Process],
    ) -> None:
        self.paths = paths
        self._loop = loop
        self._database = database
        self._shard = shard
        self._choices = Choices(seed, "supervision")
        self.network = network
        self.tell = tell
        self.services: dict[str, KeyService] = {}
        self.all_processes: list[Process] = []
        self.gateways = gateways
        self.clients = {
            each: KeyClient(AnyAddress(Choices(seed, each.name), database, paths), shard=shard)
            for each in gateways
        }
        self._connecting = [loop.start(each, client.run()) for each, client in self.clients.items()]
        self.all_processes += gateways
        self._count = 0
        database.locked = self._lead_to_the_holder

    def _lead_to_the_holder(self) -> None:
        """Make gateways reconnect if they are connected to another key service."""
        holder = self._database.holder

        def cut() -> None:
            for connection in self.network.connections:
                is_own = connection.server in self.all_processes
                is_other = holder is not None and connection.server is not holder.process
                if connection.is_open and is_own and is_other:
                    connection.cut()

        self._loop.call_later(self._choices.delay(0.0, 0.5), cut, context=self._database.context)

    async def supervise(self, path: str) -> None:
        """Restart a key service each time it ends."""
        while True:
            self._count += 1
            service = KeyService(path, self._count, self._loop, self._database, self._shard)
            self.services[path] = service
            self.all_processes.append(service.process)
            killed = asyncio.Event()
            service.process.on_kill = killed.set
            waiting = asyncio.create_task(killed.wait())
            await asyncio.wait([service.done, waiting], return_when=asyncio.FIRST_COMPLETED)
            waiting.cancel()
            if service.done.done():
                service.done.result()  # raises what it could not serve with
                service.process.kill()
            self.network.kill(service.process)
            self._database.kill(service.process)
            self.tell("ended", service.process.name)
            await asyncio.sleep(self._choices.delay(0.05, 2.0))
