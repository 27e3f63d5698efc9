"""Evidence of a query: every record that is added, removed or changed is found."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pqkeep.audit import verify

if TYPE_CHECKING:
    from sdk.tests.audit.conftest import Log, Signer

Line = dict[str, Any]
Found = list[tuple[str, int | None, int | None]]
PARTS = (10, [2, 5, 9]), (21, [11, 12])
STATEMENT, OTHER = 3, 7
"""The places of the statements. Their records follow them."""


@pytest.fixture
def keys(log: Log, save: Callable[..., Path]) -> Path:
    """The trusted keys, from another source."""
    return save("keys.json", [log.signer.key()])


@pytest.fixture
def check(save: Callable[..., Path], keys: Path) -> Callable[..., Found]:
    """Return the findings for evidence, with the trusted keys."""

    def run(lines: list[Line], *others: list[Line]) -> Found:
        paths = [save(f"{n}.jsonl", lines_) for n, lines_ in enumerate((lines, *others))]
        report = verify(paths, keys)
        return [(str(one.kind), one.line, one.record) for one in report.findings]

    return run


def test_evidence_is_verified(log: Log, save: Callable[..., Path], keys: Path) -> None:
    """Unchanged evidence verifies, and the report has its query and its records."""
    report = verify([save("evidence.jsonl", log.evidence(*PARTS))], keys)
    assert report.findings == ()
    (portion,) = report.portions
    assert (portion.records, portion.size) == (5, 21)
    assert portion.query == {"operations": ["encrypt"], "outcome": "refused"}


def test_evidence_of_nothing(log: Log, check: Callable[..., Found]) -> None:
    """A statement without matching records is evidence too."""
    assert check(log.evidence((21, []))) == []


def remove(lines: list[Line], log: Log) -> None:
    """Remove a record, and count one less."""
    del lines[STATEMENT + 2]
    lines[-1]["records"] -= 1


def remove_last(lines: list[Line], log: Log) -> None:
    """Remove the last record, and count one less."""
    del lines[-2]
    lines[-1]["records"] -= 1


def add(lines: list[Line], log: Log) -> None:
    """Add a record of the log with its proof, and count one more."""
    lines.insert(STATEMENT + 2, log.line(3, 21))
    lines[-1]["records"] += 1


def invent(lines: list[Line], log: Log) -> None:
    """Add a record that is not in the log."""
    line = log.line(3, 21)
    line["record"]["principal"] = "another"
    lines.insert(STATEMENT + 2, line)
    lines[-1]["records"] += 1


def repeat(lines: list[Line], log: Log) -> None:
    """Put a record in twice."""
    lines.insert(STATEMENT + 2, lines[STATEMENT + 1])
    lines[-1]["records"] += 1


def reorder(lines: list[Line], log: Log) -> None:
    """Swap two records."""
    lines[STATEMENT + 1], lines[STATEMENT + 2] = lines[STATEMENT + 2], lines[STATEMENT + 1]


def move(lines: list[Line], log: Log) -> None:
    """Move a record to another statement."""
    lines.insert(OTHER, lines.pop(STATEMENT + 3))


def edit(lines: list[Line], log: Log) -> None:
    """Edit a record."""
    lines[STATEMENT + 2]["record"]["principal"] = "another"


def edit_proof(lines: list[Line], log: Log) -> None:
    """Edit a record's proof."""
    lines[STATEMENT + 2]["proof"].reverse()


def edit_query(lines: list[Line], log: Log) -> None:
    """Edit the query of one statement."""
    lines[STATEMENT]["statement"]["query"]["outcome"] = "success"


def edit_every_query(lines: list[Line], log: Log) -> None:
    """Edit the query of each statement."""
    for place in (STATEMENT, OTHER):
        lines[place]["statement"]["query"]["outcome"] = "success"


def edit_ids(lines: list[Line], log: Log) -> None:
    """Remove a record, and its entry in the statement."""
    lines[STATEMENT]["statement"]["ids"].remove(5)
    remove(lines, log)


def edit_count(lines: list[Line], log: Log) -> None:
    """Edit the count at the end."""
    lines[-1]["records"] += 1


def remove_statement(lines: list[Line], log: Log) -> None:
    """Remove a statement and its records."""
    del lines[STATEMENT : STATEMENT + 4]
    lines[-1]["records"] -= 3


def remove_last_statement(lines: list[Line], log: Log) -> None:
    """Remove the last statement and its records."""
    del lines[OTHER : OTHER + 3]
    lines[-1]["records"] -= 2


def remove_all_statements(lines: list[Line], log: Log) -> None:
    """Leave the records without a statement."""
    del lines[OTHER], lines[STATEMENT]


def another_query(lines: list[Line], log: Log) -> None:
    """Put in a statement that was signed for another query."""
    lines[OTHER] = log.statement(10, 21, [11, 12], query={"outcome": "success"})


def another_tenant(lines: list[Line], log: Log) -> None:
    """Put in a statement that was signed for one tenant."""
    lines[OTHER] = log.statement(10, 21, [11, 12], tenant_id=log.records[0]["tenant_id"])


def another_tree(lines: list[Line], log: Log) -> None:
    """Put in a statement that was signed for a smaller checkpoint."""
    lines[OTHER] = log.statement(10, 20, [11, 12], size=20)


def cut(lines: list[Line], log: Log) -> None:
    """Take the end line away."""
    del lines[-1]


def edit_tenant(lines: list[Line], log: Log) -> None:
    """Pretend that the evidence is about one tenant."""
    lines[0]["tenant_id"] = log.records[0]["tenant_id"]


S, P = STATEMENT + 1, OTHER + 1
"""The lines of the statements."""
CASES: dict[Callable[[list[Line], Log], None], Found] = {
    remove: [("missing", S, 5)],
    remove_last: [("missing", P, 12)],
    add: [("inserted", S + 2, 3)],
    invent: [("inserted", S + 2, 3)],
    repeat: [("repeated", S + 2, 2)],
    reorder: [("out-of-order", S + 2, 2)],
    move: [("missing", S, 9), ("inserted", P, 9)],
    edit: [("edited", S + 2, 5)],
    edit_proof: [("edited", S + 2, 5)],
    edit_query: [("bad-signature", S, None)],
    edit_every_query: [("bad-signature", S, None), ("bad-signature", P, None)],
    edit_ids: [("bad-signature", S, None)],
    edit_count: [("wrong-count", P + 3, None)],
    remove_statement: [("not-stated", S, 1)],
    remove_last_statement: [("not-stated", P, 11)],
    remove_all_statements: [
        *(
            ("inserted", line, record)
            for line, record in zip(range(S, S + 5), (2, 5, 9, 11, 12), strict=True)
        ),
        ("not-stated", S + 5, 1),
    ],
    another_query: [("another-query", P, None)],
    another_tenant: [("another-query", P, None)],
    another_tree: [("another-query", P, None), ("not-stated", P + 3, 21)],
    cut: [("truncated", P + 2, None)],
}


@pytest.mark.threat("incomplete-evidence")
@pytest.mark.parametrize("change", CASES)
def test_changed_evidence(
    log: Log, check: Callable[..., Found], change: Callable[[list[Line], Log], None]
) -> None:
    """Each change of evidence is found, with its line and its record."""
    lines = log.evidence(*PARTS)
    change(lines, log)
    assert check(lines) == CASES[change]


def test_evidence_of_another_tenant(log: Log, check: Callable[..., Found]) -> None:
    """Evidence of all tenants cannot be shown as evidence of one."""
    lines = log.evidence(*PARTS)
    edit_tenant(lines, log)
    assert {kind for kind, *_ in check(lines)} == {"another-query", "another-tenant"}


def test_a_statement_is_no_checkpoint(
    log: Log, check: Callable[..., Found], new_signer: Callable[[], Signer]
) -> None:
    """A statement by another key, or with a checkpoint's signature, does not verify."""
    lines = log.evidence((21, [2]))
    lines[STATEMENT]["signature"] = lines[2]["signature"]
    assert check(lines) == [("bad-signature", S, None)]
    other = type(log)(new_signer(), log.records).statement(0, 21, [2])
    assert check([*lines[:STATEMENT], other, *lines[OTHER - 3 :]]) == [("bad-signature", S, None)]


@pytest.mark.parametrize(
    "wrong",
    [
        {"ids": [5, 2]},
        {"ids": [2, 2]},
        {"ids": [22]},
        {"ids": [0]},
        {"ids": ["2"]},
        {"ids": [True]},
        {"through": 22},
        {"after": 21},
        {"query": []},
        {"root": "AA=="},
        {"at": "yesterday"},
        {"more": 1},
    ],
    ids=str,
)
def test_malformed_statements(log: Log, check: Callable[..., Found], wrong: Line) -> None:
    """A statement that contradicts itself is malformed, and covers no record."""
    lines = log.evidence((21, [2]))
    lines[STATEMENT] = log.statement(0, 21, [2], **wrong)
    assert check(lines) == [
        ("malformed", S, None),
        ("inserted", S + 1, 2),
        ("not-stated", S + 2, 1),
    ]


def test_a_kept_checkpoint_needs_a_proof(log: Log, check: Callable[..., Found]) -> None:
    """Evidence is connected with a kept checkpoint by a consistency proof, as an export is."""
    lines, kept = log.evidence((21, [2])), log.checkpoint(8)
    assert check(lines, [kept]) == [("not-connected", 1, None)]
    assert check(lines, [kept, log.consistency(8, 21)]) == []
