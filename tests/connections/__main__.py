"""``make soak``: 4,100 hostile connections of each kind, beside ordinary clients.

Six addresses open the connections of each kind. They stay open until the gateway, with its default
limits, has closed the last. The latency of ordinary requests is measured while the connections
open, while they stay, and while they are cut. It is compared with the latency beside the same
number of harmless connections, because few cores also delay the clients. The run fails if a hostile
connection stays for more than 90 seconds. It also fails if the p99 of a phase is more than twice
that of the comparison. With ``--rounds`` the median of all rounds' p99 counts.

First, anonymous clients send a hundred large bodies at once, again and again. Latency is compared
with a process that only reads the bodies, and the gateway's memory is measured.
"""

from __future__ import annotations

import argparse
import multiprocessing
import socket
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import NamedTuple

from tests.connections.bystander import Sample, ask
from tests.connections.conftest import Gateway, running_gateway
from tests.connections.hostile import BODIES, KINDS, LARGE, WELL_BEHAVED, hold, throw_away, upload
from tests.fixtures.processes import HOST

OWN = 2
"""Connections of the ordinary clients."""
LATEST = 90.0
SLOWDOWN = 2.0
PHASES = ("opening", "held", "cut")
FEWEST = 200
"""The fewest requests of a phase for a p99."""
UPLOAD_SECONDS = 10.0
MOST_MEMORY = 100
"""The most MiB by which the gateway may grow for a hundred bodies of 4 MiB."""


def p99(samples: Sequence[Sample]) -> float:
    """Return the 99th percentile of the requests' seconds."""
    return sorted(taken for _, taken in samples)[int(len(samples) * 0.99)]


def by_phase(samples: Sequence[Sample], bounds: Sequence[float]) -> Mapping[str, float]:
    """Return the p99 of each phase with enough requests."""
    found = {}
    for phase, (begin, end) in zip(PHASES, pairwise(bounds), strict=True):
        within = [each for each in samples if begin <= each.at < end]
        if len(within) >= FEWEST:
            found[phase] = p99(within)
    return found


class Measured(NamedTuple):
    """One kind: the p99 of its phases in seconds, and the number of late closed connections."""

    phases: Mapping[str, float]
    left: int


def medians(rounds: Sequence[Measured]) -> Mapping[str, float]:
    """Return the median of each phase's p99."""
    return {
        phase: median(found)
        for phase in PHASES
        if (found := [each.phases[phase] for each in rounds if phase in each.phases])
    }


def measure_all(gateway: Gateway, arguments: argparse.Namespace) -> Mapping[str, Measured]:
    """Run the harmless kind and each hostile kind once."""
    kinds = (WELL_BEHAVED, *arguments.kinds)
    return {kind: measure(gateway, kind, arguments.count) for kind in kinds}


def measure(gateway: Gateway, kind: str, count: int) -> Measured:
    """Run one kind."""
    context = multiprocessing.get_context("spawn")
    opened, done, responses = context.Event(), context.Event(), context.SimpleQueue()
    idle = gateway.files()
    asking = context.Process(target=ask, args=(gateway.port, done, responses))
    asking.start()
    alone = p99(responses.get())
    process = context.Process(target=hold, args=(gateway.port, kind, count, opened, done))
    process.start()
    most, began = 0, time.monotonic()
    while not opened.is_set():
        most = max(most, gateway.files() - idle)
        time.sleep(0.2)
    all_opened = first_cut = time.monotonic()
    while (left := gateway.files() - idle) > OWN and time.monotonic() - all_opened < LATEST:
        most = max(most, left)
        if left > 0.98 * most:
            first_cut = time.monotonic()
        time.sleep(0.2)
    gone = time.monotonic()
    left = gateway.connections() - OWN
    done.set()
    samples = responses.get()
    process.join()
    asking.join()
    phases = by_phase(samples, (began, all_opened, first_cut, gone))
    times = "  ".join(f"{phase} {1000 * phases[phase]:.1f}" for phase in PHASES if phase in phases)
    print(
        f"{kind:28} at most {most} at once, {max(left, 0)} after {gone - all_opened:.0f} s;"
        f" ms of p99: alone {1000 * alone:.1f}  {times}",
        flush=True,
    )
    return Measured(phases, left)


def measure_bodies(gateway: Gateway, port: int, name: str) -> tuple[float, int]:
    """Send large bodies to a port. Return the p99 of other requests, and the growth in MiB."""
    context = multiprocessing.get_context("spawn")
    done, responses = context.Event(), context.SimpleQueue()
    before = gateway.memory()
    asking = context.Process(target=ask, args=(gateway.port, done, responses))
    asking.start()
    alone = p99(responses.get())
    sending = context.Process(target=upload, args=(port, done))
    sending.start()
    time.sleep(UPLOAD_SECONDS)
    done.set()
    during = p99(responses.get())
    sending.join()
    asking.join()
    grown = (gateway.memory() - before) >> 20
    print(
        f"{name:28} {grown} MiB more; ms of p99: alone {1000 * alone:.1f}"
        f"  while they are sent {1000 * during:.1f}",
        flush=True,
    )
    return during, grown


def soak_bodies(gateway: Gateway) -> list[str]:
    """Send bodies to a process that only reads them, then to the gateway; return the failures."""
    context = multiprocessing.get_context("fork")
    with socket.create_server((HOST, 0), backlog=BODIES) as listener:
        reading = context.Process(target=throw_away, args=(listener,), daemon=True)
        reading.start()
        usual, _ = measure_bodies(gateway, listener.getsockname()[1], "large bodies elsewhere")
        reading.terminate()
        reading.join()
    during, grown = measure_bodies(gateway, gateway.port, "large bodies")
    failed = ["large bodies: others wait"] if during > SLOWDOWN * usual else []
    return failed + (["large bodies: memory"] if grown >= MOST_MEMORY else [])


def main() -> int:
    """Run all kinds of connections, or the named kinds."""
    parser = argparse.ArgumentParser(prog="make soak")
    parser.add_argument("--count", type=int, default=4100)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("kinds", nargs="*", default=list(KINDS))
    arguments = parser.parse_args()
    failed = []
    with tempfile.TemporaryDirectory() as folder, running_gateway(Path(folder)) as gateway:
        with gateway.client() as client:
            client.ask(LARGE)  # which is made at the first request
        failed += soak_bodies(gateway)
        rounds = [measure_all(gateway, arguments) for _ in range(arguments.rounds)]
    usual = medians([each[WELL_BEHAVED] for each in rounds])
    for kind in arguments.kinds:
        phases = medians([each[kind] for each in rounds])
        slow = [phase for phase in phases if phases[phase] > SLOWDOWN * usual[phase]]
        if slow or any(each[kind].left > 0 for each in rounds):
            failed.append(f"{kind}: {', '.join(slow) or 'not all are gone'}")
    print("\n".join(f"FAILED {each}" for each in failed) or "ok")
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
