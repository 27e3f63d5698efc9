"""The whole run: pqkeep under load, each operation next to what it is compared with."""

import os
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks import local_encryption
from benchmarks.comparison import audit_log, harness, library_call
from benchmarks.errors import BenchmarkError
from benchmarks.installation import UNAUDITED, installation
from benchmarks.load import Measurement, Target, measure, require_wrk
from benchmarks.results import Audited, Operation, Results
from benchmarks.yardsticks.library import Loop

WARM_UP_SECONDS = 1
ALONE_SECONDS = 2
MOUNTS = Path("/proc/mounts")
IN_MEMORY = frozenset({"tmpfs", "ramfs"})
ROUNDS = 3
IN_TURNS = "encapsulate"
COMPARED_WITH_HARNESS = "encapsulate"


@dataclass(frozen=True, slots=True)
class Plan:
    """What to measure, and for how long."""

    operations: Sequence[str]
    seconds: int
    connections: int
    alone: bool
    """Whether to measure latency with one connection too."""
    directory: Path | None
    """Where the databases go; None: where temporary files go."""


def run(plan: Plan, tell: Callable[[str], None]) -> Results:
    """Carry a plan out. What it started has ended on return, or on BenchmarkError."""
    wrk = require_wrk()
    with tempfile.TemporaryDirectory(prefix="pqkeep-bench-", dir=plan.directory) as temporary:
        directory = Path(temporary)
        file_system = _file_system(directory)
        tell("starting pqkeep and the harness")
        with installation(directory) as targets, harness(directory) as minimal:
            steps = _Steps(plan, wrk, targets, minimal, tell)
            operations = tuple(steps.operation(name) for name in plan.operations)
            tell("the same without a durable audit log")
            with installation(directory / "unaudited", UNAUDITED) as unaudited:
                audited = steps.in_turns(targets[IN_TURNS], unaudited[IN_TURNS])
        tell("audit log")
        audit = audit_log(directory, plan.seconds)
        tell("local encryption")
        local = local_encryption.compare(directory)
    return Results(
        seconds=plan.seconds,
        connections=plan.connections,
        file_system=file_system,
        cores=os.cpu_count() or 1,
        operations=operations,
        audit=audit,
        audited=audited,
        local=local,
    )


@dataclass(frozen=True, slots=True)
class _Steps:
    plan: Plan
    wrk: str
    targets: dict[str, Target]
    minimal: Target
    """The harness. While the service is measured it has nothing to do, and the reverse."""
    tell: Callable[[str], None]

    def operation(self, name: str) -> Operation:
        """Measure one operation, between the two halves of its library call's loop."""
        self.tell(name)
        target = self.targets[name]
        half = self.plan.seconds / 2
        first = library_call(name, half)
        loaded = self._loaded(target)
        harness = self._loaded(self.minimal) if name == COMPARED_WITH_HARNESS else None
        alone = self._load(target, ALONE_SECONDS, connections=1) if self.plan.alone else None
        second = library_call(name, half)
        return Operation(
            name=name, loaded=loaded, alone=alone, library=_mean(first, second), harness=harness
        )

    def in_turns(self, one: Target, other: Target) -> Audited:
        """Measure the same operation with and without durable records, again and again."""
        rounds = [(self._loaded(one), self._loaded(other)) for _ in range(ROUNDS)]
        return Audited(*(tuple(each) for each in zip(*rounds, strict=True)))

    def _loaded(self, target: Target) -> Measurement:
        connections = self.plan.connections
        self._load(target, WARM_UP_SECONDS, connections=connections)
        return self._load(target, self.plan.seconds, connections=connections)

    def _load(self, target: Target, seconds: int, *, connections: int) -> Measurement:
        return measure(self.wrk, target, seconds=seconds, connections=connections)


def _mean(first: Loop, second: Loop) -> Loop:
    return Loop(
        operations_per_second=(first.operations_per_second + second.operations_per_second) / 2,
        cpu=(first.cpu + second.cpu) / 2,
    )


def _file_system(directory: Path) -> str:
    """Return the type of file system a directory is on. Raises BenchmarkError in memory."""
    mounts = [line.split()[1:3] for line in MOUNTS.read_text().splitlines()]
    inside = [(point, kind) for point, kind in mounts if directory.is_relative_to(point)]
    kind = max(inside, key=lambda mount: len(mount[0]))[1]
    if kind in IN_MEMORY:
        raise BenchmarkError(
            f"{directory} is in memory, where nothing is durable: name another with --directory"
        )
    return kind
