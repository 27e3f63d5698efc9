"""Which records one search reads: at most MAX_SCANNED, found by an index.

Ids and a tenant's numbers grow by one, and together, so a part of the log is a range of either.
Records that few have in common have indexes of their own: see RARE in schema.py.
"""

from collections.abc import Callable
from typing import NamedTuple

import sqlalchemy as sa

from pqkeep_keyservice.ledger.schema import AUDIT_RECORDS, COMMON_OPERATIONS, RARE
from pqkeep_keyservice.ledger.tree import log_size
from pqkeep_protocol.audit import REFUSED, ListRecords
from pqkeep_protocol.audit_events import Outcome
from pqkeep_protocol.keys import INSTALLATION, TenantId

MAX_SCANNED = 10_000
"""Records that one request reads, at most."""

Condition = sa.ColumnElement[bool] | sa.TextClause
_COLUMNS = AUDIT_RECORDS.c


class Span(NamedTuple):
    """Positions from ``first`` to before ``end``: ids, or a tenant's numbers."""

    first: int
    end: int

    def part(self, *, newest_first: bool) -> "Span":
        """Return what one search reads of it."""
        if newest_first:
            return Span(max(self.first, self.end - MAX_SCANNED), self.end)
        return Span(self.first, min(self.end, self.first + MAX_SCANNED))

    def is_in(self, column: sa.ColumnElement[int]) -> tuple[Condition, Condition]:
        """Return the conditions of a position in it."""
        return column >= self.first, column < self.end


class Window(NamedTuple):
    """What one search reads."""

    conditions: tuple[Condition, ...]
    order: sa.ColumnElement[int]
    next: int | None
    """The id from which to go on, exclusive; None if there is nothing more."""


def window(connection: sa.Connection, request: ListRecords) -> Window:
    """Return the part of the log that a request reads."""
    ids = _ids(connection, request)
    if request.tenant == INSTALLATION:
        of_tenant: tuple[Condition, ...] = ()
        column, positions = _COLUMNS.id, ids
    else:
        of_tenant = (_COLUMNS.tenant_id == str(request.tenant),)
        column, positions = _COLUMNS.number, numbers(connection, request.tenant, ids)
    of_ids = ids.is_in(_COLUMNS.id)
    part = positions.part(newest_first=request.newest_first)
    if part != positions and (rare := _rare(request)):
        beyond = _following(connection, request, (*rare, *of_ids), _COLUMNS.id, MAX_SCANNED)
        of_part = (*rare, *of_ids)
        if beyond is not None:
            read = Span(beyond + 1, ids.end) if request.newest_first else Span(ids.first, beyond)
            of_part = (*rare, *read.is_in(_COLUMNS.id))
        column = _COLUMNS.id
        if (
            request.tenant != INSTALLATION
        ):  # an expression: the index of numbers is not in this order
            of_tenant = (_COLUMNS.tenant_id + "" == str(request.tenant),)
    else:
        of_part = (*part.is_in(column), *of_ids)
        is_beyond = column < part.first if request.newest_first else column >= part.end
        beyond = None
        if part != positions:
            beyond = _following(connection, request, (*of_tenant, is_beyond), column, 0)
    edge = None if beyond is None else beyond + (1 if request.newest_first else -1)
    return Window((*of_tenant, *of_part), _in_order(request, column), edge)


def numbers(connection: sa.Connection, tenant: TenantId, ids: Span) -> Span:
    """Return the numbers that a tenant's records with these ids have."""
    is_tenants = _COLUMNS.tenant_id == str(tenant)
    newest = sa.select(sa.func.max(_COLUMNS.number)).where(is_tenants)
    end = (connection.execute(newest).scalar() or 0) + 1
    query = sa.select(_COLUMNS.id).where(is_tenants, _COLUMNS.number >= sa.bindparam("least"))
    query = query.order_by(_COLUMNS.number).limit(1)  # the next one that is there

    def comes_before(id_: int) -> Callable[[int], bool]:
        return lambda number: connection.execute(query, {"least": number}).scalar_one() < id_

    first = _bisect(1, end, comes_before(ids.first)) if ids.first > 1 else 1
    return Span(first, _bisect(first, end, comes_before(ids.end)))


def _ids(connection: sa.Connection, request: ListRecords) -> Span:
    first, end = (request.after or 0) + 1, log_size(connection) + 1
    times = sa.select(_COLUMNS.recorded_at_us).where(_COLUMNS.id >= sa.bindparam("least"))
    times = times.order_by(_COLUMNS.id).limit(1)  # the next one that is there

    def first_at(microseconds: int) -> int:
        """Return the id of the first record at a time or later: times never decrease."""
        return _bisect(
            1,
            log_end,
            lambda id_: connection.execute(times, {"least": id_}).scalar_one() < microseconds,
        )

    log_end = end
    if request.before is not None:
        end = min(end, request.before)
    if request.since_us is not None:
        first = max(first, first_at(request.since_us))
    if request.until_us is not None:
        end = min(end, first_at(request.until_us))
    return Span(first, max(first, end))


def _rare(request: ListRecords) -> tuple[Condition, ...]:
    """Return the condition of what is asked for, where that has an index of its own."""
    if request.operation is not None and request.operation not in COMMON_OPERATIONS:
        return RARE["operation"], _COLUMNS.operation == request.operation
    if request.outcome == REFUSED:
        return (RARE["refused"],)
    if request.outcome is not None and request.outcome != Outcome.SUCCESS:
        return RARE["outcome"], _COLUMNS.outcome == request.outcome
    return ()


def _following(
    connection: sa.Connection,
    request: ListRecords,
    conditions: tuple[Condition, ...],
    column: sa.ColumnElement[int],
    skipped: int,
) -> int | None:
    """Return the id of the record after so many, in the order of the request."""
    query = sa.select(_COLUMNS.id).where(*conditions).order_by(_in_order(request, column))
    found: int | None = connection.execute(query.offset(skipped).limit(1)).scalar()
    return found


def _in_order(request: ListRecords, column: sa.ColumnElement[int]) -> sa.ColumnElement[int]:
    return column.desc() if request.newest_first else column


def _bisect(first: int, end: int, is_before: Callable[[int], bool]) -> int:
    """Return the first position that is not before what is looked for; ``end`` if all are."""
    while first < end:
        middle = (first + end) // 2
        if is_before(middle):
            first = middle + 1
        else:
            end = middle
    return first
