"""The key service's log and the client's verifier were written apart, and agree."""

from __future__ import annotations

import json
from base64 import b64encode
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from cryptography.hazmat.primitives.asymmetric import mldsa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pqkeep.audit import Report, verify
from pqkeep_keyservice.audit.checkpoint_signer import CONTEXT, signed_text
from pqkeep_keyservice.ledger.merkle import (
    Frontier,
    consistency_proof,
    fold,
    inclusion_proof,
    leaf_hash,
)
from pqkeep_keyservice.ledger.records import Record, iso_timestamp

LOG_ID = UUID(int=7, version=4)
TENANT = str(UUID(int=1, version=4))
AT_US = 1_769_860_800_000_001
KEY = mldsa.MLDSA65PrivateKey.generate()
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)


def b64(raw: bytes) -> str:
    """Encode bytes."""
    return b64encode(raw).decode()


class Log:
    """A log as the key service writes it, over any text."""

    def __init__(self, texts: list[str]) -> None:
        self.lines = [_record(number, text).text() for number, text in enumerate(texts, 1)]
        self.leaves = [leaf_hash(line) for line in self.lines]

    def subtree(self, level: int, index: int) -> bytes:
        """Return the hash of a complete subtree."""
        return fold(self.leaves[index << level : (index + 1) << level])

    def checkpoint(self, size: int) -> dict[str, Any]:
        """Sign the log of a size."""
        root = Frontier().grown(self.leaves[:size])[0].root()
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
            "exported_at": iso_timestamp(AT_US),
        }
        public_key = b64(KEY.public_key().public_bytes_raw())
        key = {"algorithm": "Dilithium3", "key_version": 1, "public_key": public_key}
        texts = [json.dumps(line) for line in (head, {"type": "key", **key}, self.checkpoint(size))]
        for index, line in enumerate(self.lines):
            proof = json.dumps(list(map(b64, inclusion_proof(index, size, self.subtree))))
            texts.append(f'{{"type":"record","record":{line.decode()},"proof":{proof}}}')
        texts.append(json.dumps({"type": "end", "records": size}))
        path.write_text("\n".join(texts) + "\n")
        return path

    def kept(self, path: Path, first: int) -> Path:
        """Write an older checkpoint, and the proof that the log continues it."""
        size = len(self.lines)
        steps = list(map(b64, consistency_proof(first, size, self.subtree)))
        proof = {"type": "consistency", "first": first, "second": size, "path": steps}
        path.write_text(
            "".join(f"{json.dumps(each)}\n" for each in (self.checkpoint(first), proof))
        )
        return path


def _record(number: int, text: str) -> Record:
    return Record(
        algorithm=None,
        event_id=None,
        happened_at=None,
        id=number,
        key_version=number,
        nonce=f"{number:032x}",
        number=number,
        operation="encrypt",
        outcome="success",
        policy=text,
        principal=text,
        recorded_at=iso_timestamp(AT_US),
        request_id=text,
        source_address="",
        tenant_id=TENANT,
    )


def _verify(log: Log, folder: Path, tenant: str | None, first: int) -> Report:
    return verify([log.export(folder / "export", tenant), log.kept(folder / "kept", first)])


@pytest.mark.parametrize("tenant", [None, TENANT], ids=["whole", "tenant"])
def test_all_sizes(tmp_path: Path, tenant: str | None) -> None:
    """For each size up to 40, every proof of inclusion and of consistency is understood."""
    for size in range(1, 41):
        log = Log([str(n) for n in range(size)])
        for first in range(size + 1):
            report = _verify(log, tmp_path, tenant, first)
            assert (report.findings, report.notes) == ((), ())
            assert report.portions[0].records == size


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(texts=st.lists(TEXT, min_size=1, max_size=5))
def test_any_text(tmp_path: Path, texts: list[str]) -> None:
    """Whatever text a record holds, both hash the same bytes."""
    assert _verify(Log(texts), tmp_path, None, 1).findings == ()
