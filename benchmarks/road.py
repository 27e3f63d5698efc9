"""Counts the road of one request through both processes, and the interfaces: ``make road``.

It sends similar requests repeatedly, and notes each call of pqkeep's code meanwhile. Other tasks
run between requests, so the request with the fewest calls is reported.
"""

import argparse
import ast
import http.client
import os
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

from benchmarks.errors import BenchmarkError
from benchmarks.installation import RESPONSE_SECONDS, parts_of, prepared, service
from benchmarks.load import Target
from benchmarks.processes import ROOT

DISTRIBUTIONS = ("protocol", "keyservice", "gateway", "server", "sdk")
TRACER = Path(__file__).parent / "road_tracer"
OPERATIONS = ("encrypt", "decrypt", "encapsulate", "sign")
WARM_UP = 20
REQUESTS = 30
NOTED_SECONDS = 10.0
POLL_SECONDS = 0.005


class Call(NamedTuple):
    """One call of a function."""

    file: str
    line: int
    function: str


@dataclass(frozen=True, slots=True)
class Road:
    """The calls of one request in one process, in their order."""

    calls: Sequence[Call]

    @property
    def counts(self) -> Sequence[int]:
        """Return files, functions, calls, entries into another file, and entries into an earlier file."""
        files = [call.file for call in self.calls]
        before = [None, *files[:-1]]
        entries = sum(file != last for file, last in zip(files, before, strict=True))
        return (
            len(set(files)),
            len(set(self.calls)),
            len(files),
            entries,
            entries - len(set(files)),
        )


class _Class(NamedTuple):
    """A class of the product, and the names of its methods and attributes."""

    name: str
    bases: frozenset[str]
    members: frozenset[str]


def main() -> int:
    """Print the counts of the operations that the command line names."""
    arguments = _parser().parse_args()
    _print_interfaces()
    environment = {"PYTHONPATH": os.pathsep.join((str(TRACER), str(ROOT)))}
    print("operation    process      files  functions  calls  entries  returns")
    with tempfile.TemporaryDirectory() as folder:
        directory = Path(folder)
        environment["PQKEEP_ROAD"] = str(directory / "road")
        with service(directory, environment=environment) as (pid, ready):
            targets = prepared(directory, pid, ready)
            for operation in arguments.only or OPERATIONS:
                roads = _roads(directory, targets[operation], parts_of(pid))
                for process, road in zip(("gateway", "key service"), roads, strict=True):
                    _print(operation, process, road, is_long=arguments.calls)
    return 0


def _print_interfaces() -> None:
    """Print the number of the product's files, and its interfaces with one implementation."""
    files = [file for each in DISTRIBUTIONS for file in (ROOT / each / "src").rglob("*.py")]
    classes = [found for file in files for found in _classes(file)]
    print(f"{len(files)} files of the product")
    for interface in classes:
        if "Protocol" in interface.bases and "__call__" not in interface.members:
            found = [
                each.name
                for each in classes
                if "Protocol" not in each.bases
                and (interface.members <= each.members or interface.name in each.bases)
            ]
            if len(found) == 1:
                print(f"{interface.name} has one implementation: {found[0]}")


def _classes(file: Path) -> Iterator[_Class]:
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ClassDef):
            bases = frozenset(ast.unparse(base).split("[")[0] for base in node.bases)
            yield _Class(node.name, bases, frozenset(_names(node)))


def _names(node: ast.ClassDef) -> Iterator[str]:
    for inner in ast.walk(node):
        match inner:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                yield name
            case ast.Attribute(attr=name, ctx=ast.Store()) | ast.Name(id=name, ctx=ast.Store()):
                yield name
            case _:
                pass


def _print(operation: str, process: str, road: Road, *, is_long: bool) -> None:
    files, functions, calls, entries, returns = road.counts
    print(
        f"{operation:<12} {process:<12} {files:5}  {functions:9}  {calls:5}  {entries:7}  {returns:7}"
    )
    if is_long:
        for call in road.calls:
            print(f"  {call.file}:{call.line} {call.function}")


def _roads(directory: Path, target: Target, parts: tuple[int, int]) -> tuple[Road, Road]:
    """Return the shortest road of a request in the gateway, and in the key service."""
    _, address, path, _, _ = urlsplit(target.url)
    connection = http.client.HTTPConnection(address, timeout=RESPONSE_SECONDS)
    headers = {"Content-Type": "application/json", "X-API-Key": target.api_key}
    found: tuple[list[Road], list[Road]] = ([], [])
    for number in range(WARM_UP + REQUESTS):
        for process in parts:
            os.kill(process, signal.SIGRTMIN + 1)
            _read(directory / f"road.{process}")
        connection.request("POST", path, target.body.read_bytes(), headers)
        response = connection.getresponse()
        response.read()
        if response.status != http.HTTPStatus.OK:
            raise BenchmarkError(f"{path} was refused with {response.status}")
        for process, roads in zip(parts, found, strict=True):
            os.kill(process, signal.SIGRTMIN + 2)
            road = _read(directory / f"road.{process}")
            if number >= WARM_UP:
                roads.append(road)
    connection.close()
    shortest = [min(roads, key=lambda road: len(road.calls)) for roads in found]
    return shortest[0], shortest[1]


def _read(path: Path) -> Road:
    deadline = time.monotonic() + NOTED_SECONDS
    while not path.exists():
        if time.monotonic() > deadline:
            raise BenchmarkError("a process did not write which functions it called")
        time.sleep(POLL_SECONDS)
    lines = [line.split("\t") for line in path.read_text().splitlines()]
    path.unlink()
    return Road([Call(file, int(line), function) for file, line, function in lines])


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="make road", description=__doc__)
    parser.add_argument(
        "--only", action="append", choices=OPERATIONS, help="an operation; again for more"
    )
    parser.add_argument("--calls", action="store_true", help="print each call, too")
    return parser


if __name__ == "__main__":
    sys.exit(main())
