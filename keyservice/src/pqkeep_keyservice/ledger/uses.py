"""Counts the uses of keys by operation and principal: in total, and by day.

Each checkpoint counts the records since the last one, in its own transaction. The result is the
same from the commits in memory and from the rows.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import date, timedelta
from functools import lru_cache
from typing import Any

import sqlalchemy as sa

from pqkeep_keyservice.ledger.append import (
    Commit,
    Kind,
    add_all,
    execute,
    execute_all,
)
from pqkeep_keyservice.ledger.records import target_of
from pqkeep_keyservice.ledger.schema import (
    AUDIT_RECORDS,
    IS_UNCOUNTED,
    KEY_TOTALS,
    KEY_USAGE,
    USE_PRINCIPALS,
    USES,
)
from pqkeep_protocol.algorithms import USES as USING
from pqkeep_protocol.audit import OTHER_PRINCIPALS, RE_ENCRYPT_TARGET
from pqkeep_protocol.audit_events import Outcome
from pqkeep_protocol.errors import ErrorKind
from pqkeep_protocol.keys import TenantId

DAY_US = 24 * 3600 * 1_000_000
KEPT_DAYS = 400
"""The days for which each day is counted. Months before that are counted as a whole."""
MAX_PRINCIPALS = 10_000
"""The most principals that are counted for a tenant and month. All others are one."""
NO_KEYRING, NO_VERSION = "", 0
"""The place of uses of public keys that are not the tenant's own."""
EVER = 0
"""The month of USE_PRINCIPALS that stands for all time."""
MAX_MERGED = 500
"""The most rows that one checkpoint replaces by months."""
MAX_KNOWN = 100_000
"""The most principals in memory."""
MAX_MOVED = 200_000
"""The most rows that move with a tenant."""

_OUTCOMES = (Outcome.SUCCESS, ErrorKind.VERIFICATION_FAILED)
_COLUMNS = AUDIT_RECORDS.c
_MAY_BE_USE = (
    _COLUMNS.event_id.is_(None),  # events of the gateway use no key
    _COLUMNS.outcome.in_(_OUTCOMES),
    _COLUMNS.operation.in_(USING),
    _COLUMNS.algorithm.is_not(None),
)
IS_USE = (*_MAY_BE_USE, _COLUMNS.key_version.is_not(None), _COLUMNS.keyring.is_not(None))
"""The conditions for records of a use of the tenant's own key."""
_IS_COUNTED = (
    *_MAY_BE_USE,
    # Only a use of a supplied key has neither: an early refusal has another outcome.
    _COLUMNS.key_version.is_(None) == _COLUMNS.keyring.is_(None),
)
_DAY = _COLUMNS.recorded_at_us // sa.literal_column(str(DAY_US), sa.BigInteger)
_GROUP = (
    *(_COLUMNS.tenant_id, _COLUMNS.keyring, _COLUMNS.algorithm, _COLUMNS.key_version),
    *(_COLUMNS.principal, _COLUMNS.operation, _COLUMNS.target, _DAY),
)

Use = tuple[str, str, str, int, str, str, int]
"""Tenant, keyring, algorithm, version, principal, operation, day since 1970."""
Times = tuple[int, int, int]
"""Count, and the first and the last time in microseconds since 1970."""
Tally = dict[Use, Times]
UseRow = tuple[str, str, int, str, str, int, int, int, int]
"""A row of USES without the tenant."""


@lru_cache(maxsize=64)
def month_of(day: int) -> int:
    """Return the month of a day since 1970, as months since the year 0."""
    on = date(1970, 1, 1) + timedelta(days=day)
    return on.year * 12 + on.month - 1


@lru_cache(maxsize=64)
def first_day(month: int) -> int:
    """Return the first day of a month, as days since 1970."""
    year, place = divmod(month, 12)
    return (date(year, place + 1, 1) - date(1970, 1, 1)).days


def first_single_day(newest: int) -> int:
    """Return the first day that is counted by itself, if ``newest`` is the newest day."""
    return first_day(month_of(newest - KEPT_DAYS))


class Counting:
    """The state of the counting of uses between checkpoints. The tables have the same counts."""

    def __init__(self, epoch: int = 0) -> None:
        """Know nothing. ``epoch`` is the writer's, because another may count in between."""
        self.epoch = epoch
        self._principals: dict[tuple[int, str], set[str]] = {}
        self._month = 0
        self._merged_on = -1

    def add(self, connection: sa.Connection, tally: Tally) -> None:
        """Add uses to the tables. After a failed transaction, this object must not be used."""
        if not tally:
            return
        totals: dict[tuple[str, str, str, int, str, str], Times] = {}
        days: Tally = {}
        new: list[tuple[int, str, str]] = []
        for (
            tenant,
            keyring,
            algorithm,
            version,
            principal,
            operation,
            day,
        ), times in tally.items():
            by = principal
            known = self._known(connection, month_of(day), tenant)
            if principal not in known:
                if len(known) < MAX_PRINCIPALS:
                    known.add(principal)
                    new += [(month_of(day), tenant, principal), (EVER, tenant, principal)]
                else:
                    by = OTHER_PRINCIPALS
            place = tenant, keyring, algorithm, version, by, operation
            _add(totals, place, times)
            _add(days, (*place, day), times)
        add_all(connection, USE_PRINCIPALS, _once, new)
        _add_totals(connection, totals)
        add_all(connection, USES, adding_days, [(*key, *use) for key, use in days.items()])
        self._forget_months(connection, max(use[6] for use in tally))

    def _known(self, connection: sa.Connection, month: int, tenant: str) -> set[str]:
        known = self._principals.get((month, tenant))
        if known is None:
            if sum(map(len, self._principals.values())) > MAX_KNOWN:
                self._principals.clear()
            known = {name for (name,) in execute(connection, _PRINCIPALS, month, tenant)}
            self._principals[month, tenant] = known
        return known

    def _forget_months(self, connection: sa.Connection, newest: int) -> None:
        """Drop the principals of past months, and merge old days into months."""
        month = month_of(newest)
        if month != self._month:
            execute(connection, _DROP_PRINCIPALS, month - 1)
            self._principals = {
                key: known for key, known in self._principals.items() if key[0] >= month
            }
            self._month = month
        if self._merged_on != newest and not merge_days(connection, newest):
            self._merged_on = newest


def _add(tally: dict[Any, Times], key: object, times: Times) -> None:
    before = tally.get(key)
    if before is not None:
        times = before[0] + times[0], min(before[1], times[1]), max(before[2], times[2])
    tally[key] = times


def _adding(table: sa.Table) -> Callable[[Any], Any]:
    """Return a function that lets an INSERT add its uses to stored uses, and keep both times."""
    before = table.c

    def adding(insert: Any) -> Any:
        after = insert.excluded
        first, last = before.first_used_us, before.last_used_us
        return insert.on_conflict_do_update(
            index_elements=list(table.primary_key),
            set_={
                "uses": before.uses + after.uses,
                "first_used_us": sa.case(
                    (first < after.first_used_us, first), else_=after.first_used_us
                ),
                "last_used_us": sa.case(
                    (last > after.last_used_us, last), else_=after.last_used_us
                ),
            },
        )

    return adding


adding_totals, adding_days, _adding_versions = map(_adding, (KEY_USAGE, USES, KEY_TOTALS))


def _add_totals(connection: sa.Connection, totals: Mapping[Any, Times]) -> None:
    """Add uses by key version, principal and operation to the totals."""
    versions: dict[Any, Times] = {}
    for place, times in totals.items():
        if place[1] != NO_KEYRING:
            _add(versions, place[:4], times)
    add_all(connection, KEY_USAGE, adding_totals, [(*key, *use) for key, use in totals.items()])
    add_all(
        connection, KEY_TOTALS, _adding_versions, [(*key, *use) for key, use in versions.items()]
    )


def _once(insert: Any) -> Any:
    return insert.on_conflict_do_nothing()


_PRINCIPALS = sa.select(USE_PRINCIPALS.c.principal).where(
    USE_PRINCIPALS.c.month == sa.bindparam("month"),
    USE_PRINCIPALS.c.tenant_id == sa.bindparam("of"),
)
_DROP_PRINCIPALS = sa.delete(USE_PRINCIPALS).where(
    USE_PRINCIPALS.c.month < sa.bindparam("month"),
    USE_PRINCIPALS.c.month != sa.literal_column(str(EVER)),
)
_NEXT_DAY = sa.select(sa.func.min(USES.c.day)).where(
    USES.c.day > sa.bindparam("after"), USES.c.day < sa.bindparam("before")
)
_DELETE_USE = sa.delete(USES).where(
    *(column == sa.bindparam(f"_{column.name}") for column in list(USES.c)[:7])
)


def merge_days(connection: sa.Connection, newest: int) -> bool:
    """Merge some days that are too old into their months. Return whether there were any.

    A month has the number of its first day.
    """
    day: int | None = -1
    while True:
        [(day,)] = execute(connection, _NEXT_DAY, day, first_single_day(newest))
        if day is None:
            return False
        first = first_day(month_of(day))
        if day != first:
            break
    of_day = sa.select(USES).where(USES.c.day == day).limit(MAX_MERGED)
    rows = [tuple(row) for row in connection.execute(of_day)]
    add_all(connection, USES, adding_days, [(*row[:6], first, *row[7:]) for row in rows])
    execute_all(connection, _DELETE_USE, [row[:7] for row in rows])
    return True


def tally_of_commits(commits: Iterable[Commit]) -> Tally:
    """Return the uses in commits, in the order of their first records."""
    tally: Tally = {}
    for _, at_us, kinds in commits:
        for kind, count in kinds.items():
            for key in _uses(kind):
                _add(tally, (kind.tenant_id, *key, at_us // DAY_US), (count, at_us, at_us))
    return tally


def tally_of_records(connection: sa.Connection, size: int) -> Tally:
    """Return the uses in the uncounted records up to a size, in the order of their first records."""
    at_us = _COLUMNS.recorded_at_us
    query = (
        sa.select(*_GROUP, sa.func.count(), sa.func.min(at_us), sa.func.max(at_us))
        .where(IS_UNCOUNTED, _COLUMNS.id <= size, *_IS_COUNTED)
        .group_by(*_GROUP)
        .order_by(sa.func.min(_COLUMNS.id))
    )
    tally: Tally = {}
    for row in connection.execute(query):
        tenant, keyring, algorithm, version, principal, operation, target, day, *times = row
        for key in _places(keyring, algorithm, version, principal, operation, target):
            _add(tally, (tenant, *key, day), (times[0], times[1], times[2]))
    return tally


def _uses(kind: Kind) -> Iterator[tuple[str, str, int, str, str]]:
    """Yield a kind's uses, by the rules of ``_IS_COUNTED``."""
    if kind.is_event or kind.outcome not in _OUTCOMES or kind.operation not in USING:
        return
    if kind.algorithm is None or (kind.key_version is None) != (kind.keyring is None):
        return
    yield from _places(
        kind.keyring,
        kind.algorithm,
        kind.key_version,
        kind.principal,
        kind.operation,
        kind.target,
    )


def _places(
    keyring: str | None,
    algorithm: str,
    version: int | None,
    principal: str,
    operation: str,
    target: str | None,
) -> Iterator[tuple[str, str, int, str, str]]:
    """Yield keyring, algorithm, version, principal and operation of the used keys."""
    if keyring is None or version is None:
        yield NO_KEYRING, algorithm, NO_VERSION, principal, operation
        return
    yield keyring, algorithm, version, principal, operation
    if target is not None:
        to_keyring, to_algorithm, to_version = target_of(target)
        yield to_keyring, str(to_algorithm), to_version, principal, RE_ENCRYPT_TARGET


def tenant_uses(connection: sa.Connection, tenant: TenantId) -> list[UseRow]:
    """Return a tenant's uses by day, to move with it.

    Above MAX_MOVED rows, days become months; if that is not enough, principals become one.
    """
    query = sa.select(*list(USES.c)[1:]).where(USES.c.tenant_id == str(tenant))
    rows: list[UseRow] = [_use_row(row) for row in connection.execute(query)]
    for merged in (_in_month, _of_others):
        if len(rows) <= MAX_MOVED:
            break
        tally: dict[tuple[Any, ...], Times] = {}
        for row in rows:
            _add(tally, merged(row), (row[6], row[7], row[8]))
        rows = [_use_row((*key, *times)) for key, times in tally.items()]
    return rows


def _use_row(row: Sequence[Any]) -> UseRow:
    keyring, algorithm, version, principal, operation, day, count, first_us, last_us = row
    return keyring, algorithm, version, principal, operation, day, count, first_us, last_us


def _in_month(row: UseRow) -> tuple[Any, ...]:
    return (*row[:5], first_day(month_of(row[5])))


def _of_others(row: UseRow) -> tuple[Any, ...]:
    return (*row[:3], OTHER_PRINCIPALS, row[4], row[5])


def remove_tenant_uses(connection: sa.Connection, tenant: TenantId) -> None:
    """Remove a tenant's uses."""
    for table in (KEY_USAGE, KEY_TOTALS, USES, USE_PRINCIPALS):
        connection.execute(sa.delete(table).where(table.c.tenant_id == str(tenant)))


def add_tenant_uses(connection: sa.Connection, tenant: TenantId, rows: Sequence[UseRow]) -> None:
    """Add uses to a tenant's own."""
    of = str(tenant)
    totals: dict[tuple[Any, ...], Times] = {}
    for row in rows:
        _add(totals, (of, *row[:5]), (row[6], row[7], row[8]))
    newest = max((row[5] for row in rows), default=0)
    principals = {
        (month, of, row[3])
        for row in rows
        for month in (EVER, month_of(row[5]))
        if month in {EVER, month_of(newest)} and row[3] != OTHER_PRINCIPALS
    }
    add_all(connection, USE_PRINCIPALS, _once, sorted(principals))
    _add_totals(connection, totals)
    add_all(connection, USES, adding_days, [(of, *row) for row in rows])
