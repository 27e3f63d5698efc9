"""A correct log is verified, and the report has exactly the proven facts."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pqkeep.audit import Kind, Portion, verify

if TYPE_CHECKING:
    from sdk.tests.audit.conftest import Log, Signer

Save = Callable[..., Path]
SLH_DSA = "SLH-DSA-SHA2-128s"


@pytest.fixture
def keys(log: Log, save: Save) -> Path:
    """The trusted keys, from another source."""
    return save("keys.json", [log.signer.key(), log.signer.key(SLH_DSA)])


@pytest.mark.parametrize("size", range(22))
def test_a_whole_export(log: Log, save: Save, keys: Path, size: int) -> None:
    """A whole export of any size is verified, with all of its records."""
    path = save("export.jsonl", log.export(size=size))
    report = verify([path], keys)
    assert report.findings == ()
    assert report.is_verified
    times = [record["recorded_at"] for record in log.records[:size]]
    first, last = (times[0], times[-1]) if times else (None, None)
    assert report.portions == (Portion(str(path), None, size, size, first, last),)


@pytest.mark.parametrize("size", [1, 2, 3, 7, 20, 21])
def test_a_tenants_export(log: Log, save: Save, keys: Path, size: int) -> None:
    """A tenant's export is verified with that tenant's records, also without any."""
    tenant = log.records[1]["tenant_id"]
    report = verify([save("export.jsonl", log.export(size=size, tenant=tenant))], keys)
    assert report.findings == ()
    assert [portion.records for portion in report.portions] == [(size + 1) // 3]


def test_the_report(log: Log, save: Save, keys: Path, signer: Signer) -> None:
    """The report names the log, the checkpoint with root and position, and the signing key."""
    path = save("export.jsonl", log.export())
    report = verify([path], keys)
    assert report.log_id == log.log_id
    assert [(a.size, a.root, a.file, a.line) for a in report.checkpoints] == [
        (21, log.root(21), str(path), 3)
    ]
    assert [(k.algorithm, k.key_version, k.fingerprint) for k in report.keys] == [
        ("Dilithium3", 1, signer.fingerprint())
    ]
    assert report.are_keys_trusted
    assert report.notes == ()


def test_without_trusted_keys(log: Log, save: Save) -> None:
    """Without trusted keys, an export is verified with its own keys, and the report says so."""
    report = verify([save("export.jsonl", log.export())])
    assert report.is_verified
    assert not report.are_keys_trusted


def test_both_signatures(log: Log, save: Save, keys: Path, signer: Signer) -> None:
    """A checkpoint signed with SLH-DSA counts like one signed with ML-DSA."""
    lines = log.export(signer.key(SLH_DSA), log.checkpoint(21, SLH_DSA))
    report = verify([save("export.jsonl", lines)], keys)
    assert report.findings == ()
    assert {key.algorithm for key in report.keys} == {"Dilithium3", SLH_DSA}


@pytest.mark.parametrize("size", range(22))
def test_kept_checkpoints_of_a_whole_log(log: Log, save: Save, keys: Path, size: int) -> None:
    """A whole export alone proves that it continues a saved checkpoint."""
    kept = save("kept.jsonl", [log.checkpoint(size)])
    report = verify([save("export.jsonl", log.export()), kept], keys)
    assert report.findings == ()
    assert report.notes == ()
    assert size in [anchor.size for anchor in report.checkpoints]


@pytest.mark.parametrize("size", range(22))
def test_kept_checkpoints_of_a_tenant(log: Log, save: Save, keys: Path, size: int) -> None:
    """With a consistency proof, a tenant's export continues a saved checkpoint."""
    tenant = log.records[0]["tenant_id"]
    kept = save("kept.jsonl", [log.checkpoint(size), log.consistency(size, 21)])
    report = verify([save("export.jsonl", log.export(tenant=tenant)), kept], keys)
    assert report.findings == ()
    assert report.notes == ()


def test_a_chain_of_proofs(log: Log, save: Save, keys: Path) -> None:
    """Consecutive consistency proofs connect an old checkpoint with an export."""
    tenant = log.records[0]["tenant_id"]
    kept = [log.checkpoint(size) for size in (3, 8, 13)]
    proofs = [log.consistency(first, second) for first, second in ((3, 8), (8, 13), (13, 21))]
    export = save("export.jsonl", log.export(*proofs, tenant=tenant))
    assert verify([export, save("kept.jsonl", kept)], keys).findings == ()


def test_answers_of_the_api(log: Log, save: Save, tmp_path: Path) -> None:
    """Checkpoints, keys and proofs are read in the form of the API's responses, on one line or several."""
    envelope: dict[str, Any] = {"request_id": "r", "timestamp": "t"}
    untyped = [{k: v for k, v in log.checkpoint(n).items() if k != "type"} for n in (4, 9)]
    kept = save(
        "kept.jsonl",
        [
            {"data": {"checkpoints": untyped}, **envelope},
            {"data": {"first": 4, "second": 21, "path": log.consistency(4, 21)["path"]}},
            {"data": {k: v for k, v in log.consistency(9, 21).items() if k != "type"}, **envelope},
        ],
    )
    key = {k: v for k, v in log.signer.key().items() if k != "type"}
    keys = tmp_path / "keys.json"
    keys.write_text(json.dumps({"data": {"keys": [key], "log_id": log.log_id}}, indent=2))
    tenant = log.records[0]["tenant_id"]
    report = verify([save("export.jsonl", log.export(tenant=tenant)), kept], keys)
    assert report.findings == ()
    assert [anchor.size for anchor in report.checkpoints] == [4, 9, 21]


def test_spaces_and_blank_lines(log: Log, tmp_path: Path, keys: Path) -> None:
    """An export with other spaces, escapes and field order is the same export."""
    path = tmp_path / "export.jsonl"
    lines = [dict(reversed(line.items())) for line in log.export()]
    path.write_text("\n\n".join(json.dumps(line) for line in lines))
    assert verify([path], keys).findings == ()


def test_two_exports(log: Log, save: Save, keys: Path) -> None:
    """An older whole export and a newer one are verified as one log."""
    older = save("older.jsonl", log.export(size=13))
    report = verify([older, save("newer.jsonl", log.export())], keys)
    assert report.findings == ()
    assert [portion.records for portion in report.portions] == [13, 21]


def test_a_newer_checkpoint(log: Log, save: Save, keys: Path) -> None:
    """A checkpoint after the export cannot be compared, and a note says so."""
    kept = save("kept.jsonl", [log.checkpoint(21)])
    older = log.export(size=13, at="2026-11-20T11:59:59.000000Z")
    report = verify([save("export.jsonl", older), kept], keys)
    assert report.is_verified
    assert [note for note in report.notes if "newer than the export" in note] == [*report.notes]
    assert len(report.notes) == 1


def test_checkpoints_alone(log: Log, save: Save, keys: Path) -> None:
    """Without an export only signatures are verified, and a note says so."""
    report = verify([save("kept.jsonl", [log.checkpoint(4)])], keys)
    assert report.is_verified
    assert "there is no export" in report.notes[0]


PEAK = """
import sys, tracemalloc
from pqkeep.audit import verify
verify(sys.argv[1:2])  # loads what is loaded once
tracemalloc.start()
assert verify(sys.argv[2:]).findings == ()
print(tracemalloc.get_traced_memory()[1])
"""


def test_memory_does_not_grow_with_the_log(new_log: Callable[..., Log], save: Save) -> None:
    """Fifteen hundred records need no more memory to verify than three hundred.

    A process of its own has no other threads, and its garbage is collected in time.
    """
    small = save("small.jsonl", new_log(1).export())
    peaks: list[int] = []
    for count in (300, 1_500):
        path = save("export.jsonl", new_log(count).export())
        ended = subprocess.run(
            [sys.executable, "-c", PEAK, small, path], capture_output=True, check=True, text=True
        )
        peaks.append(int(ended.stdout))
    assert peaks[1] < peaks[0] + 100_000, peaks


def test_no_paths() -> None:
    """Without files it raises ValueError."""
    with pytest.raises(ValueError, match="no files"):
        verify([])


def test_an_empty_file(tmp_path: Path) -> None:
    """An empty file verifies nothing, and that is a finding."""
    path = tmp_path / "empty"
    path.touch()
    assert [finding.kind for finding in verify([path]).findings] == [Kind.NOTHING]
