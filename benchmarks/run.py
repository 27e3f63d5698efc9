"""Measures pqkeep: ``make bench``, or ``python benchmarks/run.py --help``."""

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.baselines.library import CALLS
from benchmarks.command import (
    Report,
    exit_status,
    number_of_connections,
    number_of_seconds,
    publish,
)
from benchmarks.suite import Plan, run

SECONDS = 4
QUICK_SECONDS = 1
CONNECTIONS = 32


def main() -> int:
    """Measure as the command line says. Exit status 1: there is nothing to report."""
    arguments = _parser().parse_args()
    plan = Plan(
        operations=arguments.only or tuple(CALLS),
        seconds=arguments.seconds or (QUICK_SECONDS if arguments.quick else SECONDS),
        connections=arguments.connections,
        alone=not arguments.quick,
        directory=arguments.directory,
    )

    def work(report: Report) -> None:
        publish(run(plan, report), arguments.json)

    return exit_status("benchmark", work)


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


if __name__ == "__main__":
    sys.exit(main())
