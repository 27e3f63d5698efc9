"""Queries of the audit log. Each reads at most MAX_SCANNED records, found by an index.

Ids grow by one. A tenant's numbers grow by one, too, in the same order. So a part of the log is a
range of either. Rare kinds of records have their own indexes: see RARE in schema.py.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network
from typing import Any, NamedTuple

import sqlalchemy as sa

from pqkeep_keyservice.ledger.merkle import (
    DamagedLogError,
    consistency_proof,
    has_format,
    inclusion_prover,
    log_size,
    subtrees,
)
from pqkeep_keyservice.ledger.records import FORMATS, Formats, Row, record_text
from pqkeep_keyservice.ledger.schema import AUDIT_RECORDS, COMMON_OPERATIONS, IS_SUCCESSION, RARE
from pqkeep_protocol.algorithms import Algorithm, Operation
from pqkeep_protocol.audit import (
    REFUSED,
    CountBy,
    CountRecords,
    ListRecords,
    Proof,
    ProveConsistency,
    ProveRecords,
    RecordCount,
    RecordCounts,
)
from pqkeep_protocol.audit_events import (
    API_KEY,
    OPERATOR,
    PAGE_VIEWS,
    PERSON,
    KeyServiceEvent,
    Outcome,
)
from pqkeep_protocol.keys import INSTALLATION, KeyringName, TenantId

MAX_SCANNED = 10_000
"""The most records that one request reads."""

Condition = sa.ColumnElement[bool] | sa.TextClause
_COLUMNS = AUDIT_RECORDS.c


class Span(NamedTuple):
    """Positions from ``first`` to before ``end``: ids or a tenant's numbers."""

    first: int
    end: int

    def part(self, *, newest_first: bool) -> "Span":
        """Return the part of the span that one search reads."""
        if newest_first:
            return Span(max(self.first, self.end - MAX_SCANNED), self.end)
        return Span(self.first, min(self.end, self.first + MAX_SCANNED))

    def is_in(self, column: sa.ColumnElement[int]) -> tuple[Condition, Condition]:
        """Return the conditions for positions in the span."""
        return column >= self.first, column < self.end


class Window(NamedTuple):
    """The part of the log that one search reads."""

    conditions: tuple[Condition, ...]
    order: sa.ColumnElement[int]
    next: int | None
    """The id after which the next page starts; None at the end."""


def window(connection: sa.Connection, request: ListRecords) -> Window:
    """Return the part of the log for a request."""
    ids = ids_of(connection, request)
    if request.tenant == INSTALLATION:
        of_tenant: tuple[Condition, ...] = ()
        column, positions = _COLUMNS.id, ids
    else:
        of_tenant = (_COLUMNS.tenant_id == str(request.tenant),)
        column, positions = _COLUMNS.number, numbers(connection, request.tenant, ids)
    of_ids = ids.is_in(_COLUMNS.id)
    part = positions.part(newest_first=request.newest_first)
    if part != positions and (rare := _rare(request)):
        kinds = _kinds(request, rare)
        each = MAX_SCANNED // len(kinds)
        following = [
            id_
            for kind in kinds
            if (id_ := _following(connection, request, (*kind, *of_ids), _COLUMNS.id, each))
        ]
        nearest = max if request.newest_first else min
        beyond = nearest(following, default=None)
        of_part = (*rare, *of_ids)
        if beyond is not None:
            read = Span(beyond + 1, ids.end) if request.newest_first else Span(ids.first, beyond)
            of_part = (*rare, *read.is_in(_COLUMNS.id))
        column = _COLUMNS.id
        if request.tenant != INSTALLATION:
            # An expression, so that SQLite does not use the index of numbers: its order differs.
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
    """Return the numbers of a tenant's records with these ids."""
    is_tenants = _COLUMNS.tenant_id == str(tenant)
    newest = sa.select(sa.func.max(_COLUMNS.number)).where(is_tenants)
    end = (connection.execute(newest).scalar() or 0) + 1
    query = sa.select(_COLUMNS.id).where(is_tenants, _COLUMNS.number >= sa.bindparam("least"))
    query = query.order_by(_COLUMNS.number).limit(1)  # the next existing one

    def comes_before(id_: int) -> Callable[[int], bool]:
        return lambda number: connection.execute(query, {"least": number}).scalar_one() < id_

    first = _bisect(1, end, comes_before(ids.first)) if ids.first > 1 else 1
    return Span(first, _bisect(first, end, comes_before(ids.end)))


def ids_of(connection: sa.Connection, request: ListRecords) -> Span:
    """Return the ids of the records within a request's limits of ids and times."""
    first, end = (request.after or 0) + 1, log_size(connection) + 1
    times = sa.select(_COLUMNS.recorded_at_us).where(_COLUMNS.id >= sa.bindparam("least"))
    times = times.order_by(_COLUMNS.id).limit(1)  # the next existing one

    def first_at(microseconds: int) -> int:
        """Return the id of the first record at a time or later. Times never decrease."""
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
    """Return the condition that uses an index of rare records, or nothing."""
    if request.rule is not None:
        return RARE["rule"], _COLUMNS.rule == request.rule
    if request.campaign is not None:
        return RARE["campaign"], _COLUMNS.campaign == request.campaign
    if request.operations and not set(request.operations).intersection(COMMON_OPERATIONS):
        return RARE["operation"], _is_any(_COLUMNS.operation, request.operations)
    if request.outcome == REFUSED:
        return (RARE["refused"],)
    if request.outcome is not None and request.outcome != Outcome.SUCCESS:
        return RARE["outcome"], _COLUMNS.outcome == request.outcome
    return ()


def _kinds(request: ListRecords, rare: tuple[Condition, ...]) -> Sequence[tuple[Condition, ...]]:
    """Return the condition of ``_rare``, divided by operation: each follows the index's order."""
    if len(request.operations) < 2 or rare[0] is not RARE["operation"]:  # noqa: PLR2004
        return [rare]
    return [(rare[0], _COLUMNS.operation == operation) for operation in request.operations]


def _is_any(column: sa.ColumnElement[str], values: Sequence[str]) -> Condition:
    """Return the condition for one of some values."""
    return column == values[0] if len(values) == 1 else column.in_(values)


def _following(
    connection: sa.Connection,
    request: ListRecords,
    conditions: tuple[Condition, ...],
    column: sa.ColumnElement[int],
    skipped: int,
) -> int | None:
    """Return the id of the record after ``skipped`` others, in the order of the request."""
    query = sa.select(_COLUMNS.id).where(*conditions).order_by(_in_order(request, column))
    id_: int | None = connection.execute(query.offset(skipped).limit(1)).scalar()
    return id_


def _in_order(request: ListRecords, column: sa.ColumnElement[int]) -> sa.ColumnElement[int]:
    return column.desc() if request.newest_first else column


def _bisect(first: int, end: int, is_before: Callable[[int], bool]) -> int:
    """Return the first position for which ``is_before`` is false, or ``end``."""
    while first < end:
        middle = (first + end) // 2
        if is_before(middle):
            first = middle + 1
        else:
            end = middle
    return first


_NEWEST_KEY_REVISION = sa.select(sa.func.max(AUDIT_RECORDS.c.keyring_revision)).where(
    AUDIT_RECORDS.c.tenant_id == sa.bindparam("tenant"),
    AUDIT_RECORDS.c.keyring == sa.bindparam("in_keyring"),
    AUDIT_RECORDS.c.algorithm == sa.bindparam("with_algorithm"),
    AUDIT_RECORDS.c.keyring_revision.is_not(None),
)


class Page(NamedTuple):
    """The texts of records, and the id after which the next page starts; None at the end."""

    lines: tuple[bytes, ...]
    next: int | None


def list_records(
    connection: sa.Connection, request: ListRecords, formats: Formats = FORMATS
) -> Page:
    """Return the matching records among the next MAX_SCANNED ones."""
    rows, place = search_rows(connection, request, formats)
    return Page(tuple(record_text(row, formats) for row in rows), place)


def search_rows(
    connection: sa.Connection, request: ListRecords, formats: Formats
) -> tuple[Sequence[Row], int | None]:
    """Return the rows of a page, and the id after which the next page starts."""
    read = window(connection, request)
    query = (
        sa.select(AUDIT_RECORDS)
        .where(*read.conditions, *_filters(connection, request, read), has_format(formats))
        .order_by(read.order)
        .limit(request.limit + 1)
    )
    rows = list(map(Row._make, connection.execute(query).all()))
    is_cut = len(rows) > request.limit
    return rows[: request.limit], rows[request.limit - 1].id if is_cut else read.next


def count_records(
    connection: sa.Connection, request: CountRecords, formats: Formats = FORMATS
) -> RecordCounts:
    """Count the matching records by value, among the next MAX_SCANNED records."""
    read = window(connection, request.query)
    value = _COUNTED[request.by]
    query = (
        sa.select(value, sa.func.count())
        .where(
            *read.conditions,
            *_filters(connection, request.query, read),
            has_format(formats),
            value.is_not(None),
        )
        .group_by(value)
    )
    counted = [RecordCount(str(text), count) for text, count in connection.execute(query)]
    if request.by in {CountBy.HOUR, CountBy.DAY}:
        counted.sort(key=lambda row: int(row.value), reverse=True)
    else:
        counted.sort(key=lambda row: (-row.count, row.value))
    return RecordCounts(
        counts=tuple(counted[: request.limit]),
        total=sum(row.count for row in counted),
        values=len(counted),
        next=read.next,
    )


def _since_1970(unit_us: int) -> sa.ColumnElement[Any]:
    return _COLUMNS.recorded_at_us // sa.literal_column(str(unit_us), sa.BigInteger)


_NOTHING = sa.literal_column("''", sa.String)
_COUNTED: Mapping[CountBy, sa.ColumnElement[Any]] = {
    CountBy.PRINCIPAL: _COLUMNS.principal,
    CountBy.KEY: (
        _COLUMNS.keyring
        + sa.func.coalesce(sa.literal_column("'/'", sa.String) + _COLUMNS.algorithm, _NOTHING)
        + sa.func.coalesce(
            sa.literal_column("' v'", sa.String) + sa.cast(_COLUMNS.key_version, sa.String),
            _NOTHING,
        )
    ),
    CountBy.ADDRESS: _COLUMNS.source_address,
    CountBy.OUTCOME: _COLUMNS.outcome,
    CountBy.OPERATION: _COLUMNS.operation,
    CountBy.HOUR: _since_1970(3_600_000_000),
    CountBy.DAY: _since_1970(86_400_000_000),
}
"""The SQL expression of each value.

A record without the value is not counted, such as one without a key.
"""


def _filters(connection: sa.Connection, request: ListRecords, read: Window) -> Iterator[Condition]:
    """Yield the conditions for the filters of a request."""
    columns = AUDIT_RECORDS.c
    filters = {
        columns.keyring: request.keyring,
        columns.algorithm: request.algorithm,
        columns.key_version: request.key_version,
        columns.outcome: None if request.outcome == REFUSED else request.outcome,
        columns.request_id: request.request_id,
        columns.rule: request.rule,
        columns.campaign: request.campaign,
    }
    yield from (column == value for column, value in filters.items() if value is not None)
    if request.operations:
        yield _is_any(columns.operation, request.operations)
    if request.source_address is not None:
        yield _comes_from(connection, request.source_address, read)
    if request.outcome == REFUSED:
        yield RARE["refused"]
    yield from by_principal(columns.principal, request.principal)
    if not request.page_views:
        yield _excludes_page_views()


def _comes_from(connection: sa.Connection, source: str, read: Window) -> Condition:
    """Return the condition for a source address, or for the addresses of a network.

    The addresses of a network are those that the part of the log has. Addresses are texts, and the
    text of an IPv6 address does not begin like its network.
    """
    column = AUDIT_RECORDS.c.source_address
    try:
        network = ip_network(source, strict=False)
    except ValueError:
        return column == source
    if "/" not in source:
        return column == source
    recorded = connection.execute(sa.select(column).where(*read.conditions).distinct()).scalars()
    return column.in_([address for address in recorded if _is_in(address, network)])


def _is_in(address: str, network: IPv4Network | IPv6Network) -> bool:
    try:
        return ip_address(address) in network
    except ValueError:  # a record of no request has no address
        return False


def prove_records(
    connection: sa.Connection, request: ProveRecords, formats: Formats = FORMATS
) -> tuple[Proof, ...]:
    """Return records with their inclusion proofs. Raises DamagedLogError if the tree is too large.

    If a proof needs a missing record, it is empty. So an export continues, and its verification can
    name the missing record.
    """
    if request.size > log_size(connection):
        raise DamagedLogError
    ids = Span(request.after + 1, request.size + 1)
    columns = AUDIT_RECORDS.c
    of_page: tuple[Condition, ...] = ids.is_in(columns.id)
    order: sa.ColumnElement[int] = columns.id
    if request.tenant != INSTALLATION:
        order = columns.number
        of_tenant = numbers(connection, request.tenant, ids).is_in(order)
        of_page = (columns.tenant_id == str(request.tenant), *of_tenant, *of_page)
    return _prove(connection, of_page, order, request.size, request.limit, formats)


def prove_successions(
    connection: sa.Connection, size: int, formats: Formats = FORMATS
) -> tuple[Proof, ...]:
    """Return the records that link the log to its predecessors, with their inclusion proofs.

    Raises DamagedLogError if the tree is too large.
    """
    if size > log_size(connection):
        raise DamagedLogError
    of_all = (IS_SUCCESSION, AUDIT_RECORDS.c.id <= size)
    return _prove(connection, of_all, AUDIT_RECORDS.c.id, size, None, formats)


def _prove(
    connection: sa.Connection,
    conditions: Sequence[Condition],
    order: sa.ColumnElement[int],
    size: int,
    limit: int | None,
    formats: Formats,
) -> tuple[Proof, ...]:
    query = sa.select(AUDIT_RECORDS).where(*conditions, has_format(formats))
    selected = connection.execute(query.order_by(order).limit(limit)).all()
    return proofs_of(connection, map(Row._make, selected), size, formats)


def proofs_of(
    connection: sa.Connection, rows: Iterable[Row], size: int, formats: Formats
) -> tuple[Proof, ...]:
    """Return rows with their inclusion proofs in the tree of the first ``size`` records."""
    prove = inclusion_prover(size, subtrees(connection, formats))
    return tuple(Proof(record_text(row, formats), _path(prove, row.id - 1)) for row in rows)


def record_texts(
    connection: sa.Connection, after: int, size: int, formats: Formats = FORMATS
) -> Iterator[bytes]:
    """Yield the texts of the records after an id, up to the first ``size``."""
    query = sa.select(AUDIT_RECORDS).where(
        has_format(formats), AUDIT_RECORDS.c.id > after, AUDIT_RECORDS.c.id <= size
    )
    rows = connection.execute(
        query.order_by(AUDIT_RECORDS.c.id), execution_options={"yield_per": MAX_SCANNED}
    )
    return (record_text(row, formats) for row in map(Row._make, rows))


def _path(prove: Callable[[int], list[bytes]], index: int) -> tuple[bytes, ...]:
    try:
        return tuple(prove(index))
    except DamagedLogError:
        return ()


def prove_consistency(
    connection: sa.Connection, request: ProveConsistency, formats: Formats = FORMATS
) -> tuple[bytes, ...]:
    """Return the consistency proof between two sizes. Raises DamagedLogError."""
    if not request.first <= request.second <= log_size(connection):
        raise DamagedLogError
    return tuple(consistency_proof(request.first, request.second, subtrees(connection, formats)))


def newest_key_revision(
    connection: sa.Connection, tenant: TenantId, keyring: KeyringName, algorithm: Algorithm
) -> int:
    """Return a key's revision after its last recorded change, or 0 without one."""
    name = {"tenant": str(tenant), "in_keyring": keyring, "with_algorithm": algorithm}
    return connection.execute(_NEWEST_KEY_REVISION, name).scalar() or 0


def by_principal(
    column: sa.ColumnElement[str], principal: str | None
) -> tuple[sa.ColumnElement[bool], ...]:
    """Return the condition for a principal, given as ID, as ID and name, or as a name alone."""
    if principal is None:
        return ()
    with_name = _begins_with(column, f"{principal}/")
    if ":" in principal:
        return (sa.or_(column == principal, with_name),)
    is_named = sa.and_(_begins_with(column, API_KEY), _ends_with(column, f"/{principal}"))
    operator = f"{OPERATOR}{principal}"
    with_role = _begins_with(column, f"{operator}/")
    return (sa.or_(column == principal, column == operator, with_role, is_named),)


def _begins_with(column: sa.ColumnElement[str], text: str) -> sa.ColumnElement[bool]:
    """Return the condition for a prefix. SQLite's LIKE would ignore case."""
    return sa.func.substr(column, 1, len(text)) == text


def _ends_with(column: sa.ColumnElement[str], text: str) -> sa.ColumnElement[bool]:
    return sa.func.substr(column, sa.func.length(column) - len(text) + 1) == text


def _excludes_page_views() -> sa.ColumnElement[bool]:
    """Return the condition that excludes people's page views."""
    columns = AUDIT_RECORDS.c
    return sa.not_(
        sa.and_(
            columns.operation.in_(sorted(PAGE_VIEWS)),
            columns.outcome == Outcome.SUCCESS.value,
            sa.func.substr(columns.principal, 1, len(PERSON)) == PERSON,
        )
    )


def newest_keyring_revisions(
    connection: sa.Connection,
    tenant: TenantId,
    *conditions: sa.ColumnElement[bool],
) -> dict[KeyringName, int]:
    """Return the revision of a tenant's keyrings after their last recorded change.

    ``conditions`` limit the records by their keyring.
    """
    return dict(map(tuple, connection.execute(recorded_keyring_revisions(tenant, *conditions))))


_RULES_CHANGES = (
    Operation.PUT_RULE.value,
    Operation.DELETE_RULE.value,
    Operation.OVERRIDE_RULE.value,
    KeyServiceEvent.MOVE_RULES.value,
)


def newest_rules_revisions(
    connection: sa.Connection, tenant: TenantId | None = None
) -> dict[str, int]:
    """Return the revision of tenants' rules after their last recorded change; None: all tenants."""
    columns = AUDIT_RECORDS.c
    query = sa.select(columns.tenant_id, sa.func.max(columns.keyring_revision)).where(
        RARE["operation"],
        columns.operation.in_(_RULES_CHANGES),
        columns.keyring_revision.is_not(None),
    )
    if tenant is not None:
        # An expression, so that SQLite does not read all records of the tenant.
        query = query.where(columns.tenant_id + "" == str(tenant))
    return dict(map(tuple, connection.execute(query.group_by(columns.tenant_id))))


def recorded_keyring_revisions(
    tenant: TenantId, *conditions: sa.ColumnElement[bool]
) -> sa.Select[Any]:
    """Return the query of ``newest_keyring_revisions``, with columns keyring and revision."""
    columns = AUDIT_RECORDS.c
    revision = sa.func.max(columns.keyring_revision).label("revision")
    query = sa.select(columns.keyring, revision).where(
        columns.tenant_id == str(tenant),
        columns.algorithm.is_(None),
        columns.keyring.is_not(None),
        columns.keyring_revision.is_not(None),
    )
    return query.where(*conditions).group_by(columns.keyring)
