"""The entry point of the command ``pqkeep``.

It is outside the package because it handles signals before the package's imports begin.
"""

import os
import signal
from types import FrameType
from typing import NoReturn


def main() -> NoReturn:
    """Import the command, and run it."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _end_at_once)
    from pqkeep.cli import app  # noqa: PLC0415 - takes most of the time of a short command

    app()


def _end_at_once(number: int, frame: FrameType | None) -> NoReturn:
    """End with the signal's status of docs/cli.md. No file has been written yet."""
    os._exit(130 if number == signal.SIGINT else 143)
