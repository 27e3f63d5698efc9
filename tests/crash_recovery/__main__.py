"""Kills a real installation under load repeatedly, and then checks its data.

``python -m tests.crash_recovery --operations 100000 --kills 50``, or ``make crashes``. Exit status
1: data is lost, duplicated or missing in the log.
"""

import argparse
import json
import sys
import tempfile
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path

from tests.crash_recovery.run import Plan, run
from tests.fixtures.postgresql import new_databases, running_postgresql


def main() -> int:
    """Do one run and print its report."""
    usual = Plan()
    parser = argparse.ArgumentParser(prog="python -m tests.crash_recovery", description=__doc__)
    parser.add_argument("--operations", type=int, default=usual.operations)
    parser.add_argument("--kills", type=int, default=usual.kills)
    parser.add_argument("--threads", type=int, default=usual.threads)
    parser.add_argument("--seed", default=usual.seed)
    parser.add_argument("--postgresql", action="store_true", help="keep both databases there")
    parser.add_argument("--keep", type=Path, help="keep data, export and report in this directory")
    arguments = parser.parse_args()
    plan = Plan(arguments.operations, arguments.kills, arguments.threads, arguments.seed)
    with ExitStack() as stack:
        folder = arguments.keep or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        folder.mkdir(exist_ok=True)
        if arguments.postgresql:
            server = stack.enter_context(running_postgresql())
            report = run(plan, folder, stack.enter_context(new_databases(server)))
        else:
            report = run(plan, folder)
    sys.stdout.write(json.dumps(asdict(report), indent=2) + "\n")
    return 1 if any(report.findings.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
