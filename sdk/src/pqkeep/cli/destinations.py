"""Where commands write: standard output, or a file that is there once it is whole."""

import errno
import os
import stat
import sys
from codecs import getincrementaldecoder
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Protocol

from pqkeep.cli.failures import Refusal
from pqkeep.cli.options import STANDARD
from pqkeep.new_files import PUBLIC, new_file

_HARMLESS = dict.fromkeys(map(ord, "\r\n\t"))


class Writer(Protocol):
    """What commands write to."""

    def write(self, data: bytes, /) -> object:
        """Take bytes, all of them."""
        ...


@contextmanager
def destination(
    name: str | None, *, otherwise: str, force: bool, mode: int, read: Sequence[str] = ()
) -> Iterator[Writer]:
    """Open what to write; without a name it is ``otherwise``. Raises OSError and Refusal.

    What is read is never written over: Refusal.
    A pipe or a device has to be named: one that is where a new file is to be may be somebody else's,
    who reads it.
    """
    _require_not_read(otherwise if name is None else name, read)
    if name is None and otherwise != STANDARD:
        with _named(otherwise), new_file(Path(otherwise), replace=force, mode=mode) as file:
            yield file
        return
    chosen = otherwise if name is None else name
    if chosen != STANDARD:
        with file_at(Path(chosen), force=force, mode=mode) as file:
            yield file
        return
    with _named("standard output"):
        insisted = name is not None or not sys.stdout.isatty()
        yield sys.stdout.buffer if insisted else _Terminal()
        sys.stdout.buffer.flush()


@dataclass(frozen=True, slots=True)
class Output:
    """Where the result for a file goes: to a named place, or beside the file."""

    to: str | None
    suffix: str
    is_replaced: bool

    def of(self, file: str) -> str:
        """Return the output of a file."""
        return self.to or self._otherwise(file)

    def require_free(self, file: str) -> None:
        """Raise FileExistsError where it is there and is not to be replaced, before any work.

        Raises Refusal where it is the file itself.
        """
        name = self.of(file)
        _require_not_read(name, (file,))
        path = Path(name)
        if self.is_replaced or name == STANDARD or (self.to and _is_special(path)):
            return
        if os.path.lexists(path):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), name)

    def write(self, file: str, data: bytes) -> None:
        """Write what anybody may read. Raises OSError and Refusal."""
        with destination(
            self.to,
            otherwise=self._otherwise(file),
            force=self.is_replaced,
            mode=PUBLIC,
            read=(file,),
        ) as target:
            target.write(data)

    def _otherwise(self, file: str) -> str:
        return STANDARD if file == STANDARD else file + self.suffix


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
def file_at(path: Path, *, force: bool, mode: int) -> Iterator[BinaryIO]:
    """Open a new file, or a device or a pipe, which is written to as it is. Raises OSError."""
    with _named(str(path)):
        if _is_special(path):
            with path.open("wb") as device:
                yield device
        else:
            with new_file(path, replace=force, mode=mode) as file:
                yield file


def _require_not_read(target: str, read: Sequence[str]) -> None:
    """Raise Refusal where a regular file would be written that is read, also by another name."""
    written = _status(target, 1)
    if written is None or not stat.S_ISREG(written.st_mode):
        return
    for file in read:
        status = _status(file, 0)
        if status is not None and os.path.samestat(status, written):
            name = "standard output" if target == STANDARD else target
            raise Refusal(
                f"{name} is what is read too: writing it would destroy it",
                "name another file: --to FILE",
            )


def _status(name: str, descriptor: int) -> os.stat_result | None:
    """Return the status of a file, or of a standard stream; None of what cannot be asked."""
    try:
        return os.fstat(descriptor) if name == STANDARD else Path(name).stat()
    except (OSError, ValueError):
        return None


def _is_special(path: Path) -> bool:
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        return False
    return not (stat.S_ISREG(mode) or stat.S_ISDIR(mode))


@contextmanager
def _named(name: str) -> Iterator[None]:
    """Say of what is wrong with a file which one that is, by the name that the user knows."""
    directory = str(Path(name).parent)
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        if error.filename in {None, directory} or ".pqkeep-" in str(error.filename):
            error.filename = name
        raise
