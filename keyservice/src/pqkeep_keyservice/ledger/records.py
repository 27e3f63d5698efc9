"""The audit log's rows: the text that each is hashed by, and how the tree over them grows.

A record's text is JSON with its names in alphabetical order and no space (RFC 8785), and its leaf
in the Merkle tree is the hash of that text.
"""

import os
import time
from collections.abc import MutableMapping, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, NamedTuple
from uuid import UUID

import msgspec
import sqlalchemy as sa
from cachetools import LRUCache
from msgspec import Struct

from pqkeep_keyservice.ledger.merkle import Frontier, Tile, leaf_hash
from pqkeep_keyservice.ledger.schema import AUDIT_RECORDS, AUDIT_TILES
from pqkeep_protocol.audit_events import RecordedOperation
from pqkeep_protocol.keys import TenantId

CACHED_TENANTS = 100_000
_NONCE = 16
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


class LogState:
    """The end of the log: the tree so far, and each tenant's last number."""

    def __init__(self, frontier: Frontier, recorded_at_us: int) -> None:
        """Go on after what is in the log."""
        self.frontier = frontier
        self.recorded_at_us = recorded_at_us
        self._numbers: MutableMapping[str, int] = LRUCache(CACHED_TENANTS)

    def number(self, connection: sa.Connection, tenant: str) -> int:
        """Return how many records a tenant has."""
        known = self._numbers.get(tenant)
        if known is None:
            query = sa.select(sa.func.max(AUDIT_RECORDS.c.number)).where(
                AUDIT_RECORDS.c.tenant_id == tenant
            )
            known = self._numbers[tenant] = connection.execute(query).scalar() or 0
        return known

    def move(self, addition: "PendingAppend") -> None:
        """Take note of what is durable now."""
        self.frontier = addition.frontier
        self.recorded_at_us = addition.recorded_at_us
        self._numbers.update(addition.numbers)


class PendingAppend(NamedTuple):
    """What a transaction that is not committed yet adds to the log."""

    frontier: Frontier
    recorded_at_us: int
    numbers: dict[str, int]


def add(
    connection: sa.Connection, insert: str, tail: LogState, new_records: Sequence[NewRecord]
) -> PendingAppend:
    """Write records after the tail, by an INSERT for their columns in order."""
    # Never before the last record, whatever the machine's clock does.
    now = max(tail.recorded_at_us, time.time_ns() // 1000)
    numbers: dict[str, int] = {}
    rows: list[Row] = []
    size = tail.frontier.size
    nonces = memoryview(os.urandom(_NONCE * len(new_records)))
    for place, new_record in enumerate(new_records):
        tenant = _text(new_record.tenant)
        number = (numbers.get(tenant) or tail.number(connection, tenant)) + 1
        numbers[tenant] = number
        nonce = bytes(nonces[place * _NONCE : (place + 1) * _NONCE])
        rows.append(Row(size + place + 1, tenant, number, now, nonce, *new_record[1:]))
    frontier, tiles = tail.frontier.grown(leaf_hash(record_from_row(row).text()) for row in rows)
    if rows:  # without any, the driver would take the INSERT for one without parameters
        connection.exec_driver_sql(insert, rows)
    insert_tiles(connection, tiles)
    return PendingAppend(frontier, now, numbers)


def insert_tiles(connection: sa.Connection, tiles: Sequence[Tile]) -> None:
    """Keep new tiles of the tree."""
    if tiles:
        connection.execute(sa.insert(AUDIT_TILES), [tile._asdict() for tile in tiles])


@lru_cache(maxsize=4)
def _second(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S")


@lru_cache(maxsize=4096)
def _text(tenant: UUID) -> str:
    return str(tenant)
