"""Files that only their owner reads: whole on the disk, or not there."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO


@contextmanager
def whole_file(path: Path, mode: int, *, replace: bool = False) -> Iterator[BinaryIO]:
    """Yield a file that comes to its place, durably, when the block ends well.

    Until then it is beside its place under a name of its own, with mode 0600. Raises
    FileExistsError, before anything is written, where something is there that may not be replaced.
    """
    if not replace and os.path.lexists(path):
        raise FileExistsError(f"{path} is there already")
    descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    draft = Path(name)
    try:
        with os.fdopen(descriptor, "wb") as file:
            yield file
            os.fchmod(descriptor, mode)
            file.flush()
            os.fsync(descriptor)
        draft.rename(path)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise
    sync(path.parent)


def write_whole(path: Path, data: bytes, mode: int, *, replace: bool = False) -> None:
    """Write a file, durably. Raises OSError; see ``whole_file``."""
    with whole_file(path, mode, replace=replace) as file:
        file.write(data)


def sync(path: Path) -> None:
    """Make a file, or what a folder lists, survive a power cut."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
