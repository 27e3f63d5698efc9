"""Latency at half of the saturating load: ``make latency``, or the module with ``--help``.

The gateway has one core, and the key service with its workers another. The load generator is not
pinned. wrk finds the requests per second that saturate them. Then requests come at half of that
rate: alone, and beside another tenant with queued SLH-DSA signatures.
"""

import argparse
import http.client
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from msgspec import Struct
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from benchmarks import cpu, open_loop
from benchmarks.command import (
    LONGEST_SECONDS,
    Report,
    exit_status,
    number_of_connections,
    number_of_seconds,
    publish,
)
from benchmarks.errors import BenchmarkError
from benchmarks.installation import (
    API,
    RATE,
    RESPONSE_SECONDS,
    ask,
    prepared,
    service,
    written,
)
from benchmarks.load import Target, measure, require_wrk
from benchmarks.open_loop import Latency
from benchmarks.processes import running
from benchmarks.suite import WARM_UP_SECONDS, file_system_of

SECONDS = 20
CONNECTIONS = 32
SATURATING_SECONDS = 4
OPERATIONS = ("encapsulate", "decrypt", "encrypt", "decapsulate", "verify", "sign")
MEASURED = OPERATIONS[:1]
NEIGHBOUR = "SLH-DSA-SHA2-128s"
NEIGHBOUR_CONNECTIONS = 8
AIM = 3.0
"""The goal for the 99th percentile, as a multiple of the median."""
HISTOGRAMS = {
    "gateway's event loop is late": "pqkeep_event_loop_lag_seconds",
    "key service's event loop is late": "pqkeep_key_service_event_loop_lag_seconds",
    "commit": "pqkeep_audit_log_commit_duration_seconds",
}
BUCKET = re.compile(r'^(\w+)_bucket\{(?:.*,)?le="([^"]+)".*\} ([0-9.e+]+)$', re.MULTILINE)

Buckets = dict[str, int]
"""The number of values in each bucket, by its upper bound in seconds."""


class Step(Struct, frozen=True, kw_only=True):
    """One operation at half of the saturating load."""

    operation: str
    beside: str
    """The load beside it."""
    saturating: float
    """Requests a second."""
    rate: float
    """The planned requests per second."""
    latency: Latency
    histograms: dict[str, Buckets]

    @property
    def ratio(self) -> float:
        """The 99th percentile as a multiple of the median."""
        return self.latency.percentile_99 / self.latency.median


class Results(Struct, frozen=True, kw_only=True):
    """One run."""

    seconds: int
    connections: int
    file_system: str
    cores: int
    steps: tuple[Step, ...]

    def show(self, console: Console) -> None:
        """Print everything."""
        console.print(
            f"{self.seconds} s a step, {self.connections} connections, gateway and key service on "
            f"a core each of {self.cores}, databases on {self.file_system}\n"
        )
        console.print(self._latency())
        for name in HISTOGRAMS:
            console.print(self._histogram(name))

    def _latency(self) -> Table:
        table = _table("Latency from when a request was due, in milliseconds")
        for column in (
            *("saturating", "requests/s", "p50", "p99", "p99.9", "longest", "p99/p50"),
            *("sent late, p99", "generator"),
        ):
            table.add_column(column, justify="right")
        for step in self.steps:
            found = step.latency
            times = (found.median, found.percentile_99, found.percentile_99_9, found.longest)
            table.add_row(
                step.operation,
                step.beside,
                f"{step.saturating:,.0f}",
                f"{step.rate:,.0f}",
                *(f"{each / 1000:.2f}" for each in times),
                f"{step.ratio:.2f}" if step.ratio <= AIM else f"[bold]{step.ratio:.2f}[/bold]",
                f"{found.own_percentile_99 / 1000:.2f}",
                f"{found.own_cpu:.2f}",
            )
        return table

    def _histogram(self, name: str) -> Table:
        bounds = sorted(
            {
                bound
                for step in self.steps
                for bound, count in step.histograms[name].items()
                if count
            },
            key=float,
        )
        table = _table(f"{name}: how often at most so many milliseconds")
        for bound in bounds:
            table.add_column(_milliseconds(bound), justify="right")
        for step in self.steps:
            counts = step.histograms[name]
            table.add_row(
                step.operation, step.beside, *(f"{counts.get(bound, 0):,}" for bound in bounds)
            )
        return table


@dataclass(frozen=True, slots=True)
class Plan:
    """The measurements and their length."""

    operations: Sequence[str]
    seconds: int
    connections: int
    alone: bool
    """Whether to leave out the neighbour."""
    directory: Path | None


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure as the command line says. Exit status 1: there is nothing to report."""
    given = _parser().parse_args(arguments)
    plan = Plan(
        operations=given.only or MEASURED,
        seconds=given.seconds,
        connections=given.connections,
        alone=given.alone,
        directory=given.directory,
    )

    def work(report: Report) -> None:
        publish(run(plan, report), given.json)

    return exit_status("latency", work)


def run(plan: Plan, report: Callable[[str], None]) -> Results:
    """Carry out a plan. Raises BenchmarkError. In both cases all processes have ended."""
    wrk = require_wrk()
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:  # noqa: PLR2004 - one for each process
        raise BenchmarkError("the gateway and the key service need a core each")
    with tempfile.TemporaryDirectory(prefix="pqkeep-latency-", dir=plan.directory) as temporary:
        directory = Path(temporary)
        file_system = file_system_of(directory)
        report("starting pqkeep")
        with service(directory) as (pid, ready):
            targets = prepared(directory, pid, ready)
            neighbour = _neighbour(directory, ready)
            _pin(targets[plan.operations[0]], cores)
            metrics = ready["management_urls"][0] + "/metrics"
            steps = []
            for operation in plan.operations:
                report(f"{operation}: saturation")
                target = targets[operation]
                measure(wrk, target, seconds=WARM_UP_SECONDS, connections=plan.connections)
                saturating = measure(
                    wrk, target, seconds=SATURATING_SECONDS, connections=plan.connections
                ).requests_per_second
                for beside in ("nothing",) if plan.alone else ("nothing", NEIGHBOUR):
                    report(f"{operation}: half of it, beside {beside}")
                    before = _histograms(metrics)
                    with _signing(wrk, neighbour) if beside == NEIGHBOUR else nullcontext():
                        latency = _at_rate(plan, target, saturating / 2)
                    steps.append(
                        Step(
                            operation=operation,
                            beside=beside,
                            saturating=saturating,
                            rate=saturating / 2,
                            latency=latency,
                            histograms=_since(before, _histograms(metrics)),
                        )
                    )
    return Results(
        seconds=plan.seconds,
        connections=plan.connections,
        file_system=file_system,
        cores=os.cpu_count() or 1,
        steps=tuple(steps),
    )


def _at_rate(plan: Plan, target: Target, rate: float) -> Latency:
    """Load a target at a rate. Raises BenchmarkError if any request fails."""
    load = open_loop.Load(
        url=target.url,
        body=str(target.body),
        rate=rate,
        seconds=plan.seconds,
        connections=plan.connections,
    )
    found = open_loop.load(load, target.api_key)
    if found.failed:
        raise BenchmarkError(f"{target.url}: {found.failed} of the requests failed")
    return found


def _pin(target: Target, cores: Sequence[int]) -> None:
    """Give the gateway the first core, and the key service with its workers the second."""
    for process, core in ((target.front, cores[0]), (target.back, cores[1])):
        if process is None:
            continue
        for each in (process, *cpu.children(process)):
            for thread in Path(f"/proc/{each}/task").iterdir():
                os.sched_setaffinity(int(thread.name), {core})


def _neighbour(directory: Path, ready: dict[str, Any]) -> Target:
    """Return another tenant's signature with SLH-DSA."""
    base = ready["base_url"] + API
    tenant = ask(
        "POST",
        f"{base}/tenants",
        {"name": "neighbour", "plan": "enterprise_plus"},
        ready["operator_key"],
    )
    url = f"{base}/tenants/{tenant['id']}"
    ask("PATCH", url, {"requests_per_minute": RATE}, ready["operator_key"])
    api_key = ask("POST", f"{url}/api-keys", {}, ready["operator_key"])["api_key"]
    ask("POST", f"{base}/kms/keys/generate", {"algorithm": NEIGHBOUR}, api_key)
    body: dict[str, object] = {"algorithm": NEIGHBOUR, "message": "AAAA"}
    ask("POST", f"{base}/signature/sign", body, api_key)
    path = written(directory / "neighbour.json", body)
    return Target(f"{base}/signature/sign", path, api_key)


@contextmanager
def _signing(wrk: str, target: Target) -> Iterator[None]:
    """Keep signatures queued for a ``with`` block."""
    longest = 2 * LONGEST_SECONDS  # it is ended before
    command = target.command(wrk, seconds=longest, connections=NEIGHBOUR_CONNECTIONS)
    with running(command, output=subprocess.DEVNULL, environment=target.environment()):
        yield


def _histograms(url: str) -> dict[str, Buckets]:
    """Return the present values of the gateway's metrics."""
    _, address, path, _, _ = urlsplit(url)
    connection = http.client.HTTPConnection(address, timeout=RESPONSE_SECONDS)
    try:
        connection.request("GET", path)
        text = connection.getresponse().read().decode()
    except (OSError, http.client.HTTPException) as error:
        raise BenchmarkError(f"{path} does not answer: {error}") from None
    finally:
        connection.close()
    found: dict[str, Buckets] = {}
    for name, bound, count in BUCKET.findall(text):
        found.setdefault(name, {})[bound] = int(float(count))
    return {name: _apart(found[metric]) for name, metric in HISTOGRAMS.items()}


def _apart(cumulative: Buckets) -> Buckets:
    """Return the values of each bucket. The source counts smaller values in each bucket too."""
    counts = sorted(cumulative.items(), key=lambda each: float(each[0]))
    lower = [0, *(count for _, count in counts)]
    return {bound: count - less for (bound, count), less in zip(counts, lower, strict=False)}


def _since(before: dict[str, Buckets], now: dict[str, Buckets]) -> dict[str, Buckets]:
    return {
        name: {bound: count - before[name].get(bound, 0) for bound, count in buckets.items()}
        for name, buckets in now.items()
    }


def _milliseconds(bound: str) -> str:
    return "more" if bound == "+Inf" else f"{float(bound) * 1000:g}"


def _table(title: str) -> Table:
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD)
    table.add_column("operation", no_wrap=True)
    table.add_column("beside")
    return table


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="latency", description="Measure latency at half of the saturating load."
    )
    parser.add_argument(
        "--only",
        action="append",
        choices=OPERATIONS,
        help=f"may be repeated (default {' '.join(MEASURED)})",
    )
    parser.add_argument(
        "--seconds",
        type=number_of_seconds,
        default=SECONDS,
        help=f"length of a step (default {SECONDS})",
    )
    parser.add_argument(
        "--connections",
        type=number_of_connections,
        default=CONNECTIONS,
        help=f"concurrent connections at most (default {CONNECTIONS})",
    )
    parser.add_argument("--alone", action="store_true", help="without the neighbour")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the numbers here too")
    parser.add_argument(
        "--directory", type=Path, help="where the temporary databases go; must be on a disk"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
