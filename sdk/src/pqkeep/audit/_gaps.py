"""Positions that were skipped: they are missing, or come later."""

from bisect import bisect_right
from collections.abc import Iterator
from typing import NamedTuple

from pqkeep.audit._findings import Place

MOST = 10_000


class Gap(NamedTuple):
    """Positions from ``begin`` to before ``end``, and the line that came instead of them."""

    begin: int
    end: int
    place: Place


class Gaps:
    """Ranges in order, without overlap: at most MOST, further ones are dropped."""

    def __init__(self) -> None:
        self._gaps: list[Gap] = []

    def __iter__(self) -> Iterator[Gap]:
        return iter(self._gaps)

    def __bool__(self) -> bool:
        return bool(self._gaps)

    def open(self, begin: int, end: int, place: Place) -> None:
        """Add skipped positions."""
        if begin < end and len(self._gaps) < MOST:
            gap = Gap(begin, end, place)
            self._gaps.insert(bisect_right(self._gaps, begin, key=_begin), gap)

    def fill(self, position: int) -> bool:
        """Remove a position; return whether it was in a gap."""
        at = bisect_right(self._gaps, position, key=_begin) - 1
        if at < 0 or position >= self._gaps[at].end:
            return False
        begin, end, place = self._gaps.pop(at)
        self.open(begin, position, place)
        self.open(position + 1, end, place)
        return True


def _begin(gap: Gap) -> int:
    return gap.begin
