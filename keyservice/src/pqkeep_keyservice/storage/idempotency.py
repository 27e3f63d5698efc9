"""Which changes were requested with an Idempotency-Key during the last day."""

import time

import sqlalchemy as sa

from pqkeep_keyservice.keys.changes import IdempotencyRecord
from pqkeep_keyservice.storage.schema import IDEMPOTENCY_KEYS
from pqkeep_protocol.keys import KeyVersion, TenantId
from pqkeep_protocol.messages import Idempotency

RETENTION_MICROSECONDS = 24 * 3600 * 1_000_000


def find_idempotency_record(
    connection: sa.Connection, tenant: TenantId, idempotency: Idempotency
) -> IdempotencyRecord | None:
    """Return what a key was used for during the last day, or None."""
    query = sa.select(IDEMPOTENCY_KEYS.c.request, IDEMPOTENCY_KEYS.c.key_version).where(
        IDEMPOTENCY_KEYS.c.tenant_id == tenant,
        IDEMPOTENCY_KEYS.c.key == idempotency.key,
        IDEMPOTENCY_KEYS.c.made_at_us > _oldest(),
    )
    row = connection.execute(query).one_or_none()
    return None if row is None else IdempotencyRecord(row.request, KeyVersion(row.key_version))


def add_idempotency_record(
    connection: sa.Connection, tenant: TenantId, idempotency: Idempotency, version: KeyVersion
) -> None:
    """Save what a key was used for, and delete what has expired."""
    connection.execute(
        sa.delete(IDEMPOTENCY_KEYS).where(IDEMPOTENCY_KEYS.c.made_at_us <= _oldest())
    )
    row = {
        "tenant_id": tenant,
        "key": idempotency.key,
        "request": idempotency.request,
        "key_version": version,
        "made_at_us": _now(),
    }
    connection.execute(sa.insert(IDEMPOTENCY_KEYS), row)


def _oldest() -> int:
    return _now() - RETENTION_MICROSECONDS


def _now() -> int:
    return time.time_ns() // 1000
