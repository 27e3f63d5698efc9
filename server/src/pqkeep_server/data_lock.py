"""The locks of a data directory: one for running or restoring it, one for moving tenants."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

LOCK_FILE = "lock"
"""Locked while pqkeepd runs or restores the directory."""
MOVES_LOCK_FILE = "moves.lock"
"""Locked while a command moves tenants between shards."""


@contextmanager
def locked(directory: Path, name: str = LOCK_FILE) -> Iterator[int]:
    """Hold a lock of a directory, and yield its file descriptor.

    Raises BlockingIOError if another process has the lock, and OSError. A symbolic link is refused:
    root would create a file at its target.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK
    lock = os.open(directory / name, flags, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield lock
    finally:
        os.close(lock)
