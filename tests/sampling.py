"""How many of many similar cases ``make test`` runs: at least one of each kind.

``make campaigns`` runs the others. Inside a case, for example over changed bytes, PQKEEP_EXHAUSTIVE
tests all values.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest

from pqkeep_protocol.algorithms import Algorithm

IS_EXHAUSTIVE = "PQKEEP_EXHAUSTIVE" in os.environ

SLOW_ALGORITHMS = frozenset(
    {
        Algorithm.SLH_DSA_SHA2_128S,
        Algorithm.SLH_DSA_SHA2_192S,
        Algorithm.SLH_DSA_SHA2_256S,
    }
)
"""Algorithms with a second for a key or signature. SLH-DSA-SHA2-128f represents them."""

ABOUT_DATABASES = frozenset(
    {
        *("test_api_keys", "test_audit_outbox", "test_concurrent_changes", "test_database"),
        *("test_idempotency", "test_log_growth", "test_postgresql", "test_postgresql_database"),
        "test_standby",
        *("test_store", "test_store_migration", "test_team_members", "test_tenants"),
    }
)
"""Files of the gateway's and the key service's tests that all run on a server.

A test with several cases runs the first on a server, and all on a file."""


BY_TURNS = {
    "test_a_binary_field_is_standard_base64": 3,
    "test_algorithm_is_a_wire_value": 7,
    "test_key_version_is_a_positive_integer": 5,
    "test_a_version_that_does_not_exist_is_404": 5,
    "test_an_algorithm_does_only_its_own_operations": 3,
}
"""Tests of tests/contract for every operation and every value, and the step between cases.

The step divides neither number. So each operation and each value occurs.
"""


def require_listed_tests(root: Path) -> None:
    """Raise UsageError for a listed name without a test, because its tests would all run unnoticed."""
    files = {
        path.stem for parts in ("*/tests", "tests/*") for path in root.glob(f"{parts}/test_*.py")
    }
    contract = "".join(path.read_text() for path in root.glob("tests/contract/test_*.py"))
    missing = [name for name in sorted(ABOUT_DATABASES) if name not in files]
    missing += [name for name in BY_TURNS if f"def {name}(" not in contract]
    if missing:
        raise pytest.UsageError(f"tests/sampling.py lists what does not exist: {missing}")


def leave_to_the_campaign(items: Sequence[pytest.Item]) -> None:
    """Mark tests on a server, except the first of each file, and most of BY_TURNS.

    In tests/contract, a complete installation runs on the server: its tests with ``world`` are
    marked too.
    """
    tried: set[tuple[Path, str]] = set()
    asked: Counter[str] = Counter()
    on_a_file = {(item.path, _test(item)) for item in items if "sqlite" in _parameters(item)}
    for item in items:
        name = _test(item)
        if name in BY_TURNS:
            if asked[name] % BY_TURNS[name]:
                item.add_marker(pytest.mark.campaign)
            asked[name] += 1
        if "postgresql" not in _parameters(item):
            continue
        is_contract = item.nodeid.startswith("tests/contract/")
        unit = (item.path, "")
        if not is_contract and item.path.stem in ABOUT_DATABASES:
            unit = (item.path, name)
            if unit not in on_a_file:
                continue
        if unit in tried or (is_contract and "world" in getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.campaign)
        elif item.get_closest_marker("campaign") is None:
            tried.add(unit)


def _test(item: pytest.Item) -> str:
    """Return the name of a test, without its case."""
    return getattr(item, "originalname", "")


def _parameters(item: pytest.Item) -> Collection[Any]:
    """Return the values of a test's case."""
    return getattr(getattr(item, "callspec", None), "params", {}).values()


def step(usual: int) -> int:
    """Return the distance between tested cases."""
    return 1 if IS_EXHAUSTIVE else usual


def later(case: Any) -> Any:
    """Return a test's case, perhaps of several parameters, as one of the campaign's."""
    if isinstance(case, type(pytest.param())):
        return pytest.param(*case.values, id=case.id, marks=[*case.marks, pytest.mark.campaign])
    values = case if isinstance(case, tuple) else (case,)
    return pytest.param(*values, marks=pytest.mark.campaign)


def sampled(cases: Iterable[Any], usual: int) -> list[Any]:
    """Return cases. ``make test`` runs the first one and then every n-th."""
    return [later(case) if place % usual else case for place, case in enumerate(cases)]


def fast_algorithms_first(algorithms: Iterable[Algorithm]) -> list[Any]:
    """Return algorithms as test cases. ``make test`` runs the fast algorithms only."""
    return [later(each) if each in SLOW_ALGORITHMS else each for each in algorithms]
