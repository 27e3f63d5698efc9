"""Where commands write: standard output, or a file that has its name only once it is whole.

Until then it has another one beside it. What ends the command, but SIGKILL and a power cut, removes
it; those leave the file with the other name.
"""

import errno
import os
import stat
import sys
from codecs import getincrementaldecoder
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, Protocol

from pqkeep.cli.failures import Refusal
from pqkeep.cli.options import STANDARD

PRIVATE = 0o600
"""The mode of what only its owner may read."""
PUBLIC = 0o666
"""The mode of what anybody may read, less what the user's umask takes away."""
_HARMLESS = dict.fromkeys(map(ord, "\r\n\t"))


class Writer(Protocol):
    """What commands write to."""

    def write(self, data: bytes, /) -> object:
        """Take bytes, all of them."""
        ...


@contextmanager
def destination(name: str | None, *, otherwise: str, force: bool, mode: int) -> Iterator[Writer]:
    """Open what to write; without a name it is ``otherwise``. Raises OSError and Refusal."""
    chosen = otherwise if name is None else name
    if chosen != STANDARD:
        with new_file(Path(chosen), force=force, mode=mode) as file:
            yield file
        return
    with _named("standard output"):
        insisted = name is not None or not sys.stdout.isatty()
        yield sys.stdout.buffer if insisted else _Terminal()
        sys.stdout.buffer.flush()


class _Terminal:
    """Takes text only: a terminal may act on anything else."""

    def __init__(self) -> None:
        """Begin."""
        self._decoder = getincrementaldecoder("utf-8")()

    def write(self, data: bytes, /) -> None:
        """Write text. Raises Refusal."""
        try:
            text = self._decoder.decode(data)
        except UnicodeDecodeError:
            text = "\0"
        if not text.translate(_HARMLESS).isprintable():
            raise Refusal(
                "this would write bytes to a terminal, which may act on them",
                "name a file with --to FILE, or insist with --to -",
            )
        sys.stdout.buffer.write(data)


@contextmanager
def new_file(path: Path, *, force: bool, mode: int) -> Iterator[BinaryIO]:
    """Open a file that is there, on disk, when the block ends well, and not at all otherwise.

    A device or a pipe is written to as it is. Raises FileExistsError for anything else that is
    there, unless ``force``.
    """
    if _is_special(path):
        with _named(str(path)), path.open("wb") as file:
            yield file
        return
    if not force and os.path.lexists(path):
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(path))
    temporary = path.with_name(f".pqkeep-{os.urandom(8).hex()}")
    with _named(str(path)):
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        try:
            with os.fdopen(descriptor, "wb") as file:
                yield file
                file.flush()
                os.fsync(descriptor)
            _give_name(temporary, path, force=force)
        finally:
            with suppress(FileNotFoundError):
                temporary.unlink()


def _give_name(temporary: Path, path: Path, *, force: bool) -> None:
    if force:
        temporary.replace(path)
    else:
        path.hardlink_to(temporary)  # which replaces nothing that came in the meantime
    directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def _is_special(path: Path) -> bool:
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        return False
    return not (stat.S_ISREG(mode) or stat.S_ISDIR(mode))


@contextmanager
def _named(name: str) -> Iterator[None]:
    """Say of what is wrong with a file which file that is, by the name that the user knows."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        if error.filename is None or Path(str(error.filename)).name.startswith(".pqkeep-"):
            error.filename = name
        raise
