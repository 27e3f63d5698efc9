"""A full disk causes only 503 and keeps data durable; the service recovers by itself."""

from __future__ import annotations

import ctypes
import os
import resource
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.crash_recovery import invariants
from tests.crash_recovery.client import Ledger, Promise, client
from tests.crash_recovery.run import OUTBOX_SECONDS, at_work
from tests.crash_recovery.snapshot import read, sqlite_urls
from tests.crash_recovery.state import create_state
from tests.fixtures.installation import Installation
from tests.patience import PATIENCE

pytestmark = pytest.mark.campaign

THREADS = 6
BEFORE_SECONDS = 1.0
FILLING_SECONDS = 0.3
FULL_SECONDS = 3.0
SIZE = 64 << 20
CHUNK = 1 << 20
_LIBC = ctypes.CDLL(None, use_errno=True)
BROKEN = 0
"""The status of a request without a response."""

Full = Callable[["Installation"], AbstractContextManager[None]]
"""Fills the disk for a ``with`` block."""


@contextmanager
def ballast(installation: Installation) -> Iterator[None]:
    """Fill the data directory's file system to the last byte."""
    file = installation.data / "ballast"
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT)
    size = CHUNK
    while size:
        try:
            size = os.write(descriptor, bytes(size))
        except OSError:
            size //= 2
    os.close(descriptor)
    yield
    file.unlink()


def limit_of(module: str) -> Full:
    """Limit a process's file sizes, which acts like a full disk without root."""

    @contextmanager
    def limited(installation: Installation) -> Iterator[None]:
        pid = installation.children()[module]
        before = resource.prlimit(pid, resource.RLIMIT_FSIZE, (1, resource.RLIM_INFINITY))
        yield
        resource.prlimit(pid, resource.RLIMIT_FSIZE, before)

    return limited


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 64 MiB. Without permission to mount it, the limits are tested instead."""
    folder = tmp_path / "small"
    folder.mkdir()
    if _LIBC.mount(b"none", bytes(folder), b"tmpfs", 0, f"size={SIZE}".encode()):
        pytest.skip(f"cannot mount a file system here: {os.strerror(ctypes.get_errno())}")
    yield folder
    assert _LIBC.umount2(bytes(folder), 0) == 0


@dataclass
class Seen:
    """What clients saw."""

    ledgers: list[Ledger]
    while_full: Counter[int]
    """Answers by status."""
    processes: dict[str, int]
    """The state before the disk was full."""

    @property
    def promises(self) -> list[Promise]:
        return [promise for ledger in self.ledgers for promise in ledger.promises]


def work_while_full(installation: Installation, full: Full) -> Seen:
    """Send requests before, during and after a full disk, until everything works."""
    ledgers = [Ledger() for _ in range(THREADS + 1)]
    with client(installation.base_url, ledgers[-1]) as first:
        state = create_state(first, installation.ready["operator_key"], THREADS)
    processes = installation.children()
    with at_work(installation.base_url, state, ledgers, "full"):
        time.sleep(BEFORE_SECONDS)
        with full(installation):
            time.sleep(FILLING_SECONDS)
            before = _statuses(ledgers)
            time.sleep(FULL_SECONDS)
            while_full = _statuses(ledgers) - before
        _until_all_is_well(ledgers)
    time.sleep(OUTBOX_SECONDS)
    return Seen(ledgers, while_full, processes)


def _statuses(ledgers: Sequence[Ledger]) -> Counter[int]:
    seen: Counter[int] = Counter()
    for ledger in ledgers:
        for (status, _), count in ledger.responses.copy().items():
            seen[status] += count
        seen[BROKEN] += ledger.broken
    return seen


def _until_all_is_well(ledgers: Sequence[Ledger]) -> None:
    """Wait for a second without 503 and with many successes."""
    deadline = time.monotonic() + PATIENCE
    while True:
        before = _statuses(ledgers)
        time.sleep(1)
        now = _statuses(ledgers) - before
        if now[200] and now[201] and not now[503]:
            return
        assert time.monotonic() < deadline, now


def _everything_is_right(installation: Installation, seen: Seen) -> None:
    assert seen.while_full[503] > 0
    assert seen.while_full.keys() <= {200, 201, 400, 403, 404, 503}
    assert installation.children() == seen.processes  # nothing was started again
    installation.stop()
    snapshot = read(*sqlite_urls(installation.data))
    found = invariants.everything(snapshot, seen.promises)
    assert not any(found.values()), found
    assert [wrong for ledger in seen.ledgers for wrong in ledger.wrong] == []


@pytest.mark.threat("crash")
def test_full_file_system(start: Callable[..., Installation], small_disk: Path) -> None:
    """With both databases on a full disk, every acknowledged operation is in the log.

    With space again, both processes continue by themselves.
    """
    installation = start(data=small_disk / "data")
    seen = work_while_full(installation, ballast)
    _everything_is_right(installation, seen)


@pytest.mark.parametrize("module", ["pqkeep_keyservice", "pqkeep_gateway"])
def test_files_that_cannot_grow(start: Callable[..., Installation], module: str) -> None:
    """The same holds when only one of the two processes cannot write."""
    installation = start()
    seen = work_while_full(installation, limit_of(module))
    _everything_is_right(installation, seen)
