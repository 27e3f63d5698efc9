"""A harmless client in its own process, which measures its latency."""

from __future__ import annotations

import time
from multiprocessing.queues import SimpleQueue
from multiprocessing.synchronize import Event
from typing import NamedTuple

from tests.connections.conftest import Client

HEALTH = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"
USUAL_SECONDS = 5.0
PAUSE = 0.005


class Sample(NamedTuple):
    """One request: its start on the monotonic clock, and its seconds."""

    at: float
    taken: float


def ask(port: int, done: Event, responses: SimpleQueue[list[Sample]]) -> None:
    """Return the latencies before the attack and during it."""
    responses.put(_ask(port, done, USUAL_SECONDS))
    responses.put(_ask(port, done, float("inf")))


def _ask(port: int, done: Event, seconds: float) -> list[Sample]:
    samples = []
    until = time.monotonic() + seconds
    with Client(port) as kept:
        while not done.is_set() and time.monotonic() < until:
            began = time.monotonic()
            kept.ask(HEALTH)
            samples.append(Sample(began, time.monotonic() - began))
            began = time.monotonic()
            with Client(port) as new:
                new.ask(HEALTH)
            samples.append(Sample(began, time.monotonic() - began))
            time.sleep(PAUSE)
    return samples
