"""Loads three gateways and two shards with standbys, while each part is killed, paused or cut off.

``python -m tests.cluster --seconds 300``, or ``make cluster``. With ``--kills 50 --operations
100000`` parts are only killed. ``--threads 16 --pause 0`` gives more load. Exit status 1: data is
lost, duplicated or missing in the log.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path

from tests.cluster.run import Plan, run


def main() -> int:
    """Do one run and print its report."""
    usual = Plan()
    parser = argparse.ArgumentParser(prog="python -m tests.cluster", description=__doc__)
    parser.add_argument("--seconds", type=float, default=usual.seconds)
    parser.add_argument("--kills", type=int, default=usual.kills)
    parser.add_argument("--operations", type=int, default=usual.operations)
    parser.add_argument("--threads", type=int, default=usual.threads)
    parser.add_argument("--pause", type=float, default=usual.pause, help="seconds of each thread")
    parser.add_argument("--seed", default=usual.seed)
    parser.add_argument("--keep", type=Path, help="keep logs, exports and report in this directory")
    arguments = parser.parse_args()
    plan = Plan(**{name: getattr(arguments, name) for name in Plan.__dataclass_fields__})
    with ExitStack() as stack:
        folder = arguments.keep or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        folder.mkdir(exist_ok=True)
        report = run(plan, folder)
    found = asdict(report)
    sys.stdout.write(json.dumps({**found, "rows": len(report.rows)}, indent=2) + "\n")
    sys.stdout.write(report.table())
    return 1 if any(report.findings.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
