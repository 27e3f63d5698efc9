"""docs/audit.md matches the verifier and the records of both processes."""

from __future__ import annotations

import re
from hashlib import sha256
from pathlib import Path

import pytest

from pqkeep.audit import Kind
from pqkeep.audit._formats import FORMATS
from pqkeep_protocol.algorithms import Operation
from pqkeep_protocol.audit_events import AuditEvent, KeyServiceEvent, Outcome
from pqkeep_protocol.errors import ErrorKind

DOCUMENT = (Path(__file__).parents[2] / "docs" / "audit.md").read_text()


def section(title: str) -> str:
    """Return the text under a heading."""
    return re.split(r"^#+ ", DOCUMENT.split(f" {title}\n", 1)[1], maxsplit=1, flags=re.MULTILINE)[0]


def test_every_kind_of_finding_is_explained() -> None:
    """The table of findings has a row for each kind, and no other."""
    rows = re.findall(r"^\| `([a-z-]+)` \|", section("Findings"), re.MULTILINE)
    assert sorted(rows) == sorted(Kind)


@pytest.mark.parametrize("number", FORMATS)
def test_every_name_of_a_format_is_listed(number: int) -> None:
    """The table of a format has its names, in the order of the record's text."""
    names = listed(f"Format {number}")
    assert names == sorted(names)
    assert names == list(FORMATS[number])


def test_the_example_of_a_record_has_that_leaf() -> None:
    """The hash of the shown text is the shown leaf."""
    shown = re.search(r"its leaf is `(\w+)`:\n\n```json\n(.*)\n```", section("Format 1"))
    assert shown is not None
    leaf, text = shown.groups()
    assert sha256(b"\0" + text.encode()).hexdigest() == leaf


def listed(title: str) -> list[str]:
    """Return the names in the first column of a table."""
    rows = re.findall(r"^\| (`.*?) \|", section(title), re.MULTILINE)
    return [name for row in rows for name in re.findall(r"`([a-z0-9_-]+)`", row)]


def test_every_event_of_the_gateway_is_documented() -> None:
    """The tables of the gateway's events list each event exactly once."""
    documented = listed("Recorded by the gateway") + listed("Recorded only where they are refused")
    assert sorted(documented) == sorted(AuditEvent)


def test_every_operation_of_the_key_service_is_documented() -> None:
    """The table of the key service's operations lists each operation exactly once."""
    assert sorted(listed("Recorded by the key service")) == sorted((*Operation, *KeyServiceEvent))


def test_every_outcome_is_documented() -> None:
    """The table of outcomes has exactly the outcomes that are not error codes."""
    answers_only = {ErrorKind.RECORD_NOT_FOUND, ErrorKind.BAD_RESPONSE, ErrorKind.TOO_LARGE}
    recorded = {*Outcome, *ErrorKind} - answers_only
    assert sorted(listed("Outcomes")) == sorted(recorded)
