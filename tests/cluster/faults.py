"""The faults of parts of an installation: killed, paused, cut off, and restored."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial

from tests.cluster.installation import SHARDS, Cluster, Gateway, Part
from tests.cluster.relay import Relay, Way

HOLD_SECONDS = 3.0
"""The seconds that a part without a replacement is away."""
Wait = Callable[[str], None]
"""Waits until a shard responds again."""


@dataclass(frozen=True)
class Fault:
    """One fault of one part. It is restored at the end of the block."""

    part: str
    way: str
    goal: str
    shards: Sequence[str]
    """The clients that the fault affects, if any."""
    away: Callable[[Wait], AbstractContextManager[None]]
    is_kill: bool = False


def faults(cluster: Cluster) -> list[Fault]:
    """Return all faults."""
    found = [each for shard in SHARDS for each in _of_key_service(cluster, shard)]
    for gateway in cluster.gateways:
        found += _of_gateway(gateway)
    return [*found, *_of_valkey(cluster), *_of_postgresql(cluster)]


def _of_key_service(cluster: Cluster, shard: str) -> Iterator[Fault]:
    name, goal = "key service that serves", "its standby takes over"
    of, serving = (shard,), partial(cluster.serving, shard)

    @contextmanager
    def killed(wait: Wait) -> Iterator[None]:
        part = serving().part
        part.kill()
        wait(shard)
        part.start()
        yield

    @contextmanager
    def paused(wait: Wait) -> Iterator[None]:
        with _stopped([serving().part.pid]):
            wait(shard)
        yield

    @contextmanager
    def cut(which: str, way: Way, wait: Wait) -> Iterator[None]:
        relay: Relay = getattr(serving(), which)
        with _turned(cluster, way, relay):
            if which == "database":
                wait(shard)
            else:
                time.sleep(HOLD_SECONDS)
        yield

    @contextmanager
    def standby_killed(_: Wait) -> Iterator[None]:
        part = cluster.standby(shard).part
        part.kill()
        time.sleep(HOLD_SECONDS)
        part.start()
        yield

    alone = "503 as long as it lasts"
    yield Fault(name, "kill -9", goal, of, killed, is_kill=True)
    yield Fault(name, "SIGSTOP", goal, of, paused)
    yield Fault(name, "no packets to PostgreSQL", goal, of, partial(cut, "database", Way.STALLED))
    yield Fault(name, "PostgreSQL rejects it", goal, of, partial(cut, "database", Way.CUT))
    yield Fault(name, "gateways are rejected", alone, of, partial(cut, "link", Way.CUT))
    yield Fault(name, "no packets from gateways", alone, of, partial(cut, "link", Way.STALLED))
    yield Fault("standby", "kill -9", "nothing is noticed", of, standby_killed, is_kill=True)


def _of_gateway(gateway: Gateway) -> Iterator[Fault]:
    @contextmanager
    def killed(_: Wait) -> Iterator[None]:
        gateway.part.kill()
        gateway.part.start()
        yield

    @contextmanager
    def paused(_: Wait) -> Iterator[None]:
        with _stopped([gateway.part.pid]):
            time.sleep(HOLD_SECONDS)
        yield

    own = "the others answer; its own clients wait"
    yield Fault("gateway", "kill -9", own, SHARDS, killed, is_kill=True)
    yield Fault("gateway", "SIGSTOP, 3 s", own, SHARDS, paused)


def _of_valkey(cluster: Cluster) -> Iterator[Fault]:
    part = cluster.valkey
    relays = [each.windows for each in cluster.gateways]
    yield from _of_store(cluster, "Valkey", relays, partial(_restarted, part), lambda: [part.pid])
    goal = "503 of one gateway as long as it lasts"

    @contextmanager
    def cut(_: Wait) -> Iterator[None]:
        with _turned(cluster, Way.CUT, relays[0]):
            time.sleep(HOLD_SECONDS)
        yield

    yield Fault("gateway", "Valkey rejects it, 3 s", goal, SHARDS, cut)


def _of_postgresql(cluster: Cluster) -> Iterator[Fault]:
    server = cluster.postgresql
    relays = [each.database for each in cluster.gateways]
    relays += [each.database for shard in SHARDS for each in cluster.key_services[shard]]

    def restart() -> None:
        server.crash()
        server.start()

    yield from _of_store(cluster, "PostgreSQL", relays, restart, cluster.postgresql_processes)


def _of_store(
    cluster: Cluster,
    name: str,
    relays: Sequence[Relay],
    restart: Callable[[], None],
    pids: Callable[[], Sequence[int]],
) -> Iterator[Fault]:
    goal = "503 as long as it lasts"

    @contextmanager
    def restarted(_: Wait) -> Iterator[None]:
        restart()
        yield

    @contextmanager
    def paused(_: Wait) -> Iterator[None]:
        with _stopped(pids()):
            time.sleep(HOLD_SECONDS)
        yield

    @contextmanager
    def cut(way: Way, _: Wait) -> Iterator[None]:
        with _turned(cluster, way, *relays):
            time.sleep(HOLD_SECONDS)
        yield

    crash = "crash and start" if name == "PostgreSQL" else "kill -9 and start"
    yield Fault(name, crash, goal, SHARDS, restarted)
    yield Fault(name, "SIGSTOP, 3 s", goal, SHARDS, paused)
    yield Fault(name, "rejects all, 3 s", goal, SHARDS, partial(cut, Way.CUT))
    yield Fault(name, "no packets, 3 s", goal, SHARDS, partial(cut, Way.STALLED))


def _restarted(part: Part) -> None:
    part.kill()
    part.start()


@contextmanager
def _stopped(pids: Sequence[int]) -> Iterator[None]:
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in pids:
            try:
                os.kill(pid, signal.SIGCONT)
            except ProcessLookupError:  # PostgreSQL has ended this session
                continue


@contextmanager
def _turned(cluster: Cluster, way: Way, *relays: Relay) -> Iterator[None]:
    cluster.relays.turn(way, *relays)
    try:
        yield
    finally:
        cluster.relays.turn(Way.PASSING, *relays)
