"""Appending to the audit log: ids, numbers, times and nonces of new records, and their tree.

What was appended lately is kept by kind of record, so that a checkpoint counts without reading
records. The counts are those that ``key_usage`` makes of the rows; where this
process has not appended all the records that are to be counted, these read them.
"""

import os
import sqlite3
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple, cast
from uuid import UUID

import sqlalchemy as sa
from sqlalchemy.dialects import sqlite

from pqkeep_keyservice import clock
from pqkeep_keyservice.ledger.merkle import Frontier, frontier, leaf_hash, newest_record, subtrees
from pqkeep_keyservice.ledger.records import FORMATS, Formats, NewRecord, Row, record_text
from pqkeep_keyservice.ledger.schema import AUDIT_RECORDS, AUDIT_TILES

Value = str | int | bytes | None


def insert_all(
    connection: sa.Connection, statement: str, rows: Sequence[tuple[Value, ...]]
) -> None:
    """Execute an INSERT with each row, in SQLite by its driver, which does nothing else.

    The driver takes half as long again for texts and tuples whose type is a subclass.
    """
    if connection.dialect.name == "sqlite":
        _driver(connection).executemany(statement, rows)
    elif rows:  # without rows SQLAlchemy would take it for a statement without parameters
        connection.exec_driver_sql(statement, list(rows))


def _driver(connection: sa.Connection) -> sqlite3.Connection:
    return cast("sqlite3.Connection", connection.connection.driver_connection)


def insert_or_update(dialect: sa.Dialect, table: sa.Table) -> Any:
    """Return an INSERT that takes an ON CONFLICT clause."""
    if dialect.name == "postgresql":
        from sqlalchemy.dialects.postgresql import insert  # noqa: PLC0415 - slow

        return insert(table)
    return sqlite.insert(table)


def add_all(
    connection: sa.Connection,
    table: sa.Table,
    adding: Callable[[Any], Any],
    rows: Sequence[tuple[Value, ...]],
) -> None:
    """Execute an INSERT, as ``adding`` completes it, with each row, in the order of the columns."""
    insert_all(connection, _compiled(connection.dialect, table, adding), rows)


def execute(
    connection: sa.Connection, statement: sa.Executable, *values: Value
) -> Sequence[Sequence[Any]]:
    """Execute a statement, which its caller makes once, with its parameters' values in their order.

    Return its rows. For what the event loop does again and again: SQLAlchemy takes 0.1 to 0.4 ms
    for each statement, SQLite's driver some microseconds.
    """
    text = _text(connection.dialect, statement)
    if connection.dialect.name == "sqlite":
        return _driver(connection).execute(text, values).fetchall()
    result = connection.exec_driver_sql(text, values)
    return result.all() if result.returns_rows else ()


@lru_cache
def _text(dialect: sa.Dialect, statement: sa.ClauseElement) -> str:
    return str(statement.compile(dialect=dialect))


@lru_cache
def _compiled(dialect: sa.Dialect, table: sa.Table, adding: Callable[[Any], Any]) -> str:
    """Return the text of an INSERT, which takes SQLAlchemy a millisecond to make."""
    insert = adding(insert_or_update(dialect, table))
    return str(insert.compile(dialect=dialect, column_keys=table.columns.keys()))


CACHED_TENANTS = 100_000
_NONCE = 16


MAX_RECORDS = 20_000
"""How many are kept while no checkpoint can be saved."""


class Kind(NamedTuple):
    """What counts of a record."""

    tenant_id: str
    keyring: str | None
    algorithm: str | None
    key_version: int | None
    operation: str
    outcome: str
    is_event: bool
    """Whether the gateway brought it."""
    target: str | None


class Commit(NamedTuple):
    """The records of one transaction, which have one time."""

    size: int
    """Of the log after it."""
    recorded_at_us: int
    kinds: Mapping[Kind, int]
    """How many there are of each."""


def commit_of(rows: Iterable[Row], size: int, recorded_at_us: int) -> Commit:
    """Return what a transaction has appended, after which the log has that size."""
    kinds = Counter(  # of plain tuples, which are made in half the time
        (
            row.tenant_id,
            row.keyring,
            row.algorithm,
            row.key_version,
            row.operation,
            row.outcome,
            row.event_id is not None,
            row.target,
        )
        for row in rows
    )
    return Commit(size, recorded_at_us, {Kind(*kind): many for kind, many in kinds.items()})


class Appended:
    """The newest commits."""

    def __init__(self, size: int) -> None:
        """Know nothing of the records up to a size."""
        self._since = size
        self._commits: deque[Commit] = deque()

    def add(self, commit: Commit) -> None:
        """Note a commit that has become durable."""
        self._commits.append(commit)
        self.forget(commit.size - MAX_RECORDS)

    def forget(self, size: int) -> None:
        """Drop what is known of the records up to a size."""
        while self._commits and self._commits[0].size <= size:
            self._since = self._commits.popleft().size

    def between(self, begin: int, end: int) -> list[Commit] | None:
        """Return the commits of exactly the records behind ``begin`` and up to ``end``, if known."""
        found = [each for each in self._commits if begin < each.size <= end]
        before = [each.size for each in self._commits if each.size <= begin]
        is_whole = [begin, end] == [
            before[-1] if before else self._since,
            found[-1].size if found else begin,
        ]
        return found if is_whole else None


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
