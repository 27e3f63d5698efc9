"""The lock of a data directory: one pqkeepd at a time runs on it or restores into it."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

LOCK_FILE = "lock"


@contextmanager
def locked(directory: Path) -> Iterator[None]:
    """Hold a directory's lock. Raises BlockingIOError where another process holds it, and OSError."""
    lock = os.open(directory / LOCK_FILE, os.O_WRONLY | os.O_CREAT, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(lock)
