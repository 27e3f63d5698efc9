"""The locks of a data directory: one pqkeepd at a time runs on it, and one moves tenants."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

LOCK_FILE = "lock"
"""Of what runs on the directory, or restores into it."""
MOVES_LOCK_FILE = "moves.lock"
"""Of what moves tenants between the shards whose key services are here."""


@contextmanager
def locked(directory: Path, name: str = LOCK_FILE) -> Iterator[int]:
    """Hold one of a directory's locks; yield its file descriptor. Raises BlockingIOError where another process has it, OSError.

    A symbolic link in its place is refused: root would make a file wherever it leads.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK
    lock = os.open(directory / name, flags, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield lock
    finally:
        os.close(lock)
