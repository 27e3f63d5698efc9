"""Appends to the audit log: ids, numbers, times and nonces of new records, and their tree.

The newest commits are kept as counts by kind of record, so that a checkpoint need not read records.
These counts equal those that ``key_usage`` and ``uses`` make from rows. If this process has not
appended all the records to count, they read the rows.
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
    """Execute a statement with each row. On SQLite, call the driver directly.

    The driver takes half as long again for texts and tuples of a subclass.
    """
    if connection.dialect.name == "sqlite":
        _driver(connection).executemany(statement, rows)
    elif rows:  # with no rows SQLAlchemy would execute it without parameters
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
    """Execute an INSERT, completed by ``adding``, with rows in the table's column order."""
    insert_all(connection, _compiled(connection.dialect, table, adding), rows)


def execute(
    connection: sa.Connection, statement: sa.Executable, *values: Value
) -> Sequence[Sequence[Any]]:
    """Execute a constant statement with its parameters' values in order, and return its rows.

    For frequent statements on the event loop: SQLAlchemy takes 0.1 to 0.4 ms for each statement,
    SQLite's driver some microseconds.
    """
    text = _text(connection.dialect, statement)
    if connection.dialect.name == "sqlite":
        return _driver(connection).execute(text, values).fetchall()
    result = connection.exec_driver_sql(text, values)
    return result.all() if result.returns_rows else ()


def execute_all(
    connection: sa.Connection, statement: sa.Executable, rows: Sequence[tuple[Value, ...]]
) -> None:
    """Execute a constant statement with each row of parameters."""
    insert_all(connection, _text(connection.dialect, statement), rows)


@lru_cache
def _text(dialect: sa.Dialect, statement: sa.ClauseElement) -> str:
    return str(statement.compile(dialect=dialect))


@lru_cache
def _compiled(dialect: sa.Dialect, table: sa.Table, adding: Callable[[Any], Any]) -> str:
    """Return the text of an INSERT. SQLAlchemy takes a millisecond to compile it."""
    insert = adding(insert_or_update(dialect, table))
    return str(insert.compile(dialect=dialect, column_keys=table.columns.keys()))


CACHED_TENANTS = 100_000
_NONCE = 16


MAX_RECORDS = 20_000
"""The most records that are counted in memory while no checkpoint can be stored."""


class Kind(NamedTuple):
    """The properties by which records are counted."""

    tenant_id: str
    keyring: str | None
    algorithm: str | None
    key_version: int | None
    principal: str
    operation: str
    outcome: str
    is_event: bool
    """Whether the gateway sent the record as an event."""
    target: str | None
    campaign: str | None


class Commit(NamedTuple):
    """The records of one transaction. All have the same time."""

    size: int
    """The size of the log after the transaction."""
    recorded_at_us: int
    kinds: Mapping[Kind, int]
    """The number of records of each kind."""


def commit_of(rows: Iterable[Row], size: int, recorded_at_us: int) -> Commit:
    """Return the commit of a transaction's rows. ``size`` is the log's size after it."""
    kinds = Counter(  # plain tuples take half the time of Kind
        (
            row.tenant_id,
            row.keyring,
            row.algorithm,
            row.key_version,
            row.principal,
            row.operation,
            row.outcome,
            row.event_id is not None,
            row.target,
            row.campaign,
        )
        for row in rows
    )
    return Commit(size, recorded_at_us, {Kind(*kind): many for kind, many in kinds.items()})


class Appended:
    """The newest commits of this process."""

    def __init__(self, size: int) -> None:
        """Start after ``size`` records, of which nothing is known."""
        self._since = size
        self._commits: deque[Commit] = deque()

    def add(self, commit: Commit) -> None:
        """Note a durable commit."""
        self._commits.append(commit)
        self.forget(commit.size - MAX_RECORDS)

    def forget(self, size: int) -> None:
        """Drop the commits up to a size."""
        while self._commits and self._commits[0].size <= size:
            self._since = self._commits.popleft().size

    def between(self, begin: int, end: int) -> list[Commit] | None:
        """Return the commits of exactly the records after ``begin`` up to ``end``, if known."""
        commits = [commit for commit in self._commits if begin < commit.size <= end]
        earlier = [commit.size for commit in self._commits if commit.size <= begin]
        is_complete = [begin, end] == [
            earlier[-1] if earlier else self._since,
            commits[-1].size if commits else begin,
        ]
        return commits if is_complete else None


class PendingAppend(NamedTuple):
    """The additions of an uncommitted transaction to the log."""

    frontier: Frontier
    recorded_at_us: int
    numbers: dict[str, int]
    commit: Commit


class LogState:
    """The state that the next record follows: tree, last time, and last number of each tenant."""

    def __init__(self, frontier: Frontier, recorded_at_us: int) -> None:
        self.frontier = frontier
        self.recorded_at_us = recorded_at_us
        self.appended = Appended(frontier.size)
        self._numbers: dict[str, int] = {}

    def last_number(self, connection: sa.Connection, tenant: str) -> int:
        """Return the number of a tenant's records."""
        number = self._numbers.get(tenant)
        if number is None:
            query = sa.select(sa.func.max(AUDIT_RECORDS.c.number)).where(
                AUDIT_RECORDS.c.tenant_id == tenant
            )
            number = self._numbers[tenant] = connection.execute(query).scalar() or 0
        return number

    def advance(self, appended: PendingAppend) -> None:
        """Continue after durable records."""
        self.frontier = appended.frontier
        self.recorded_at_us = appended.recorded_at_us
        if len(self._numbers) > CACHED_TENANTS:
            self._numbers.clear()  # read again on demand
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
    """Insert records of the newest format, and their tiles. Skip events already in the log."""
    records = _without_recorded_events(connection, records)
    # Times never decrease, even if the machine's clock goes back.
    now = max(log_state.recorded_at_us, clock.now_us())
    numbers: dict[str, int] = {}
    values: list[tuple[Value, ...]] = []
    newest = max(formats)
    size = log_state.frontier.size
    nonces = os.urandom(_NONCE * len(records))
    last: NewRecord | None = None
    tenant: str
    content: tuple[Value, ...]
    for place, record in enumerate(records):
        if record is not last:  # the records of a batch are often the same object
            if last is None or record.tenant != last.tenant:
                tenant = _tenant_text(record.tenant)
            last, content = record, _content(record)
        number = (numbers.get(tenant) or log_state.last_number(connection, tenant)) + 1
        numbers[tenant] = number
        nonce = nonces[place * _NONCE : (place + 1) * _NONCE]
        values.append((size + place + 1, newest, tenant, number, now, nonce, *content))
    rows = list(map(Row._make, values))
    leaves = (leaf_hash(record_text(row, formats)) for row in rows)
    new_frontier, tiles = log_state.frontier.with_leaves(leaves)
    insert_all(connection, insert, values)
    if tiles:
        connection.execute(sa.insert(AUDIT_TILES), [tile._asdict() for tile in tiles])
    return PendingAppend(new_frontier, now, numbers, commit_of(rows, new_frontier.size, now))


def _content(record: NewRecord) -> tuple[Value, ...]:
    """Return a Row's columns that come from its record. Texts are plain str, not enum members."""
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
