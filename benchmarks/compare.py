"""pqkeep compared with OpenBao: ``make compare``, or ``python -m benchmarks.compare --help``.

Both run at once and are loaded alternately, so that the machine is the same for both. A ratio below
1 means that pqkeep uses less CPU for an operation.
"""

import argparse
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from msgspec import Struct
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from benchmarks.command import (
    Report,
    exit_status,
    number_of_connections,
    number_of_seconds,
    publish,
    within,
)
from benchmarks.installation import MESSAGE_SIZE, installation
from benchmarks.load import Measurement, Target, measure, require_wrk
from benchmarks.openbao import TOKENS, built, openbao, version
from benchmarks.suite import WARM_UP_SECONDS, file_system_of

SECONDS = 3
ROUNDS = 3
MOST_ROUNDS = 20
MOST_BYTES = 1 << 20
CONNECTIONS = (32, 64)


@dataclass(frozen=True, slots=True)
class Row:
    """An operation of both services, with its name and its algorithm in each."""

    theirs: str
    their_algorithm: str
    ours: str
    our_algorithm: str


ROWS = {
    "encrypt": Row("encrypt", "AES-256-GCM", "encrypt_symmetric", "XAES-256-GCM"),
    "encrypt, ML-KEM": Row("encrypt", "AES-256-GCM", "encrypt", "ML-KEM-768, AES-256-GCM"),
    "decrypt": Row("decrypt", "AES-256-GCM", "decrypt", "ML-KEM-768, AES-256-GCM"),
    "sign": Row("sign", "ECDSA P-256", "sign", "ML-DSA-65"),
    "verify": Row("verify", "ECDSA P-256", "verify", "ML-DSA-65"),
    "new data key": Row("data_key", "AES-256-GCM", "data_key", "XAES-256-GCM"),
}


@dataclass(frozen=True, slots=True)
class Plan:
    """The measurements and their number."""

    operations: Sequence[str]
    connections: Sequence[int]
    seconds: int
    rounds: int
    size: int
    """Bytes of a plaintext or message."""
    token: str
    """OpenBao's kind of token."""
    directory: Path | None
    """The folder for both programs' data. None: the folder of temporary files."""


class Compared(Struct, frozen=True, kw_only=True):
    """One operation with a number of connections, and a measurement of both in each round."""

    operation: str
    connections: int
    openbao: tuple[Measurement, ...]
    pqkeep: tuple[Measurement, ...]

    @property
    def ratio(self) -> float:
        """The CPU per operation of pqkeep, as a multiple of OpenBao's."""
        return _cpu(self.pqkeep) / _cpu(self.openbao)

    @property
    def others(self) -> float:
        """The most cores that were busy with other work in a measurement."""
        return max(each.others for each in (*self.openbao, *self.pqkeep))


class Comparison(Struct, frozen=True, kw_only=True):
    """One run."""

    openbao: str
    """OpenBao's description of itself."""
    seconds: int
    rounds: int
    size: int
    token: str
    file_system: str
    cores: int
    compared: tuple[Compared, ...]

    def show(self, console: Console) -> None:
        """Print everything."""
        console.print(
            f"{self.openbao}, with raft storage, its audit on to a file, and a {self.token} token. "
            f"{self.rounds} rounds of {self.seconds} s, {self.cores} cores shared with the load "
            f"generator, data on {self.file_system}. Messages and plaintexts have {self.size:,} bytes.\n",
            highlight=False,
        )
        for connections in sorted({each.connections for each in self.compared}):
            console.print(self._table(connections))

    def _table(self, connections: int) -> Table:
        table = Table(
            title=f"{connections} connections: medians; latency in ms, CPU in µs an operation; others:"
            " the most cores that other work took in a measurement",
            title_justify="left",
            box=SIMPLE_HEAD,
        )
        for column in ("operation", "service", "algorithm"):
            table.add_column(column, no_wrap=True)
        for column in ("requests/s", "p50", "p99", "CPU", "ratio", "others"):
            table.add_column(column, justify="right")
        for each in self.compared:
            if each.connections != connections:
                continue
            row = ROWS[each.operation]
            table.add_row(each.operation, "OpenBao", row.their_algorithm, *_columns(each.openbao))
            table.add_row(
                *("", "pqkeep", row.our_algorithm, *_columns(each.pqkeep)),
                *(f"{each.ratio:.2f}", f"{each.others:.2f}"),
            )
        return table


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure as the command line says. Exit status 1: there is nothing to report."""
    given = _parser().parse_args(arguments)
    plan = Plan(
        operations=given.only or tuple(ROWS),
        connections=given.connections or CONNECTIONS,
        seconds=given.seconds,
        rounds=given.rounds,
        size=given.size,
        token=given.token,
        directory=given.directory,
    )

    def work(report: Report) -> None:
        with built(given.openbao, report) as program:
            comparison = run(plan, program, report)
        publish(comparison, given.json)

    return exit_status("compare", work)


def run(plan: Plan, program: Path, report: Callable[[str], None]) -> Comparison:
    """Carry out a plan. Raises BenchmarkError. In both cases all processes have ended."""
    theirs, wrk = version(program), require_wrk()
    with tempfile.TemporaryDirectory(prefix="pqkeep-compare-", dir=plan.directory) as temporary:
        directory = Path(temporary)
        file_system = file_system_of(directory)
        report("starting OpenBao and pqkeep")
        with (
            openbao(program, directory / "openbao", size=plan.size, token=plan.token) as bao,
            installation(directory / "pqkeep", size=plan.size) as pqkeep,
        ):
            compared = tuple(_compared(plan, wrk, bao, pqkeep, report))
    return Comparison(
        openbao=theirs,
        seconds=plan.seconds,
        rounds=plan.rounds,
        size=plan.size,
        token=plan.token,
        file_system=file_system,
        cores=os.cpu_count() or 1,
        compared=compared,
    )


def _compared(
    plan: Plan,
    wrk: str,
    bao: dict[str, Target],
    pqkeep: dict[str, Target],
    report: Callable[[str], None],
) -> Iterator[Compared]:
    for operation in plan.operations:
        row = ROWS[operation]
        pair = (bao[row.theirs], pqkeep[row.ours])
        for connections in plan.connections:
            report(f"{operation}, {connections} connections")
            for target in pair:
                measure(wrk, target, seconds=WARM_UP_SECONDS, connections=connections)
            rounds = [
                [
                    measure(wrk, target, seconds=plan.seconds, connections=connections)
                    for target in pair
                ]
                for _ in range(plan.rounds)
            ]
            theirs, ours = zip(*rounds, strict=True)
            yield Compared(
                operation=operation, connections=connections, openbao=theirs, pqkeep=ours
            )


def _cpu(rounds: tuple[Measurement, ...]) -> float:
    return median(each.cpu for each in rounds)


def _columns(rounds: tuple[Measurement, ...]) -> tuple[str, ...]:
    return (
        f"{median(each.requests_per_second for each in rounds):,.0f}",
        f"{median(each.median for each in rounds) / 1000:.2f}",
        f"{median(each.percentile_99 for each in rounds) / 1000:.2f}",
        f"{_cpu(rounds):.1f}",
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="compare", description="Load OpenBao and pqkeep in turns on this machine."
    )
    parser.add_argument(
        "--openbao",
        type=Path,
        metavar="PATH",
        help="OpenBao's program, or the directory of its source (default: bao on PATH)",
    )
    parser.add_argument("--only", action="append", choices=tuple(ROWS), help="may be repeated")
    parser.add_argument(
        "--connections",
        type=number_of_connections,
        action="append",
        help="concurrent connections; may be repeated (default 32 and 64)",
    )
    parser.add_argument(
        "--seconds",
        type=number_of_seconds,
        default=SECONDS,
        help=f"length of a measurement (default {SECONDS})",
    )
    parser.add_argument(
        "--rounds",
        type=int,
        choices=range(1, MOST_ROUNDS + 1),
        metavar="N",
        default=ROUNDS,
        help=f"measurements of each (default {ROUNDS})",
    )
    parser.add_argument(
        "--size",
        type=_size,
        default=MESSAGE_SIZE,
        help=f"bytes of a plaintext or message, at most {MOST_BYTES} (default {MESSAGE_SIZE})",
    )
    parser.add_argument(
        "--token",
        choices=tuple(TOKENS),
        default=next(iter(TOKENS)),
        help="OpenBao's kind of token (default the first)",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the numbers here too")
    parser.add_argument(
        "--directory", type=Path, help="where the temporary data goes; must be on a disk"
    )
    return parser


def _size(text: str) -> int:
    return within(text, MOST_BYTES)


if __name__ == "__main__":
    sys.exit(main())
