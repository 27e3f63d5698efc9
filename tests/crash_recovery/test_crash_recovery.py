"""kill -9 under every kind of load: nothing is lost, duplicated or unexplained."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.crash_recovery.conftest import PLAN
from tests.crash_recovery.run import Report


@pytest.fixture
def report(small_run: tuple[Report, Path]) -> Report:
    """The report of a small run."""
    return small_run[0]


def test_run_is_one(report: Report) -> None:
    """Both processes were killed, and far more requests succeeded than were lost."""
    assert sum(report.kills.values()) == PLAN.kills
    assert len(report.kills) == 2
    assert report.operations >= PLAN.operations
    assert report.responses["503 ERR_SERVICE_001"] > 0


@pytest.mark.parametrize(
    "check",
    [
        *("promises", "nothing twice", "no gaps", "keys", "accounts"),
        *("uses", "tree", "checkpoints", "answers", "export"),
    ],
)
def test_nothing_is_lost(report: Report, check: str) -> None:
    """After all kills this check of responses, log, keys and accounts succeeds."""
    assert report.findings[check] == []
