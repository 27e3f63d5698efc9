"""Appending to the audit log: ids, numbers, times and nonces of new records, and their tree."""

import os
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple
from uuid import UUID

import sqlalchemy as sa

from pqkeep_keyservice import clock
from pqkeep_keyservice.ledger.appended import Appended, Commit, commit_of
from pqkeep_keyservice.ledger.dialects import Value, insert_all
from pqkeep_keyservice.ledger.merkle import Frontier, frontier, leaf_hash
from pqkeep_keyservice.ledger.records import FORMATS, Formats, NewRecord, Row, record_text
from pqkeep_keyservice.ledger.schema import AUDIT_RECORDS, AUDIT_TILES
from pqkeep_keyservice.ledger.tree import newest_record, subtrees

CACHED_TENANTS = 100_000
_NONCE = 16


class PendingAppend(NamedTuple):
    """What a transaction that is not committed yet adds to the log."""

    frontier: Frontier
    recorded_at_us: int
    numbers: dict[str, int]
    commit: Commit


class LogState:
    """What the next record follows: the tree so far, the last time, each tenant's last number."""

    def __init__(self, frontier: Frontier, recorded_at_us: int) -> None:
        self.frontier = frontier
        self.recorded_at_us = recorded_at_us
        self.appended = Appended(frontier.size)
        self._numbers: dict[str, int] = {}

    def last_number(self, connection: sa.Connection, tenant: str) -> int:
        """Return how many records a tenant has."""
        number = self._numbers.get(tenant)
        if number is None:
            query = sa.select(sa.func.max(AUDIT_RECORDS.c.number)).where(
                AUDIT_RECORDS.c.tenant_id == tenant
            )
            number = self._numbers[tenant] = connection.execute(query).scalar() or 0
        return number

    def advance(self, appended: PendingAppend) -> None:
        """Continue after records that have become durable."""
        self.frontier = appended.frontier
        self.recorded_at_us = appended.recorded_at_us
        if len(self._numbers) > CACHED_TENANTS:
            self._numbers.clear()  # they are read again
        self._numbers.update(appended.numbers)
        self.appended.add(appended.commit)


def load_log_state(connection: sa.Connection, formats: Formats = FORMATS) -> LogState:
    """Return the state of the log in the database. Raises DamagedLogError."""
    size, recorded_at_us = newest_record(connection)
    tree = frontier(size, subtrees(connection, formats)) if size else Frontier()
    return LogState(tree, recorded_at_us)


def insert_statement(dialect: sa.Dialect) -> str:
    """Return the INSERT of a Row, compiled once."""
    return str(sa.insert(AUDIT_RECORDS).compile(dialect=dialect, column_keys=Row._fields))


def append_records(
    connection: sa.Connection,
    insert: str,
    log_state: LogState,
    records: Sequence[NewRecord],
    formats: Formats = FORMATS,
) -> PendingAppend:
    """Insert records of the newest format, but for events that are in the log already, and tiles."""
    records = _without_recorded_events(connection, records)
    # Never before the last record's time, whatever the machine's clock does.
    now = max(log_state.recorded_at_us, clock.now_us())
    numbers: dict[str, int] = {}
    values: list[tuple[Value, ...]] = []
    newest = max(formats)
    size = log_state.frontier.size
    nonces = os.urandom(_NONCE * len(records))
    last: NewRecord | None = None
    tenant: str
    said: tuple[Value, ...]
    for place, record in enumerate(records):
        if record is not last:  # those of a batch are often one
            if last is None or record.tenant != last.tenant:
                tenant = _tenant_text(record.tenant)
            last, said = record, _said(record)
        number = (numbers.get(tenant) or log_state.last_number(connection, tenant)) + 1
        numbers[tenant] = number
        nonce = nonces[place * _NONCE : (place + 1) * _NONCE]
        values.append((size + place + 1, newest, tenant, number, now, nonce, *said))
    rows = list(map(Row._make, values))
    leaves = (leaf_hash(record_text(row, formats)) for row in rows)
    new_frontier, tiles = log_state.frontier.with_leaves(leaves)
    insert_all(connection, insert, values)
    if tiles:
        connection.execute(sa.insert(AUDIT_TILES), [tile._asdict() for tile in tiles])
    return PendingAppend(new_frontier, now, numbers, commit_of(rows, new_frontier.size, now))


def _said(record: NewRecord) -> tuple[Value, ...]:
    """Return what a Row has of its record itself. Its texts are plain ones, no members of enumerations."""
    return (
        record.principal,
        str(record.operation),
        None if record.algorithm is None else str(record.algorithm),
        record.key_version,
        str(record.outcome),
        *record[6:],
    )


def _without_recorded_events(
    connection: sa.Connection, records: Sequence[NewRecord]
) -> Sequence[NewRecord]:
    event_ids = {record.event_id for record in records if record.event_id is not None}
    if not event_ids:
        return records
    query = sa.select(AUDIT_RECORDS.c.event_id).where(AUDIT_RECORDS.c.event_id.in_(event_ids))
    recorded = set(connection.execute(query).scalars())
    new: list[NewRecord] = []
    for record in records:
        if record.event_id is None or record.event_id not in recorded:
            new.append(record)
            recorded.add(record.event_id)
    return new


@lru_cache(maxsize=CACHED_TENANTS)
def _tenant_text(tenant: UUID) -> str:
    return str(tenant)
