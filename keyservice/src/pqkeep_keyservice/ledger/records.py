"""The audit log's records, and the text that each is hashed by.

A record's text is JSON with its names in alphabetical order and no space (RFC 8785), and its leaf
in the Merkle tree is the hash of that text.
"""

from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, NamedTuple

import msgspec
import sqlalchemy as sa
from msgspec import Struct

from pqkeep_protocol.audit_events import RecordedOperation
from pqkeep_protocol.keys import TenantId

_ENCODER = msgspec.json.Encoder()


class NewRecord(NamedTuple):
    """What the log will say about one operation. Its place in the log comes with the commit."""

    tenant: TenantId
    principal: str
    operation: RecordedOperation
    algorithm: str | None
    key_version: int | None
    outcome: str
    request_id: str
    source_address: str
    policy: str
    event_id: str | None = None
    """Of an event that the gateway brought."""
    happened_at_us: int | None = None
    """When such an event happened, in microseconds since 1970."""


class Record(Struct, frozen=True):
    """One record, with its names in the order of its text."""

    algorithm: str | None
    event_id: str | None
    happened_at: str | None
    id: int
    key_version: int | None
    nonce: str
    number: int
    operation: str
    outcome: str
    policy: str
    principal: str
    recorded_at: str
    request_id: str
    source_address: str
    tenant_id: str

    def text(self) -> bytes:
        """Return what the record's leaf is the hash of."""
        return _ENCODER.encode(self)


class Row(NamedTuple):
    """One row of the table, in the order of its columns."""

    id: int
    tenant_id: str
    number: int
    recorded_at_us: int
    nonce: bytes
    principal: str
    operation: str
    algorithm: str | None
    key_version: int | None
    outcome: str
    request_id: str
    source_address: str
    policy: str
    event_id: str | None
    happened_at_us: int | None


def record_from_row(row: "Row | sa.Row[Any]") -> Record:
    """Return what a row says."""
    return Record(
        algorithm=row.algorithm,
        event_id=row.event_id,
        happened_at=None if row.happened_at_us is None else iso_timestamp(row.happened_at_us),
        id=row.id,
        key_version=row.key_version,
        nonce=row.nonce.hex(),
        number=row.number,
        operation=row.operation,
        outcome=row.outcome,
        policy=row.policy,
        principal=row.principal,
        recorded_at=iso_timestamp(row.recorded_at_us),
        request_id=row.request_id,
        source_address=row.source_address,
        tenant_id=row.tenant_id,
    )


@lru_cache(maxsize=256)  # the records of a transaction have one time
def iso_timestamp(microseconds: int) -> str:
    """Return microseconds since 1970 as ISO 8601, UTC, to the microsecond."""
    seconds, rest = divmod(microseconds, 1_000_000)
    return f"{_second(seconds)}.{rest:06}Z"


@lru_cache(maxsize=4)
def _second(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S")
