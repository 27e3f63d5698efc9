"""A SQLite database's file: it must be there, and nobody else's.

A process that found no file and made a new one would serve an empty installation. So ``pqkeepd
init`` and ``pqkeepd dev`` make the files, empty, and a process opens what is there.
"""

import os
import stat
from collections.abc import Mapping
from urllib.parse import quote

from pqkeep_protocol.startup.settings import ConfigError

OWN_CODE = "SELECT count(*) FROM sqlite_schema WHERE type IN ('view', 'trigger')"
"""How many views and triggers a database has. pqkeep makes none: whoever may write the file could have
a command of root's read a view that has no end."""

EXISTING: Mapping[str, str] = {"mode": "rw", "uri": "true"}
"""The query of a database's URL, with which SQLite makes no file."""


def open_database_file(path: str) -> int:
    """Return a descriptor of a database's file. Raises ConfigError."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOCTTY | os.O_NONBLOCK)
    except FileNotFoundError:
        raise ConfigError(
            f"there is no database {path}. If there was one, do not make another: restore a backup,"
            ' as the runbook "A database is lost" says (docs/runbooks.md). A new installation'
            " begins with an empty file there, of the process's user and with mode 0600, as pqkeepd"
            " init makes it"
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
        raise ConfigError(f"the database {path} can be read by others; its mode must be 0600")
    return descriptor


def uri_of(path: str) -> str:
    """Return the name of a file by which SQLite heeds the query."""
    return f"file:{quote(path)}"
