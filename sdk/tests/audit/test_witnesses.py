"""Cosignatures of witnesses and proofs of records, verified offline."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from sdk.tests.audit.conftest import TENANTS, Log, b64
from sdk.tests.audit.test_command import run_program
from tests.fixtures.witness import ED25519, ML_DSA_44, Witness

from pqkeep.audit import Kind, Report, verify

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from sdk.tests.audit.conftest import Line

Save = Callable[..., "Path"]
ORIGIN = "pqkeep.example/audit"
SECONDS = 1_795_000_000


@pytest.fixture(scope="module")
def noted() -> Witness:
    """The log's key for signing notes as if the log were a witness of that name."""
    return Witness(ORIGIN)


@pytest.fixture(scope="module")
def two() -> list[Witness]:
    """Return a witness of each kind."""
    return [
        Witness("witness.example/one", ML_DSA_44),
        Witness("witness.example/two", ED25519),
    ]


@pytest.fixture
def keys(log: Log, noted: Witness, save: Save) -> Path:
    """The saved response of GET /api/v1/audit/keys."""
    return save("keys.json", [{"data": response(log, noted)}])


def response(log: Log, noted: Witness) -> Line:
    """Return the keys of a log, as the API returns them."""
    key = {name: value for name, value in log.signer.key().items() if name != "type"}
    return {"log_id": log.log_id, "keys": [key], "note_key": noted.vkey}


def stamped(
    witness: Witness, log: Log, size: int, *, origin: str = ORIGIN, root: bytes | None = None
) -> bytes:
    """Return a cosignature's bytes."""
    line = witness.cosign(origin, size, log.root(size) if root is None else root, SECONDS)
    return base64.b64decode(line.split(" ")[2])


def cosigned(log: Log, size: int, *witnesses: Witness, **changes: Any) -> Line:
    """Return the line of a checkpoint that witnesses cosigned."""
    lines = [
        {
            "witness": witness.name,
            "origin": changes.get("origin", ORIGIN),
            "at": "2026-11-20T12:00:01.000000Z",
            "signature": b64(stamped(witness, log, size, **changes)),
        }
        for witness in witnesses
    ]
    return {**log.checkpoint(size), "cosignatures": lines}


def kinds(report: Report) -> list[Kind]:
    """Return the kinds of the findings."""
    return [finding.kind for finding in report.findings]


@pytest.mark.parametrize("tenant", [None, TENANTS[0]])
def test_the_witnesses_of_an_export(
    log: Log, two: list[Witness], keys: Path, save: Save, tenant: str | None
) -> None:
    """An export is verified with n of m witnesses, and says what each cosigned and when."""
    one, other = two
    lines = [cosigned(log, 8, one), cosigned(log, 13, other)]
    proofs = [log.consistency(size, len(log)) for size in (8, 13)]
    path = save("export.jsonl", log.export(*lines, *proofs, tenant=tenant))
    vkeys = [one.vkey, other.vkey]
    report = verify([path], keys, witnesses=vkeys)
    assert report.is_verified
    told = [(found.witness, found.size, found.origin) for found in report.witnessed]
    assert told == [(other.name, 13, ORIGIN), (one.name, 8, ORIGIN)]
    assert datetime.fromisoformat(report.witnessed[0].at).timestamp() == SECONDS
    third = Witness("witness.example/three").vkey
    assert kinds(verify([path], keys, witnesses=[*vkeys, third])) == [Kind.NOT_WITNESSED]
    assert verify([path], keys, witnesses=[*vkeys, third], least_witnesses=2).is_verified
    assert verify([path], keys).witnessed == ()


@pytest.mark.threat("keys-database-rollback")
def test_a_cosignature_counts_only_for_this_log(
    log: Log, two: list[Witness], keys: Path, save: Save, new_log: Callable[..., Log]
) -> None:
    """A cosignature on another log, size or root, or by another key, does not count.

    One without a proof does not count either.
    """
    one, other = two
    vkeys = [one.vkey]
    proof = log.consistency(8, len(log))

    def found(*lines: Line, tenant: str | None = None) -> list[Kind]:
        path = save("export.jsonl", log.export(*lines, tenant=tenant))
        return kinds(verify([path], keys, witnesses=vkeys))

    assert found(cosigned(log, 8, one)) == []
    assert found(cosigned(log, 8, other)) == [Kind.NOT_WITNESSED]
    assert found(cosigned(log, 8, one, origin="other.example")) == [Kind.NOT_WITNESSED]
    wrong = [Kind.BAD_COSIGNATURE, Kind.NOT_WITNESSED]
    assert sorted(found(cosigned(log, 8, one, root=bytes(32)))) == sorted(wrong)
    renamed = Witness(one.name)  # another key with the witness's name
    assert found(cosigned(log, 8, renamed)) == [Kind.NOT_WITNESSED]
    mine = TENANTS[0]
    assert found(cosigned(log, 8, one), tenant=mine) == [Kind.NOT_WITNESSED]
    assert found(cosigned(log, 8, one), proof, tenant=mine) == []
    fork = new_log(21, salt="fork")
    forked = save("fork.jsonl", [cosigned(fork, 8, one)])
    path = save("export.jsonl", log.export())
    assert Kind.NOT_WITNESSED in kinds(verify([path, forked], keys, witnesses=vkeys))
    ours = save("checkpoints.jsonl", [cosigned(log, 8, one)])
    assert verify([path, ours], keys, witnesses=vkeys).is_verified


def test_the_name_of_the_log_comes_from_trusted_keys(
    log: Log, two: list[Witness], keys: Path, save: Save, noted: Witness
) -> None:
    """Without trusted keys, or with keys that do not name the log, no witness counts."""
    one, _ = two
    path = save("export.jsonl", log.export(cosigned(log, 8, one)))
    named = save("named.json", [{"data": response(log, noted)}])
    assert kinds(verify([path, named], witnesses=[one.vkey])) == [Kind.NOT_WITNESSED]
    nameless = save("keys2.json", [log.signer.key()])
    assert kinds(verify([path], nameless, witnesses=[one.vkey])) == [Kind.NOT_WITNESSED]
    assert verify([path], keys, witnesses=[one.vkey]).is_verified


def proof_of(log: Log, noted: Witness, record_id: int, size: int, *witnesses: Witness) -> bytes:
    """Return a tlog-proof, written from the specification."""
    record = json.dumps(
        log.records[record_id - 1], sort_keys=True, separators=(",", ":"), ensure_ascii=False
    ).encode()
    lines = [
        "c2sp.org/tlog-proof@v1",
        f"extra {b64(record)}",
        f"index {record_id - 1}",
        *map(b64, log.path(record_id - 1, size)),
        "",
        ORIGIN,
        str(size),
        b64(log.root(size)),
        "",
    ]
    signatures = [
        signer.cosign(ORIGIN, size, log.root(size), SECONDS) for signer in (noted, *witnesses)
    ]
    return ("".join(f"{line}\n" for line in lines) + "".join(signatures)).encode()


def test_a_record_is_proven_offline(
    log: Log, noted: Witness, two: list[Witness], keys: Path, tmp_path: Path
) -> None:
    """A tlog-proof of each record verifies with the log's and the witnesses' keys alone."""
    path = tmp_path / "record.tlog-proof"
    vkeys = [witness.vkey for witness in two]
    for size in (1, 8, 21):
        for record_id in (1, size):
            path.write_bytes(proof_of(log, noted, record_id, size, *two))
            report = verify([path], keys, witnesses=vkeys)
            assert report.is_verified, report.findings
            (proven,) = report.proofs
            assert (proven.id, proven.size, proven.origin) == (record_id, size, ORIGIN)
            assert {found.witness for found in proven.witnessed} == {each.name for each in two}
    path.write_bytes(proof_of(log, noted, 3, 21, two[0]))
    assert kinds(verify([path], keys, witnesses=vkeys)) == [Kind.NOT_WITNESSED]
    assert verify([path], keys, witnesses=vkeys, least_witnesses=1).is_verified
    assert kinds(verify([path])) == [Kind.UNKNOWN_KEY]


def test_a_changed_proof_is_refused(
    log: Log, noted: Witness, two: list[Witness], keys: Path, tmp_path: Path
) -> None:
    """Each changed or missing line, and each cut, gives a finding and never an exception."""
    path, good = tmp_path / "record.tlog-proof", proof_of(log, noted, 5, 21, *two)
    vkeys = [witness.vkey for witness in two]

    def is_refused(data: bytes) -> bool:
        path.write_bytes(data)
        return not verify([path], keys, witnesses=vkeys).is_verified

    assert not is_refused(good)
    lines = good.decode().splitlines(keepends=True)
    for number in range(1, len(lines)):
        without = "".join(lines[:number] + lines[number + 1 :]).encode()
        assert is_refused(without), lines[number]
        text = lines[number].rstrip("\n")
        if text:
            changed = text[:-9] + ("A" if text[-9:-8] != "A" else "B") + text[-8:]
            assert is_refused(
                "".join([*lines[:number], changed + "\n", *lines[number + 1 :]]).encode()
            )
    assert is_refused(proof_of(log, Witness(ORIGIN), 5, 21, *two))
    for cut in range(len(b"c2sp.org/tlog-proof@v1\n"), len(good), 97):
        assert is_refused(good[:cut])


def test_the_command(
    log: Log,
    noted: Witness,
    two: list[Witness],
    keys: Path,
    save: Save,
    tmp_path: Path,
    pqkeep_command: Sequence[str | Path],
) -> None:
    """``pqkeep audit verify`` takes witnesses by key or file, and proofs of records."""
    run = partial(run_program, pqkeep_command, "audit", "verify")
    one, other = two
    exported = save("export.jsonl", log.export(cosigned(log, 21, one, other)))
    proof = tmp_path / "record-5.tlog-proof"
    proof.write_bytes(proof_of(log, noted, 5, 21, one))
    listed = tmp_path / "witnesses.txt"
    listed.write_text(f"{one.vkey}\n{other.vkey}\n")
    status, shown = run(exported, "--keys", keys, "--witness", listed)
    assert (status, shown.count("witnessed")) == (0, 2)
    status, shown = run(proof, "--keys", keys, "--witness", one.vkey)
    assert status == 0
    assert f"is in the first 21 records of {ORIGIN}, cosigned by {one.name}" in shown
    status, shown = run(proof, "--keys", keys, "--witness", listed, "--output", "json")
    assert (status, json.loads(shown)["findings"][0]["kind"]) == (7, "not-witnessed")
    status, _ = run(proof, "--keys", keys, "--witness", listed, "--least-witnesses", "1")
    assert status == 0
    for wrong in ("a+b+c", one.vkey[:-4]):
        assert run(exported, "--keys", keys, "--witness", wrong)[0] == 2
    assert run(exported, "--keys", keys, "--least-witnesses", "1")[0] == 2
    assert run(exported, "--keys", keys, "--witness", tmp_path / "missing")[0] == 1
