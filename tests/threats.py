"""The threats of SECURITY.md, with their tests: the marker ``threat`` names them."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[1]
MARKER = "threat"
LINK = re.compile(r"\[([^\]]+)\]\(docs/reference/threats\.md#([a-z-]+)\)")


class MarkedTest(NamedTuple):
    """A test, with the names of its threats."""

    file: Path
    """The path from the root of the repository."""
    name: str
    threats: tuple[str, ...]
    proves: str
    """The first paragraph of its docstring."""


def threats() -> Mapping[str, str]:
    """Return the attackers of SECURITY.md by the names of their threats."""
    return {name: attacker for attacker, name in LINK.findall((ROOT / "SECURITY.md").read_text())}


def require_known_threats(items: Iterable[pytest.Item]) -> None:
    """Raise UsageError for a marker with a threat that SECURITY.md does not have."""
    marked = {name for item in items for mark in item.iter_markers(MARKER) for name in mark.args}
    if marked and (unknown := marked - threats().keys()):
        raise pytest.UsageError(f"SECURITY.md has no threat {', '.join(sorted(unknown))}")


def marked_tests() -> Iterator[MarkedTest]:
    """Yield the tests with the marker, ordered by file."""
    for folder in ("*/tests", "tests"):
        for path in sorted(ROOT.glob(f"{folder}/**/test_*.py")):
            text = path.read_text()
            if f"mark.{MARKER}" not in text:
                continue
            for node in ast.walk(ast.parse(text)):
                if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                    continue
                if names := _threats_of(node):
                    proves = (ast.get_docstring(node) or "").partition("\n\n")[0]
                    yield MarkedTest(path.relative_to(ROOT), node.name, names, proves)


def _threats_of(test: ast.FunctionDef | ast.AsyncFunctionDef) -> tuple[str, ...]:
    return tuple(
        str(argument.value)
        for decorator in test.decorator_list
        if isinstance(decorator, ast.Call) and ast.unparse(decorator.func).endswith(f".{MARKER}")
        for argument in decorator.args
        if isinstance(argument, ast.Constant)
    )
