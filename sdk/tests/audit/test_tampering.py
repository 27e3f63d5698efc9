"""Every manipulation of a log is found, and reported with its kind, record and line."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.sampling import step

from pqkeep.audit import Kind, Report, verify

if TYPE_CHECKING:
    from sdk.tests.audit.conftest import Log, Signer

Line = dict[str, Any]
Save = Callable[..., Path]
Found = list[tuple[str, int | None, int | None]]

FIRST = 4
"""The line of an export's first record."""
ALL_FIELDS = (
    "algorithm",
    "event_id",
    "happened_at",
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
)
OTHERS: Line = {
    "key_version": 2,
    "number": 99,
    "event_id": "00000000-0000-4000-8000-000000000999",
    "happened_at": "2026-11-20T11:59:00.000000Z",
    "recorded_at": "2026-11-20T11:59:00.000000Z",
    "nonce": "0" * 32,
}


def found(report: Report) -> Found:
    """Return kind, line and record of each finding."""
    return [(str(finding.kind), finding.line, finding.record) for finding in report.findings]


def line_of(record: int) -> int:
    """Return the line of a record in a whole export."""
    return FIRST + record - 1


@pytest.fixture
def keys(log: Log, save: Save) -> Path:
    """The trusted keys, from another source."""
    return save("keys.json", [log.signer.key()])


@pytest.fixture
def check(save: Save, keys: Path) -> Callable[..., Found]:
    """Return the findings for an export and other files, with the trusted keys."""

    def run(lines: list[Line], *others: list[Line]) -> Found:
        paths = [save(f"{n}.jsonl", lines_) for n, lines_ in enumerate((lines, *others))]
        return found(verify(paths, keys))

    return run


@pytest.mark.parametrize("record", [1, 7, 16, 21])
@pytest.mark.parametrize("name", ALL_FIELDS)
def test_an_edited_field(log: Log, check: Callable[..., Found], record: int, name: str) -> None:
    """An edited field of a record in a whole export is the only finding."""
    lines = log.export()
    values = lines[line_of(record) - 1]["record"]
    other = OTHERS.get(name, log.records[1]["tenant_id"] if name == "tenant_id" else "another")
    values[name] = other if values[name] != other else log.records[2]["tenant_id"]
    assert check(lines) == [("edited", line_of(record), record)]


@pytest.mark.parametrize("place", [0, 3, 6])
@pytest.mark.parametrize("name", sorted(set(ALL_FIELDS) - {"number"}))
def test_an_edited_field_in_a_tenants_export(
    log: Log, check: Callable[..., Found], place: int, name: str
) -> None:
    """An edited field of a record in a tenant's export is the only finding."""
    lines = log.export(tenant=log.records[0]["tenant_id"])
    values = lines[FIRST - 1 + place]["record"]
    values[name] = OTHERS.get(name, log.records[1]["tenant_id"])
    assert check(lines) == [("edited", FIRST + place, values["id"])]


def test_an_edited_number_in_a_tenants_export(log: Log, check: Callable[..., Found]) -> None:
    """A record with an edited number is not in the log, and its own number is missing."""
    lines = log.export(tenant=log.records[0]["tenant_id"])
    lines[FIRST]["record"]["number"] = 99
    assert check(lines) == [("inserted", FIRST + 1, 4), ("missing", FIRST + 2, None)]


def test_an_edited_id(log: Log, check: Callable[..., Found]) -> None:
    """A record under another record's id is not in the log, and its own id is missing."""
    lines = log.export()
    lines[line_of(7) - 1]["record"]["id"] = 12
    assert check(lines) == [("inserted", line_of(7), 12), ("missing", line_of(8), 7)]


def test_a_forged_proof(log: Log, new_log: Callable[..., Log], check: Callable[..., Found]) -> None:
    """An edited record is found even if its proof fits the root of a forged tree."""
    forged = new_log(21)
    forged.records[6]["outcome"] = "refused"
    forged = type(forged)(log.signer, forged.records)
    lines = log.export()
    lines[line_of(7) - 1] = forged.line(7, 21)
    assert check(lines) == [("edited", line_of(7), 7)]


def test_a_forged_tree(log: Log, new_log: Callable[..., Log], check: Callable[..., Found]) -> None:
    """A newly built tree under the old signature has no signed root."""
    forged = new_log(21, salt="forged")
    lines = forged.export()
    lines[2] = {**log.checkpoint(21), "root": forged.checkpoint(21)["root"]}
    assert check(lines) == [("no-checkpoint", 1, None), ("bad-signature", 3, None)]


def test_an_edited_proof(log: Log, check: Callable[..., Found]) -> None:
    """In a whole export, an edited proof is distinguished from an edited record."""
    lines = log.export()
    steps = lines[line_of(7) - 1]["proof"]
    steps[0], steps[1] = steps[1], steps[0]
    assert check(lines) == [("wrong-proof", line_of(7), 7)]


@pytest.mark.parametrize("change", [lambda p: p[:-1], lambda p: [*p, p[0]], lambda p: []])
def test_a_proof_of_another_length(
    log: Log, check: Callable[..., Found], change: Callable[[list[str]], list[str]]
) -> None:
    """A proof that is too short or too long proves nothing."""
    lines = log.export(tenant=log.records[0]["tenant_id"])
    lines[FIRST]["proof"] = change(lines[FIRST]["proof"])
    assert check(lines) == [("edited", FIRST + 1, 4)]


@pytest.mark.parametrize("record", [1, 7, 20])
def test_a_removed_record(log: Log, check: Callable[..., Found], record: int) -> None:
    """A removed record is reported at the next one, and the count is wrong."""
    lines = log.export()
    del lines[line_of(record) - 1]
    assert check(lines) == [
        ("missing", line_of(record), record),
        ("wrong-count", len(lines), None),
    ]


def test_removed_records(log: Log, save: Save, keys: Path) -> None:
    """Removed records with a corrected count are reported from the first to the last."""
    lines = log.export()
    del lines[line_of(7) - 1 : line_of(10)]
    lines[-1]["records"] = 17
    report = verify([save("export.jsonl", lines)], keys)
    assert [finding.message for finding in report.findings] == ["records 7 to 10 are missing"]


def test_a_removed_record_of_a_tenant(log: Log, save: Save, keys: Path) -> None:
    """In a tenant's export, a missing record is reported by its number."""
    lines = log.export(tenant=log.records[0]["tenant_id"])
    del lines[FIRST]
    lines[-1]["records"] -= 1
    report = verify([save("export.jsonl", lines)], keys)
    assert [finding.message for finding in report.findings] == [
        "the tenant's record number 2 is missing"
    ]


@pytest.mark.parametrize("tenant", [None, 0])
def test_swapped_records(log: Log, check: Callable[..., Found], tenant: int | None) -> None:
    """Of two swapped records, the later one is out of order."""
    lines = log.export(tenant=None if tenant is None else log.records[tenant]["tenant_id"])
    lines[FIRST], lines[FIRST + 1] = lines[FIRST + 1], lines[FIRST]
    late = lines[FIRST + 1]["record"]["id"]
    assert check(lines) == [("out-of-order", FIRST + 2, late)]


@pytest.mark.parametrize("tenant", [None, 0])
def test_a_repeated_record(log: Log, check: Callable[..., Found], tenant: int | None) -> None:
    """A duplicated record is reported as repeated."""
    lines = log.export(tenant=None if tenant is None else log.records[tenant]["tenant_id"])
    lines.insert(FIRST + 2, lines[FIRST])
    lines[-1]["records"] += 1
    assert check(lines) == [("repeated", FIRST + 3, lines[FIRST]["record"]["id"])]


@pytest.mark.parametrize("shift", [0, 1], ids=["before", "after"])
def test_an_inserted_record(log: Log, check: Callable[..., Found], shift: int) -> None:
    """A forged record before or after the true one is reported as inserted."""
    lines = log.export()
    forged = log.line(7, 21)
    forged["record"]["principal"] = "api-key:2"
    at = line_of(7) - 1 + shift
    lines.insert(at, forged)
    lines[-1]["records"] += 1
    assert check(lines) == [("inserted", at + 1, 7)]


def test_an_appended_record(log: Log, new_log: Callable[..., Log], check: Any) -> None:
    """A record beyond the export's size is reported as inserted."""
    lines = log.export()
    lines.insert(-1, new_log(22).line(22, 22))
    lines[-1]["records"] += 1
    assert check(lines) == [("inserted", line_of(22), 22)]


def test_a_record_of_another_tenant(log: Log, check: Callable[..., Found]) -> None:
    """Another tenant's record in a tenant's export is reported, even if it is in the log."""
    lines = log.export(tenant=log.records[0]["tenant_id"])
    lines.insert(FIRST, log.line(2, 21))
    lines[-1]["records"] += 1
    assert check(lines) == [("another-tenant", FIRST + 1, 2)]


def test_the_end_cut_off(log: Log, save: Save, keys: Path) -> None:
    """A truncated file is reported; of a whole export, also its missing records."""
    lines = log.export()[: line_of(18)]
    report = verify([save("export.jsonl", lines)], keys)
    assert found(report) == [("truncated", line_of(18), None), ("truncated", line_of(18), 19)]
    assert report.findings[1].message == "the log has 21 records, and records 19 to 21 are missing"


def test_the_end_cut_off_neatly(log: Log, check: Callable[..., Found]) -> None:
    """A whole export that ends early is found, even with an end line of the right count."""
    lines = log.export()
    del lines[line_of(18) : -1]
    lines[-1]["records"] = 18
    assert check(lines) == [("truncated", len(lines), 19)]


def test_cut_within_a_line(log: Log, save: Save, keys: Path) -> None:
    """A file that ends within a record is reported with the line and the record."""
    path = save("export.jsonl", log.export()[: line_of(21)])
    path.write_bytes(path.read_bytes()[:-100])
    assert found(verify([path], keys)) == [
        ("no-json", line_of(21), None),
        ("truncated", line_of(21), None),
        ("truncated", line_of(21), 21),
    ]


@pytest.mark.parametrize("name", ["root", "at", "signature", "size"])
def test_a_changed_checkpoint(log: Log, check: Callable[..., Found], name: str) -> None:
    """A checkpoint with any change has an invalid signature, and proves nothing."""
    lines = log.export()
    lines[2][name] = {**log.checkpoint(20), "signature": log.checkpoint(21)["signature"]}[name]
    if name == "signature":
        lines[2][name] = log.checkpoint(20)["signature"]
    assert check(lines) == [("no-checkpoint", 1, None), ("bad-signature", 3, None)]


@pytest.mark.parametrize("size", [21, 13], ids=["same size", "older"])
def test_a_fork(log: Log, new_log: Callable[..., Log], check: Any, size: int) -> None:
    """Two signed roots of one size are a fork."""
    other = new_log(size, salt="fork").checkpoint(size)
    assert check(log.export(), [log.checkpoint(size)], [other]) == [("fork", 1, None)]


@pytest.mark.threat("stolen-root-key")
@pytest.mark.parametrize("size", [1, 13, 20])
def test_a_checkpoint_that_does_not_fit(
    log: Log, new_log: Callable[..., Log], check: Any, size: int
) -> None:
    """A signed checkpoint of another history contradicts a whole export."""
    kept = new_log(size, salt="history").checkpoint(size)
    assert check(log.export(), [kept]) == [("not-continued", 1, None)]


def test_a_checkpoint_that_does_not_fit_was_compared(
    log: Log, new_log: Callable[..., Log], save: Save, keys: Path
) -> None:
    """A contradicted checkpoint has no note that it was not compared."""
    kept = save("kept.jsonl", [new_log(13, salt="history").checkpoint(13)])
    assert verify([save("export.jsonl", log.export()), kept], keys).notes == ()


def test_a_checkpoint_beside_a_damaged_export(log: Log, save: Save, keys: Path) -> None:
    """With wrong records, a note says that a trusted checkpoint was not compared."""
    lines = log.export()
    lines[line_of(7) - 1]["record"]["outcome"] = "refused"
    kept = save("kept.jsonl", [log.checkpoint(5), log.checkpoint(13)])
    report = verify([save("export.jsonl", lines), kept], keys)
    assert found(report) == [("edited", line_of(7), 7)]
    assert len(report.notes) == 1
    assert report.notes[0].startswith(f"{kept}:2: the checkpoint of size 13 was not compared")


def test_a_fork_beside_an_export(log: Log, new_log: Callable[..., Log], check: Any) -> None:
    """An export is compared with its own checkpoint, even if another checkpoint comes first."""
    other = new_log(21, salt="fork").checkpoint(21)
    assert check([other], log.export()) == [("fork", 3, None)]


def test_an_older_checkpoint_in_an_export(log: Log, save: Save, keys: Path) -> None:
    """An old checkpoint without a proof is a note if only the export has it.

    Otherwise it is a finding.
    """
    lines = log.export(log.checkpoint(13), tenant=log.records[0]["tenant_id"])
    export, kept = save("export.jsonl", lines), save("kept.jsonl", [log.checkpoint(13)])
    alone, beside = verify([export], keys), verify([export, kept], keys)
    assert alone.is_verified
    assert "no proof of consistency" in alone.notes[0]
    assert found(beside) == [("not-connected", 4, None)]


def test_a_checkpoint_that_does_not_fit_a_tenant(
    log: Log, new_log: Callable[..., Log], check: Any
) -> None:
    """No valid proof connects a checkpoint of another history with a tenant's export."""
    other = new_log(13, salt="history")
    kept = [other.checkpoint(13), log.consistency(13, 21)]
    lines = log.export(tenant=log.records[0]["tenant_id"])
    assert check(lines, kept) == [("not-connected", 1, None), ("bad-consistency", 2, None)]


def test_a_checkpoint_without_a_proof(log: Log, save: Save, keys: Path) -> None:
    """A trusted checkpoint without a proof to a tenant's export is a finding with advice."""
    export = save("export.jsonl", log.export(tenant=log.records[0]["tenant_id"]))
    report = verify([export, save("kept.jsonl", [log.checkpoint(13)])], keys)
    assert found(report) == [("not-connected", 1, None)]
    assert "/api/v1/audit/consistency?first=13&second=21" in report.findings[0].message


@pytest.mark.parametrize("first", range(1, 21))
def test_an_edited_consistency_proof(log: Log, check: Callable[..., Found], first: int) -> None:
    """A consistency proof with a changed, missing or additional step proves nothing."""
    good = log.consistency(first, 21)
    lines = log.export(tenant=log.records[0]["tenant_id"])
    path = good["path"]
    other = log.checkpoint(21)["root"]
    changed = [[*path[:n], other, *path[n + 1 :]] for n in range(len(path))]
    for bad in [*changed, path[:-1], [*path, other], path[1:], []]:
        kept = [log.checkpoint(first), {**good, "path": bad}]
        assert check(lines, kept) == [("not-connected", 1, None), ("bad-consistency", 2, None)]


def test_a_kept_proof_without_its_checkpoints(log: Log, save: Save, keys: Path) -> None:
    """A note names a saved proof without matching checkpoints: it was not verified."""
    proof = save("proof.jsonl", [log.consistency(5, 19)])
    report = verify([save("export.jsonl", log.export()), proof], keys)
    assert report.is_verified
    (note,) = report.notes
    assert note.startswith(f"{proof}:1: ")
    assert note.endswith("which was not verified")


@pytest.mark.parametrize("kind", ["keys", "proof", "both"])
def test_nothing_that_is_verified(log: Log, save: Save, keys: Path, kind: str) -> None:
    """Files without an export and a checkpoint are not reported as verified."""
    lines = {"keys": [log.signer.key()], "proof": [log.consistency(5, 9)]}
    lines["both"] = [*lines["keys"], *lines["proof"]]
    report = verify([save("kept.jsonl", lines[kind])], keys)
    assert [finding.kind for finding in report.findings] == ["nothing"]


def test_a_proof_without_its_checkpoints(log: Log, check: Callable[..., Found]) -> None:
    """A consistency proof in an export counts only together with both of its checkpoints."""
    assert check(log.export(log.consistency(5, 21))) == [("bad-consistency", 4, None)]


def test_another_log(log: Log, new_log: Callable[..., Log], check: Callable[..., Found]) -> None:
    """The export of another log is reported, even if the same keys signed it."""
    other = new_log(21, log_id="0b9f8d5e-3f7c-4a55-9d0e-6f6d1f2f9c11")
    assert check(log.export(), other.export()) == [("another-log", 1, None)]


def test_another_log_s_keys(
    log: Log, new_log: Callable[..., Log], new_signer: Callable[[], Signer], check: Any
) -> None:
    """Keys and proofs in another log's export do not count against this log."""
    other = new_log(21, log_id="0b9f8d5e-3f7c-4a55-9d0e-6f6d1f2f9c11", by=new_signer())
    foreign = other.export(other.checkpoint(9), other.consistency(9, 21))
    assert check(log.export(), foreign) == [("another-log", 1, None)]


def test_another_log_than_the_keys(log: Log, new_log: Callable[..., Log], save: Save) -> None:
    """Trusted keys name their log: the export of another log is a finding."""
    other = new_log(21, log_id="0b9f8d5e-3f7c-4a55-9d0e-6f6d1f2f9c11")
    keys = save("keys.json", [{"data": {"log_id": log.log_id, "keys": [log.signer.key()]}}])
    report = verify([save("export.jsonl", other.export())], keys)
    assert found(report) == [("another-log", 1, None)]


def test_the_attackers_key(
    new_log: Callable[..., Log], new_signer: Callable[[], Signer], check: Any
) -> None:
    """A newly built log with the attacker's signature fails against the trusted keys."""
    forged = new_log(21, salt="forged", by=new_signer())
    assert check(forged.export()) == [
        ("no-checkpoint", 1, None),
        ("replaced-key", 2, None),
        ("bad-signature", 3, None),
    ]


def test_the_attackers_key_without_kept_ones(
    new_log: Callable[..., Log], new_signer: Callable[[], Signer], save: Save
) -> None:
    """Without trusted keys the same forgery passes, and the report says that no key was trusted."""
    forged = new_log(21, salt="forged", by=new_signer())
    report = verify([save("export.jsonl", forged.export())])
    assert (report.is_verified, report.are_keys_trusted) == (True, False)


def test_another_key_in_another_file(
    log: Log, new_log: Callable[..., Log], new_signer: Callable[[], Signer], save: Save
) -> None:
    """Two files with different keys of one name are found without trusted keys."""
    forged = new_log(21, by=new_signer())
    paths = [save("one.jsonl", log.export()), save("two.jsonl", forged.export())]
    kinds = {finding.kind for finding in verify(paths).findings}
    assert Kind.REPLACED_KEY in kinds


def test_an_unknown_key(log: Log, check: Callable[..., Found]) -> None:
    """A checkpoint by an unknown key version is not accepted."""
    lines = log.export()
    lines[2]["key_version"] = 2
    assert check(lines) == [("no-checkpoint", 1, None), ("unknown-key", 3, None)]


def test_keys_that_are_none(log: Log, save: Save) -> None:
    """An empty file of keys is a finding, and so is that nothing could be verified."""
    report = verify([save("export.jsonl", log.export())], save("keys.json", [log.checkpoint(3)]))
    kinds = [finding.kind for finding in report.findings]
    assert kinds == [Kind.NO_KEYS, Kind.NO_CHECKPOINT, Kind.UNKNOWN_KEY]


def test_a_number_given_twice(log: Log, new_log: Callable[..., Log], check: Any) -> None:
    """A log with one tenant number for two signed records is found."""
    records = new_log(21).records
    records[3]["number"] = 1
    bad = type(log)(log.signer, records)
    whole, tenant = bad.export(), bad.export(tenant=records[0]["tenant_id"])
    assert ("wrong-number", line_of(4), 4) in check(whole)
    assert ("wrong-number", FIRST + 1, 4) in check(tenant)


@pytest.mark.parametrize("is_sorted", [False, True], ids=["by id", "by number"])
def test_numbers_against_ids(
    log: Log, new_log: Callable[..., Log], check: Any, *, is_sorted: bool
) -> None:
    """A log with numbers out of the order of its ids is found, in any order of records."""
    records = new_log(21).records
    records[0]["number"], records[3]["number"] = 2, 1
    lines = type(log)(log.signer, records).export(tenant=records[0]["tenant_id"])
    if is_sorted:
        lines[FIRST - 1], lines[FIRST] = lines[FIRST], lines[FIRST - 1]
    assert check(lines) == [("wrong-number", FIRST + 1, 1 if is_sorted else 4)]


def test_records_without_a_root(log: Log, check: Callable[..., Found]) -> None:
    """Without a signed root, a record without a proof is not accepted."""
    lines = log.export()
    lines[2]["root"] = log.checkpoint(20)["root"]
    for line in lines[3:-1]:
        line["proof"] = []
    kinds = [kind for kind, _, _ in check(lines)]
    assert kinds == ["no-checkpoint", "bad-signature", *(21 * ["edited"])]


def test_a_key_of_another_size(log: Log, check: Callable[..., Found]) -> None:
    """A key of the wrong size is malformed."""
    lines = log.export()
    lines[1]["public_key"] = lines[1]["public_key"][:40]
    assert check(lines) == [("malformed", 2, None)]


def test_a_thousand_findings(new_log: Callable[..., Log], save: Save, keys: Path) -> None:
    """At most a thousand findings are listed; the others are counted."""
    lines = new_log(1_200).export()
    for line in lines[3:-1]:
        line["record"]["outcome"] = "refused"
    report = verify([save("export.jsonl", lines)], keys)
    assert len(report.findings) == 1_000
    assert report.further == 200


def _stray_bits(text: str) -> str:
    """Return a line with another base64 text of its first hash: 32 bytes leave two unused bits."""
    at = text.index('="')
    alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
    return text[: at - 1] + alphabet[alphabet.index(text[at - 1]) + 1] + text[at:]


MALFORMED: list[tuple[str, Callable[[str], str]]] = [
    ("no JSON", lambda text: text[:-1]),
    ("two values", lambda text: text + "{}"),
    ("a list", lambda text: f"[{text}]"),
    ("a fraction", lambda text: text.replace('"id":7', '"id":7.0')),
    ("an exponent", lambda text: text.replace('"id":7', '"id":7e0')),
    ("text for a number", lambda text: text.replace('"id":7', '"id":"7"')),
    ("true for a number", lambda text: text.replace('"key_version":1', '"key_version":true')),
    ("a huge number", lambda text: text.replace('"id":7', '"id":' + "7" * 5000)),
    ("a large number", lambda text: text.replace('"id":7', '"id":9223372036854775808')),
    ("not a number", lambda text: text.replace('"id":7', '"id":NaN')),
    ("a name twice", lambda text: text.replace('"id":7', '"id":7,"id":7')),
    ("a name too many", lambda text: text.replace('"id":7', '"id":7,"note":""')),
    ("a name too few", lambda text: text.replace('"id":7,', "")),
    ("a name beside it", lambda text: text.replace('"record":', '"note":"","record":')),
    ("no record", lambda text: '{"type":"record"}'),
    ("a null record", lambda text: '{"type":"record","record":null,"proof":[]}'),
    ("half a surrogate pair", lambda text: text.replace("order-7", r"\ud800")),
    ("deeply nested", lambda text: '{"type":"record","record":' + "[" * 100_000),
    ("another type", lambda text: text.replace('"record"', '"rekord"', 1)),
    ("a type that is no text", lambda text: text.replace('"type":"record"', '"type":[]')),
    ("a short hash", lambda text: text.replace('"proof":["', '"proof":["QUJD","')),
    ("stray bits", _stray_bits),
    ("no base64", lambda text: text.replace('"proof":["', '"proof":["!!!!","')),
    ("null in a proof", lambda text: text.replace('"proof":["', '"proof":[null,"')),
    (
        "an endless proof",
        lambda text: '{"type":"record","record":{},"proof":[' + "1," * 999 + "1]}",
    ),
    ("another time", lambda text: text.replace("000000Z", "000Z")),
    ("no time", lambda text: text.replace("-20T", "-31T")),
]


@pytest.mark.parametrize("change", [c for _, c in MALFORMED], ids=[n for n, _ in MALFORMED])
def test_a_malformed_record(log: Log, save: Save, keys: Path, change: Callable[[str], str]) -> None:
    """A malformed record's line is reported, and its record is missing."""
    path = save("export.jsonl", log.export())
    lines = path.read_text().split("\n")
    at = line_of(7) - 1
    assert change(lines[at]) != lines[at]
    lines[at] = change(lines[at])
    path.write_text("\n".join(lines))
    report = found(verify([path], keys))
    assert report[0][:2] in [("malformed", at + 1), ("no-json", at + 1)]
    assert ("missing", at + 2, 7) in report


@pytest.mark.parametrize("line", range(3))
@pytest.mark.parametrize("bad", [0, None, [], "", {}, -1, 2**63, True, "x", ["x"]], ids=repr)
def test_malformed_heads(log: Log, save: Save, keys: Path, line: int, bad: object) -> None:
    """Any error in a header, key or checkpoint is a finding, never an exception."""
    for name in log.export()[line]:
        if name == "tenant_id" and bad is None:
            continue
        lines = log.export()
        lines[line][name] = bad
        report = verify([save("export.jsonl", lines)], keys)
        assert not report.is_verified, name


@pytest.mark.parametrize(
    "time", ["2026-99-99T00:00:00.000000Z", "2026-11-20T23:59:60.000000Z", "0000-01-01T00:00:00Z"]
)
def test_times_that_are_none(log: Log, check: Callable[..., Found], time: str) -> None:
    """An impossible time is malformed, also where another time is compared with it."""
    lines = log.export(size=10)
    lines[2]["at"] = time
    assert ("malformed", 3, None) in check(lines, [log.checkpoint(21)])


def test_a_checkpoint_of_the_last_moment(log: Log, save: Save, keys: Path) -> None:
    """A checkpoint at the last possible time is newer than an export."""
    kept = [log.checkpoint(21, at="9999-12-31T23:59:59.999999Z")]
    paths = [save("export.jsonl", log.export(size=10)), save("kept.jsonl", kept)]
    report = verify(paths, keys)
    assert report.is_verified
    (note,) = report.notes
    assert "is newer than the export" in note


def test_two_exports_in_one_file(log: Log, check: Callable[..., Found]) -> None:
    """Lines after the end of an export are refused, even if they are an export."""
    report = check([*log.export(), *log.export()])
    assert report[0] == ("malformed", 26, None)


def test_an_export_without_its_header(log: Log, check: Callable[..., Found]) -> None:
    """Records without an export's header are not accepted as saved statements."""
    assert check(log.export()[1:]) == [("malformed", 3, None)]


def test_bytes_that_are_no_text(log: Log, save: Save, keys: Path) -> None:
    """Bytes that are not UTF-8 are a finding at their line."""
    path = save("export.jsonl", log.export())
    path.write_bytes(path.read_bytes().replace(b"order-7", b"order-\xff"))
    assert found(verify([path], keys))[0] == ("no-json", line_of(7), None)


def test_an_endless_line(log: Log, save: Save, keys: Path) -> None:
    """A line of more than 16 MiB is a finding. Later lines are still read."""
    path = save("export.jsonl", log.export())
    lines = path.read_bytes().split(b"\n")
    lines[line_of(7) - 1] += b" " * (40 * 1024 * 1024)
    path.write_bytes(b"\n".join(lines))
    assert found(verify([path], keys)) == [
        ("malformed", line_of(7), None),
        ("missing", line_of(8), 7),
    ]


@pytest.fixture(scope="module")
def exports(log: Log, tmp_path_factory: pytest.TempPathFactory) -> list[bytes]:
    """A whole export and a tenant's, with an older checkpoint and its proof, as bytes."""
    older = log.checkpoint(13), log.consistency(13, 21)
    files = [log.export(*older), log.export(*older, tenant=log.records[0]["tenant_id"])]
    return [
        b"".join(json.dumps(line, ensure_ascii=False).encode() + b"\n" for line in lines)
        for lines in files
    ]


@settings(
    max_examples=600 // step(6),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(which=st.integers(0, 1), at=st.integers(0), byte=st.integers(0, 255))
def test_any_byte(
    exports: list[bytes], tmp_path: Path, keys: Path, which: int, at: int, byte: int
) -> None:
    """A file with any changed byte is refused, or proves exactly the same facts."""
    path = tmp_path / "export.jsonl"
    content = bytearray(exports[which])
    path.write_bytes(content)
    before = verify([path], keys)
    assert before.is_verified
    content[at % len(content)] = byte
    path.write_bytes(content)
    after = verify([path], keys)
    assert after == before or not after.is_verified


@settings(
    max_examples=300 // step(6),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(content=st.binary() | st.text().map(str.encode))
def test_any_file(tmp_path: Path, keys: Path, content: bytes) -> None:
    """No file makes verification raise an exception, and no wrong file is verified."""
    path = tmp_path / "file"
    path.write_bytes(content)
    assert not verify([path], keys).is_verified
    assert not verify([keys], path).is_verified


@pytest.mark.parametrize("opening", ['{"data":', "[", '{"type":', '{"data":{"checkpoints":['])
@pytest.mark.parametrize("depth", [2, 100, 300, 480, 900, 1_000, 100_000])
def test_nesting(tmp_path: Path, keys: Path, opening: str, depth: int) -> None:
    """Any depth of nesting is a finding."""
    closing = "".join(
        {"{": "}", "[": "]"}[bracket] for bracket in reversed(opening) if bracket in "{["
    )
    path = tmp_path / "file"
    path.write_text(opening * depth + "1" + closing * depth)
    assert not verify([path], keys).is_verified
    assert not verify([keys], path).is_verified


@settings(max_examples=400 // step(8), deadline=None)
@given(st.data())
def test_any_choice_of_lines(
    log: Log, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """Of all selections from an export's records, only all records in order verify."""
    _check_choice(log.export(), tmp_path_factory.mktemp("choice"), data, is_whole=True)


@settings(max_examples=400 // step(8), deadline=None)
@given(st.data())
def test_any_choice_of_a_tenants_lines(
    log: Log, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """Of all selections from a tenant's records, only the first records in order verify."""
    lines = log.export(tenant=log.records[0]["tenant_id"])
    _check_choice(lines, tmp_path_factory.mktemp("choice"), data, is_whole=False)


def _check_choice(lines: list[Line], folder: Path, data: st.DataObject, *, is_whole: bool) -> None:
    records = lines[FIRST - 1 : -1]
    numbers = range(len(records))
    first = data.draw(st.sampled_from(numbers))
    chosen = data.draw(
        st.permutations(numbers)
        | st.lists(st.sampled_from(numbers))
        | st.lists(st.sampled_from(numbers), max_size=2).map(lambda more: [*numbers, *more])
        | st.just([n for n in numbers if n != first])
        | st.just([*numbers[:first]])
    )
    end = {"type": "end", "records": len(chosen)}
    written = [*lines[: FIRST - 1], *(records[n] for n in chosen), end]
    path = folder / "export.jsonl"
    path.write_text("".join(f"{json.dumps(line)}\n" for line in written))
    is_right = chosen == list(numbers[: None if is_whole else len(chosen)])
    assert verify([path]).is_verified == is_right


@pytest.mark.threat("keys-database-rollback")
def test_log_cut_back(log: Log, save: Save, keys: Path) -> None:
    """A log that was cut back to an earlier checkpoint contradicts a later trusted checkpoint."""
    kept = save("kept.jsonl", [log.checkpoint(21)])
    report = verify([save("export.jsonl", log.export(size=13)), kept], keys)
    assert found(report) == [("truncated", 1, None)]
    assert "had 21 records" in report.findings[0].message
