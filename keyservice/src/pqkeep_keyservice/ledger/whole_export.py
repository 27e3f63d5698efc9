"""Records of a whole export: without proofs, because whoever has all of them builds the tree."""

import sqlalchemy as sa

from pqkeep_keyservice.ledger.merkle import frontier
from pqkeep_keyservice.ledger.records import FORMATS, Formats, Row, record_text
from pqkeep_keyservice.ledger.schema import AUDIT_RECORDS
from pqkeep_keyservice.ledger.search import Page
from pqkeep_keyservice.ledger.tree import DamagedLogError, has_format, log_size, subtrees
from pqkeep_protocol.audit import ExportRecords, GetSubtrees

MAX_BYTES = 1024 * 1024
"""Of the texts in one message: a quarter of a frame, and the last text more."""


def export_records(
    connection: sa.Connection, request: ExportRecords, formats: Formats = FORMATS
) -> Page:
    """Return the next records. Raises DamagedLogError if the log is smaller than the tree."""
    if request.size > log_size(connection):
        raise DamagedLogError
    id_ = AUDIT_RECORDS.c.id
    query = sa.select(AUDIT_RECORDS).where(
        has_format(formats), id_ > request.after, id_ <= request.size
    )
    lines: list[bytes] = []
    length, last = 0, request.size
    rows = connection.execute(query.order_by(id_).limit(request.limit)).all()
    for row in map(Row._make, rows):
        lines.append(record_text(row, formats))
        length, last = length + len(lines[-1]), row.id
        if length >= MAX_BYTES:
            break
    return Page(tuple(lines), last if last < request.size else None)


def subtrees_of(
    connection: sa.Connection, request: GetSubtrees, formats: Formats = FORMATS
) -> tuple[bytes, ...]:
    """Return the complete subtrees of a tree. Raises DamagedLogError."""
    if request.size > log_size(connection):
        raise DamagedLogError
    return frontier(request.size, subtrees(connection, formats)).hashes
