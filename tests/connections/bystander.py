"""A client that does no harm, in a process of its own, and how long it is kept waiting."""

from __future__ import annotations

import time
from multiprocessing.queues import SimpleQueue
from multiprocessing.synchronize import Event

from tests.connections.conftest import Client

HEALTH = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"
USUAL_SECONDS = 5.0
PAUSE = 0.005


def ask(port: int, done: Event, answers: SimpleQueue[list[float]]) -> None:
    """Give the seconds that requests take before anything happens, and those until it is done."""
    answers.put(_ask(port, done, USUAL_SECONDS))
    answers.put(_ask(port, done, float("inf")))


def _ask(port: int, done: Event, seconds: float) -> list[float]:
    taken = []
    until = time.monotonic() + seconds
    with Client(port) as kept:
        while not done.is_set() and time.monotonic() < until:
            began = time.perf_counter()
            kept.ask(HEALTH)
            taken.append(time.perf_counter() - began)
            began = time.perf_counter()
            with Client(port) as new:
                new.ask(HEALTH)
            taken.append(time.perf_counter() - began)
            time.sleep(PAUSE)
    return taken
