"""``make soak``: 4,100 hostile connections of each kind, while others ask and are answered.

Each kind is opened from six addresses and kept until the gateway, with the limits that it is
delivered with, has closed the last one. Fails if that takes more than 90 seconds, or if the p99 of
the others is more than twice what it was before, and more than 50 ms.
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import tempfile
import time
from pathlib import Path

from tests.connections.bystander import ask
from tests.connections.conftest import Gateway, running_gateway
from tests.connections.hostile import KINDS, hold

OWN = 2
"""Connections of those who ask."""
LATEST = 90.0
SLOWDOWN = 2.0
NOTICEABLE = 0.05
"""Seconds that a request may take on a busy machine, whatever it took before."""


def p99(taken: list[float]) -> float:
    """Return the 99th percentile."""
    return sorted(taken)[int(len(taken) * 0.99)]


def soak(gateway: Gateway, kind: str, count: int) -> bool:
    """Run one kind; say and return whether everything held."""
    context = multiprocessing.get_context("spawn")
    opened, done, answers = context.Event(), context.Event(), context.SimpleQueue()
    asking = context.Process(target=ask, args=(gateway.port, done, answers))
    asking.start()
    usual = p99(answers.get())
    process = context.Process(target=hold, args=(gateway.port, kind, count, opened, done))
    process.start()
    most = 0
    while not opened.is_set():
        most = max(most, gateway.connections())
        time.sleep(0.2)
    began = time.monotonic()
    while (left := gateway.connections()) > OWN and time.monotonic() - began < LATEST:
        most = max(most, left)
        time.sleep(0.2)
    seconds = time.monotonic() - began
    done.set()
    taken = answers.get()
    process.join()
    asking.join()
    quick = p99(taken) <= max(SLOWDOWN * usual, NOTICEABLE)
    held = left <= OWN
    print(
        f"{'ok' if held and quick else 'FAILED':7}{kind:28} at most {most} at once, {left - OWN}"
        f" after {seconds:.0f} s; p99 of {len(taken)} others {1000 * p99(taken):.1f} ms,"
        f" usually {1000 * usual:.1f} ms",
        flush=True,
    )
    return held and quick


def main() -> int:
    """Run all kinds, or those that are named."""
    parser = argparse.ArgumentParser(prog="make soak")
    parser.add_argument("--count", type=int, default=4100)
    parser.add_argument("kinds", nargs="*", default=list(KINDS))
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, running_gateway(Path(folder)) as gateway:
        results = [soak(gateway, kind, arguments.count) for kind in arguments.kinds]
    return not all(results)


if __name__ == "__main__":
    sys.exit(main())
