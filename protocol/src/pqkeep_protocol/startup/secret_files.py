"""Reads secret files: root keys, the pepper, passwords, credentials, recovery keys.

Type, owner and mode are checked on the open descriptor, and the same descriptor is read. So the
file cannot be swapped between check and read. Symbolic links are followed, because Kubernetes
mounts secrets as links. The target must pass the same checks.

The mode must be 0400 or 0600. A file of root may have mode 0440 or 0640, as Kubernetes mounts it
for ``fsGroup``. Then the process must be in the file's group, and the system's user database must
have no other user in that group.
"""

import grp
import os
import pwd
import shlex
import stat
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from pqkeep_protocol.startup.settings import ConfigError, open_without_waiting

MAX_SIZE = 64 * 1024
"""The largest secret file, in bytes."""
LOOK_SECONDS = 10.0
"""Seconds between two looks for replaced certificates."""
_ACL = "system.posix_acl_access"
_ACL_HEADER, _ACL_ENTRY = 4, struct.Struct("<HHI")
"""The ACL's header size; an entry's tag, permissions and id: <linux/posix_acl_xattr.h>."""
_ACL_USER, _ACL_GROUPS = 0x02, frozenset({0x04, 0x08})
"""Tags: a user by id; the file's group and a group by id."""


class SecretFileAccessError(ConfigError):
    """A secret file has a wrong owner or mode. Its content was not read."""


def read_secret_file(path: Path, what: str, *, also_owned_by: int | None = None) -> bytes:
    """Return the content of a file of at most 64 KiB that no other user can access.

    The owner must be this process's user, root or the user id ``also_owned_by``. Raises
    ConfigError. Its message says what the file should hold (``what``), and quotes nothing of it.
    """
    with open_secret_file(path, what, also_owned_by=also_owned_by) as file:
        data = file.read(MAX_SIZE + 1)
    if len(data) > MAX_SIZE:
        raise _refusal(path, what, f"it is longer than {MAX_SIZE} bytes")
    return data


def read_secret_text(path: Path, what: str) -> str:
    """Return the single line of text in a secret file, without its line ending.

    Raises ConfigError, also if the file is empty, has more lines or is not UTF-8.
    """
    try:
        text = read_secret_file(path, what).decode().removesuffix("\n").removesuffix("\r")
    except UnicodeDecodeError:
        raise _refusal(path, what, "it is not UTF-8") from None
    if not text or "\n" in text:
        raise _refusal(path, what, "it must have exactly one line of text")
    return text


def check_secret_file(path: Path, what: str) -> None:
    """Check a file that a library will open itself. Raises ConfigError."""
    with open_secret_file(path, what):
        pass


def password_file_of(path: Path, what: str, *, also_owned_by: int | None = None) -> Path:
    """Check a PostgreSQL password file, and return a path for the driver.

    The driver ignores a file that a group can read. So for such a file, the returned path leads to
    a copy in memory. The copy exists as long as this process. Raises ConfigError.
    """
    data = read_secret_file(path, what, also_owned_by=also_owned_by)
    if not path.stat().st_mode & stat.S_IRWXG:
        return path
    copy = os.memfd_create("password", os.MFD_CLOEXEC)
    os.fchmod(copy, stat.S_IRUSR)
    os.write(copy, data)
    return Path(f"/proc/self/fd/{copy}")


class ReplacedFiles:
    """Notices that some files were replaced, also where a symbolic link on the way changed."""

    def __init__(self, *paths: Path) -> None:
        self._paths = paths
        self._known = self._last = self._look()

    def note(self) -> None:
        """Take the present files as known."""
        self._known = self._last = self._look()

    def settled(self) -> bool:
        """Return True once after a replacement: at the second look that sees the same new files.

        A certificate and its key are often replaced one after the other.
        """
        last, self._last = self._last, self._look()
        is_new = self._last not in (self._known, last)
        if is_new or self._last == self._known:
            return False
        self._known = self._last
        return True

    def _look(self) -> tuple[tuple[int, int, int, int] | None, ...]:
        return tuple(map(_version, self._paths))


def _version(path: Path) -> tuple[int, int, int, int] | None:
    """Return values that differ after a replacement, or None without the file."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_mtime_ns, found.st_size


@contextmanager
def open_secret_file(
    path: Path, what: str, *, also_owned_by: int | None = None
) -> Iterator[BinaryIO]:
    """Open a file of any size after the checks of ``read_secret_file``. Raises ConfigError."""
    try:
        with open(path, "rb", opener=open_without_waiting) as file:
            _check(path, what, file.fileno(), {os.geteuid(), 0, also_owned_by})
            yield file
    except OSError as error:
        raise _refusal(path, what, str(error.strerror)) from None


def _check(path: Path, what: str, descriptor: int, owners: set[int | None]) -> None:
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode):
        raise _refusal(path, what, "it is not a regular file")
    if status.st_uid not in owners:
        problem = (
            f"it belongs to user {status.st_uid}, but this process runs as user {os.geteuid()}"
        )
        raise _refusal(path, what, problem, SecretFileAccessError)
    if _others_have_access(descriptor, status, owners):
        problem = (
            f"other users have access to it (mode {stat.S_IMODE(status.st_mode):04o}); its mode"
            f" must be 0400 or 0600: run chmod 0400 {shlex.quote(str(path))}"
        )
        raise _refusal(path, what, problem, SecretFileAccessError)


def _others_have_access(descriptor: int, status: os.stat_result, owners: set[int | None]) -> bool:
    """Return whether users other than the owner and this process's user have access.

    systemd grants a service its credentials, which belong to root, by an access control list (ACL).
    With an ACL the mode's group bits are a mask, and the ACL says who has access.
    """
    if status.st_mode & stat.S_IRWXO:
        return True
    if not status.st_mode & stat.S_IRWXG:
        return False
    try:
        entries = os.getxattr(descriptor, _ACL)[_ACL_HEADER:]
    except OSError:  # without an ACL the mode decides
        only_reads = status.st_mode & stat.S_IRWXG == stat.S_IRGRP
        return status.st_uid != 0 or not only_reads or not _has_one_user(status.st_gid, owners)
    return any(
        permissions and (tag in _ACL_GROUPS or (tag == _ACL_USER and user != os.geteuid()))
        for tag, permissions, user in _ACL_ENTRY.iter_unpack(entries)
    )


def _has_one_user(group: int, owners: set[int | None]) -> bool:
    """Return whether only this process's user is in a group. For root, any one user may be."""
    is_root = os.geteuid() == 0
    if group == 0 if is_root else group not in {os.getegid(), *os.getgroups()}:
        return False
    try:
        named = frozenset(grp.getgrgid(group).gr_mem)
    except KeyError:
        named = frozenset()
    members = {
        user.pw_uid for user in pwd.getpwall() if user.pw_gid == group or user.pw_name in named
    }
    return len(members - owners) <= is_root


def _refusal(
    path: Path, what: str, problem: str, kind: type[ConfigError] = ConfigError
) -> ConfigError:
    return kind(f"cannot use the {what} in {path}: {problem}")
