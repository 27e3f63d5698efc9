"""Failing pqkeepd commands: one line on standard error, and by default status 1.

A usage error has status 2.
"""

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager


def message_of(error: Exception) -> str:
    """Return an error in words. For a file, these are its name and the system's reason."""
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return str(error)


@contextmanager
def fail_on(*errors: type[Exception], status: int = 1) -> Iterator[None]:
    """End the command with a status and a message if the block raises one of these errors."""
    try:
        yield
    except errors as error:
        sys.stderr.write(f"pqkeepd: {message_of(error)}\n")
        raise SystemExit(status) from None


def end_on_signals(*numbers: signal.Signals) -> None:
    """Make these signals end the command with status 0 and cleanup, until an event loop handles them."""

    def end(*_: object) -> None:
        sys.exit(os.EX_OK)

    for number in numbers:
        signal.signal(number, end)


def ignore_user_signals() -> None:
    """Ignore SIGUSR1 and SIGUSR2, which would end this process and have no meaning for it.

    Its processes inherit that. A gateway drains on SIGUSR1.
    """
    for number in (signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """End the command with status 1 if the block takes longer.

    The block reads files and databases that another user may write. Such a read may never end, and no
    exception would reach the waiting thread.
    """

    def end() -> None:
        os.write(
            2,
            f"pqkeepd: stopped after {seconds:g} seconds: a file, a database or a process of the"
            " installation does not respond\n".encode(),
        )
        os._exit(1)

    timer = threading.Timer(seconds, end)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
