"""Outputs of commands: standard output, or a file that appears once it is complete."""

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
    """A destination for bytes."""

    def write(self, data: bytes, /) -> object:
        """Write all bytes."""
        ...


@contextmanager
def destination(
    name: str | None, *, otherwise: str, force: bool, mode: int, read: Sequence[str] = ()
) -> Iterator[Writer]:
    """Open an output, by default ``otherwise``. Raises OSError and Refusal.

    A file that is also read is refused. A pipe or a device must be named explicitly. A file at the
    default path may belong to another user, who could read the output.
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
    """The output of each file: a named file, or one beside the input."""

    to: str | None
    suffix: str
    is_replaced: bool

    def of(self, file: str) -> str:
        """Return the name of the output for a file."""
        return self.to or self._otherwise(file)

    def require_free(self, file: str) -> None:
        """Raise FileExistsError, before any work, if the output exists and must not be replaced.

        Raises Refusal if the output is the file itself.
        """
        name = self.of(file)
        _require_not_read(name, (file,))
        path = Path(name)
        if self.is_replaced or name == STANDARD or (self.to and _is_special(path)):
            return
        if os.path.lexists(path):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), name)

    def write(self, file: str, data: bytes) -> None:
        """Write a file that all users may read. Raises OSError and Refusal."""
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
    """Writes only text: a terminal may interpret other bytes as commands."""

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
                "the output is binary, and a terminal may interpret it as commands",
                "name a file with --to FILE, or force it with --to -",
            )
        sys.stdout.buffer.write(data)


@contextmanager
def file_at(path: Path, *, force: bool, mode: int) -> Iterator[BinaryIO]:
    """Open a new file, or an existing device or pipe, for writing. Raises OSError."""
    with _named(str(path)):
        if _is_special(path):
            with path.open("wb") as device:
                yield device
        else:
            with new_file(path, replace=force, mode=mode) as file:
                yield file


def _require_not_read(target: str, read: Sequence[str]) -> None:
    """Raise Refusal if the target is a regular file that is also read, even by another name."""
    written = _status(target, 1)
    if written is None or not stat.S_ISREG(written.st_mode):
        return
    for file in read:
        status = _status(file, 0)
        if status is not None and os.path.samestat(status, written):
            name = "standard output" if target == STANDARD else target
            raise Refusal(
                f"{name} is the input and the output: writing would destroy it",
                "name another file: --to FILE",
            )


def _status(name: str, descriptor: int) -> os.stat_result | None:
    """Return the status of a file or a standard stream, or None if it is not available."""
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
    """Put the file name that the user typed into errors about that file."""
    directory = str(Path(name).parent)
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        if error.filename in {None, directory} or ".pqkeep-" in str(error.filename):
            error.filename = name
        raise
