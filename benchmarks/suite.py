"""The whole run: pqkeep under load, each operation beside its baselines."""

import os
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks import local_encryption
from benchmarks.baselines.library import Loop
from benchmarks.batches import CONNECTIONS, Batches
from benchmarks.comparison import audit_log, library_call, minimal_service
from benchmarks.errors import BenchmarkError
from benchmarks.installation import BATCH, UNAUDITED, installation
from benchmarks.load import Measurement, Target, measure, require_wrk
from benchmarks.results import Audited, Operation, Results
from benchmarks.tls import TlsCost, gateways
from benchmarks.two_users import TwoUsers, installations

WARM_UP_SECONDS = 1
ALONE_SECONDS = 2
MOUNTS = Path("/proc/mounts")
IN_MEMORY = frozenset({"tmpfs", "ramfs"})
ROUNDS = 3
ALTERNATED = "encapsulate"
COMPARED_WITH_MINIMAL = "encapsulate"


@dataclass(frozen=True, slots=True)
class Plan:
    """The measurements and their length."""

    operations: Sequence[str]
    seconds: int
    connections: int
    alone: bool
    """True if latency with one connection is measured too."""
    directory: Path | None
    """The folder of the databases. None: the folder of temporary files."""


def run(plan: Plan, report: Callable[[str], None]) -> Results:
    """Carry out a plan. Raises BenchmarkError. In both cases all processes have ended."""
    wrk = require_wrk()
    with tempfile.TemporaryDirectory(prefix="pqkeep-bench-", dir=plan.directory) as temporary:
        directory = Path(temporary)
        file_system = file_system_of(directory)
        report("starting pqkeep and the minimal service")
        with installation(directory) as targets, minimal_service(directory) as minimal:
            steps = _Steps(plan, wrk, targets, minimal, report)
            operations = tuple(steps.operation(name) for name in plan.operations)
            report("batches")
            batches = steps.batches(targets[ALTERNATED], targets[BATCH])
            report("the same without a durable audit log")
            with installation(directory / "unaudited", UNAUDITED) as unaudited:
                audited = Audited(*steps.in_turns(targets[ALTERNATED], unaudited[ALTERNATED]))
            report("TLS")
            with gateways(directory, targets[ALTERNATED]) as pair:
                tls = steps.tls(*pair)
        report("two users")
        with installations(directory, ALTERNATED) as both:
            two_users = None if both is None else TwoUsers(*steps.in_turns(*both))
        report("audit log")
        audit = audit_log(directory, plan.seconds)
        report("local encryption")
        local = local_encryption.compare(directory)
    return Results(
        seconds=plan.seconds,
        connections=plan.connections,
        file_system=file_system,
        cores=os.cpu_count() or 1,
        operations=operations,
        audit=audit,
        audited=audited,
        batches=batches,
        tls=tls,
        two_users=two_users,
        local=local,
    )


@dataclass(frozen=True, slots=True)
class _Steps:
    plan: Plan
    wrk: str
    targets: dict[str, Target]
    minimal: Target
    """The minimal service. It is idle while pqkeep is measured, and the reverse."""
    report: Callable[[str], None]

    def operation(self, name: str) -> Operation:
        """Measure one operation, between two halves of its library call's loop."""
        self.report(name)
        target = self.targets[name]
        half = self.plan.seconds / 2
        first = library_call(name, half)
        loaded = self._loaded(target)
        minimal = self._loaded(self.minimal) if name == COMPARED_WITH_MINIMAL else None
        alone = self._load(target, ALONE_SECONDS, connections=1) if self.plan.alone else None
        second = library_call(name, half)
        return Operation(
            name=name, loaded=loaded, alone=alone, library=_mean(first, second), minimal=minimal
        )

    def in_turns(
        self, one: Target, other: Target
    ) -> tuple[tuple[Measurement, ...], tuple[Measurement, ...]]:
        """Measure two targets alternately; return the results of each."""
        rounds = [(self._loaded(one), self._loaded(other)) for _ in range(ROUNDS)]
        first, second = zip(*rounds, strict=True)
        return first, second

    def batches(self, single: Target, batched: Target) -> tuple[Batches, ...]:
        """Measure an operation by single calls and by batches, alternately."""
        seconds = min(self.plan.seconds, ALONE_SECONDS)

        def measured(connections: int) -> Batches:
            for each in (single, batched):
                self._load(each, WARM_UP_SECONDS, connections=connections)
            rounds = [
                [self._load(each, seconds, connections=connections) for each in (single, batched)]
                for _ in range(ROUNDS)
            ]
            return Batches(connections, *(tuple(each) for each in zip(*rounds, strict=True)))

        return tuple(map(measured, sorted({*CONNECTIONS, self.plan.connections})))

    def tls(self, plain: Target, secured: Target) -> TlsCost:
        """Measure an operation without and with TLS, alternately."""

        def rounds(*, closes: bool) -> tuple[tuple[Measurement, Measurement], ...]:
            pair = [replace(each, closes=closes) for each in (plain, secured)]
            measured = [[self._loaded(each) for each in pair] for _ in range(ROUNDS)]
            return tuple((one, other) for one, other in measured)

        return TlsCost(rounds(closes=False), rounds(closes=True))

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


def file_system_of(directory: Path) -> str:
    """Return the type of file system a directory is on. Raises BenchmarkError in memory."""
    mounts = [line.split()[1:3] for line in MOUNTS.read_text().splitlines()]
    inside = [(point, kind) for point, kind in mounts if directory.is_relative_to(point)]
    kind = max(inside, key=lambda mount: len(mount[0]))[1]
    if kind in IN_MEMORY:
        raise BenchmarkError(
            f"{directory} is in memory, where nothing is durable: name another with --directory"
        )
    return kind
