"""Reads files that only their owner may read: the profile file and files of API keys.

A file of root may be readable for a group if this process's user is the group's only member:
Kubernetes mounts secrets like this (``fsGroup``). Owner and mode are checked on the open file.
Pipes, for example from a password manager, are not checked: only this process reads from them.
"""

import os
import shlex
import stat
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from pqkeep.errors import ConfigurationError


@contextmanager
def open_private(path: Path) -> Generator[BinaryIO]:
    """Open a file of this user with mode 0600 or less, or of root and this user's group with 0640.

    Raises ConfigurationError for another owner or mode, and OSError.
    """
    with path.open("rb") as file:
        if os.name == "posix" and _is_shared(os.fstat(file.fileno())):
            raise ConfigurationError(
                f"{path} must belong to you and have mode 0600: run chmod 0600 {shlex.quote(str(path))}"
            )
        yield file


def _is_shared(status: os.stat_result) -> bool:
    """Return True if other users can read or write a file."""
    if not stat.S_ISREG(status.st_mode):
        return False
    owner, others = status.st_uid, status.st_mode & (stat.S_IRWXG | stat.S_IRWXO)
    if owner == 0 and others == stat.S_IRGRP and _is_of_one_user(status.st_gid):
        return False
    return bool(others) or owner not in {os.geteuid(), 0}


def _is_of_one_user(group: int) -> bool:
    """Return True if a group has only this process's user. For root, any single user is enough."""
    import grp  # noqa: PLC0415 - not there on Windows
    import pwd  # noqa: PLC0415 - not there on Windows

    user = os.geteuid()
    if group == 0 if user == 0 else group not in {os.getegid(), *os.getgroups()}:
        return False
    named: frozenset[str] = frozenset()
    with suppress(KeyError):
        named = frozenset(grp.getgrgid(group).gr_mem)
    others = {
        user.pw_uid for user in pwd.getpwall() if user.pw_gid == group or user.pw_name in named
    } - {0, user}
    return len(others) <= (user == 0)


BLANK = " \t\r\n\f\v\N{ZERO WIDTH NO-BREAK SPACE}"
"""Characters that editors and shells add around a value. The last one is a byte-order mark."""
_LONGEST = 65_536
QUOTES = "\"'`\N{LEFT DOUBLE QUOTATION MARK}\N{RIGHT DOUBLE QUOTATION MARK}"


def read_api_key(path: Path) -> str:
    """Return the API key in a private file, without blank lines and a byte-order mark.

    Raises ConfigurationError, OSError and UnicodeDecodeError.
    """
    with open_private(path) as file:
        key = file.read(_LONGEST).decode().strip(BLANK)
    if wrong := wrong_in_api_key(key):
        raise ConfigurationError(
            f"the API key in {path} must be printable ASCII without spaces: it {wrong}"
        )
    return key


def wrong_in_api_key(key: str) -> str:
    """Return the error in the text of an API key, or an empty text."""
    if not key:
        return "is empty"
    if key[0] in QUOTES or key[-1] in QUOTES:
        return "has quotation marks around it"
    if "\n" in key or "\r" in key:
        return "has several lines"
    if any(character.isspace() for character in key):
        return "has a space inside"
    if not key.isascii():
        return "has a character that is not ASCII"
    return "" if key.isprintable() else "has a control character"
