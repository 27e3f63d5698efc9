"""What docs/audit.md says is what the verifier does, and what both processes record."""

from __future__ import annotations

import re
from pathlib import Path

from pqkeep.audit import Kind
from pqkeep_protocol.algorithms import Operation
from pqkeep_protocol.audit_events import AuditEvent, KeyServiceEvent, Outcome
from pqkeep_protocol.errors import ErrorKind

DOCUMENT = (Path(__file__).parents[2] / "docs" / "audit.md").read_text()


def section(title: str) -> str:
    """Return what stands under a heading."""
    return re.split(r"^#+ ", DOCUMENT.split(f" {title}\n", 1)[1], maxsplit=1, flags=re.MULTILINE)[0]


def test_every_kind_of_finding_is_explained() -> None:
    """The table of findings has a row for each kind, and no other."""
    rows = re.findall(r"^\| `([a-z-]+)` \|", section("Findings"), re.MULTILINE)
    assert sorted(rows) == sorted(Kind)


def test_every_name_of_a_record_is_listed() -> None:
    """The table of a record's names has them all, in the order of the text."""
    names = [
        name
        for row in re.findall(r"^\| (`.*?) \|", section("Record"), re.MULTILINE)
        for name in re.findall(r"`(\w+)`", row)
    ]
    assert names == sorted(names)
    assert names == [
        "algorithm",
        "event_id",
        "happened_at",
        "id",
        "key_version",
        "nonce",
        "number",
        "operation",
        "outcome",
        "policy",
        "principal",
        "recorded_at",
        "request_id",
        "source_address",
        "tenant_id",
    ]


def listed(title: str) -> list[str]:
    """Return the names in the first column of a table."""
    rows = re.findall(r"^\| (`.*?) \|", section(title), re.MULTILINE)
    return [name for row in rows for name in re.findall(r"`([a-z-]+)`", row)]


def test_every_event_of_the_gateway_is_documented() -> None:
    """The tables of the gateway's events have each one once, and no other."""
    documented = listed("Recorded by the gateway") + listed("Recorded only where they are refused")
    assert sorted(documented) == sorted(AuditEvent)


def test_every_operation_of_the_key_service_is_documented() -> None:
    """The table of the key service's operations has each one once, and no other."""
    assert sorted(listed("Recorded by the key service")) == sorted((*Operation, *KeyServiceEvent))


def test_every_outcome_is_documented() -> None:
    """The table of outcomes has every one that is not a code, and no other."""
    answers_only = {ErrorKind.RECORD_NOT_FOUND, ErrorKind.BAD_ANSWER}
    recorded = {*Outcome, *ErrorKind} - answers_only
    assert sorted(listed("Outcomes")) == sorted(recorded)
