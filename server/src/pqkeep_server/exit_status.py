"""How a pqkeepd command fails: one line on standard error, and status 1 unless it says another.

A usage error is status 2.
"""

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager


def message_of(error: Exception) -> str:
    """Return what went wrong in words: of a file, its name and the system's reason."""
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return str(error)


@contextmanager
def fail_on(*errors: type[Exception], status: int = 1) -> Iterator[None]:
    """End the command with a status and the error's message where the block raises one of these."""
    try:
        yield
    except errors as error:
        sys.stderr.write(f"pqkeepd: {message_of(error)}\n")
        raise SystemExit(status) from None


def end_on_signals(*numbers: signal.Signals) -> None:
    """Have each of these signals end the command with status 0, and clean up, until a loop has them."""

    def end(*_: object) -> None:
        sys.exit(os.EX_OK)

    for number in numbers:
        signal.signal(number, end)


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """End the command with status 1 where the block takes longer, whatever it waits for.

    It reads files and databases that another user may write: a query or a read may have no end, and
    no exception would reach the thread that waits for it.
    """

    def end() -> None:
        os.write(
            2,
            f"pqkeepd: not done within {seconds:g} seconds: a file, a database or a process of the"
            " installation does not answer\n".encode(),
        )
        os._exit(1)

    timer = threading.Timer(seconds, end)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
