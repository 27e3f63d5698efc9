"""How many operations succeeded in each hour, and how much was refused.

Counted up to the newest checkpoint, and queried since, as key usage is.
"""

from collections import Counter
from collections.abc import Iterable
from typing import Any

import sqlalchemy as sa

from pqkeep_keyservice.ledger.append import Commit, Kind
from pqkeep_keyservice.ledger.dialects import add_all, execute, insert_or_update
from pqkeep_keyservice.ledger.schema import (
    AUDIT_RECORDS,
    IS_UNCOUNTED,
    OPERATION_COUNTS,
    is_uncounted_of,
)
from pqkeep_protocol.algorithms import Operation
from pqkeep_protocol.audit import REFUSED, CountOperations, OperationCount, OperationCounts
from pqkeep_protocol.audit_events import Outcome
from pqkeep_protocol.errors import ErrorKind
from pqkeep_protocol.keys import INSTALLATION

HOUR_US = 3600 * 1_000_000
KEPT_HOURS = 40 * 24
"""Which counts are kept: a month's, and some more."""
EVERYBODY = ""
"""In place of a tenant: the counts of the whole log, so that these are read without a sum."""

NOT_REFUSED = (*Outcome, ErrorKind.VERIFICATION_FAILED)
"""Outcomes that are no refusals; ``schema.RARE`` has the condition."""
_WAS_REFUSED = AUDIT_RECORDS.c.outcome.not_in(NOT_REFUSED)
_OPERATIONS = tuple(Operation)
_IS_COUNTED = sa.or_(
    _WAS_REFUSED,
    sa.and_(AUDIT_RECORDS.c.event_id.is_(None), AUDIT_RECORDS.c.operation.in_(_OPERATIONS)),
)
_HOUR = AUDIT_RECORDS.c.recorded_at_us // HOUR_US
_OPERATION = sa.case((_WAS_REFUSED, REFUSED), else_=AUDIT_RECORDS.c.operation)
_NEWEST_HOUR = sa.select(sa.func.max(OPERATION_COUNTS.c.hour)).scalar_subquery()
_DROP_OLD_COUNTS = sa.delete(OPERATION_COUNTS).where(
    OPERATION_COUNTS.c.hour <= _NEWEST_HOUR - sa.bindparam("kept", type_=sa.Integer)
)


def find_operation_counts(connection: sa.Connection, request: CountOperations) -> OperationCounts:
    """Return the counts of a tenant, or of the whole log, by bucket."""
    everybody = request.tenant == INSTALLATION
    counts, first = OPERATION_COUNTS.c, sa.literal(request.since_hour)
    counted = sa.select(counts.hour, counts.operation, counts.count).where(
        counts.tenant_id == (EVERYBODY if everybody else str(request.tenant)), counts.hour >= first
    )
    since = sa.select(_HOUR, _OPERATION, sa.literal(1)).where(
        IS_UNCOUNTED,
        _IS_COUNTED,
        first <= _HOUR,
        *(() if everybody else (is_uncounted_of(request.tenant),)),
    )
    both = sa.union_all(counted, since).subquery()
    bucket = (both.c.hour // request.hours).label("bucket")
    each = sa.select(bucket, both.c.operation, both.c.count).subquery()
    group = each.c.bucket, each.c.operation
    total = sa.cast(sa.func.sum(each.c.count), sa.BigInteger)
    return OperationCounts(
        counts=tuple(
            OperationCount(number * request.hours, operation, count)
            for number, operation, count in connection.execute(
                sa.select(*group, total).group_by(*group)
            )
        )
    )


def count_operations(connection: sa.Connection, size: int) -> None:
    """Add the records up to a size to the counts, and drop what is not kept."""
    new = AUDIT_RECORDS.c.id <= size
    for tenant in (AUDIT_RECORDS.c.tenant_id, sa.literal(EVERYBODY)):
        group = tenant.label("tenant"), _HOUR.label("hour"), _OPERATION.label("counted")
        records = sa.select(*group).where(IS_UNCOUNTED, new, _IS_COUNTED).subquery()
        counted = sa.select(records, sa.func.count()).group_by(*records.c)
        insert = insert_or_update(connection.dialect, OPERATION_COUNTS).from_select(
            list(OPERATION_COUNTS.columns), counted
        )
        connection.execute(adding_counts(insert))
    execute(connection, _DROP_OLD_COUNTS, KEPT_HOURS)


def add_operations(connection: sa.Connection, commits: Iterable[Commit]) -> None:
    """Add commits to the counts: the same as counting their records."""
    found: Counter[tuple[str, int, str]] = Counter()
    for _, recorded_at_us, kinds in commits:
        for kind, count in kinds.items():
            counted = _counted_as(kind)
            if counted is not None:
                for tenant in (kind.tenant_id, EVERYBODY):
                    found[tenant, recorded_at_us // HOUR_US, counted] += count
    if found:
        rows = [(*key, count) for key, count in found.items()]
        add_all(connection, OPERATION_COUNTS, adding_counts, rows)
    execute(connection, _DROP_OLD_COUNTS, KEPT_HOURS)


def _counted_as(kind: Kind) -> str | None:
    """Return what records of a kind count as, as ``_IS_COUNTED`` and ``_OPERATION`` have it."""
    if kind.outcome not in NOT_REFUSED:
        return REFUSED
    return kind.operation if not kind.is_event and kind.operation in _OPERATIONS else None


def adding_counts(insert: Any) -> Any:
    """Return an INSERT of counts that adds each to the one that is there."""
    return insert.on_conflict_do_update(
        index_elements=list(OPERATION_COUNTS.primary_key),
        set_={"count": OPERATION_COUNTS.c.count + insert.excluded["count"]},
    )
