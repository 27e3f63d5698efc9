"""Bar charts: the positions and sizes for a template that draws SVG."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import accumulate
from typing import Any

from pqkeep_gateway.languages import said
from pqkeep_gateway.portal.reading import Section
from pqkeep_gateway.portal.rendering import instant, number
from pqkeep_protocol.algorithms import USES, Operation

WIDTH, HEIGHT = 720, 200
_LEFT, _RIGHT, _TOP, _BOTTOM = 48, 16, 8, 24
_GAP = 0.25
"""The free part of a bar's place."""
_STEPS = (1, 2, 5)
_MAX_LABELS = 6


@dataclass(frozen=True, slots=True)
class Segment:
    """The part of one bar that belongs to one series."""

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
    """Horizontal lines, with their values."""


def bar_chart(bars: Sequence[tuple[str, Mapping[str, int]]], series: Sequence[str]) -> BarChart:
    """Return a chart of bars. A bar is a label, and numbers by series."""
    top = _ceiling(max((sum(numbers.values()) for _, numbers in bars), default=0))
    scale = (HEIGHT - _TOP - _BOTTOM) / top
    place = (WIDTH - _LEFT - _RIGHT) / max(len(bars), 1)
    floor = HEIGHT - _BOTTOM
    segments = []
    for index, (_, values) in enumerate(bars):
        numbers = [values.get(name, 0) for name in series]
        for which, (count, reached) in enumerate(zip(numbers, accumulate(numbers), strict=True)):
            if count:
                x, y = _LEFT + place * (index + _GAP / 2), floor - reached * scale
                segments.append(Segment(which, x, y, place * (1 - _GAP), count * scale))
    every = -(-len(bars) // _MAX_LABELS)
    columns = tuple(
        Label(label, _LEFT + place * (index + 0.5), HEIGHT - 6)
        for index, (label, _) in enumerate(bars)
        if (len(bars) - 1 - index) % every == 0
    )
    lines = tuple(
        Label(number(value), _LEFT - 8, floor - value * scale)
        for value in ((0, top) if top % 2 else (0, top // 2, top))
    )
    return BarChart(tuple(segments), columns, lines)


def _ceiling(number: int) -> int:
    """Return the next of 2, 5, 10, 20, 50, …, as the value of the highest line."""
    power = 1
    while True:
        for step in _STEPS:
            if number <= step * power and step * power > 1:
                return step * power
        power *= 10


KINDS = ("Encryption", "Signatures", "Key changes", "Refused")
PERIODS = {"24h": "24 hours", "30d": "30 days"}
_SIGNATURES = {
    Operation.SIGN,
    Operation.VERIFY,
    Operation.SIGN_HASH,
    Operation.VERIFY_HASH,
    Operation.SIGN_MU,
    Operation.VERIFY_MU,
    Operation.SIGN_JWS,
    Operation.COMPUTE_MAC,
    Operation.VERIFY_MAC,
}
_LOOKUPS = {
    Operation.GET_KEY,
    Operation.GET_ACTIVE_KEY,
    Operation.LIST_KEYS,
    Operation.GET_KEYRING,
    Operation.LIST_KEYRINGS,
}
"""Operations that do not use or change a key. Opening a page causes some of these operations."""
MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
Rows = Sequence[tuple[str, dict[str, int]]]


def period_of(query: Mapping[str, str]) -> str:
    """Return the period of a page's query. The default is the shorter one."""
    period = query.get("period", "24h")
    return period if period in PERIODS else "24h"


def usage_rows(usage: Section, period: str) -> Rows:
    """Return the numbers by kind for each bucket, with the bucket's start (UTC)."""
    return [
        (_label(instant(bucket.start), period), _by_kind(bucket))
        for bucket in (usage.data.buckets if usage.data else ())
    ]


def _label(start: datetime, period: str) -> str:
    if period == "24h":
        return f"{start:%H:%M}"
    return f"{start.day:02} {said(MONTHS[start.month - 1])}"


def usage_chart(rows: Rows) -> BarChart | None:
    """Return the chart of these rows; None if all numbers are 0."""
    return bar_chart(rows, KINDS) if any(sum(counts.values()) for _, counts in rows) else None


def uses_and_changes(rows: Rows) -> int:
    """Return the number of key operations, without refusals and look-ups."""
    return sum(number for _, counts in rows for kind, number in counts.items() if kind != KINDS[3])


def _by_kind(bucket: Any) -> dict[str, int]:
    counts = dict.fromkeys(KINDS, 0)
    for operation, count in bucket.operations.items():
        if operation in _LOOKUPS:
            continue
        is_change, is_signature = operation not in USES, operation in _SIGNATURES
        counts[KINDS[2 if is_change else 1 if is_signature else 0]] += count
    counts[KINDS[3]] = bucket.refused
    return counts
