"""What docs/audit.md says of the verifier is what the verifier does."""

from __future__ import annotations

import re
from pathlib import Path

from pqkeep.audit import Kind

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
