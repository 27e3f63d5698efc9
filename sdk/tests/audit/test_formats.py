"""Records are verified by their format's rules; records of an unknown format are not verified."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pqkeep.audit import Report, verify
from pqkeep.audit._formats import FORMAT_1, FORMATS, Formats, MalformedError, canonical
from pqkeep.audit._statements import Entry, read_line
from pqkeep.audit._verification import verify_formats

if TYPE_CHECKING:
    from sdk.tests.audit.conftest import Log

Line = dict[str, Any]
Save = Callable[..., Path]

VECTORS = Path(__file__).parents[3] / "tests" / "vectors" / "audit-records.json"
KNOWN = json.loads(VECTORS.read_text())["records"]
LATER: Formats = {**FORMATS, 2: {**FORMAT_1, "region": lambda value: type(value) is str}}
"""A table with one more format, as in a later version."""
FIRST_LATER = 11
"""The first record of the later format."""


@pytest.fixture
def mixed(log: Log) -> Log:
    """A log with first records in format 1, and later records in a later format."""
    later = [
        {**record, "format": 2, "region": "eu"} if record["id"] >= FIRST_LATER else record
        for record in log.records
    ]
    return type(log)(log.signer, later)


@pytest.fixture
def keys(log: Log, save: Save) -> Path:
    """The trusted keys, from another source."""
    return save("keys.json", [log.signer.key()])


def found(report: Report) -> list[tuple[str, int | None]]:
    """Return kind and record of each finding."""
    return [(str(finding.kind), finding.record) for finding in report.findings]


@pytest.mark.parametrize("known", KNOWN, ids=lambda known: json.loads(known["text"])["operation"])
def test_the_text_and_the_leaf_of_each_format(known: Line) -> None:
    """A record of a format has this text and this leaf, for ever."""
    record = json.loads(known["text"])
    assert record["format"] in FORMATS
    assert canonical(record).decode() == known["text"]
    entry = read_line({"type": "record", "record": record, "proof": []})
    assert isinstance(entry, Entry)
    assert entry.leaf.hex() == known["leaf"]


@pytest.mark.parametrize("tenant", [None, 0, 1, 2], ids=["whole", "first", "second", "third"])
def test_two_formats_in_one_log(
    mixed: Log, log: Log, save: Save, keys: Path, tenant: int | None
) -> None:
    """A verifier that knows both formats verifies a log that has both."""
    whose = None if tenant is None else log.records[tenant]["tenant_id"]
    before = [log.checkpoint(10), mixed.consistency(10, 21)]
    paths = [save("export.jsonl", mixed.export(tenant=whose)), save("before.jsonl", before)]
    report = verify_formats(LATER, paths, keys)
    assert (report.findings, report.notes) == ((), ())
    assert report.is_verified
    assert report.portions[0].records == (21 if whose is None else 7)


def test_the_first_records_are_what_they_were(log: Log, mixed: Log, save: Save, keys: Path) -> None:
    """Adding a format does not change earlier records: they verify without it."""
    assert mixed.root(10) == log.root(10)
    assert mixed.root(11) != log.root(11)
    assert verify([save("export.jsonl", mixed.export(size=10))], keys).is_verified


@pytest.mark.parametrize("tenant", [None, 0], ids=["whole", "tenant"])
def test_a_format_that_is_not_known(
    mixed: Log, log: Log, save: Save, keys: Path, tenant: int | None
) -> None:
    """Each record of an unknown format is found in the log, and is a finding."""
    whose = None if tenant is None else log.records[tenant]["tenant_id"]
    report = verify([save("export.jsonl", mixed.export(tenant=whose))], keys)
    later = [
        record["id"]
        for record in mixed.records
        if record["format"] == 2 and whose in (None, record["tenant_id"])
    ]
    assert found(report) == [("unknown-format", record) for record in later]
    assert not report.is_verified
    assert report.findings[0].message == (
        f"record {later[0]} has format 2, which this version does not know:"
        " upgrade pqkeep to verify what it says"
    )


def test_a_format_that_is_not_known_hides_nothing(log: Log, save: Save, keys: Path) -> None:
    """An unknown format hides no edited record, and no edit of the neighbouring records."""
    lines = log.export()
    lines[9]["record"] |= {"format": 99, "outcome": "edited"}
    lines[12]["record"]["outcome"] = "edited"
    del lines[15]
    assert found(verify([save("export.jsonl", lines)], keys)) == [
        ("edited", 7),
        ("edited", 10),
        ("missing", 13),
        ("wrong-count", None),
    ]


@pytest.mark.parametrize("tenant", [None, 2], ids=["whole", "tenant"])
def test_an_edited_record_of_an_unknown_format(
    mixed: Log, save: Save, keys: Path, tenant: int | None
) -> None:
    """A record of an unknown format with a wrong proof is reported as edited."""
    whose = None if tenant is None else mixed.records[tenant]["tenant_id"]
    lines = mixed.export(size=12, tenant=whose)
    lines[-2]["record"]["region"] = "us"
    others = [("unknown-format", 11)] if whose is None else []
    report = verify([save("export.jsonl", lines)], keys)
    assert found(report) == [*others, ("edited", 12)]


def test_an_unknown_format_hides_no_other_history(mixed: Log, save: Save, keys: Path) -> None:
    """A whole export with records of an unknown format is compared with every trusted checkpoint."""
    paths = [save("export.jsonl", mixed.export()), save("kept.jsonl", [mixed.checkpoint(15)])]
    report = verify(paths, keys)
    assert {kind for kind, _ in found(report)} == {"unknown-format"}
    assert report.notes == ()


def test_a_value_that_is_nested_too_deeply() -> None:
    """A value that is nested too deeply in a record of an unknown format is malformed."""
    value: object = []
    for _ in range(100_000):
        value = [value]
    with pytest.raises(MalformedError):
        canonical(value)


def test_a_field_of_the_later_format_is_hashed(mixed: Log, save: Save, keys: Path) -> None:
    """A field that only the later format has cannot be edited unnoticed either."""
    lines = mixed.export()
    lines[17]["record"]["region"] = "us"
    report = verify_formats(LATER, [save("export.jsonl", lines)], keys)
    assert found(report) == [("edited", 15)]


@pytest.mark.parametrize(
    ("record", "change"),
    [
        (5, {"region": "eu"}),
        (5, {"format": 2}),
        (15, {"format": 1}),
        (15, {"region": 5}),
        (15, {"format": 0}),
        (15, {"format": "1"}),
        (15, {"format": True}),
        (15, {"format": None}),
        (15, {"format": 99, "id": None}),
        (15, {"format": 99, "number": "x"}),
        (15, {"format": 99, "tenant_id": None}),
        (15, {"format": 99, "recorded_at": "yesterday"}),
    ],
)
def test_a_record_has_the_names_of_its_format(
    mixed: Log, save: Save, keys: Path, record: int, change: Line
) -> None:
    """A record with the fields of another format, or without a format, is malformed."""
    lines = mixed.export()
    lines[2 + record]["record"] |= change
    report = verify_formats(LATER, [save("export.jsonl", lines)], keys)
    assert [str(finding.kind) for finding in report.findings] == ["malformed", "missing"]
    assert report.findings[0].line == 3 + record
