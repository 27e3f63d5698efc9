"""A client that sends requests to one shard, each over a new connection, and notes the times."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise

from tests.crash_recovery.client import Caller, Client, Ledger

PAUSE_SECONDS = 0.03
RESPONSE_SECONDS = 15.0
"""More seconds than a gateway takes to report that there is no response."""
PLAINTEXT = {"algorithm": "Kyber768", "plaintext": "aGVsbG8="}


class Probe:
    """Encrypts, and records the times of responses."""

    def __init__(self, base_url: str, caller: Caller) -> None:
        self._base_url = base_url
        self._caller = caller
        self.ledger = Ledger()
        self.answered: list[tuple[float, float]] = []
        """The start and end of each request with a 200 response."""

    @contextmanager
    def asking(self) -> Iterator[Probe]:
        """Send requests for a block."""
        stop = threading.Event()
        thread = threading.Thread(target=self._ask, args=(stop,))
        thread.start()
        try:
            yield self
        finally:
            stop.set()
            thread.join()

    def _ask(self, stop: threading.Event) -> None:
        while not stop.wait(PAUSE_SECONDS):
            client = Client(self._base_url, self.ledger, RESPONSE_SECONDS)
            began = time.monotonic()
            response = client.ask(self._caller, "POST", "/kem/encrypt", PLAINTEXT)
            client.close()
            if response is None:
                continue
            if not response.is_success:
                self.ledger.wrong.append(f"probe: {response.status} {response.code}")
                continue
            self.answered.append((began, time.monotonic()))
            version = response.data["key_version"]
            client.promised(response, self._caller, "encrypt", key_version=version)

    def has_answered_since(self, moment: float, times: int = 1) -> bool:
        """Return True if requests that began after a moment got responses."""
        return sum(began > moment for began, _ in self.answered[-times:]) == times

    def longest_without_response(self, begin: float, end: float) -> float:
        """Return the longest time between two responses that overlaps a time (seconds)."""
        times = [answered for _, answered in self.answered]
        gaps = [b - a for a, b in pairwise(times) if b > begin and a < end]
        return max(gaps, default=end - begin)
