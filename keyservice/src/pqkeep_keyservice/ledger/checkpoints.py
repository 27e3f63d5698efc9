"""Checkpoints of the audit log, and how often each key version has been used up to them."""

from typing import Any
from uuid import UUID

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite

from pqkeep_keyservice.ledger.merkle import range_hash
from pqkeep_keyservice.ledger.schema import (
    AUDIT_CHECKPOINTS,
    AUDIT_LOG,
    AUDIT_RECORDS,
    KEY_USAGE,
)
from pqkeep_keyservice.ledger.tree import DamagedLogError, subtrees
from pqkeep_protocol.algorithms import LIFECYCLE, Algorithm, Operation
from pqkeep_protocol.audit import Checkpoint, ListCheckpoints
from pqkeep_protocol.keys import KeyVersion, TenantId
from pqkeep_protocol.startup.settings import ConfigError

USES = frozenset(Operation) - LIFECYCLE
"""Operations that count as a use of a key."""


def log_id(connection: sa.Connection) -> UUID:
    """Return which log this is."""
    return UUID(connection.execute(sa.select(AUDIT_LOG.c.log_id)).scalar_one())


def keep(connection: sa.Connection, checkpoint: Checkpoint) -> None:
    """Keep a checkpoint, and count the uses of keys up to it."""
    row = {
        "size": checkpoint.size,
        "algorithm": checkpoint.algorithm,
        "root": checkpoint.root,
        "at_us": checkpoint.at_us,
        "key_version": checkpoint.key_version,
        "signature": checkpoint.signature,
    }
    insert = _insert(connection, AUDIT_CHECKPOINTS).on_conflict_do_nothing()
    connection.execute(insert.values(row))
    _count_uses(connection, checkpoint.size)


def newest(connection: sa.Connection, algorithm: Algorithm) -> Checkpoint | None:
    """Return the newest checkpoint that was signed with an algorithm."""
    query = (
        sa.select(AUDIT_CHECKPOINTS)
        .where(AUDIT_CHECKPOINTS.c.algorithm == algorithm)
        .order_by(AUDIT_CHECKPOINTS.c.size.desc())
        .limit(1)
    )
    row = connection.execute(query).one_or_none()
    return None if row is None else _checkpoint(log_id(connection), row)


def find(connection: sa.Connection, request: ListCheckpoints) -> tuple[Checkpoint, ...]:
    """Return checkpoints after a size, by size; or the newest of each algorithm."""
    if request.after is None:
        each = (newest(connection, algorithm) for algorithm in Algorithm)
        found = (checkpoint for checkpoint in each if checkpoint is not None)
        return tuple(each for each in found if request.algorithm in (None, each.algorithm))
    query = (
        sa.select(AUDIT_CHECKPOINTS)
        .where(AUDIT_CHECKPOINTS.c.size > request.after)
        .order_by(AUDIT_CHECKPOINTS.c.size, AUDIT_CHECKPOINTS.c.algorithm)
        .limit(request.limit)
    )
    if request.algorithm is not None:
        query = query.where(AUDIT_CHECKPOINTS.c.algorithm == request.algorithm)
    log = log_id(connection)
    return tuple(_checkpoint(log, row) for row in connection.execute(query))


def signed_size(connection: sa.Connection) -> int:
    """Return how many records the largest checkpoint covers."""
    return connection.execute(sa.select(sa.func.max(AUDIT_CHECKPOINTS.c.size))).scalar() or 0


def first_record_at(connection: sa.Connection) -> int:
    """Return when the first record was made (microseconds since 1970); 0 without one."""
    first = sa.select(AUDIT_RECORDS.c.recorded_at_us).where(AUDIT_RECORDS.c.id == 1)
    return connection.execute(first).scalar() or 0


def check_log(connection: sa.Connection) -> None:
    """Compare the log with its newest checkpoint. Raises ConfigError where it was changed."""
    for algorithm in Algorithm:
        checkpoint = newest(connection, algorithm)
        if checkpoint is None:
            continue
        try:
            root = range_hash(0, checkpoint.size, subtrees(connection))
        except DamagedLogError:
            root = b""
        if root != checkpoint.root:
            raise ConfigError(
                f"the audit log is damaged: its first {checkpoint.size} records are not those "
                "that were signed; see docs/audit.md"
            )


def uses(
    connection: sa.Connection, tenant: TenantId, algorithm: Algorithm, version: KeyVersion
) -> tuple[int, int | None]:
    """Return how often a key version was used, and when last (microseconds since 1970)."""
    counted = connection.execute(
        sa.select(KEY_USAGE.c.uses, KEY_USAGE.c.last_used_us).where(
            KEY_USAGE.c.tenant_id == str(tenant),
            KEY_USAGE.c.algorithm == algorithm,
            KEY_USAGE.c.key_version == version,
        )
    ).one_or_none()
    since = connection.execute(
        sa.select(sa.func.count(), sa.func.max(AUDIT_RECORDS.c.recorded_at_us)).where(
            AUDIT_RECORDS.c.id > sa.select(AUDIT_LOG.c.used_until).scalar_subquery(),
            AUDIT_RECORDS.c.tenant_id == str(tenant),
            AUDIT_RECORDS.c.algorithm == algorithm,
            AUDIT_RECORDS.c.key_version == version,
            *_IS_USE,
        )
    ).one()
    before, last = (0, None) if counted is None else counted
    return before + since[0], since[1] or last


_IS_USE = (
    AUDIT_RECORDS.c.outcome.in_(("success", "verification-failed")),
    AUDIT_RECORDS.c.operation.in_(USES),
    AUDIT_RECORDS.c.key_version.is_not(None),
)


def _count_uses(connection: sa.Connection, size: int) -> None:
    until = sa.select(AUDIT_LOG.c.used_until).scalar_subquery()
    group = (
        AUDIT_RECORDS.c.tenant_id,
        AUDIT_RECORDS.c.algorithm,
        AUDIT_RECORDS.c.key_version,
    )
    new = sa.select(*group, sa.func.count(), sa.func.max(AUDIT_RECORDS.c.recorded_at_us)).where(
        AUDIT_RECORDS.c.id > until, AUDIT_RECORDS.c.id <= size, *_IS_USE
    )
    insert = _insert(connection, KEY_USAGE).from_select(
        list(KEY_USAGE.columns), new.group_by(*group)
    )
    connection.execute(
        insert.on_conflict_do_update(
            index_elements=list(KEY_USAGE.primary_key),
            set_={
                "uses": KEY_USAGE.c.uses + insert.excluded.uses,
                "last_used_us": insert.excluded.last_used_us,
            },
        )
    )
    connection.execute(
        sa.update(AUDIT_LOG).where(AUDIT_LOG.c.used_until < size).values(used_until=size)
    )


def _checkpoint(log: UUID, row: sa.Row[Any]) -> Checkpoint:
    return Checkpoint(
        log_id=log,
        size=row.size,
        root=row.root,
        at_us=row.at_us,
        algorithm=Algorithm(row.algorithm),
        key_version=row.key_version,
        signature=row.signature,
    )


def _insert(connection: sa.Connection, table: sa.Table) -> Any:
    """Return an insert that can say what to do where the row is there already."""
    return {"sqlite": sqlite, "postgresql": postgresql}[connection.dialect.name].insert(table)
