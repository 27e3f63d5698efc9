"""New files. A file gets its name only when it is complete and on disk.

On Linux such a file has no name before: a killed process leaves nothing. On other systems and some
file systems it has a temporary name beside the target. Errors remove it; a killed process leaves it
behind.

A file is replaced under a lock, and only if no other program changed it meanwhile.
"""

import errno
import os
import struct
from collections.abc import Generator
from contextlib import contextmanager, suppress
from io import FileIO
from pathlib import Path
from typing import BinaryIO

try:
    import fcntl
except ModuleNotFoundError:  # Windows, which has no such lock: one change at a time there
    fcntl = None  # type: ignore[assignment]

PRIVATE = 0o600
"""The mode of a file that only its owner may read."""
PUBLIC = 0o666
"""The mode of a file that others may read, subject to the umask."""
_NAMELESS = getattr(os, "O_TMPFILE", None)
_NAMED = os.O_CREAT | os.O_EXCL
_DESCRIPTORS = Path("/proc/self/fd")
"""The path of open files that link(2) can name; see O_TMPFILE in open(2)."""
_NOT_THERE = frozenset({errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL})
"""The errors of open(2) on a system without nameless files."""


@contextmanager
def new_file(
    target: str | os.PathLike[str], *, replace: bool, mode: int = PRIVATE
) -> Generator[BinaryIO]:
    """Open a new file for a block. If the block fails, no file is left.

    Raises OSError. Raises FileExistsError if the file exists and ``replace`` is False, before the
    block if possible.
    """
    path = Path(target)
    _refuse_existing(path, replace=replace)
    temporary = path.with_name(f".pqkeep-{os.urandom(8).hex()}")
    nameless = _open_nameless(path.parent, mode)
    descriptor = os.open(temporary, os.O_WRONLY | _NAMED, mode) if nameless is None else nameless
    try:
        with os.fdopen(descriptor, "wb") as file:
            yield file
            file.flush()
            os.fsync(descriptor)
            if nameless is not None:
                _link(nameless, temporary if replace else path)
        if replace:
            temporary.replace(path)
        elif nameless is None:
            _name(temporary, path)
    finally:
        with suppress(FileNotFoundError):
            temporary.unlink()
    _sync(path.parent)


@contextmanager
def changeable(path: str | os.PathLike[str]) -> Generator[FileIO]:
    """Open a file to change it, under a lock.

    Raises OSError, and BlockingIOError if another process has the lock.
    """
    with Path(path).open("r+b", buffering=0) as file:
        if not _lock(file):
            raise _busy(file)
        require_in_place(file)
        yield file


@contextmanager
def replacement(file: FileIO) -> Generator[BinaryIO]:
    """Open a new file that replaces an open one after the block, with its owner and mode.

    Raises BlockingIOError if the file was changed or replaced meanwhile. It stays unchanged.
    """
    path = _path_of(file)
    require_in_place(file)
    before = os.fstat(file.fileno())
    mode = before.st_mode & 0o777
    with new_file(path, replace=True, mode=mode) as target:
        yield target
        if hasattr(os, "fchown"):
            with suppress(PermissionError):  # only the superuser gives files away
                os.fchown(target.fileno(), before.st_uid, before.st_gid)
            os.fchmod(target.fileno(), mode)  # whatever the umask leaves of it
        after = os.fstat(file.fileno())
        if (before.st_size, before.st_mtime_ns) != (after.st_size, after.st_mtime_ns):
            raise _busy(file)
        require_in_place(file)


def _lock(file: FileIO) -> bool:
    """Return True if the file was locked. Closing it unlocks it."""
    if fcntl is None:
        return True
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


class ByteLocks:
    """Locks of single bytes of an open file, which may be behind its end. Closing it unlocks all.

    Only Linux has locks that closing another descriptor of the file does not drop. Elsewhere each
    lock succeeds.
    """

    def __init__(self, file: FileIO) -> None:
        self._file = file

    def take(self, offset: int) -> bool:
        """Lock a byte. Return False if another process has it."""
        try:
            self._set(offset, 1, is_locked=True)
        except BlockingIOError:
            return False
        return True

    def release(self) -> None:
        """Unlock all bytes."""
        self._set(0, 0, is_locked=False)

    def _set(self, start: int, length: int, *, is_locked: bool) -> None:
        if fcntl is None:
            return
        if not hasattr(fcntl, "F_OFD_SETLK"):
            return
        kind = fcntl.F_WRLCK if is_locked else fcntl.F_UNLCK
        lock = struct.pack("hhqqi4x", kind, os.SEEK_SET, start, length, 0)  # struct flock
        fcntl.fcntl(self._file, fcntl.F_OFD_SETLK, lock)


def _path_of(file: FileIO) -> Path:
    return Path(os.fsdecode(file.name)).resolve()


def require_in_place(file: FileIO) -> None:
    """Raise BlockingIOError if the path no longer belongs to the open file."""
    path = _path_of(file)
    if not path.exists() or not os.path.samestat(os.fstat(file.fileno()), path.stat()):
        raise _busy(file)


def _busy(file: FileIO) -> BlockingIOError:
    return BlockingIOError(
        errno.EAGAIN, "another process is changing the file", os.fsdecode(file.name)
    )


def _refuse_existing(path: Path, *, replace: bool) -> None:
    if not replace and os.path.lexists(path):
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(path))


def _open_nameless(folder: Path, mode: int) -> int | None:
    if _NAMELESS is None or not _DESCRIPTORS.is_dir():
        return None
    try:
        return os.open(folder, os.O_WRONLY | _NAMELESS, mode)
    except OSError as error:
        if error.errno in _NOT_THERE:
            return None
        raise


def _link(descriptor: int, path: Path) -> None:
    # A descriptor, which an absolute source does not use, makes this linkat(2), which follows links.
    try:
        os.link(_DESCRIPTORS / str(descriptor), path, src_dir_fd=descriptor)
    except FileExistsError as error:
        raise FileExistsError(error.errno, error.strerror, str(path)) from None


def _name(temporary: Path, path: Path) -> None:
    try:
        os.link(temporary, path)  # unlike a rename, link replaces nothing
    except FileExistsError as error:
        raise FileExistsError(error.errno, error.strerror, str(path)) from None
    except OSError:  # a file system without links
        _refuse_existing(path, replace=False)
        temporary.replace(path)


def _sync(folder: Path) -> None:
    """Make a new name durable."""
    if not hasattr(os, "O_DIRECTORY"):
        return
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
