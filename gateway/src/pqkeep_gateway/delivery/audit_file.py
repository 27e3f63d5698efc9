"""The audit log in a file of JSON lines, which other programs may rotate."""

import fcntl
import os
import stat
import time
from collections.abc import Sequence
from pathlib import Path

from pqkeep_gateway.audit_stream import SinkError, StreamedRecord

_FLAGS = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOCTTY | os.O_NONBLOCK
LOCK_SECONDS = 10.0


class FileSink:
    """A Sink. The file is opened again for each page, so that it can be renamed at any time."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def send(self, records: Sequence[StreamedRecord]) -> None:
        """Append the records, durably. Raises SinkError, OSError."""
        with os.fdopen(os.open(self._path, _FLAGS, 0o600), "r+b", buffering=0) as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise SinkError("the file is no regular file")
            _lock(file.fileno())
            _remove_cut_line(file.fileno())
            for record in records:
                _write(file.fileno(), record.line + b"\n")
            os.fsync(file.fileno())


def _lock(descriptor: int) -> None:
    """Wait until nobody else writes: another shard's stream, of another gateway perhaps.

    The lock ends with the descriptor. Raises SinkError.
    """
    deadline = time.monotonic() + LOCK_SECONDS
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise SinkError("another process has locked the file") from None
            time.sleep(0.01)
        else:
            return


def _remove_cut_line(descriptor: int) -> None:
    """Remove what an interrupted write left behind the last complete line; it is sent again."""
    end = os.fstat(descriptor).st_size
    while end:
        start = max(0, end - 4096)
        block = os.pread(descriptor, end - start, start)
        if (newline := block.rfind(b"\n")) >= 0:
            os.ftruncate(descriptor, start + newline + 1)
            return
        end = start
    os.ftruncate(descriptor, 0)


def _write(descriptor: int, line: bytes) -> None:
    while line:
        line = line[os.write(descriptor, line) :]
