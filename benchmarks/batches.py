"""Batches beside single calls: what an item costs in each."""

from statistics import median

from msgspec import Struct
from rich.table import Table

from benchmarks.load import Measurement

ITEMS = 64
"""Items of a batch."""


class Batches(Struct, frozen=True):
    """An operation by single calls and by batches, measured alternately."""

    single: tuple[Measurement, ...]
    batched: tuple[Measurement, ...]

    def table(self, table: Table) -> Table:
        """Fill in what an item costs, and how many there are in a second."""
        for column in ("items/s", "gateway", "key service", "whole"):
            table.add_column(column, justify="right")
        for name, found, items in (
            ("single calls", self.single, 1),
            (f"batches of {ITEMS}", self.batched, ITEMS),
        ):
            front = median(each.cpu_front for each in found) / items
            back = median(each.cpu_back for each in found) / items
            table.add_row(
                name,
                f"{_rate(found, items):,.0f}",
                f"{front:.1f}",
                f"{back:.1f}",
                f"{front + back:.1f}",
            )
        ratio = _rate(self.batched, ITEMS) / _rate(self.single, 1)
        table.add_row("ratio", f"{ratio:.2f}", "", "", "")
        return table


def _rate(found: tuple[Measurement, ...], items: int) -> float:
    return median(each.requests_per_second for each in found) * items
