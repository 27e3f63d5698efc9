"""Common parts of the measuring programs: arguments, exit statuses and output."""

import argparse
import signal
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn, Protocol

import msgspec
from rich.console import Console

from benchmarks.console import results_console
from benchmarks.errors import BenchmarkError

LONGEST_SECONDS = 60
MOST_CONNECTIONS = 256
"""The key service's limit of concurrent requests on one connection; more get 503."""

Report = Callable[[str], None]
"""Shows the next step."""


class Results(Protocol):
    """What was measured."""

    def show(self, console: Console) -> None:
        """Print it."""
        ...


def number_of_seconds(text: str) -> int:
    """Read the length of a step."""
    return within(text, LONGEST_SECONDS)


def number_of_connections(text: str) -> int:
    """Read a number of connections."""
    return within(text, MOST_CONNECTIONS)


def within(text: str, most: int) -> int:
    """Read a number from 1 to a maximum."""
    number = int(text)
    if not 1 <= number <= most:
        raise argparse.ArgumentTypeError(f"must be 1 to {most}")
    return number


def exit_status(name: str, work: Callable[[Report], None]) -> int:
    """Run a program's work; return its exit status, 1 if there is nothing to report.

    SIGTERM ends it like Ctrl-C, through every ``with`` block.
    """
    signal.signal(signal.SIGTERM, _end)
    progress = Console(stderr=True, style="dim")
    try:
        work(progress.print)
    except BenchmarkError as error:
        progress.print(f"{name}: {error}", markup=False, highlight=False, soft_wrap=True)
        return 1
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    return 0


def publish(results: Results, file: Path | None) -> None:
    """Print results. Write them to a JSON file too, if a file is named."""
    results.show(results_console())
    if file is not None:
        file.write_bytes(msgspec.json.format(msgspec.json.encode(results)) + b"\n")


def _end(_number: int, _frame: object) -> NoReturn:
    raise KeyboardInterrupt
