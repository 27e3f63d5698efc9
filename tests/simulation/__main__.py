"""Simulates an installation repeatedly, each time from a seed.

``python -m tests.simulation --seeds 10000``, or ``make simulate ARGS="--seeds 10000"``. Exit status
1: an invariant is violated for some seed; ``--seed`` repeats it with its trace.
"""

import argparse
import gc
import multiprocessing
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial

from tests.simulation.run import Report, Simulation, run
from tests.simulation.two_shards import TwoShards

SHOWN = 60
"""Lines of a trace."""
EVERY = 500
AT_ONCE = 10
"""Seeds for each process at a time."""


def main() -> int:
    """Run seeds and print the result."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seeds", type=int, default=1000, help="how many")
    parser.add_argument("--first", type=int, default=0, help="the first of them")
    parser.add_argument("--moves", action="store_true", help="two shards, and tenants that move")
    parser.add_argument("--processes", type=int, default=1, help="how many run seeds at once")
    parser.add_argument("--seed", type=int, help="this one only, with its trace")
    arguments = parser.parse_args()
    kind = TwoShards if arguments.moves else Simulation
    if arguments.seed is not None:
        report = run(arguments.seed, kind)
        _show(report, len(report.trace))
        return 1 if report.finding else 0
    totals, findings, used = Counter[str](), 0, 0.0
    seeds = range(arguments.first, arguments.first + arguments.seeds)
    with _reports(kind, seeds, arguments.processes) as reports:
        for count, (report, seconds) in enumerate(reports, 1):
            totals.update(
                records=report.records, responses=report.responses, seconds=int(report.seconds)
            )
            used += seconds
            if report.finding:
                findings += 1
                _show(report, SHOWN)
            if count % EVERY == 0 or count == len(seeds):
                _say(f"{count} seeds, {findings} findings, {dict(totals)}, {used:.0f} s of CPU")
    return 1 if findings else 0


@contextmanager
def _reports(
    kind: type[Simulation], seeds: Sequence[int], processes: int
) -> Iterator[Iterator[tuple[Report, float]]]:
    """Yield the reports in the order of the seeds, each with its seconds of CPU time."""
    gc.freeze()
    timed = partial(_timed, kind)
    if processes == 1:
        yield map(timed, seeds)
        return
    with multiprocessing.get_context("fork").Pool(processes) as pool:
        yield pool.imap(timed, seeds, AT_ONCE)


def _timed(kind: type[Simulation], seed: int) -> tuple[Report, float]:
    began = time.process_time()
    report = run(seed, kind)
    if report.finding is None:
        report.trace.clear()
    return report, time.process_time() - began


def _show(report: Report, lines: int) -> None:
    for at_us, *said in report.trace[-lines:]:
        _say(f"{int(str(at_us)) / 1e6:12.6f}  {'  '.join(map(str, said))}")
    _say(f"seed {report.seed}: {report.finding or 'no finding'}; trace {report.digest[:16]}")


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
