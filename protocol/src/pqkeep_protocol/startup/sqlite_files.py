"""A SQLite database's file. It must exist, and no other user may access it.

A process that created a missing file would serve an empty installation. So only ``pqkeepd init``
and ``pqkeepd dev`` create the files, empty. A process only opens existing files.
"""

import os
import shlex
import stat
from collections.abc import Mapping
from urllib.parse import quote

from pqkeep_protocol.startup.settings import ConfigError

OWN_CODE = "SELECT count(*) FROM sqlite_schema WHERE type IN ('view', 'trigger')"
"""Counts a database's views and triggers. pqkeep creates none. A user who can write the file could
otherwise make a command that runs as root read an endless view."""

EXISTING: Mapping[str, str] = {"mode": "rw", "uri": "true"}
"""The query of a database URL with which SQLite does not create a file."""


def open_database_file(path: str) -> int:
    """Return a descriptor of an existing database file. Raises ConfigError."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOCTTY | os.O_NONBLOCK)
    except FileNotFoundError:
        raise ConfigError(
            f"there is no database {path}. If there was one, do not create another: restore a"
            ' backup by the runbook "A database is lost" (docs/runbooks.md). For a new installation'
            " let pqkeepd init create it: an empty file that belongs to the process's user, "
            "with mode"
            " 0600"
        ) from None
    except OSError as error:
        raise ConfigError(f"cannot open the database {path}: {error.strerror}") from None
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise ConfigError(f"the database {path} is not a regular file")
    for beside in (f"{path}-wal", f"{path}-shm", f"{path}-journal"):
        if os.path.lexists(beside) and not os.path.isfile(beside):  # noqa: PTH113 - a text
            os.close(descriptor)
            raise ConfigError(f"{beside}, beside the database, is not a regular file")
    if os.fstat(descriptor).st_mode & 0o077:
        os.close(descriptor)
        raise ConfigError(
            f"other users have access to the database {path}; its mode must be 0600: run chmod 0600"
            f" {shlex.quote(path)}"
        )
    return descriptor


def uri_of(path: str) -> str:
    """Return a file's URI, so that SQLite reads the query of the URL."""
    return f"file:{quote(path)}"
