"""A process that keeps freed memory does not ask the kernel for it again."""

import ctypes
import subprocess
import sys

import pytest

PROGRAM = """
import resource, sys
from pqkeep_protocol.startup.memory import keep_freed_memory
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
    """Return how often a process got a page from the kernel while it used 50 times the same."""
    command = [sys.executable, "-c", PROGRAM, mode]
    return int(subprocess.run(command, check=True, capture_output=True, timeout=120).stdout)


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallopt"), reason="needs glibc")
def test_freed_memory_is_used_again() -> None:
    """Four bodies of 1 MiB at once, again and again, cost hardly a page once there was room."""
    assert faults("keeps") < 500
    assert faults("gives back") > 5_000
