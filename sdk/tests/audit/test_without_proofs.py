"""Whole exports without proofs: changes are found, and parts of one log are joined."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pqkeep.audit import Kind, Report, verify

if TYPE_CHECKING:
    from sdk.tests.audit.conftest import Log

Line = dict[str, Any]
Save = Callable[..., Path]
Check = Callable[..., Report]
FIRST = 3
"""The index of an export's first record among its lines."""


@pytest.fixture
def check(log: Log, save: Save) -> Check:
    """Verify files against kept keys."""

    def run(*files: list[Line]) -> Report:
        keys = save("keys.json", [log.signer.key()])
        return verify([save(f"{n}.jsonl", lines_) for n, lines_ in enumerate(files)], keys)

    return run


def kinds(report: Report) -> list[tuple[str, int | None]]:
    """Return kind and record of each finding."""
    return [(str(finding.kind), finding.record) for finding in report.findings]


def test_every_part_is_verified(log: Log, check: Check) -> None:
    """After any number of records, the rest verifies, and the report has both counts."""
    for after in range(len(log) + 1):
        report = check(log.unproven(after=after))
        (portion,) = report.portions
        assert kinds(report) == []
        assert (portion.records, portion.after) == (len(log) - after, after)


@pytest.mark.parametrize("after", [0, 6])
@pytest.mark.parametrize("name", ["outcome", "nonce", "recorded_at", "tenant_id", "request_id"])
def test_an_edited_field(log: Log, check: Check, name: str, after: int) -> None:
    """Any edited field of any record is found without the help of a checkpoint."""
    for place in range(len(log) - after):
        lines = log.unproven(after=after)
        values = lines[FIRST + place]["record"]
        values[name] = log.records[(place + after + 1) % len(log)][name]
        if name == "outcome":
            values[name] = "another"
        if values == log.records[place + after]:
            continue
        found = [kind for kind, _ in kinds(check(lines)) if kind != "wrong-number"]
        assert found == ["edited"]


def test_kept_checkpoints_say_where_it_was_edited(log: Log, check: Check) -> None:
    """The finding names the records between the last matching and the first different tree."""
    lines = log.unproven()
    lines[FIRST + 9]["record"]["outcome"] = "another"
    report = check(lines, [log.checkpoint(size) for size in (4, 8, 12, 16)])
    assert kinds(report) == [("edited", 9)]
    assert "one of the records 9 to 12 was edited" in report.findings[0].message


@pytest.mark.parametrize("after", [0, 5])
def test_records_that_are_not_in_their_places(log: Log, check: Check, after: int) -> None:
    """Missing, repeated, moved and truncated records are found as in an export with proofs."""
    whole = log.unproven(after=after)
    begin, end = whole[:FIRST], whole[-1]
    lines = whole[FIRST:-1]
    shorter = {**end, "records": len(lines) - 1}
    third = after + 3
    assert kinds(check([*begin, *lines[:2], *lines[3:], shorter])) == [("missing", third)]
    assert kinds(check([*begin, *lines[:-1], shorter])) == [("truncated", len(log))]
    assert kinds(check([*begin, *lines[1:], shorter])) == [("missing", after + 1)]
    swapped = [*lines[:2], lines[3], lines[2], *lines[4:]]
    assert kinds(check([*begin, *swapped, end])) == [("out-of-order", third)]
    longer = {**end, "records": len(lines) + 1}
    repeated = check([*begin, *lines[:3], *lines[2:], longer])
    assert kinds(repeated) == [("repeated", third)]
    assert kinds(check([*begin, *lines])) == [("truncated", None)]


def test_forged_beginnings(log: Log, new_log: Callable[..., Log], check: Check) -> None:
    """Subtrees of another log lead to no signed root, and contradict trusted checkpoints."""
    forged = new_log(21, salt="forged").unproven(after=12)
    lines = [forged[0], *log.unproven(after=12)[1:]]
    assert kinds(check(lines)) == [("edited", 1)]
    assert kinds(check(lines, [log.checkpoint(12)])) == [("edited", 1)]


BROKEN: dict[str, dict[str, Any]] = {
    "too few subtrees": {"subtrees": []},
    "no hash": {"subtrees": ["QUJD", "QUJD"]},
    "after its size": {"after": 22},
    "before the log": {"after": -1},
    "of a tenant": {"tenant_id": "6f1c2c52-52a5-4d0e-9a43-7f4d0c8f8a11"},
    "unknown name": {"more": 1},
    "unknown format": {"format": "pqkeep/v3/audit-export"},
}


@pytest.mark.parametrize("change", BROKEN.values(), ids=BROKEN.keys())
def test_broken_first_lines(log: Log, check: Check, change: dict[str, Any]) -> None:
    """An invalid first line is malformed."""
    header, *rest = log.unproven(after=12)
    assert ("malformed", None) in kinds(check([{**header, **change}, *rest]))


def test_proofs_are_where_the_format_has_them(log: Log, check: Check) -> None:
    """A missing or unexpected proof makes a record malformed, according to the export's form."""
    proven, unproven = log.export(), log.unproven()
    proven[FIRST + 4] = unproven[FIRST + 4]
    unproven[FIRST + 4] = log.export()[FIRST + 4]
    assert kinds(check(proven))[0] == ("malformed", 5)
    assert kinds(check(unproven))[0] == ("malformed", 5)


@pytest.mark.parametrize("cut", [0, 1, 7, 12])
def test_an_interrupted_export_goes_on_in_its_file(log: Log, check: Check, cut: int) -> None:
    """A truncated export and the following export, in one file, count as one."""
    first = log.unproven(size=12)[: FIRST + cut]
    report = check([*first, *log.unproven(after=cut)])
    (portion,) = report.portions
    assert kinds(report) == []
    assert (portion.records, portion.size, portion.after) == (21, 21, 0)


def test_exports_go_on_day_by_day(log: Log, check: Check) -> None:
    """Exports that continue each other verify as one log, in one file or in several."""
    parts = [log.unproven(size=7), log.unproven(size=12, after=7), log.unproven(after=12)]
    assert kinds(check([line for part in parts for line in part])) == []
    assert kinds(check(*parts)) == []
    assert kinds(check(parts[0] + parts[2])) != []
    wrong = [*parts[0][:-1], {"type": "end", "records": 6}, *parts[1]]
    assert kinds(check(wrong)) == [("wrong-count", None)]


def test_a_part_is_no_proof_of_what_came_before(log: Log, check: Check) -> None:
    """A trusted checkpoint before the first record of a part needs a consistency proof."""
    part, kept = log.unproven(after=12), [log.checkpoint(5)]
    assert kinds(check(part, kept)) == [("not-connected", None)]
    assert kinds(check(part, kept, [log.consistency(5, 21)])) == []
    assert kinds(check(part, [log.checkpoint(12), log.checkpoint(15)])) == []
    another = [log.checkpoint(5, root=bytes(32))]
    assert Kind.NOT_CONNECTED in {finding.kind for finding in check(part, another).findings}
