"""Checkpoints of the audit log: stored, listed, and compared with the log."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Any
from uuid import UUID

import msgspec
import sqlalchemy as sa

from pqkeep_keyservice.ledger.append import Appended, add_all, execute
from pqkeep_keyservice.ledger.campaigns import add_moves, moves_of_commits, moves_of_records
from pqkeep_keyservice.ledger.key_usage import add_operations, count_operations
from pqkeep_keyservice.ledger.merkle import DamagedLogError, range_hash, subtrees
from pqkeep_keyservice.ledger.records import FORMATS, Formats
from pqkeep_keyservice.ledger.schema import (
    AUDIT_CHECKPOINTS,
    AUDIT_COSIGNATURES,
    AUDIT_LOG,
    AUDIT_RECORDS,
    RARE,
)
from pqkeep_keyservice.ledger.uses import Counting, tally_of_commits, tally_of_records
from pqkeep_protocol.algorithms import Algorithm
from pqkeep_protocol.audit import Checkpoint, Cosignature, CountedLog, ListCheckpoints
from pqkeep_protocol.audit_events import KeyServiceEvent, Outcome
from pqkeep_protocol.startup.settings import ConfigError


def _newest(algorithm: Algorithm) -> sa.Select[Any]:
    columns = AUDIT_CHECKPOINTS.c
    query = sa.select(AUDIT_CHECKPOINTS).where(columns.algorithm == algorithm)
    return query.order_by(columns.size.desc()).limit(1)


_COSIGNED = Algorithm.ML_DSA_65
"""The algorithm of the checkpoints that witnesses cosign."""
_SIGNED = AUDIT_CHECKPOINTS.alias("signed")
_NEWEST = sa.select(AUDIT_CHECKPOINTS).where(
    AUDIT_CHECKPOINTS.c.algorithm == sa.bindparam("signed_with"),
    AUDIT_CHECKPOINTS.c.size
    == sa.select(sa.func.max(_SIGNED.c.size))
    .where(_SIGNED.c.algorithm == sa.bindparam("of"))
    .scalar_subquery(),
)
_NEWEST_OF_EACH = sa.union_all(
    *(sa.select(_newest(algorithm).subquery()) for algorithm in Algorithm)
)
"""One query for all algorithms. A standby needs its result before it becomes active."""
_LOG_ID = sa.select(AUDIT_LOG.c.log_id)
_COUNTED_UNTIL = sa.select(AUDIT_LOG.c.counted_until)
_COUNT_UNTIL = (
    sa.update(AUDIT_LOG)
    .values(counted_until=sa.bindparam("size"))
    .where(AUDIT_LOG.c.counted_until < sa.bindparam("at_most"))
)


def log_id(connection: sa.Connection) -> UUID:
    """Return the log's id. Every checkpoint has it."""
    [(text,)] = execute(connection, _LOG_ID)
    return UUID(text)


def rename_log(connection: sa.Connection, new: UUID) -> None:
    """Give the log another id. Existing checkpoints keep the old one."""
    connection.execute(sa.update(AUDIT_LOG).values(log_id=str(new)))


def add_checkpoint(
    connection: sa.Connection,
    checkpoint: Checkpoint,
    appended: Appended | None = None,
    counting: Counting | None = None,
) -> None:
    """Store a checkpoint, and count key uses and operations up to it.

    The records are read for that, unless ``appended`` has all of them.
    """
    counting = counting or Counting()
    row = (
        *(checkpoint.size, checkpoint.algorithm.value, str(checkpoint.log_id), checkpoint.root),
        *(checkpoint.at_us, checkpoint.key_version, checkpoint.signature),
    )
    add_all(connection, AUDIT_CHECKPOINTS, _ignoring_conflicts, [row])
    [(counted,)] = execute(connection, _COUNTED_UNTIL)
    commits = None if appended is None else appended.between(counted, checkpoint.size)
    if commits is None:
        counting.add(connection, tally_of_records(connection, checkpoint.size))
        add_moves(connection, moves_of_records(connection, checkpoint.size))
        count_operations(connection, checkpoint.size)
    else:
        counting.add(connection, tally_of_commits(commits))
        add_moves(connection, moves_of_commits(commits))
        add_operations(connection, commits)
    execute(connection, _COUNT_UNTIL, checkpoint.size, checkpoint.size)


def _ignoring_conflicts(insert: Any) -> Any:
    return insert.on_conflict_do_nothing()


def find_largest_checkpoint(connection: sa.Connection) -> Checkpoint | None:
    """Return the checkpoint with the largest size, of any algorithm."""
    query = sa.select(AUDIT_CHECKPOINTS).order_by(AUDIT_CHECKPOINTS.c.size.desc()).limit(1)
    row = connection.execute(query).one_or_none()
    return None if row is None else _checkpoint(row)


def find_newest_checkpoint(connection: sa.Connection, algorithm: Algorithm) -> Checkpoint | None:
    """Return the newest checkpoint signed with an algorithm."""
    rows = execute(connection, _NEWEST, algorithm.value, algorithm.value)
    return _checkpoint(rows[0]) if rows else None


def find_checkpoint(connection: sa.Connection, size: int) -> Checkpoint | None:
    """Return the Dilithium3 checkpoint of a size."""
    columns = AUDIT_CHECKPOINTS.c
    query = sa.select(AUDIT_CHECKPOINTS).where(
        columns.size == size, columns.algorithm == Algorithm.ML_DSA_65.value
    )
    row = connection.execute(query).one_or_none()
    return None if row is None else _checkpoint(row)


def newest_checkpoints(connection: sa.Connection) -> tuple[Checkpoint, ...]:
    """Return the newest checkpoint of each algorithm that has one."""
    newest = map(_checkpoint, connection.execute(_NEWEST_OF_EACH))
    order = list(Algorithm)
    return tuple(sorted(newest, key=lambda checkpoint: order.index(checkpoint.algorithm)))


def find_counted(connection: sa.Connection) -> CountedLog | None:
    """Return the checkpoint up to which uses are counted, or None."""
    query = (
        sa.select(
            AUDIT_CHECKPOINTS.c.log_id,
            AUDIT_CHECKPOINTS.c.size,
            AUDIT_CHECKPOINTS.c.root,
            AUDIT_CHECKPOINTS.c.at_us,
        )
        .join(AUDIT_LOG, AUDIT_LOG.c.counted_until == AUDIT_CHECKPOINTS.c.size)
        .order_by(AUDIT_CHECKPOINTS.c.algorithm)
        .limit(1)
    )
    row = connection.execute(query).one_or_none()
    return None if row is None else CountedLog(UUID(row[0]), row[1], row[2], row[3])


def list_checkpoints(connection: sa.Connection, request: ListCheckpoints) -> tuple[Checkpoint, ...]:
    """Return checkpoints after a size, by size; or the newest of each algorithm or witness."""
    return _with_cosignatures(connection, _listed(connection, request))


def _listed(connection: sa.Connection, request: ListCheckpoints) -> Iterable[Checkpoint]:
    if request.after is None and request.cosigned:
        return _newest_cosigned(connection)
    if request.after is None:
        return tuple(
            checkpoint
            for checkpoint in newest_checkpoints(connection)
            if request.algorithm in (None, checkpoint.algorithm)
        )
    query = (
        sa.select(AUDIT_CHECKPOINTS)
        .where(AUDIT_CHECKPOINTS.c.size > request.after)
        .order_by(AUDIT_CHECKPOINTS.c.size, AUDIT_CHECKPOINTS.c.algorithm)
        .limit(request.limit)
    )
    if request.algorithm is not None:
        query = query.where(AUDIT_CHECKPOINTS.c.algorithm == request.algorithm)
    return tuple(map(_checkpoint, connection.execute(query)))


def _newest_cosigned(connection: sa.Connection) -> Iterable[Checkpoint]:
    columns = AUDIT_COSIGNATURES.c
    newest = sa.select(sa.func.max(columns.size)).group_by(columns.witness)
    query = sa.select(AUDIT_CHECKPOINTS).where(
        AUDIT_CHECKPOINTS.c.size.in_(newest), AUDIT_CHECKPOINTS.c.algorithm == _COSIGNED
    )
    return map(_checkpoint, connection.execute(query.order_by(AUDIT_CHECKPOINTS.c.size)).all())


def _with_cosignatures(
    connection: sa.Connection, checkpoints: Iterable[Checkpoint]
) -> tuple[Checkpoint, ...]:
    found = tuple(checkpoints)
    sizes = {checkpoint.size for checkpoint in found if checkpoint.algorithm is _COSIGNED}
    if not sizes:
        return found
    columns = AUDIT_COSIGNATURES.c
    query = sa.select(columns.size, columns.witness, columns.origin, columns.signature)
    by_size: defaultdict[int, list[Cosignature]] = defaultdict(list)
    for size, *cosignature in connection.execute(
        query.where(columns.size.in_(sizes)).order_by(columns.witness)
    ):
        by_size[size].append(Cosignature(*cosignature))
    return tuple(
        msgspec.structs.replace(checkpoint, cosignatures=tuple(by_size[checkpoint.size]))
        if checkpoint.algorithm is _COSIGNED and checkpoint.size in by_size
        else checkpoint
        for checkpoint in found
    )


def find_checkpoint_to_prove(
    connection: sa.Connection, record: int, log: UUID
) -> Checkpoint | None:
    """Return the newest cosigned checkpoint of a log that covers a record, or the newest one."""
    cosigned = [
        checkpoint
        for checkpoint in _newest_cosigned(connection)
        if checkpoint.log_id == log and checkpoint.size >= record
    ]
    found = cosigned[-1] if cosigned else find_newest_checkpoint(connection, _COSIGNED)
    return None if found is None else _with_cosignatures(connection, (found,))[0]


def add_cosignature(connection: sa.Connection, size: int, cosignature: Cosignature) -> None:
    """Store a cosignature of the Dilithium3 checkpoint of a size."""
    row = (cosignature.witness, size, cosignature.origin, cosignature.signature)
    add_all(connection, AUDIT_COSIGNATURES, _ignoring_conflicts, [row])


def find_newest_cosignature(
    connection: sa.Connection, witness: str, origin: str
) -> tuple[int, bytes] | None:
    """Return the size and signature of a witness's newest cosignature under a log's name."""
    columns = AUDIT_COSIGNATURES.c
    query = (
        sa.select(columns.size, columns.signature)
        .where(columns.witness == witness, columns.origin == origin)
        .order_by(columns.size.desc())
        .limit(1)
    )
    row = connection.execute(query).one_or_none()
    return None if row is None else (row.size, row.signature)


def find_conflict(connection: sa.Connection, witness: str, origin: str) -> tuple[bool, int] | None:
    """Return whether the newest recorded conflict with a witness goes on, and the record's time.

    The time is in microseconds since 1970. None if the log has no such record.
    """
    columns = AUDIT_RECORDS.c
    query = (
        sa.select(columns.outcome, columns.recorded_at_us)
        .where(
            columns.operation == KeyServiceEvent.WITNESS_CONFLICT,
            columns.request_id == witness,
            columns.target == origin,
            RARE["operation"],
        )
        .order_by(columns.id.desc())
        .limit(1)
    )
    row = connection.execute(query).one_or_none()
    return None if row is None else (row.outcome == Outcome.BEGUN, row.recorded_at_us)


def all_checkpoints(connection: sa.Connection) -> Iterator[Checkpoint]:
    """Yield all checkpoints, by size."""
    query = sa.select(AUDIT_CHECKPOINTS).order_by(
        AUDIT_CHECKPOINTS.c.size, AUDIT_CHECKPOINTS.c.algorithm
    )
    return map(_checkpoint, connection.execute(query).all())


def signed_size(connection: sa.Connection) -> int:
    """Return the size of the largest checkpoint."""
    return connection.execute(sa.select(sa.func.max(AUDIT_CHECKPOINTS.c.size))).scalar() or 0


def first_recorded_at(connection: sa.Connection) -> int:
    """Return the time of the first record (microseconds since 1970), or 0 for an empty log."""
    first = sa.select(AUDIT_RECORDS.c.recorded_at_us).where(AUDIT_RECORDS.c.id == 1)
    return connection.execute(first).scalar() or 0


def check_log(connection: sa.Connection, formats: Formats = FORMATS) -> None:
    """Compare the log with its newest checkpoints. Raises ConfigError if they do not match."""
    for checkpoint in newest_checkpoints(connection):
        try:
            root = range_hash(0, checkpoint.size, subtrees(connection, formats))
        except DamagedLogError:
            root = b""
        if root != checkpoint.root:
            raise ConfigError(
                f"the audit log is damaged: its first {checkpoint.size} records are not the signed "
                "ones; see docs/audit.md"
            )


def _checkpoint(row: Sequence[Any]) -> Checkpoint:
    size, algorithm, log, root, at_us, key_version, signature = row
    return Checkpoint(
        log_id=UUID(log),
        size=size,
        root=root,
        at_us=at_us,
        algorithm=Algorithm(algorithm),
        key_version=key_version,
        signature=signature,
    )
