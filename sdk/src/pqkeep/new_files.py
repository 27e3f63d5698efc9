"""New files that get their name only when they are complete and on disk.

On Linux such a file has no name before: a killed process leaves nothing. On other systems and some
file systems it has a temporary name beside the target. Errors remove it, but a killed process leaves
it.
"""

import errno
import os
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

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

    Raises OSError, and FileExistsError unless ``replace``, before the block if possible.
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
