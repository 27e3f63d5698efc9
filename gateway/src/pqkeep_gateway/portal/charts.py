"""Bar charts, as the positions and sizes that a template draws as SVG."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from pqkeep_gateway.portal.reading import Section
from pqkeep_gateway.portal.rendering import instant
from pqkeep_protocol.algorithms import USES, Operation

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
}
_LOOKUPS = {
    Operation.GET_KEY,
    Operation.GET_ACTIVE_KEY,
    Operation.LIST_KEYS,
    Operation.GET_KEYRING,
    Operation.LIST_KEYRINGS,
}
"""Operations that neither use nor change a key: pages do some of them by being looked at."""
_FORMS = {"24h": "%H:%M", "30d": "%d %b"}
Rows = Sequence[tuple[str, dict[str, int]]]


def period_of(query: Mapping[str, str]) -> str:
    """Return the period that a page's query names; the shorter one without any."""
    period = query.get("period", "24h")
    return period if period in PERIODS else "24h"


def usage_rows(usage: Section, period: str) -> Rows:
    """Return the numbers of each kind, by the time when a bucket began (UTC)."""
    return [
        (instant(each.start).strftime(_FORMS[period]), _by_kind(each))
        for each in (usage.data.buckets if usage.data else ())
    ]


def usage_chart(rows: Rows) -> BarChart | None:
    """Return the chart of some rows; None where there is nothing in them."""
    return bar_chart(rows, KINDS) if any(sum(each.values()) for _, each in rows) else None


def uses_and_changes(rows: Rows) -> int:
    """Return how many operations with keys there were, without refusals and look-ups."""
    return sum(number for _, each in rows for kind, number in each.items() if kind != KINDS[3])


def _by_kind(bucket: Any) -> dict[str, int]:
    counts = dict.fromkeys(KINDS, 0)
    for operation, number in bucket.operations.items():
        if operation in _LOOKUPS:
            continue
        is_change, is_signature = operation not in USES, operation in _SIGNATURES
        counts[KINDS[2 if is_change else 1 if is_signature else 0]] += number
    counts[KINDS[3]] = bucket.refused
    return counts
