"""Changes that were asked for with an Idempotency-Key, for a day."""

import time
from typing import NamedTuple

import sqlalchemy as sa

from pqkeep_keyservice.storage.schema import IDEMPOTENCY_KEYS
from pqkeep_protocol.keys import KeyVersion, TenantId
from pqkeep_protocol.messages import Idempotency

RETENTION_MICROSECONDS = 24 * 3600 * 1_000_000


class IdempotencyRecord(NamedTuple):
    """What an Idempotency-Key was used for: SHA-256 of the request, and the version it made."""

    request: bytes
    version: KeyVersion


def find(
    connection: sa.Connection, tenant: TenantId, idempotency: Idempotency
) -> IdempotencyRecord | None:
    """Return what a key was used for in the last day, if it was."""
    query = sa.select(IDEMPOTENCY_KEYS.c.request, IDEMPOTENCY_KEYS.c.key_version).where(
        IDEMPOTENCY_KEYS.c.tenant_id == tenant,
        IDEMPOTENCY_KEYS.c.key == idempotency.key,
        IDEMPOTENCY_KEYS.c.made_at_us > _a_day_ago(),
    )
    row = connection.execute(query).one_or_none()
    return None if row is None else IdempotencyRecord(row.request, KeyVersion(row.key_version))


def remember(
    connection: sa.Connection, tenant: TenantId, idempotency: Idempotency, version: KeyVersion
) -> None:
    """Keep what a key was used for, and forget what is older than a day."""
    connection.execute(
        sa.delete(IDEMPOTENCY_KEYS).where(IDEMPOTENCY_KEYS.c.made_at_us <= _a_day_ago())
    )
    row = {
        "tenant_id": tenant,
        "key": idempotency.key,
        "request": idempotency.request,
        "key_version": version,
        "made_at_us": _now(),
    }
    connection.execute(sa.insert(IDEMPOTENCY_KEYS), row)


def _a_day_ago() -> int:
    return _now() - RETENTION_MICROSECONDS


def _now() -> int:
    return time.time_ns() // 1000
