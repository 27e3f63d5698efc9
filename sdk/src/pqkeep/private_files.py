"""Reads files that nobody but their owner may read: the profile file, and files with an API key.

Owner and mode are checked on the open file, which is also what is read. What is no regular file, a
pipe from a password manager for instance, has no readers but who opened it.
"""

import os
import stat
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from pqkeep.errors import ConfigurationError


@contextmanager
def open_private(path: Path) -> Generator[BinaryIO]:
    """Open a file of this process's user, or of root, with mode 0600 or less.

    Raises ConfigurationError for another one, and OSError.
    """
    with path.open("rb") as file:
        if os.name == "posix" and _is_shared(os.fstat(file.fileno())):
            raise ConfigurationError(f"{path} must be yours, and its mode 0600")
        yield file


def _is_shared(status: os.stat_result) -> bool:
    has_others = status.st_mode & (stat.S_IRWXG | stat.S_IRWXO)
    is_others = status.st_uid not in {os.geteuid(), 0}
    return stat.S_ISREG(status.st_mode) and bool(has_others or is_others)


def read_api_key(path: Path) -> str:
    """Return what a private file holds. Raises ConfigurationError, OSError and UnicodeDecodeError."""
    with open_private(path) as file:
        return file.read().decode("ascii").strip()
