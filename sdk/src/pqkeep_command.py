"""The entry points of the commands ``pqkeep`` and ``age-plugin-pqkeep``.

They are outside the package because they handle signals before the package's imports begin.
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


def age_plugin() -> NoReturn:
    """Import the plugin, and run it. It writes no files, so Ctrl-C ends it at once."""
    signal.signal(signal.SIGINT, _end_at_once)
    from pqkeep.age import main as serve  # noqa: PLC0415 - takes most of the time of a decryption

    serve()


def _end_at_once(number: int, frame: FrameType | None) -> NoReturn:
    """End with the signal's status of docs/cli.md. No file has been written yet."""
    os._exit(130 if number == signal.SIGINT else 143)
