"""Lets root act as the owner of a process's folder."""

import os
import pwd
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from pqkeep_protocol.startup.settings import ConfigError


@contextmanager
def acting_as_owner_of(folder: Path) -> Iterator[None]:
    """Run a block as a folder's owner if the caller is root.

    The block makes files of the owner, and can only access files that the owner can. HOME is the
    folder, because libraries look for files there. Raises OSError.
    """
    owner = folder.stat()
    if os.geteuid() != 0 or owner.st_uid == 0:
        yield
        return
    group, groups, home = os.getegid(), os.getgroups(), os.environ.get("HOME")
    try:
        os.environ["HOME"] = str(folder.absolute())
        os.setgroups(_groups_of(owner))
        os.setegid(owner.st_gid)
        os.seteuid(owner.st_uid)
        yield
    finally:
        os.seteuid(0)
        os.setegid(group)
        os.setgroups(groups)
        if home is None:
            os.environ.pop("HOME", None)
        else:
            os.environ["HOME"] = home


def run_as_owner_of(path: Path, work: Callable[[], bytes]) -> bytes:
    """Run a function in a process that has become the owner for good, and return its result.

    Use it for code that the owner chose. Such code could regain the rights that
    ``acting_as_owner_of`` drops only for a time. If root does not call, or the owner is root, the
    function runs in this process. Raises ConfigError with the message of the function's error.
    """
    owner = path.stat()
    if os.geteuid() != 0 or owner.st_uid == 0:
        return work()
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(reading)
            with os.fdopen(writing, "wb") as file:
                file.write(_result_as(owner, work))
        finally:
            os._exit(os.EX_OK)
    os.close(writing)
    with os.fdopen(reading, "rb") as file:
        outcome, result = file.read(1), file.read()
    os.waitpid(child, 0)
    if outcome != _DONE:
        raise ConfigError(result.decode() or f"cannot act as the user {owner.st_uid}")
    return result


_DONE, _REFUSED = b"+", b"-"


def _result_as(owner: os.stat_result, work: Callable[[], bytes]) -> bytes:
    os.setgroups(_groups_of(owner))
    os.setgid(owner.st_gid)
    os.setuid(owner.st_uid)
    try:
        return _DONE + work()
    except ConfigError as error:
        return _REFUSED + str(error).encode()


def _groups_of(owner: os.stat_result) -> list[int]:
    """Return the groups of the owner."""
    try:
        return os.getgrouplist(pwd.getpwuid(owner.st_uid).pw_name, owner.st_gid)
    except KeyError:
        return []
