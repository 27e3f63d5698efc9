"""Replaces the header of a file in place. The segments stay in place, whatever their size.

One slot is written and synchronized, then the other. So one slot is always whole, with the old or
the new header. The slot in use is written last. Like a database, this relies on the disk: an
interrupted write changes no other bytes.
"""

import errno
import os
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from io import FileIO
from pathlib import Path
from shutil import copyfileobj

from pqkeep.local._header import DEFAULT_CAPACITY, Header, layout_for, slot_for
from pqkeep.local._recipients import FileKey, WrappedFileKey
from pqkeep.local._streams import FilePath
from pqkeep.new_files import new_file

try:
    import fcntl
except ModuleNotFoundError:  # Windows, which has no such lock: one change at a time there
    fcntl = None  # type: ignore[assignment]

PIECE = 1024 * 1024


@contextmanager
def changeable(path: FilePath) -> Generator[FileIO]:
    """Open a file to change its header, under a lock.

    Raises OSError, and BlockingIOError if another process has the lock.
    """
    with Path(path).open("r+b", buffering=0) as file:
        if not _lock(file):
            raise _busy(file)
        _require_in_place(file, Path(path))
        yield file


def settle(file: FileIO, header: Header) -> None:
    """Finish an interrupted change. Afterwards, no slot has removed recipients."""
    if not header.is_settled:
        _write(file, header, header.slot)


def replace_recipients(
    file: FileIO, header: Header, file_key: FileKey, recipients: Sequence[WrappedFileKey]
) -> None:
    """Write a new header. Without enough capacity, a copy replaces the file.

    Raises BlockingIOError if another file has taken the path meanwhile. That file stays unchanged.
    """
    if header.layout.has_capacity_for(recipients):
        slot = slot_for(file_key, recipients, layout=header.layout, sequence=header.sequence + 1)
        _write(file, header, slot)
        _require_in_place(file, _path_of(file))
    else:
        _copy(file, header, file_key, recipients)


def _lock(file: FileIO) -> bool:
    """Return True if the file was locked. Closing it unlocks it."""
    if fcntl is None:
        return True
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _path_of(file: FileIO) -> Path:
    return Path(os.fsdecode(file.name)).resolve()


def _require_in_place(file: FileIO, path: Path) -> None:
    """Raise BlockingIOError if the path no longer belongs to the open file."""
    if not path.exists() or not os.path.samestat(os.fstat(file.fileno()), path.stat()):
        raise _busy(file)


def _busy(file: FileIO) -> BlockingIOError:
    return BlockingIOError(
        errno.EAGAIN, "another process is changing the file", os.fsdecode(file.name)
    )


def _write(file: FileIO, header: Header, slot: bytes) -> None:
    places = [*range(header.layout.slots)]
    places.remove(header.place)
    for place in (*places, header.place):
        file.seek(place * header.layout.slot_size)
        rest = memoryview(slot)
        while rest:
            rest = rest[file.write(rest) :]
        os.fsync(file.fileno())


def _copy(
    file: FileIO, header: Header, file_key: FileKey, recipients: Sequence[WrappedFileKey]
) -> None:
    layout = layout_for(recipients, capacity=max(len(recipients), DEFAULT_CAPACITY))
    slot = slot_for(file_key, recipients, layout=layout, sequence=header.sequence + 1)
    file.seek(header.layout.size)
    path = _path_of(file)
    _require_in_place(file, path)
    mode = os.fstat(file.fileno()).st_mode & 0o777
    with new_file(path, replace=True, mode=mode) as target:
        if hasattr(os, "fchmod"):
            os.fchmod(target.fileno(), mode)  # whatever the umask leaves of it
        target.write(slot * layout.slots)
        copyfileobj(file, target, PIECE)
        _require_in_place(file, path)
