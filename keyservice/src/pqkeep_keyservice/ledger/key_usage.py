"""How often each key version was used: a count up to the newest checkpoint, and a query since."""

import sqlalchemy as sa

from pqkeep_keyservice.ledger.dialects import insert_or_update
from pqkeep_keyservice.ledger.schema import AUDIT_LOG, AUDIT_RECORDS, KEY_USAGE
from pqkeep_protocol.algorithms import LIFECYCLE, Algorithm, Operation
from pqkeep_protocol.audit_events import Outcome
from pqkeep_protocol.errors import ErrorKind
from pqkeep_protocol.keys import KeyVersion, TenantId

_IS_USE = (
    AUDIT_RECORDS.c.event_id.is_(None),  # what the gateway reports is no use of a key
    AUDIT_RECORDS.c.outcome.in_((Outcome.SUCCESS, ErrorKind.VERIFICATION_FAILED)),
    AUDIT_RECORDS.c.operation.in_(frozenset(Operation) - LIFECYCLE),
    AUDIT_RECORDS.c.key_version.is_not(None),
)


def find_key_usage(
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


def count_key_usage(connection: sa.Connection, size: int) -> None:
    """Add the records up to a size to the counts."""
    until = sa.select(AUDIT_LOG.c.used_until).scalar_subquery()
    group = (
        AUDIT_RECORDS.c.tenant_id,
        AUDIT_RECORDS.c.algorithm,
        AUDIT_RECORDS.c.key_version,
    )
    new = sa.select(*group, sa.func.count(), sa.func.max(AUDIT_RECORDS.c.recorded_at_us)).where(
        AUDIT_RECORDS.c.id > until, AUDIT_RECORDS.c.id <= size, *_IS_USE
    )
    insert = insert_or_update(connection, KEY_USAGE).from_select(
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
