"""A restored log and the log that it continues are verified together."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from sdk.tests.audit.conftest import LOG_ID, Line, Log, Signer

from pqkeep.audit import Continued, Kind, verify
from pqkeep.audit._statements import Succession, read_line

Save = Callable[..., Path]
NEW_ID = "00000000-0000-4000-8000-0000000000c8"
BACKED_UP, SIGNED = 15, 13
"""The number of records in the backup. Its last checkpoint covers them."""
FIRST_VERSION = 1_000_001
VECTOR: dict[str, Any] = json.loads(
    (Path(__file__).parents[3] / "tests" / "vectors" / "audit-succession.json").read_text()
)


class NewSigner(Signer):
    """The keys of a log that continues another log."""

    version = FIRST_VERSION


def succession_of(old: Log, **changes: object) -> Line:
    """Return the record by which a log continues another log."""
    return {
        **copy.deepcopy(old.records[0]),
        "id": BACKED_UP + 1,
        "number": 1,
        "tenant_id": "00000000-0000-0000-0000-000000000000",
        "operation": "continue-log",
        "outcome": "success",
        "request_id": old.log_id,
        "policy": f"checkpoint-{SIGNED}-{old.root(SIGNED).hex()}",
        "key_version": FIRST_VERSION,
        **changes,
    }


def continued(old: Log, record: Line, inherited: list[Line] | None = None) -> Log:
    """Return a log that continues another after a backup, with two new records."""
    records = copy.deepcopy(old.records[:BACKED_UP] if inherited is None else inherited)
    last = records[-1]
    later = [
        {**copy.deepcopy(last), "id": BACKED_UP + n, "number": last["number"] + n - 1}
        for n in (2, 3)
    ]
    return Log(NewSigner(), [*records, record, *later], NEW_ID)


@pytest.fixture
def new(log: Log) -> Log:
    """The log after a restore."""
    return continued(log, succession_of(log))


def exported(new: Log, old: Log, tenant: str | None = None) -> list[Line]:
    """Return an export as the service makes it after a restore."""
    size = len(new)
    proof = new.line(BACKED_UP + 1, size)
    return new.export(
        old.signer.key(),
        {**proof, "type": "succession"},
        new.consistency(SIGNED, size),
        tenant=tenant,
    )


@pytest.fixture
def keys(log: Log, new: Log, save: Save) -> Path:
    """The keys of both logs."""
    return save("keys.json", [log.signer.key(), new.signer.key()])


@pytest.mark.parametrize("size", [0, 1, SIGNED, SIGNED + 1, BACKED_UP])
@pytest.mark.parametrize("is_whole", [True, False])
def test_a_kept_checkpoint_of_the_old_log(
    log: Log, new: Log, save: Save, keys: Path, size: int, *, is_whole: bool
) -> None:
    """An old log's checkpoint verifies with the new log, and the report names the continued log."""
    tenant = None if is_whole else log.records[1]["tenant_id"]
    kept = save("kept.jsonl", [log.checkpoint(size), new.consistency(size, len(new))])
    report = verify([kept, save("export.jsonl", exported(new, log, tenant))], keys)
    assert report.findings == ()
    assert report.notes == ()
    assert report.log_id == NEW_ID
    assert report.continued == (Continued(LOG_ID, BACKED_UP, 0),)


def test_records_that_are_lost(log: Log, new: Log, save: Save, keys: Path) -> None:
    """Records that the old log signed after the backup are counted, and are not a fork."""
    kept = save("kept.jsonl", [log.checkpoint(BACKED_UP + 1), log.checkpoint(21)])
    old = save("old.jsonl", log.export())
    report = verify([save("export.jsonl", exported(new, log)), kept, old], keys)
    assert report.findings == ()
    assert report.continued == (Continued(LOG_ID, BACKED_UP, 21 - BACKED_UP),)
    (note,) = report.notes
    assert "records 16 to 21 are lost" in note


def test_an_old_log_of_two_histories(log: Log, new: Log, save: Save, keys: Path) -> None:
    """Two roots of one size are a fork, also in a predecessor of a log."""
    forked = log.checkpoint(21, root=sha256(b"another").digest())
    kept = save("kept.jsonl", [log.checkpoint(21), forked])
    report = verify([save("export.jsonl", exported(new, log)), kept], keys)
    assert [finding.kind for finding in report.findings] == [Kind.FORK]


def edited(log: Log) -> list[Line]:
    """Return the backed-up records, with an earlier one changed."""
    records = copy.deepcopy(log.records[:BACKED_UP])
    records[2]["outcome"] = "decryption-failed"
    return records


@pytest.mark.parametrize("is_whole", [True, False])
def test_a_log_that_does_not_continue_what_it_names(
    log: Log, save: Save, *, is_whole: bool
) -> None:
    """The succession is refused if the old log did not sign the same earlier records."""
    forged = continued(log, succession_of(log), edited(log))
    tenant = None if is_whole else log.records[1]["tenant_id"]
    report = verify([save("export.jsonl", exported(forged, log, tenant))])
    assert Kind.BAD_SUCCESSION in {finding.kind for finding in report.findings}


def test_a_succession_that_is_not_in_the_log(log: Log, new: Log, save: Save, keys: Path) -> None:
    """A record that names another log counts only with a proof of its inclusion."""
    lines = exported(new, log)
    index = next(n for n, line in enumerate(lines) if line["type"] == "succession")
    lines[index]["record"]["request_id"] = NEW_ID[:-1] + "9"
    report = verify([save("export.jsonl", lines)], keys)
    assert Kind.BAD_SUCCESSION in {finding.kind for finding in report.findings}


def test_without_the_succession_it_is_another_log(
    log: Log, new: Log, save: Save, keys: Path
) -> None:
    """A log without the succession record does not continue the other log."""
    kept = save("kept.jsonl", [log.checkpoint(3)])
    report = verify([kept, save("export.jsonl", new.export())], keys)
    assert Kind.ANOTHER_LOG in {finding.kind for finding in report.findings}


def test_each_log_has_keys_of_its_own(log: Log, new: Log, save: Save, keys: Path) -> None:
    """An old key cannot sign the new log, and a new key cannot sign the old log."""
    by_old_key = Log(log.signer, new.records, NEW_ID).checkpoint(17)
    by_new_key = Log(new.signer, log.records).checkpoint(9)
    for checkpoint in (by_old_key, by_new_key):
        kept = save("kept.jsonl", [checkpoint])
        report = verify([save("export.jsonl", exported(new, log)), kept], keys)
        assert [finding.kind for finding in report.findings] == [Kind.UNKNOWN_KEY]


def test_the_succession_record_of_the_vector() -> None:
    """The vector's record equals the one in the key service's test."""
    line = {"type": "succession", "record": json.loads(VECTOR["text"]), "proof": []}
    succession = read_line(line)
    assert isinstance(succession, Succession)
    assert (succession.log_id, succession.size) == (VECTOR["log_id"], VECTOR["size"])
    assert succession.root.hex() == VECTOR["root"]
    assert (succession.first_version, succession.inherited) == (VECTOR["first_version"], 1212)
    assert succession.entry.leaf.hex() == VECTOR["leaf"]
