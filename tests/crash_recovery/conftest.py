"""One small run for all tests; ``make crashes`` runs a large one."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.crash_recovery.run import Plan, Report, run

PLAN = Plan(operations=1_000, kills=4, threads=8)


@pytest.fixture(scope="session")
def small_run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Report, Path]:
    """Its report, and the folder with its data and export."""
    folder = tmp_path_factory.mktemp("crashes")
    return run(PLAN, folder), folder
