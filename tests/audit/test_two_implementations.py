"""The key service's log and the client's verifier are separate code, and agree."""

from __future__ import annotations

import json
from base64 import b64encode
from pathlib import Path
from typing import Any
from uuid import UUID

import msgspec
import pytest
from cryptography.hazmat.primitives.asymmetric import mldsa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.sampling import IS_EXHAUSTIVE

from pqkeep.audit import Report, verify
from pqkeep.audit._formats import FORMATS as VERIFIED
from pqkeep.audit._verification import verify_formats
from pqkeep_keyservice.audit.checkpoint_signer import CONTEXT, signed_text
from pqkeep_keyservice.ledger.merkle import (
    Frontier,
    consistency_proof,
    inclusion_prover,
    leaf_hash,
)
from pqkeep_keyservice.ledger.records import FORMATS, Row, format_1, iso_timestamp, record_text

LOG_ID = UUID(int=7, version=4)
TENANT = str(UUID(int=1, version=4))
AT_US = 1_769_860_800_000_001
KEY = mldsa.MLDSA65PrivateKey.generate()
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)


def b64(raw: bytes) -> str:
    """Encode bytes."""
    return b64encode(raw).decode()


def _format_2(row: Any) -> msgspec.Struct:
    """Return a record with one more name, in a format that a later version could have."""
    names = {**msgspec.structs.asdict(format_1(row)), "region": f"of {row.principal}"}
    types = [(name, type(value)) for name, value in sorted(names.items())]
    return msgspec.defstruct("Format2", types)(**names)


LATER = {**FORMATS, 2: _format_2}
VERIFIED_LATER = {**VERIFIED, 2: {**VERIFIED[1], "region": lambda value: type(value) is str}}


class Log:
    """A log in the key service's form, with any text."""

    def __init__(self, texts: list[str], later: int = 0) -> None:
        """Write the last records in the later format."""
        formats = [1] * (len(texts) - later) + [2] * later
        self.lines = [
            record_text(_row(number, text, of), LATER)
            for number, (text, of) in enumerate(zip(texts, formats, strict=True), 1)
        ]
        self.leaves = [leaf_hash(line) for line in self.lines]

    def subtree(self, level: int, index: int) -> bytes:
        """Return the hash of a complete subtree."""
        return Frontier().with_leaves(self.leaves[index << level : (index + 1) << level])[0].root()

    def checkpoint(self, size: int) -> dict[str, Any]:
        """Sign the log of a size."""
        root = Frontier().with_leaves(self.leaves[:size])[0].root()
        return {
            "type": "checkpoint",
            "log_id": str(LOG_ID),
            "size": size,
            "root": b64(root),
            "at": iso_timestamp(AT_US),
            "algorithm": "Dilithium3",
            "key_version": 1,
            "signature": b64(KEY.sign(signed_text(LOG_ID, size, root, AT_US), CONTEXT)),
        }

    def export(self, path: Path, tenant: str | None) -> Path:
        """Write an export of everything."""
        size = len(self.lines)
        head = {
            "type": "export",
            "format": "pqkeep/v1/audit-export",
            "log_id": str(LOG_ID),
            "tenant_id": tenant,
            "size": size,
        }
        public_key = b64(KEY.public_key().public_bytes_raw())
        key = {"algorithm": "Dilithium3", "key_version": 1, "public_key": public_key}
        texts = [json.dumps(line) for line in (head, {"type": "key", **key}, self.checkpoint(size))]
        for index, line in enumerate(self.lines):
            proof = json.dumps(list(map(b64, inclusion_prover(size, self.subtree)(index))))
            texts.append(f'{{"type":"record","record":{line.decode()},"proof":{proof}}}')
        texts.append(json.dumps({"type": "end", "records": size}))
        path.write_text("\n".join(texts) + "\n")
        return path

    def kept(self, path: Path, first: int) -> Path:
        """Write an older checkpoint, with the proof that the log continues it."""
        size = len(self.lines)
        steps = list(map(b64, consistency_proof(first, size, self.subtree)))
        proof = {"type": "consistency", "first": first, "second": size, "path": steps}
        path.write_text(
            "".join(f"{json.dumps(each)}\n" for each in (self.checkpoint(first), proof))
        )
        return path


def _row(number: int, text: str, of: int) -> Row:
    return Row(
        id=number,
        format=of,
        tenant_id=TENANT,
        number=number,
        recorded_at_us=AT_US,
        nonce=number.to_bytes(16, "big"),
        principal=text,
        operation="encrypt",
        algorithm=None,
        key_version=number,
        outcome="success",
        request_id=text,
        source_address="",
        policy=text,
        event_id=None,
        happened_at_us=None,
        public_key_sha256=None,
        keyring_revision=None,
        keyring=None,
        target=None,
        rule=None,
        campaign=None,
    )


def _verify(log: Log, folder: Path, tenant: str | None, first: int) -> Report:
    return verify([log.export(folder / "export", tenant), log.kept(folder / "kept", first)])


SIZES = range(1, 41) if IS_EXHAUSTIVE else (*range(1, 10), 15, 16, 17, 31, 32, 33)


@pytest.mark.parametrize("tenant", [None, TENANT], ids=["whole", "tenant"])
def test_all_sizes(tmp_path: Path, tenant: str | None) -> None:
    """For sizes up to 33, the verifier accepts every proof of inclusion and of consistency."""
    for size in SIZES:
        log = Log([str(n) for n in range(size)])
        for first in range(size + 1):
            report = _verify(log, tmp_path, tenant, first)
            assert (report.findings, report.notes) == ((), ())
            assert report.portions[0].records == size


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(texts=st.lists(TEXT, min_size=1, max_size=5))
def test_any_text(tmp_path: Path, texts: list[str]) -> None:
    """For any text in a record, both hash the same bytes."""
    assert _verify(Log(texts), tmp_path, None, 1).findings == ()


@pytest.mark.parametrize("tenant", [None, TENANT], ids=["whole", "tenant"])
@pytest.mark.parametrize("later", range(9))
def test_two_formats(tmp_path: Path, tenant: str | None, later: int) -> None:
    """With a second format from any record on, all records and earlier sizes verify."""
    log = Log([f"\u00e9 {number}" for number in range(8)], later)
    export = log.export(tmp_path / "export", tenant)
    for first in range(9):
        paths = [export, log.kept(tmp_path / "kept", first)]
        report = verify_formats(VERIFIED_LATER, paths)
        assert (report.findings, report.notes) == ((), ())
        assert report.portions[0].records == 8
    found = [str(each.kind) for each in verify([export]).findings]
    assert found == ["unknown-format"] * later


def test_both_know_the_same_formats() -> None:
    """The verifier knows every format that the key service writes, with the same names."""
    assert sorted(VERIFIED) == sorted(FORMATS)
    for number, names in VERIFIED.items():
        assert list(json.loads(record_text(_row(1, "", number)))) == list(names)
