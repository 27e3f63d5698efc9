"""Makes audit logs: records, their tree by its recursive definition, and valid signatures."""

from __future__ import annotations

import base64
import copy
import json
from collections.abc import Callable
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from cryptography.hazmat.primitives.asymmetric import mldsa
from pqcrypto.sign import slh_dsa_sha2_128s

Line = dict[str, Any]

CONTEXT = b"pqkeep/v1/audit-checkpoint"
ML_DSA = "Dilithium3"
SLH_DSA = "SLH-DSA-SHA2-128s"
TENANTS = tuple(str(UUID(int=n, version=4)) for n in (1, 2, 3))
QUERY = {"operations": ["encrypt"], "outcome": "refused"}
LOG_ID = str(UUID(int=100, version=4))


def b64(raw: bytes) -> str:
    """Encode bytes."""
    return base64.b64encode(raw).decode()


class Signer:
    """Keys of two algorithms, with the same version."""

    version = 1

    def __init__(self) -> None:
        self._ml_dsa = mldsa.MLDSA65PrivateKey.generate()
        slh_dsa_public, self._slh_dsa = slh_dsa_sha2_128s.keygen()
        self.public = {
            ML_DSA: self._ml_dsa.public_key().public_bytes_raw(),
            SLH_DSA: bytes(slh_dsa_public),
        }

    def sign(self, algorithm: str, text: bytes, context: bytes = CONTEXT) -> bytes:
        """Return the signature of a checkpoint, or of a statement."""
        if algorithm == ML_DSA:
            return self._ml_dsa.sign(text, context)
        return bytes(slh_dsa_sha2_128s.sign(self._slh_dsa, text, CONTEXT))

    def key(self, algorithm: str = ML_DSA) -> Line:
        """Return a key's line in an export."""
        public_key = b64(self.public[algorithm])
        return {
            "type": "key",
            "algorithm": algorithm,
            "key_version": self.version,
            "public_key": public_key,
        }

    def fingerprint(self, algorithm: str = ML_DSA) -> str:
        """Return SHA-256 of a public key."""
        return sha256(self.public[algorithm]).hexdigest()


def leaf_of(record: Line) -> bytes:
    """Return a record's leaf."""
    text = json.dumps(record, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return sha256(b"\0" + text.encode()).digest()


class Log:
    """A log, with the statements of its service."""

    def __init__(self, signer: Signer, records: list[Line], log_id: str = LOG_ID) -> None:
        self.signer = signer
        self.records = records
        self.log_id = log_id
        self._leaves = [leaf_of(record) for record in records]
        self._hash = cache(self._tree_hash)

    def __len__(self) -> int:
        return len(self.records)

    def root(self, size: int) -> bytes:
        """Return MTH(D[size]) (section 2.1.1)."""
        return self._hash(0, size)

    def path(self, index: int, size: int) -> list[bytes]:
        """Return PATH(index, D[size]) (section 2.1.3.1)."""
        return self._path(index, 0, size)

    def consistency(self, first: int, second: int) -> Line:
        """Return PROOF(first, D[second]) (section 2.1.4.1) as a line of an export."""
        path = [] if first == 0 else self._grown(first, 0, second, is_known=True)
        steps = list(map(b64, path))
        return {"type": "consistency", "first": first, "second": second, "path": steps}

    def checkpoint(
        self,
        size: int,
        algorithm: str = ML_DSA,
        root: bytes | None = None,
        at: str | None = None,
    ) -> Line:
        """Sign the log of a size, or another root, at a time."""
        root = self.root(size) if root is None else root
        at = f"2026-11-20T12:00:00.{size:06}Z" if at is None else at
        lines = (CONTEXT.decode(), self.log_id, str(size), b64(root), at)
        text = "".join(f"{line}\n" for line in lines).encode()
        return {
            "type": "checkpoint",
            "log_id": self.log_id,
            "size": size,
            "root": b64(root),
            "at": at,
            "algorithm": algorithm,
            "key_version": self.signer.version,
            "signature": b64(self.signer.sign(algorithm, text)),
        }

    def line(self, record_id: int, size: int) -> Line:
        """Return a record's line in the export of a size."""
        return {
            "type": "record",
            "record": copy.deepcopy(self.records[record_id - 1]),
            "proof": list(map(b64, self.path(record_id - 1, size))),
        }

    def export(
        self,
        *more: Line,
        size: int | None = None,
        tenant: str | None = None,
        at: str | None = None,
    ) -> list[Line]:
        """Return the lines of an export: header, key, checkpoint, more, records, end."""
        size = len(self) if size is None else size
        ids = [r["id"] for r in self.records[:size] if tenant in (None, r["tenant_id"])]
        header = {
            "type": "export",
            "format": "pqkeep/v1/audit-export",
            "log_id": self.log_id,
            "tenant_id": tenant,
            "size": size,
        }
        return [
            header,
            self.signer.key(),
            self.checkpoint(size, at="2026-11-21T00:00:00.000000Z" if at is None else at),
            *more,
            *(self.line(record_id, size) for record_id in ids),
            {"type": "end", "records": len(ids)},
        ]

    def statement(self, after: int, through: int, ids: list[int], /, **changes: object) -> Line:
        """State which records of a range match a query."""
        statement = {
            "after": after,
            "at": "2026-11-21T00:00:00.000000Z",
            "ids": ids,
            "log_id": self.log_id,
            "query": QUERY,
            "root": b64(self.root(len(self))),
            "size": len(self),
            "tenant_id": None,
            "through": through,
        } | changes
        text = json.dumps(statement, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
        context = b"pqkeep/v1/audit-statement"
        signature = self.signer.sign(ML_DSA, b"%b\n%b\n" % (context, text.encode()), context)
        return {
            "type": "statement",
            "statement": copy.deepcopy(statement),
            "algorithm": ML_DSA,
            "key_version": self.signer.version,
            "signature": b64(signature),
        }

    def evidence(self, *parts: tuple[int, list[int]]) -> list[Line]:
        """Return evidence with statements up to an id, each with its records."""
        header, key, checkpoint, *_ = self.export()
        lines, after = [{**header, "format": "pqkeep/v1/audit-evidence"}, key, checkpoint], 0
        for through, ids in parts:
            lines.append(self.statement(after, through, ids))
            lines.extend(self.line(id_, len(self)) for id_ in ids)
            after = through
        return [*lines, {"type": "end", "records": sum(len(ids) for _, ids in parts)}]

    def unproven(self, *more: Line, size: int | None = None, after: int = 0) -> list[Line]:
        """Return the lines of an export without proofs, after some of the records."""
        header, key, checkpoint, *_ = self.export(size=size)
        subtrees, begin = [], 0
        for level in reversed(range(after.bit_length())):
            if after >> level & 1:
                subtrees.append(b64(self._hash(begin, begin + (1 << level))))
                begin += 1 << level
        form = {"format": "pqkeep/v2/audit-export", "after": after, "subtrees": subtrees}
        lines = [
            {"type": "record", "record": copy.deepcopy(record)}
            for record in self.records[after : header["size"]]
        ]
        end = {"type": "end", "records": len(lines)}
        return [{**header, **form}, key, checkpoint, *more, *lines, end]

    def _tree_hash(self, begin: int, end: int) -> bytes:
        if end == begin:
            return sha256(b"").digest()
        if end - begin == 1:
            return self._leaves[begin]
        middle = begin + _half(end - begin)
        return sha256(b"\1" + self._hash(begin, middle) + self._hash(middle, end)).digest()

    def _path(self, index: int, begin: int, end: int) -> list[bytes]:
        if end - begin == 1:
            return []
        middle = begin + _half(end - begin)
        if index < middle:
            return [*self._path(index, begin, middle), self._hash(middle, end)]
        return [*self._path(index, middle, end), self._hash(begin, middle)]

    def _grown(self, first: int, begin: int, end: int, *, is_known: bool) -> list[bytes]:
        if first == end:
            return [] if is_known else [self._hash(begin, end)]
        middle = begin + _half(end - begin)
        if first <= middle:
            left = self._grown(first, begin, middle, is_known=is_known)
            return [*left, self._hash(middle, end)]
        return [*self._grown(first, middle, end, is_known=False), self._hash(begin, middle)]


def _half(size: int) -> int:
    half = 1
    while half * 2 < size:
        half *= 2
    return half


def records(count: int, salt: str = "") -> list[Line]:
    """Make records of three tenants in turn."""
    made = []
    for record_id in range(1, count + 1):
        turn, tenant = divmod(record_id - 1, len(TENANTS))
        is_event = record_id % 5 == 0
        nonce = sha256(f"{salt}{record_id}".encode()).hexdigest()[:32]
        made.append(
            {
                "algorithm": None if is_event else "Kyber768",
                "campaign": None,
                "event_id": str(UUID(int=record_id, version=4)) if is_event else None,
                "format": 1,
                "happened_at": "2026-11-20T11:00:00.000000Z" if is_event else None,
                "id": record_id,
                "key_version": None if is_event else 1,
                "keyring": None if is_event else "default",
                "keyring_revision": None,
                "nonce": nonce,
                "number": turn + 1,
                "operation": "sign-in" if is_event else "encrypt",
                "outcome": "success",
                "policy": "plan-includes-algorithm",
                "principal": 'api-key:"1" \u00fc\U0001f511\u2028\x7f\x01',
                "public_key_sha256": None,
                "recorded_at": f"2026-11-20T11:{record_id // 60 % 60:02}:{record_id % 60:02}.000000Z",
                "request_id": f"order-{record_id}",
                "rule": None,
                "source_address": "192.0.2.1",
                "target": None,
                "tenant_id": TENANTS[tenant],
            }
        )
    return made


@pytest.fixture(scope="session")
def new_signer() -> Callable[[], Signer]:
    """Make keys."""
    return Signer


@pytest.fixture(scope="session")
def signer() -> Signer:
    """The signer of the log."""
    return Signer()


@pytest.fixture(scope="session")
def log(signer: Signer) -> Log:
    """A log of 21 records, seven of each of three tenants."""
    return Log(signer, records(21))


@pytest.fixture(scope="session")
def new_log(signer: Signer) -> Callable[..., Log]:
    """Make a log from the number of its records."""

    def make(count: int, *, salt: str = "", log_id: str = LOG_ID, by: Signer = signer) -> Log:
        return Log(by, records(count, salt), log_id)

    return make


@pytest.fixture
def save(tmp_path: Path) -> Callable[..., Path]:
    """Write lines to a file without spaces, like the service."""

    def write(name: str, lines: list[Line]) -> Path:
        path = tmp_path / name
        texts = (json.dumps(line, ensure_ascii=False, separators=(",", ":")) for line in lines)
        path.write_text("".join(f"{text}\n" for text in texts))
        return path

    return write
