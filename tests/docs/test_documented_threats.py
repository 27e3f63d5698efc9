"""The threat model in SECURITY.md names tests that exist."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ROWS = re.findall(r"^\| (?!attacker )(\S.*) \|$", (ROOT / "SECURITY.md").read_text(), re.MULTILINE)
NAMED = re.compile(r"`([\w/]+\.py)::(\w+)`")


def names_in(file: Path) -> set[str]:
    """Return the names of a file's tests."""
    return {
        each.name
        for each in ast.parse(file.read_text()).body
        if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)
    }


@pytest.mark.parametrize("row", ROWS, ids=[row.split(" | ")[0] for row in ROWS])
def test_a_row_of_the_threat_model_is_tested(row: str) -> None:
    """Each attacker's row has its five cells and names at least one test, and each named test exists."""
    *cells, tests = row.split(" | ")
    assert len(cells) == 4
    assert all(cells)
    named = NAMED.findall(tests)
    assert named
    for file, name in named:
        assert name in names_in(ROOT / file), f"{file}::{name}"


def test_the_threat_model_has_rows() -> None:
    """The table is found: a stranger is its first attacker."""
    assert ROWS[0].startswith("A stranger with a socket | ")
