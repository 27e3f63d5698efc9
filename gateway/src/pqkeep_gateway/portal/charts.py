"""Bar charts, as the positions and sizes that a template draws as SVG."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

WIDTH, HEIGHT = 720, 200
_LEFT, _RIGHT, _TOP, _BOTTOM = 48, 16, 8, 24
_GAP = 0.25
"""Of a bar's place, what is left free."""
_STEPS = (1, 2, 5)
_MAX_LABELS = 6


@dataclass(frozen=True, slots=True)
class Segment:
    """One series' part of one bar."""

    series: int
    x: float
    y: float
    width: float
    height: float


@dataclass(frozen=True, slots=True)
class Label:
    """A text at an axis."""

    text: str
    x: float
    y: float


@dataclass(frozen=True, slots=True)
class BarChart:
    """Stacked bars, and their axes' labels."""

    segments: tuple[Segment, ...]
    columns: tuple[Label, ...]
    lines: tuple[Label, ...]
    """Horizontal lines, with the value that each stands for."""


def bar_chart(bars: Sequence[tuple[str, Mapping[str, int]]], series: Sequence[str]) -> BarChart:
    """Return a chart of bars, each a label and a number for every series that it has."""
    top = _ceiling(max((sum(each.values()) for _, each in bars), default=0))
    scale = (HEIGHT - _TOP - _BOTTOM) / top
    place = (WIDTH - _LEFT - _RIGHT) / max(len(bars), 1)
    floor = HEIGHT - _BOTTOM
    segments = []
    for index, (_, values) in enumerate(bars):
        numbers = [values.get(name, 0) for name in series]
        for which, (number, reached) in enumerate(zip(numbers, accumulate(numbers), strict=True)):
            if number:
                x, y = _LEFT + place * (index + _GAP / 2), floor - reached * scale
                segments.append(Segment(which, x, y, place * (1 - _GAP), number * scale))
    every = -(-len(bars) // _MAX_LABELS)
    columns = tuple(
        Label(label, _LEFT + place * (index + 0.5), HEIGHT - 6)
        for index, (label, _) in enumerate(bars)
        if (len(bars) - 1 - index) % every == 0
    )
    lines = tuple(
        Label(f"{value:,}", _LEFT - 8, floor - value * scale)
        for value in ((0, top) if top % 2 else (0, top // 2, top))
    )
    return BarChart(tuple(segments), columns, lines)


def _ceiling(number: int) -> int:
    """Return the next of 2, 5, 10, 20, 50, …: what the highest line stands for."""
    power = 1
    while True:
        for step in _STEPS:
            if number <= step * power and step * power > 1:
                return step * power
        power *= 10
