"""Seeded simulations of both processes: no invariant is violated, and runs can be repeated."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest
from tests.patience import PATIENCE
from tests.simulation.run import run
from tests.simulation.two_shards import TwoShards

SEEDS = 30
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
    """After any loss, delay, pause or kill, every response has its record and fits its key."""
    reports = [run(seed) for seed in range(first, first + AT_ONCE)]
    assert [report.finding for report in reports if report.finding] == []
    assert sum(report.responses for report in reports) > 20 * AT_ONCE


@pytest.mark.parametrize(
    ("first", "count"), [(0, 3), pytest.param(3, 62, marks=pytest.mark.campaign)]
)
def test_tenants_move_between_shards(first: int, count: int) -> None:
    """After any kill, also of the command, a tenant's keys are complete and in one shard."""
    reports = [run(seed, TwoShards) for seed in range(first, first + count)]
    assert [report.finding for report in reports if report.finding] == []
    moved = sum("tenant-moved-in:completed" in line for each in reports for line in each.trace)
    assert moved > count


@pytest.mark.parametrize("seed", [29])
def test_a_seed_gives_the_same_run_again(seed: int) -> None:
    """Two runs with one seed have equal traces; another seed gives another trace."""
    first, again = run(seed), run(seed)
    assert first.trace == again.trace
    assert first.digest == again.digest != run(seed + 1).digest


def test_another_process_gives_the_same_run_again() -> None:
    """A seed's trace is the same in another process, with other hashes and addresses."""
    command = [sys.executable, "-m", "tests.simulation", "--seed", "7"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=PATIENCE)
    found = re.search(r"trace (\w+)$", done.stdout.strip())
    assert found is not None
    assert run(7).digest.startswith(found[1])


@pytest.mark.campaign
def test_several_processes_run_all_seeds() -> None:
    """With ``--processes`` each seed runs once, and the sums equal the sums of one process."""
    command = [sys.executable, "-m", "tests.simulation", "--seeds", "11", "--processes"]
    sums = {
        subprocess.run(
            [*command, count], capture_output=True, text=True, check=True, timeout=PATIENCE
        ).stdout.partition("}")[0]
        for count in ("1", "2")
    }
    assert len(sums) == 1
    assert sums.pop().startswith("11 seeds, 0 findings")
