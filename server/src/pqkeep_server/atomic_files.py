"""Writes files atomically: a file is complete and durable, or does not exist."""

import json
import os
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO


@contextmanager
def atomic_file(
    path: Path, mode: int, *, replace: bool = False, owner_of: Path | None = None
) -> Iterator[BinaryIO]:
    """Yield a temporary file beside the path, and rename it to the path if the block succeeds.

    Until then its mode is 0600. The owner of the file ``owner_of`` becomes its owner. Raises OSError,
    and FileExistsError if the path exists and ``replace`` is False: before writing, if possible.
    """
    if not replace:
        _require_free(path)
    try:
        descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    except OSError as error:  # the temporary file's name means nothing to the user
        raise OSError(error.errno, error.strerror, str(path)) from None
    temporary = Path(name)
    try:
        with os.fdopen(descriptor, "wb") as file:
            yield file
            os.fchmod(descriptor, mode)
            if owner_of is not None:
                _give_to_owner(descriptor, owner_of.stat())
            file.flush()
            os.fsync(descriptor)
        if replace:
            temporary.rename(path)
        else:
            _name(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync(path.parent)


def write_atomically(
    path: Path, data: bytes, mode: int, *, replace: bool = False, owner_of: Path | None = None
) -> None:
    """Write a file as ``atomic_file`` does. Raises OSError and FileExistsError."""
    with atomic_file(path, mode, replace=replace, owner_of=owner_of) as file:
        file.write(data)


def rewrite(path: Path, text: str) -> None:
    """Replace a file's text, and keep its owner and mode. Raises OSError."""
    mode = stat.S_IMODE(path.stat().st_mode)
    write_atomically(path.resolve(), text.encode(), mode, replace=True, owner_of=path)


def write_private_json(path: Path, content: object) -> None:
    """Write a JSON file of mode 0600, or replace it. Raises OSError."""
    text = json.dumps(content, indent=2) + "\n"
    write_atomically(path, text.encode(), 0o600, replace=True)


def sync(path: Path) -> None:
    """Make a file's content, or a folder's entries, durable. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _require_free(path: Path) -> None:
    if os.path.lexists(path):
        raise FileExistsError(f"{path} exists already")


def _name(temporary: Path, path: Path) -> None:
    try:
        os.link(temporary, path)  # unlike a rename, it replaces nothing
    except OSError:  # the path exists by now, or the file system has no links
        _require_free(path)
        temporary.rename(path)
    else:
        temporary.unlink()


def _give_to_owner(descriptor: int, like: os.stat_result) -> None:
    if (like.st_uid, like.st_gid) != (os.geteuid(), os.getegid()):
        os.fchown(descriptor, like.st_uid, like.st_gid)
