"""Several gateways and shards compared with one of each: ``make bench-scaling``.

Runs four kinds of ``pqkeepd dev``: one gateway and one shard, the same with a Valkey, two gateways,
and two of each. They are loaded alternately, with half of the connections for a tenant of each
shard. Several gateways are loaded twice: with the connections of one gateway in total, and with as
many for each gateway. Two separate installations, loaded at once, show the cost of more processes
alone. It only reports the cost of one operation in each kind of process.
"""

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import msgspec
from rich.console import Console
from rich.table import Table
from tests.fixtures.postgresql import (
    ACCOUNTS_ROLE,
    KEYS_ROLE,
    PostgresServer,
    running_postgresql,
)
from tests.fixtures.processes import free_port
from tests.fixtures.redis import running_valkey

from benchmarks import cpu
from benchmarks.command import (
    Report,
    exit_status,
    number_of_connections,
    number_of_seconds,
)
from benchmarks.console import results_console
from benchmarks.installation import API, RATE, ask, service
from benchmarks.load import Summary, Target, load, require_wrk

OPERATIONS: Mapping[str, Mapping[str, object]] = {
    "encapsulate": {"key_version": 1},
    "encrypt": {"plaintext": "YSBzZWNyZXQ="},
}
KINDS: Mapping[str, str] = {
    "pqkeep_gateway": "gateway",
    "pqkeep_keyservice": "key service",
    "valkey": "Valkey",
    "postgres": "PostgreSQL",
}
"""The name of a process, by a part of its command line."""
OURS = ("gateway", "key service")
_MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Shape:
    """The number of processes of an installation."""

    gateways: int
    shards: int
    has_valkey: bool = True

    @property
    def name(self) -> str:
        """Its name in a table."""
        valkey = ", Valkey" if self.has_valkey else ""
        return f"{self.gateways} x {self.shards}{valkey}"


ONE = Shape(1, 1, has_valkey=False)
SHAPES = (ONE, ONE, Shape(1, 1), Shape(2, 1), Shape(2, 2))


@dataclass(frozen=True, slots=True)
class Load:
    """The installations that are loaded at once, with their connections."""

    places: Sequence[int]
    """Which of SHAPES."""
    share: float
    """The connections of each gateway, as a multiple of a single gateway's."""

    @property
    def name(self) -> str:
        """Its name in a table."""
        return " beside ".join(SHAPES[place].name for place in self.places)

    def connections(self, of_one: int) -> int:
        """Return the total number of connections, from the number for a single gateway."""
        return len(self.places) * self.of_each(of_one)

    def of_each(self, of_one: int) -> int:
        """Return the number of connections of an installation."""
        return round(self.share * of_one)


LOADS = (
    Load((0,), 1),
    Load((0, 1), 0.5),
    Load((0, 1), 1),
    Load((2,), 1),
    Load((3,), 1),
    Load((3,), 2),
    Load((4,), 1),
    Load((4,), 2),
)


@dataclass(frozen=True, slots=True)
class Installed:
    """A running installation."""

    shape: Shape
    supervisor: int
    server: int | None
    """The main process of its PostgreSQL."""
    url: str
    api_keys: Sequence[str]
    """The API keys of two tenants, in different shards if there are two."""
    valkey: int | None

    def processes(self) -> dict[int, str]:
        """Return the processes with their kinds."""
        found = cpu.children(self.supervisor)
        if self.valkey is not None:
            found[self.valkey] = "valkey"
        if self.server is not None:
            found |= dict.fromkeys(cpu.children(self.server), "postgres")
        return {
            pid: kind for pid, line in found.items() for word, kind in KINDS.items() if word in line
        }


class Round(msgspec.Struct, frozen=True):
    """One load."""

    requests_per_second: float
    cpu: dict[str, float]
    """CPU microseconds per operation, by kind of process."""


@contextmanager
def installed(folder: Path, shape: Shape, server: PostgresServer | None) -> Iterator[Installed]:
    """Run an installation with two tenants with a key."""
    options: list[str] = ["--gateways", str(shape.gateways), "--shards", str(shape.shards)]
    if server is not None:
        options += ["--accounts-database", _new(server, ACCOUNTS_ROLE)]
        for _ in range(shape.shards):
            options += ["--keys-database", _new(server, KEYS_ROLE)]
    with ExitStack() as stack:
        valkey = None
        if shape.has_valkey:
            before = cpu.children(os.getpid()).keys()
            address = stack.enter_context(running_valkey(free_port()))
            options += ["--redis-url", f"redis://{address}"]
            (valkey,) = cpu.children(os.getpid()).keys() - before
        pid, ready = stack.enter_context(service(folder, options=options))
        shards = ("default", "shard-2")[: shape.shards]
        yield Installed(
            shape,
            pid,
            None if server is None else _first_process(server),
            ready["base_url"],
            [_tenant(ready, shards[number % len(shards)], number) for number in range(2)],
            valkey,
        )


def _new(server: PostgresServer, role: str) -> str:
    return server.url(role, server.new_database(role))


def _first_process(server: PostgresServer) -> int:
    return int((server.data / "postmaster.pid").read_text().split()[0])


def _tenant(ready: Mapping[str, str], shard: str, number: int) -> str:
    """Make a tenant with a key in a shard; return its API key."""
    url, operator = ready["base_url"] + API, ready["operator_key"]
    body: dict[str, Any] = {"name": f"bench {number}", "plan": "enterprise_plus", "shard": shard}
    tenant = ask("POST", f"{url}/tenants", body, operator)["id"]
    ask("PATCH", f"{url}/tenants/{tenant}", {"requests_per_minute": RATE}, operator)
    api_key: str = ask("POST", f"{url}/tenants/{tenant}/api-keys", {}, operator)["api_key"]
    ask("POST", f"{url}/kms/keys/generate", {"algorithm": "Kyber768"}, api_key)
    return api_key


def loaded(wrk: str, body: Path, at: Sequence[Installed], seconds: int, connections: int) -> Round:
    """Load installations with these connections. Raises BenchmarkError if a request fails."""

    def one(target: Target, tenants: int) -> Summary:
        return load(wrk, target, seconds=seconds, connections=connections // tenants)

    targets = [
        (Target(f"{each.url}{API}/kem/{body.stem}", body, api_key), len(each.api_keys))
        for each in at
        for api_key in each.api_keys
    ]
    kinds = {pid: kind for each in at for pid, kind in each.processes().items()}
    before: dict[int, int] = {}
    for pid in kinds:
        with suppress(FileNotFoundError):  # PostgreSQL has ended one of its own
            before[pid] = cpu.nanoseconds(pid)
    with ThreadPoolExecutor(len(targets)) as pool:
        summaries = list(pool.map(one, *zip(*targets, strict=True)))
    used = dict.fromkeys(kinds.values(), 0)
    for pid, started in before.items():
        with suppress(FileNotFoundError):
            used[kinds[pid]] += cpu.nanoseconds(pid) - started
    requests = sum(each.requests for each in summaries)
    return Round(
        sum(each.requests / (each.microseconds / 1_000_000) for each in summaries),
        {kind: spent / 1000 / requests for kind, spent in used.items()},
    )


def memory(at: Installed) -> dict[str, list[int]]:
    """Return the MiB that each of pqkeep's processes shares with no other."""
    found: dict[str, list[int]] = {kind: [] for kind in OURS}
    for pid, kind in at.processes().items():
        if kind in found:
            lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
            size = sum(int(line.split()[1]) for line in lines if line.startswith("Private_"))
            found[kind].append(round(size * 1024 / _MIB))
    return found


def measure(
    folder: Path, server: PostgresServer | None, arguments: argparse.Namespace
) -> tuple[dict[str, list[list[Round]]], dict[str, dict[str, list[int]]]]:
    """Load alternately; return the rounds of each of LOADS by operation, and the memory by shape."""
    wrk = require_wrk()
    rounds: dict[str, list[list[Round]]] = {}
    with ExitStack() as stack:
        every = [
            stack.enter_context(installed(folder / str(number), shape, server))
            for number, shape in enumerate(SHAPES)
        ]
        for operation in arguments.only or OPERATIONS:
            body = folder / f"{operation}.json"
            body.write_text(json.dumps(OPERATIONS[operation]))
            found: list[list[Round]] = [[] for _ in LOADS]
            for turn in range(arguments.rounds + 1):
                for each, done in zip(LOADS, found, strict=True):
                    at = [every[place] for place in each.places]
                    seconds = arguments.seconds if turn else 1
                    one = loaded(wrk, body, at, seconds, each.of_each(arguments.connections))
                    if turn:  # the first one fills caches
                        done.append(one)
            rounds[operation] = found
        return rounds, {each.shape.name: memory(each) for each in every}


def show(
    console: Console,
    rounds: Mapping[str, Sequence[Sequence[Round]]],
    kinds: Sequence[str],
    of_one: int,
) -> None:
    """Print a table for each operation, with the medians of the rounds."""
    for operation, by_load in rounds.items():
        table = Table(
            "gateways x shards",
            "connections",
            "requests/s",
            *kinds,
            "both",
            "ratio",
            title=operation,
        )
        first: float | None = None
        for each, found in zip(LOADS, by_load, strict=True):
            spent = {kind: median(one.cpu.get(kind, 0.0) for one in found) for kind in kinds}
            both = median(sum(one.cpu[kind] for kind in OURS) for one in found)
            first = both if first is None else first
            table.add_row(
                each.name,
                str(each.connections(of_one)),
                f"{median(one.requests_per_second for one in found):,.0f}",
                *(f"{spent[kind]:.1f} µs" if spent[kind] else "" for kind in kinds),
                f"{both:.1f} µs",
                f"{both / first:.2f}",
            )
        console.print(table)


def main() -> int:
    """Measure, and print the results. Exit status 1: there is nothing to report."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scaling", description=__doc__)
    parser.add_argument("--postgresql", action="store_true", help="databases on a server")
    parser.add_argument("--seconds", type=number_of_seconds, default=4)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--connections", type=number_of_connections, default=32)
    parser.add_argument("--only", action="append", choices=tuple(OPERATIONS), help="one operation")
    arguments = parser.parse_args()

    def work(report: Report) -> None:
        rounds, used = run(arguments)
        console = results_console()
        kinds = [*OURS, "Valkey", *(["PostgreSQL"] if arguments.postgresql else [])]
        show(console, rounds, kinds, arguments.connections)
        for name, found in used.items():
            sizes = ", ".join(f"{kind} {each}" for kind, each in found.items())
            console.print(f"{name}: private MiB: {sizes}", markup=False)

    return exit_status("scaling", work)


def run(
    arguments: argparse.Namespace,
) -> tuple[dict[str, list[list[Round]]], dict[str, dict[str, list[int]]]]:
    """Measure in a folder and on a server, which are removed at the end. Raises BenchmarkError."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="pqkeep-bench-")))
        server = None
        if arguments.postgresql:
            server = stack.enter_context(running_postgresql())
            server.sql("ALTER ROLE pqkeep_keyservice CONNECTION LIMIT 30")  # six with five each
            server.sql("ALTER ROLE pqkeep_gateway CONNECTION LIMIT 80")  # seven with ten each
        return measure(folder, server, arguments)


if __name__ == "__main__":
    sys.exit(main())
