"""The audit log, by both clients, against the real service."""

import gzip
import resource
import stat
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from tests.patience import PATIENCE

from pqkeep import (
    AuditRecord,
    Client,
    InclusionProof,
    InvalidRequestError,
    MalformedResponseError,
    NotFoundError,
    PermissionDeniedError,
)
from pqkeep.audit import verify

KEM = "Kyber768"
Connect = Callable[..., Client]
Answer = Callable[..., str]


@pytest.fixture
def busy(client: Client) -> Client:
    """Be a tenant with seven records: itself, its API key, a new key, four encryptions."""
    client.keys.generate(KEM)
    for _ in range(4):
        client.kem.encrypt(b"")
    return client


def numbers(records: Iterator[AuditRecord]) -> list[int]:
    """Return the tenant's record numbers."""
    return [record.number for record in records]


def proven(client: Client, record: AuditRecord) -> InclusionProof:
    """Return a record's proof, once a checkpoint covers it."""
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            return client.audit.proof(record.id)
        except NotFoundError:
            assert time.monotonic() < deadline
            time.sleep(0.05)


def test_records(busy: Client) -> None:
    """Records come in order or in reverse, over all pages."""
    forwards = [1, 2, 3, 4, 5, 6, 7]
    assert numbers(busy.audit.records()) == forwards
    assert numbers(busy.audit.records(page_size=2)) == forwards
    assert numbers(busy.audit.records(page_size=2, order="desc")) == forwards[::-1]


def test_record(busy: Client, base_url: str) -> None:
    """A record has principal, operation, key, time and source address."""
    _, _, first, second, *_ = busy.audit.records()
    assert (first.operation, first.outcome, first.algorithm) == ("generate-key", "success", KEM)
    assert (second.operation, second.key_version, second.id > first.id) == ("encrypt", 1, True)
    assert (second.principal, second.source_address) == ("api-key:1", "127.0.0.1")
    assert abs(datetime.now(UTC) - second.recorded_at) < timedelta(minutes=1)
    assert second.tenant_id == busy.tenants.list()[0].id


def test_filters(busy: Client) -> None:
    """Every filter applies on every page."""
    records = list(busy.audit.records())
    ids = [record.id for record in records]
    middle = records[2].recorded_at
    assert numbers(busy.audit.records(after=ids[1], page_size=1)) == [3, 4, 5, 6, 7]
    assert numbers(busy.audit.records(before=ids[2], page_size=1)) == [1, 2]
    assert numbers(busy.audit.records(before=ids[2], page_size=1, order="desc")) == [2, 1]
    assert numbers(busy.audit.records(operation="encrypt", page_size=2)) == [4, 5, 6, 7]
    assert numbers(busy.audit.records(since=middle))[0] == 3
    assert numbers(busy.audit.records(until=middle))[-1] == 2
    assert numbers(busy.audit.records(algorithm="X-Wing")) == []
    assert numbers(busy.audit.records(key_version=2)) == []
    assert len(numbers(busy.audit.records(outcome="success", page_size=4))) == 7
    with pytest.raises(InvalidRequestError):
        list(busy.audit.records(page_size=0))


def test_proof(busy: Client) -> None:
    """A record's proof leads to the tree of its checkpoint."""
    record = next(iter(busy.audit.records()))
    proof = proven(busy, record)
    assert proof.record == record
    assert proof.leaf_index == record.id - 1 < proof.size == proof.checkpoint.size
    assert proof.path
    assert {len(node) for node in (*proof.path, proof.checkpoint.root)} == {32}


def test_consistency(busy: Client) -> None:
    """One size of the log is proven to have grown into another."""
    size = proven(busy, next(iter(busy.audit.records()))).size
    proof = busy.audit.consistency(first=1, second=size)
    assert (proof.first, proof.second) == (1, size)
    assert {len(node) for node in proof.path} == {32}


def test_checkpoints_and_keys(busy: Client) -> None:
    """Checkpoints are signed with published keys."""
    proven(busy, next(iter(busy.audit.records())))
    signing = busy.audit.keys()
    newest = busy.audit.checkpoints(algorithm="Dilithium3")
    assert [checkpoint.algorithm for checkpoint in newest] == ["Dilithium3"]
    (signer,) = (key for key in signing.keys if key.algorithm == "Dilithium3")
    assert (newest[0].log_id, newest[0].key_version) == (signing.log_id, signer.key_version)
    assert (len(signer.public_key), len(newest[0].signature)) == (1952, 3309)
    assert len(busy.audit.checkpoints(after=0, limit=1)) == 1


def test_signed_checkpoint(connect: Connect, service: dict[str, str]) -> None:
    """The operator can have a checkpoint signed; a tenant cannot."""
    operator = connect(service["base_url"], service["operator_key"])
    made = operator.audit.sign_checkpoint()
    assert (made.algorithm, made.size > 0) == ("Dilithium3", True)
    with pytest.raises(PermissionDeniedError):
        connect(service["base_url"], service["api_key"]).audit.sign_checkpoint()


def test_export(busy: Client, tmp_path: Path) -> None:
    """A saved export verifies, and only its owner can read it."""
    proven(busy, list(busy.audit.records())[-1])
    path = tmp_path / "export.jsonl"
    path.write_text("an older one")
    assert busy.audit.export(path) == 7
    report = verify([path])
    assert report.findings == ()
    assert [portion.records for portion in report.portions] == [7]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert list(tmp_path.iterdir()) == [path]


def test_a_compressed_export(connect: Connect, response: Answer, tmp_path: Path) -> None:
    """An export may be compressed; a truncated one leaves an older file unchanged."""
    path = tmp_path / "export.jsonl"
    lines = b'{"type":"export"}\n{"type":"end","records":7}\n'
    packed = gzip.compress(lines)
    headers = (("Content-Encoding", "gzip"),)
    assert connect(response(packed, 200, headers), "key").audit.export(path) == 7
    assert path.read_bytes() == lines
    for cut in (packed[:30], packed[:-20] + b"\xff" * 20, b"not gzip"):
        with pytest.raises(MalformedResponseError):
            connect(response(cut, 200, headers), "key").audit.export(path)
        assert path.read_bytes() == lines


@pytest.mark.parametrize("body", [b"", b'{"type":"export"}\n', b"<h1>It works!</h1>", b"\xff\n"])
def test_export_without_an_end(
    connect: Connect, response: Answer, tmp_path: Path, body: bytes
) -> None:
    """A response without an end line is no export, and leaves an older file unchanged."""
    path = tmp_path / "export.jsonl"
    path.write_text("an older one")
    with pytest.raises(MalformedResponseError):
        connect(response(body), "key").audit.export(path)
    assert path.read_text() == "an older one"
    assert list(tmp_path.iterdir()) == [path]


def test_export_beyond_the_space(connect: Connect, response: Answer, tmp_path: Path) -> None:
    """An export on a full disk leaves an older file unchanged."""
    path = tmp_path / "export.jsonl"
    path.write_text("an older one")
    body = b'{"type":"record"}\n' * 5_600 + b'{"type":"end","records":5600}\n'
    assert 100_000 < len(body) < 105_000  # so that the last write is of a buffer
    client = connect(response(body), "key")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))
    try:
        with pytest.raises(OSError, match="File too large"):
            client.audit.export(path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert path.read_text() == "an older one"
    assert list(tmp_path.iterdir()) == [path]


def test_export_to_nowhere(busy: Client, tmp_path: Path) -> None:
    """A missing folder raises OSError."""
    with pytest.raises(FileNotFoundError):
        busy.audit.export(tmp_path / "lost" / "export.jsonl")
