"""Measures pqkeep: ``make bench``, or ``python benchmarks/run.py --help``."""

import argparse
import signal
import sys
from pathlib import Path
from typing import NoReturn

import msgspec
from rich.console import Console

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.baselines.library import CALLS
from benchmarks.console import results_console
from benchmarks.errors import BenchmarkError
from benchmarks.suite import Plan, run

SECONDS = 4
QUICK_SECONDS = 1
LONGEST_SECONDS = 60
CONNECTIONS = 32
MOST_CONNECTIONS = 256
"""The key service's limit of concurrent requests on one connection; more get 503."""


def main() -> int:
    """Measure what the command line asks for. Exit status 1: there is nothing to report."""
    arguments = _parser().parse_args()
    signal.signal(signal.SIGTERM, end)
    console, progress = results_console(), Console(stderr=True, style="dim")
    plan = Plan(
        operations=arguments.only or tuple(CALLS),
        seconds=arguments.seconds or (QUICK_SECONDS if arguments.quick else SECONDS),
        connections=arguments.connections,
        alone=not arguments.quick,
        directory=arguments.directory,
    )
    try:
        results = run(plan, progress.print)
    except BenchmarkError as error:
        progress.print(f"benchmark: {error}", markup=False)
        return 1
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    results.show(console)
    if arguments.json is not None:
        arguments.json.write_bytes(msgspec.json.format(msgspec.json.encode(results)) + b"\n")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="Measure pqkeep under load on this machine.")
    parser.add_argument(
        "--quick", action="store_true", help="1 s a step, without the latency alone"
    )
    parser.add_argument(
        "--seconds", type=number_of_seconds, help=f"length of a step (default {SECONDS})"
    )
    parser.add_argument(
        "--connections",
        type=number_of_connections,
        default=CONNECTIONS,
        help=f"concurrent connections (default {CONNECTIONS})",
    )
    parser.add_argument(
        "--only", action="append", choices=tuple(CALLS), help="one operation; may be repeated"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the numbers here too")
    parser.add_argument(
        "--directory", type=Path, help="where the temporary databases go; must be on a disk"
    )
    return parser


def number_of_seconds(text: str) -> int:
    """Read the length of a step."""
    return within(text, LONGEST_SECONDS)


def number_of_connections(text: str) -> int:
    """Read how many connections there shall be."""
    return within(text, MOST_CONNECTIONS)


def within(text: str, most: int) -> int:
    """Read a number from 1 to the most there can be."""
    number = int(text)
    if not 1 <= number <= most:
        raise argparse.ArgumentTypeError(f"must be 1 to {most}")
    return number


def end(_number: int, _frame: object) -> NoReturn:
    """End as Ctrl-C does, through every ``with`` block."""
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
