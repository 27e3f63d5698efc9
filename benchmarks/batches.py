"""Batches compared with single calls: the cost of an item in each, by the number of callers."""

from collections.abc import Iterable
from statistics import median

from msgspec import Struct
from rich.table import Table

from benchmarks.load import Measurement

ITEMS = 64
"""Items of a batch."""
CONNECTIONS = (1, 8)
"""Numbers of connections besides the run's own: a program that processes a list has one."""


class Batches(Struct, frozen=True):
    """An operation by single calls and by batches, measured alternately."""

    connections: int
    single: tuple[Measurement, ...]
    batched: tuple[Measurement, ...]

    @property
    def ratio(self) -> float:
        """The items per second of batches, as a multiple of single calls."""
        return _rate(self.batched, ITEMS) / _rate(self.single, 1)

    def add_to(self, table: Table) -> None:
        """Add the cost of an item, and the items per second."""
        for name, found, items in (
            ("single calls", self.single, 1),
            (f"batches of {ITEMS}", self.batched, ITEMS),
        ):
            front = median(each.cpu_front for each in found) / items
            back = median(each.cpu_back for each in found) / items
            table.add_row(
                name,
                str(self.connections),
                f"{_rate(found, items):,.0f}",
                "" if items == 1 else f"{self.ratio:.2f}",
                f"{front:.1f}",
                f"{back:.1f}",
                f"{front + back:.1f}",
            )


def fill(table: Table, measured: Iterable[Batches]) -> Table:
    """Fill a table with all measurements."""
    for column in ("connections", "items/s", "ratio", "gateway", "key service", "whole"):
        table.add_column(column, justify="right")
    for each in measured:
        each.add_to(table)
    return table


def _rate(found: tuple[Measurement, ...], items: int) -> float:
    return median(each.requests_per_second for each in found) * items
