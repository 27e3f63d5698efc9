"""Events of the gateway are named by their enumeration, never by text in the code."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "gateway" / "src" / "pqkeep_gateway"
FROM_TEXT = frozenset({"http/endpoint.py"})
"""The only files that may look up an event by its name."""


def violations(source: str) -> list[int]:
    """Return the lines that name an event by text, or look one up by text."""
    calls = [each for each in ast.walk(ast.parse(source)) if isinstance(each, ast.Call)]
    return [
        call.lineno
        for call in calls
        if _called(call) == "AuditEvent"
        or (_called(call) == "event" and any(map(_is_text, _parts(call))))
    ]


def _called(call: ast.Call) -> str:
    match call.func:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
        case _:
            return ""


def _parts(call: ast.Call) -> Iterator[ast.AST]:
    """Return all parts of the expression that names the event: the third argument."""
    named = [each.value for each in call.keywords if each.arg == "operation"]
    return (part for name in (*call.args[2:3], *named) for part in ast.walk(name))


def _is_text(part: ast.AST) -> bool:
    return isinstance(part, ast.JoinedStr) or (
        isinstance(part, ast.Constant) and isinstance(part.value, str)
    )


def test_no_event_is_named_by_text() -> None:
    """No call records a literal or an f-string, and only rows look events up by name."""
    found = {
        str(path.relative_to(SOURCE))
        for path in SOURCE.rglob("*.py")
        if violations(path.read_text())
    }
    assert found == FROM_TEXT


@pytest.mark.parametrize(
    "call",
    [
        'event(attribution, tenant, "create-tenant")',
        'event(attribution, tenant, f"invite-{role}")',
        'event(attribution, tenant, operation="create-tenant")',
        'event(attribution, tenant, "require-mfa" if required else AuditEvent.DO_NOT_REQUIRE_MFA)',
        'event(attribution, tenant, cast(AuditEvent, "anything"))',
        'audit_events.event(attribution, tenant, "invite-" + role)',
        'AuditEvent(f"invite-{role}")',
        "AuditEvent(name)",
    ],
)
def test_text_is_caught(call: str) -> None:
    """An event name that is text, or made from text, is found anywhere in the code."""
    assert violations(f"def record():\n    return {call}\n")


@pytest.mark.parametrize(
    "call",
    [
        'event(attribution, tenant, AuditEvent.SIGN_IN_FAILED, outcome="ERR_AUTH_001")',
        "event(attribution, tenant, INVITE[role])",
    ],
)
def test_members_are_not(call: str) -> None:
    """A member of the enumeration is accepted."""
    assert not violations(call)
