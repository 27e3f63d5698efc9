"""Evidence: the records that match a query, and the statement that no other record does.

The key service signs the statement, because a reader of the log's proofs cannot see which records
are missing. docs/audit.md says what it shows.
"""

from base64 import b64encode
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec
import sqlalchemy as sa
from msgspec import Struct

from pqkeep_keyservice import clock
from pqkeep_keyservice.ledger.checkpoints import find_checkpoint
from pqkeep_keyservice.ledger.merkle import DamagedLogError
from pqkeep_keyservice.ledger.records import FORMATS, Formats, iso_timestamp
from pqkeep_keyservice.ledger.search import proofs_of, search_rows
from pqkeep_protocol.audit import Checkpoint, FindEvidence, Proof
from pqkeep_protocol.keys import INSTALLATION


class EvidencePage(NamedTuple):
    """Records that match a query among those up to an id, in a checkpoint's tree."""

    checkpoint: Checkpoint
    ids: tuple[int, ...]
    proofs: tuple[Proof, ...]
    through: int
    """The last id that was read."""


def find_evidence(
    connection: sa.Connection, request: FindEvidence, formats: Formats = FORMATS
) -> EvidencePage:
    """Return the next matching records with their inclusion proofs.

    Raises DamagedLogError if no Dilithium3 checkpoint has the size.
    """
    checkpoint = find_checkpoint(connection, request.size)
    if checkpoint is None:
        raise DamagedLogError
    query = msgspec.structs.replace(
        request.query,
        after=request.after,
        before=request.size + 1,
        newest_first=False,
        limit=request.limit,
    )
    rows, place = search_rows(connection, query, formats)
    proofs = proofs_of(connection, rows, request.size, formats)
    through = request.size if place is None else place
    return EvidencePage(checkpoint, tuple(row.id for row in rows), proofs, through)


class Statement(Struct, frozen=True):
    """A statement about the records that match a query, with its names in alphabetical order."""

    after: int
    at: str
    ids: Sequence[int]
    log_id: str
    query: Mapping[str, str | int | Sequence[str]]
    root: str
    size: int
    tenant_id: str | None
    through: int


def statement_text(
    request: FindEvidence, checkpoint: Checkpoint, ids: Sequence[int], through: int
) -> bytes:
    """Return the RFC 8785 text of the statement that only these records match a query.

    It covers the ids after the request's ``after`` up to ``through``.
    """
    query = request.query
    is_of_all = request.tenant == INSTALLATION
    filters: dict[str, str | int | Sequence[str] | None] = {
        "algorithm": query.algorithm,
        "campaign": query.campaign,
        "from": None if query.since_us is None else iso_timestamp(query.since_us),
        "key_version": query.key_version,
        "keyring": query.keyring,
        "operations": sorted(set(query.operations)) or None,
        "outcome": query.outcome,
        "page_views": None if query.page_views else "excluded",
        "principal": query.principal,
        "request_id": query.request_id,
        "rule": query.rule,
        "source_address": query.source_address,
        "to": None if query.until_us is None else iso_timestamp(query.until_us),
    }
    statement = Statement(
        after=request.after,
        at=iso_timestamp(clock.now_us()),
        ids=ids,
        log_id=str(checkpoint.log_id),
        query={name: value for name, value in filters.items() if value is not None},
        root=b64encode(checkpoint.root).decode(),
        size=checkpoint.size,
        tenant_id=None if is_of_all else str(request.tenant),
        through=through,
    )
    return msgspec.json.encode(statement)
