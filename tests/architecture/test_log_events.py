"""Log events are constant sentences, so that one kind of line can be found and counted."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = [ROOT / name / "src" for name in ("protocol", "keyservice", "gateway", "server")]
LEVELS = frozenset({"debug", "info", "warning", "error", "exception", "critical"})
LOGGERS = frozenset({"_LOG", "entry"})
"""The names of a module's logger, and of a logger with bound fields."""


def log_calls(source: str) -> Iterator[ast.Call]:
    """Yield the calls that write a log line."""
    for each in ast.walk(ast.parse(source)):
        if (
            isinstance(each, ast.Call)
            and isinstance(each.func, ast.Attribute)
            and each.func.attr in LEVELS
            and isinstance(each.func.value, ast.Name)
            and each.func.value.id in LOGGERS
        ):
            yield each


def is_constant(call: ast.Call) -> bool:
    """Return True if a call has one constant text, and its values in named fields."""
    if len(call.args) != 1:
        return False
    (event,) = call.args
    return isinstance(event, ast.Constant) and isinstance(event.value, str)


def test_events_are_constant() -> None:
    """No event is built from values: values are fields."""
    calls = [
        (str(path.relative_to(ROOT)), call)
        for source in SOURCES
        for path in source.rglob("*.py")
        for call in log_calls(path.read_text())
    ]
    assert len(calls) > 30
    assert [(path, call.lineno) for path, call in calls if not is_constant(call)] == []


def test_every_logger_is_found_by_its_name() -> None:
    """Every module calls its logger by one of the names above."""
    for source in SOURCES:
        for path in source.rglob("*.py"):
            text = path.read_text()
            assert text.count("= logger(__name__)") == text.count("_LOG = logger(__name__)"), path


@pytest.mark.parametrize(
    "source",
    ['_LOG.error(f"lost {name}")', '_LOG.warning("lost %s", name)', "entry.info(str(error))"],
)
def test_an_event_built_from_values_is_caught(source: str) -> None:
    """An f-string, a format and a variable are found."""
    (call,) = log_calls(source)
    assert not is_constant(call)
