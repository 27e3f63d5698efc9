"""Seeded simulations of the two processes: no invariant breaks, and a seed gives the same run again."""

from __future__ import annotations

import pytest
from tests.simulation.run import run

SEEDS = 60
MORE_SEEDS = 300
AT_ONCE = 10


@pytest.mark.parametrize(
    "first",
    [
        pytest.param(first, marks=[pytest.mark.campaign] if first >= SEEDS else [])
        for first in range(0, MORE_SEEDS, AT_ONCE)
    ],
)
def test_no_invariant_breaks(first: int) -> None:
    """Whatever is lost, late, paused or killed: every answer has its record and fits its key."""
    reports = [run(seed) for seed in range(first, first + AT_ONCE)]
    assert [report.finding for report in reports if report.finding] == []
    assert sum(report.answers for report in reports) > 20 * AT_ONCE


@pytest.mark.parametrize("seed", [29])
def test_a_seed_gives_the_same_run_again(seed: int) -> None:
    """Two runs with one seed have the same trace, and one with another seed has another."""
    first, again = run(seed), run(seed)
    assert first.trace == again.trace
    assert first.digest == again.digest != run(seed + 1).digest
