"""The results of requests with an Idempotency-Key in the last 24 hours, in SQL."""

from datetime import datetime, timedelta
from typing import Any

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from pqkeep_gateway.access.idempotency import IdempotencyKeyReusedError
from pqkeep_gateway.storage.database import microseconds
from pqkeep_gateway.storage.row_mac import is_authentic
from pqkeep_gateway.storage.schema import IDEMPOTENCY_KEYS
from pqkeep_protocol.messages import Idempotency

LIFETIME = timedelta(hours=24)


async def find_idempotency_key(
    connection: AsyncConnection, idempotency: Idempotency, now: datetime
) -> sa.Row[Any] | None:
    """Return a key's row of IDEMPOTENCY_KEYS. Raises IdempotencyKeyReusedError."""
    query = sa.select(IDEMPOTENCY_KEYS).where(
        IDEMPOTENCY_KEYS.c.key == idempotency.key,
        IDEMPOTENCY_KEYS.c.created_at_us > microseconds(now - LIFETIME),
    )
    row = (await connection.execute(query)).one_or_none()
    if row is not None and (
        row.request != idempotency.request or not is_authentic(connection, IDEMPOTENCY_KEYS, row)
    ):
        raise IdempotencyKeyReusedError
    return row


async def add_idempotency_key(
    connection: AsyncConnection, idempotency: Idempotency, now: datetime, **columns: object
) -> None:
    """Store a key's result, and remove expired keys."""
    is_expired = IDEMPOTENCY_KEYS.c.created_at_us <= microseconds(now - LIFETIME)
    await connection.execute(sa.delete(IDEMPOTENCY_KEYS).where(is_expired))
    row = {
        "key": idempotency.key,
        "request": idempotency.request,
        "created_at_us": microseconds(now),
        **columns,
    }
    await connection.execute(sa.insert(IDEMPOTENCY_KEYS), row)
