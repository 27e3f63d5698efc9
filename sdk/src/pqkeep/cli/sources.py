"""Where commands read: a file, or standard input."""

import errno
import os
import stat
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from io import BufferedReader
from typing import TYPE_CHECKING, cast

from pqkeep.cli.failures import Refusal
from pqkeep.cli.invocation import Invocation
from pqkeep.cli.options import STANDARD

if TYPE_CHECKING:
    from rich.progress import Progress as Bar


LONG = 16 * 1024 * 1024
"""Bytes. Fewer are processed faster than a person can read about them."""


class Progress:
    """A bar with bytes per second. It appears only if the work will be long."""

    def __init__(self, size: int | None, *, wanted: bool) -> None:
        """Begin without a bar. A size of None means unknown."""
        self._size = size
        self._is_wanted = wanted and sys.stderr.isatty()
        self._done = 0
        self._bar: Bar | None = None

    def advance(self, done: int) -> None:
        """Count processed bytes."""
        self._done += done
        if self._is_wanted and (self._size or self._done) > LONG:
            self._bar = self._bar or _bar(self._size)
            self._bar.update(self._bar.task_ids[0], completed=self._done)

    def close(self) -> None:
        """Remove the bar."""
        if self._bar is not None:
            self._bar.stop()


def _bar(size: int | None) -> "Bar":
    from rich import progress  # noqa: PLC0415 - it takes as long to load as all the rest
    from rich.console import Console  # noqa: PLC0415

    bar = progress.Progress(
        progress.BarColumn(),
        progress.DownloadColumn(),
        progress.TransferSpeedColumn(),
        progress.TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
    )
    bar.add_task("", total=size)
    bar.start()
    return bar


@dataclass(slots=True)
class Source:
    """The input of a command, with its progress."""

    _file: BufferedReader
    _progress: Progress
    _ahead: bytearray = field(default_factory=bytearray)
    """Bytes returned by ``first`` and not yet by ``read``."""
    _is_at_end: bool = False
    """True if the end was read: a terminal would wait for another one."""

    def read(self, size: int, /) -> bytes:
        """Return ``size`` bytes, or fewer at the end.

        It makes one system call at a time. Between two calls, handlers of signals can run.
        """
        parts = [bytes(self._ahead[:size])]
        del self._ahead[:size]
        missing = size - len(parts[0])
        while missing and not self._is_at_end:
            part = self._file.read1(missing)
            self._is_at_end = not part
            parts.append(part)
            missing -= len(part)
            self._progress.advance(len(part))
        return b"".join(parts)

    def is_same_file(self, status: os.stat_result) -> bool:
        """Return True if a status belongs to the file that is read."""
        return os.path.samestat(os.fstat(self._file.fileno()), status)

    def first(self, size: int) -> bytes:
        """Return the first bytes without removing them.

        Fewer than ``size`` bytes mean the end.
        """
        if len(self._ahead) < size:
            self._ahead[:] = self.read(size)
        return bytes(self._ahead[:size])


@contextmanager
def source(name: str, invocation: Invocation, *, only_regular: bool = False) -> Iterator[Source]:
    """Open an input. Raises OSError.

    ``only_regular`` refuses a pipe or device, without waiting for it.
    """
    with ExitStack() as stack:
        if name == STANDARD:
            file = cast("BufferedReader", sys.stdin.buffer)
            if file.isatty():
                invocation.note(
                    "pqkeep: reading standard input, which is this terminal: end it with Ctrl-D"
                )
        else:
            opener = _open_regular if only_regular else None
            file = stack.enter_context(open(name, "rb", opener=opener))
        progress = Progress(_size(file), wanted=not invocation.quiet)
        stack.callback(progress.close)
        yield Source(file, progress)


def _open_regular(path: str, flags: int) -> int:
    descriptor = os.open(path, flags | getattr(os, "O_NONBLOCK", 0))
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "this is not a file", path)
    return descriptor


def whole(name: str, invocation: Invocation, limit: int, next_step: str) -> bytes:
    """Return the whole input. Raises Refusal if it has more than ``most`` bytes, and OSError."""
    with source(name, invocation) as opened:
        data = opened.read(limit + 1)
    if len(data) > limit:
        raise Refusal(f"{name} is larger than {limit} bytes", next_step)
    return data


def _size(file: BufferedReader) -> int | None:
    status = os.fstat(file.fileno())
    return status.st_size if stat.S_ISREG(status.st_mode) else None
