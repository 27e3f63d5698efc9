"""New files that have their name only once they are whole and on disk.

On Linux such a file has no name at all until then: whatever ends the process, nothing is left of
it. Where the system or the file system cannot do that, it has another name beside the target, and
is removed on every error; a process that is killed leaves it there.
"""

import errno
import os
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

PRIVATE = 0o600
"""The mode of what only its owner may read."""
PUBLIC = 0o666
"""The mode of what anybody may read whom the user's umask lets."""
_NAMELESS = getattr(os, "O_TMPFILE", None)
_NAMED = os.O_CREAT | os.O_EXCL
_DESCRIPTORS = Path("/proc/self/fd")
"""From where the system gives a name to an open file; see O_TMPFILE in open(2)."""
_NOT_THERE = frozenset({errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL})
"""What open(2) says where it knows no files without a name."""


@contextmanager
def new_file(
    target: str | os.PathLike[str], *, replace: bool, mode: int = PRIVATE
) -> Generator[BinaryIO]:
    """Open a new file for the length of a block. If the block fails, nothing is there.

    Raises OSError, and FileExistsError unless ``replace``, before the block if it can.
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
    # With a descriptor, which an absolute source does not use, this is linkat(2) and follows it.
    try:
        os.link(_DESCRIPTORS / str(descriptor), path, src_dir_fd=descriptor)
    except FileExistsError as error:
        raise FileExistsError(error.errno, error.strerror, str(path)) from None


def _name(temporary: Path, path: Path) -> None:
    try:
        os.link(temporary, path)  # unlike a rename, it replaces nothing
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
