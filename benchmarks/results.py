"""The results of a run, and the tables that show them."""

from statistics import median

from msgspec import Struct
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from benchmarks.baselines.library import Loop
from benchmarks.batches import Batches, fill
from benchmarks.budget import BUDGETS, UNDER_BUDGET
from benchmarks.load import Measurement
from benchmarks.local_encryption import Comparison, table
from benchmarks.tls import TlsCost
from benchmarks.two_users import TwoUsers


class Operation(Struct, frozen=True, kw_only=True):
    """One operation and its baselines."""

    name: str
    loaded: Measurement
    """With many connections."""
    alone: Measurement | None
    """With one connection."""
    library: Loop
    minimal: Measurement | None
    """The minimal service under the same load, if it has the operation."""

    @property
    def to_library(self) -> float:
        """The operation's CPU as a multiple of the bare library call's."""
        return self.loaded.cpu / self.library.cpu

    @property
    def to_minimal(self) -> float | None:
        """The operation's CPU as a multiple of the minimal service's."""
        return None if self.minimal is None else self.loaded.cpu / self.minimal.cpu


class Audited(Struct, frozen=True):
    """One operation with durable records and without, measured alternately."""

    durable: tuple[Measurement, ...]
    unaudited: tuple[Measurement, ...]

    @property
    def with_records(self) -> float:
        """The key service's CPU per operation: the median of the rounds."""
        return median(each.cpu_back for each in self.durable)

    @property
    def without_records(self) -> float:
        """The key service's CPU per operation without records."""
        return median(each.cpu_back for each in self.unaudited)


class Results(Struct, frozen=True, kw_only=True):
    """One run."""

    seconds: int
    connections: int
    file_system: str
    """The type of file system that the databases were on."""
    cores: int
    operations: tuple[Operation, ...]
    audit: Loop | None
    audited: Audited
    batches: tuple[Batches, ...]
    tls: TlsCost
    two_users: TwoUsers | None
    """None: the run has no root rights, or no Python that other users can execute."""
    local: tuple[Comparison, ...]

    def show(self, console: Console) -> None:
        """Print everything."""
        console.print(
            f"{self.seconds} s a step, {self.connections} connections, {self.cores} cores shared "
            f"with the load generator, databases on {self.file_system}. "
            "Messages and plaintexts are 1 KiB. Compare ratios, not absolute numbers.\n"
        )
        console.print(self._speed())
        console.print(self._cpu())
        if any(operation.name in UNDER_BUDGET for operation in self.operations):
            console.print(self._budget())
        if self.audit is not None:
            console.print(
                f"audit log alone, 64 callers: {self.audit.operations_per_second:,.0f} durable "
                f"records/s, {self.audit.cpu:.1f} µs of CPU a record"
            )

        console.print(
            f"the key service, encapsulating: {self.audited.with_records:.1f} µs of CPU with a "
            f"durable record, {self.audited.without_records:.1f} without; the record costs "
            f"{self.audited.with_records - self.audited.without_records:.1f}\n"
        )
        console.print(
            fill(_table("Batches: items/s, CPU microseconds an item, encapsulating"), self.batches)
        )
        console.print(self.tls.table(_table("TLS: the gateway's CPU microseconds, encapsulating")))
        if self.two_users is not None:
            console.print(
                self.two_users.table(_table("Two users: CPU microseconds, encapsulating"))
            )
        console.print(table(self.local))

    def _speed(self) -> Table:
        table = _table("Over HTTP: requests/s, latency in milliseconds, cores busy with other work")
        for column in (
            "requests/s",
            "p50",
            "p99",
            "p50 alone",
            "p99 alone",
            "others",
        ):
            table.add_column(column, justify="right")
        for operation in self.operations:
            loaded, alone = operation.loaded, operation.alone
            table.add_row(
                operation.name,
                f"{loaded.requests_per_second:,.0f}",
                _milliseconds(loaded.median),
                _milliseconds(loaded.percentile_99),
                _milliseconds(alone.median if alone else None),
                _milliseconds(alone.percentile_99 if alone else None),
                f"{loaded.others:.2f}",
            )
        return table

    def _cpu(self) -> Table:
        table = _table("CPU microseconds an operation, and its ratio to the baselines")
        for column in (
            "gateway",
            "key service",
            "whole",
            "library",
            "ratio",
            "minimal",
            "ratio",
        ):
            table.add_column(column, justify="right")
        for operation in self.operations:
            loaded = operation.loaded
            table.add_row(
                operation.name,
                f"{loaded.cpu_front:.1f}",
                f"{loaded.cpu_back:.1f}",
                f"{loaded.cpu:.1f}",
                f"{operation.library.cpu:.1f}",
                f"{operation.to_library:.2f}",
                "" if operation.minimal is None else f"{operation.minimal.cpu:.1f}",
                "" if operation.to_minimal is None else f"{operation.to_minimal:.2f}",
            )
        return table

    def _budget(self) -> Table:
        table = _table("The architecture's budget, CPU microseconds")
        for column in ("part", "budget", "measured", "ratio", ""):
            table.add_column(column, justify="left" if column == "part" else "right")
        for operation in self.operations:
            if operation.name not in UNDER_BUDGET:
                continue
            for budget in BUDGETS:
                measured = budget.of(operation.loaded)
                table.add_row(
                    operation.name,
                    budget.name,
                    f"{budget.microseconds:.0f}",
                    f"{measured:.1f}",
                    f"{measured / budget.microseconds:.2f}",
                    "met" if measured <= budget.microseconds else "[bold]over[/bold]",
                )
        return table


def _table(title: str) -> Table:
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD)
    table.add_column("operation", no_wrap=True)
    return table


def _milliseconds(microseconds: float | None) -> str:
    return "" if microseconds is None else f"{microseconds / 1000:.2f}"
