"""Freed memory stays in the process for reuse, and cycles are collected late."""

import ctypes
import subprocess
import sys

import pytest
from tests.patience import PATIENCE

PROGRAM = """
import resource, sys
from pqkeep_protocol.startup.hardening import keep_freed_memory
if sys.argv[1] == "keeps":
    keep_freed_memory()
def use():
    texts = [("x" * (1 << 20)).encode() for _ in range(4)]
for _ in range(5):
    use()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(50):
    use()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults(mode: str) -> int:
    """Return the page faults of a process that uses the same memory 50 times."""
    command = [sys.executable, "-c", PROGRAM, mode]
    return int(subprocess.run(command, check=True, capture_output=True, timeout=PATIENCE).stdout)


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallopt"), reason="needs glibc")
def test_freed_memory_is_used_again() -> None:
    """Four bodies of 1 MiB, repeated, cost almost no page faults after the first time."""
    assert faults("keeps") < 500
    assert faults("gives back") > 5_000


COLLECTING = """
import gc, weakref
from pqkeep_protocol.startup.hardening import YOUNG, collect_rarely
class Cycle:
    def __init__(self): self.own = self
before = Cycle()
collect_rarely()
assert gc.get_freeze_count() > 1000
found = weakref.ref(Cycle())
kept = []
for _ in range(YOUNG // 2): kept.append([])
assert found() is not None
for _ in range(YOUNG): kept.append([])
assert found() is None
"""


def test_cycles_are_found_though_later() -> None:
    """A cycle survives some younger objects, and is freed after YOUNG of them."""
    subprocess.run([sys.executable, "-c", COLLECTING], check=True, timeout=PATIENCE)
