"""What was made with an Idempotency-Key, for a day."""

from datetime import datetime, timedelta
from typing import Any

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from pqkeep_gateway.access.idempotency import IdempotencyKeyReusedError
from pqkeep_gateway.storage.database import microseconds
from pqkeep_gateway.storage.schema import IDEMPOTENCY_KEYS
from pqkeep_protocol.messages import Idempotency

KEPT = timedelta(hours=24)


async def find_earlier(
    connection: AsyncConnection, idempotency: Idempotency, now: datetime
) -> sa.Row[Any] | None:
    """Return what a key made in the last day, if it made anything. Raises IdempotencyKeyReusedError."""
    query = sa.select(IDEMPOTENCY_KEYS).where(
        IDEMPOTENCY_KEYS.c.key == idempotency.key,
        IDEMPOTENCY_KEYS.c.made_at_us > microseconds(now - KEPT),
    )
    row = (await connection.execute(query)).one_or_none()
    if row is not None and row.request != idempotency.request:
        raise IdempotencyKeyReusedError
    return row


async def remember(
    connection: AsyncConnection, idempotency: Idempotency, now: datetime, **made: object
) -> None:
    """Keep what a key made, and forget what is older than a day."""
    old = IDEMPOTENCY_KEYS.c.made_at_us <= microseconds(now - KEPT)
    await connection.execute(sa.delete(IDEMPOTENCY_KEYS).where(old))
    row = {
        "key": idempotency.key,
        "request": idempotency.request,
        "made_at_us": microseconds(now),
        **made,
    }
    await connection.execute(sa.insert(IDEMPOTENCY_KEYS), row)
