"""Queries of the audit log. Each reads a bounded number of records."""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import sqlalchemy as sa

from pqkeep_keyservice.ledger.merkle import consistency_proof, inclusion_prover
from pqkeep_keyservice.ledger.records import FORMATS, Formats, Row, record_text
from pqkeep_keyservice.ledger.schema import AUDIT_RECORDS, IS_SUCCESSION, RARE
from pqkeep_keyservice.ledger.tree import DamagedLogError, has_format, log_size, subtrees
from pqkeep_keyservice.ledger.windows import MAX_SCANNED, Condition, Span, numbers, window
from pqkeep_protocol.algorithms import Algorithm
from pqkeep_protocol.audit import REFUSED, ListRecords, Proof, ProveConsistency, ProveRecords
from pqkeep_protocol.audit_events import API_KEY, OPERATOR, PAGE_VIEWS, PERSON, Outcome
from pqkeep_protocol.keys import INSTALLATION, KeyringName, TenantId

_NEWEST_KEY_REVISION = sa.select(sa.func.max(AUDIT_RECORDS.c.keyring_revision)).where(
    AUDIT_RECORDS.c.tenant_id == sa.bindparam("tenant"),
    AUDIT_RECORDS.c.keyring == sa.bindparam("in_keyring"),
    AUDIT_RECORDS.c.algorithm == sa.bindparam("with_algorithm"),
    AUDIT_RECORDS.c.keyring_revision.is_not(None),
)


class Page(NamedTuple):
    """Records, each as its text, and the id to continue from; None at the end."""

    lines: tuple[bytes, ...]
    next: int | None


def list_records(
    connection: sa.Connection, request: ListRecords, formats: Formats = FORMATS
) -> Page:
    """Return the matching ones among the next MAX_SCANNED records."""
    read = window(connection, request)
    columns = AUDIT_RECORDS.c
    filters = {
        columns.operation: request.operation,
        columns.keyring: request.keyring,
        columns.algorithm: request.algorithm,
        columns.key_version: request.key_version,
        columns.outcome: None if request.outcome == REFUSED else request.outcome,
        columns.source_address: request.source_address,
        columns.request_id: request.request_id,
    }
    query = (
        sa.select(AUDIT_RECORDS)
        .where(*read.conditions, has_format(formats))
        .where(*(column == value for column, value in filters.items() if value is not None))
        .where(*((RARE["refused"],) if request.outcome == REFUSED else ()))
        .where(*_by(columns.principal, request.principal))
        .where(*(() if request.page_views else (_is_no_page_view(),)))
        .order_by(read.order)
        .limit(request.limit + 1)
    )
    rows = list(map(Row._make, connection.execute(query).all()))
    lines = tuple(record_text(row, formats) for row in rows[: request.limit])
    return Page(lines, rows[request.limit - 1].id if len(rows) > request.limit else read.next)


def prove_records(
    connection: sa.Connection, request: ProveRecords, formats: Formats = FORMATS
) -> tuple[Proof, ...]:
    """Return records with their inclusion proofs. Raises DamagedLogError if the tree is too large.

    A proof that needs a missing record is empty, so that an export continues and its verification
    can name what is missing.
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
    """Return the records by which the log continues others, with their inclusion proofs.

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
    found = connection.execute(query.order_by(order).limit(limit)).all()
    prove = inclusion_prover(size, subtrees(connection, formats))
    rows = map(Row._make, found)
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
    """Return the key's revision after the last change that the log has; 0 without one."""
    name = {"tenant": str(tenant), "in_keyring": keyring, "with_algorithm": algorithm}
    return connection.execute(_NEWEST_KEY_REVISION, name).scalar() or 0


def _by(column: sa.ColumnElement[str], principal: str | None) -> tuple[sa.ColumnElement[bool], ...]:
    """Return the condition for a principal, with an API key's name or without it, or for a name."""
    if principal is None:
        return ()
    with_name = _begins_with(column, f"{principal}/")
    if ":" in principal:
        return (sa.or_(column == principal, with_name),)
    is_named = sa.and_(_begins_with(column, API_KEY), _ends_with(column, f"/{principal}"))
    return (sa.or_(column == principal, column == f"{OPERATOR}{principal}", is_named),)


def _begins_with(column: sa.ColumnElement[str], text: str) -> sa.ColumnElement[bool]:
    """Return the condition of a beginning. No LIKE: SQLite's ignores case."""
    return sa.func.substr(column, 1, len(text)) == text


def _ends_with(column: sa.ColumnElement[str], text: str) -> sa.ColumnElement[bool]:
    return sa.func.substr(column, sa.func.length(column) - len(text) + 1) == text


def _is_no_page_view() -> sa.ColumnElement[bool]:
    """Return the condition that leaves out the lists that people's pages have read."""
    columns = AUDIT_RECORDS.c
    return sa.not_(
        sa.and_(
            columns.operation.in_(sorted(PAGE_VIEWS)),
            columns.outcome == Outcome.SUCCESS.value,
            sa.func.substr(columns.principal, 1, len(PERSON)) == PERSON,
        )
    )


def newest_keyring_revisions(
    connection: sa.Connection, tenant: TenantId, keyring: KeyringName | None = None
) -> dict[KeyringName, int]:
    """Return the revision of each of a tenant's keyrings, or of one, after its last change."""
    columns = AUDIT_RECORDS.c
    query = sa.select(columns.keyring, sa.func.max(columns.keyring_revision)).where(
        columns.tenant_id == str(tenant),
        columns.algorithm.is_(None),
        columns.keyring.is_not(None),
        columns.keyring_revision.is_not(None),
    )
    if keyring is not None:
        query = query.where(columns.keyring == keyring)
    return dict(map(tuple, connection.execute(query.group_by(columns.keyring))))
