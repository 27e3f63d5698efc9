"""A complete installation with failing parts loses nothing."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.cluster.run import Plan, run


@pytest.mark.campaign
@pytest.mark.timeout(0)
def test_nothing_is_lost_whatever_is_away(tmp_path: Path) -> None:
    """In a short run every check succeeds, and no connection is refused.

    ``make cluster`` runs longer.
    """
    report = run(Plan(seconds=25), tmp_path)
    assert {name: wrong for name, wrong in report.findings.items() if wrong} == {}
    assert report.faults > 0
    assert report.refused_connections == 0
    assert report.opened > 0
