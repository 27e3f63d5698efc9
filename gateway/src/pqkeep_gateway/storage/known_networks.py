"""Networks of earlier sign-ins, in SQL."""

from datetime import datetime, timedelta

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from pqkeep_gateway.access.principals import UserId
from pqkeep_gateway.storage.database import microseconds, read_transaction
from pqkeep_gateway.storage.schema import KNOWN_NETWORKS

LIFETIME = timedelta(days=90)
"""The time since the last sign-in from a network."""
MAX_NETWORKS = 20
"""Networks per person; the one with the oldest sign-in is removed."""


class SqlKnownNetworks:
    """Known networks in the database. All methods raise UnavailableError."""

    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine

    async def is_known(self, digest: bytes, since: datetime) -> bool:
        """Return whether an account signed in from this network after a time."""
        query = sa.select(KNOWN_NETWORKS.c.digest).where(
            KNOWN_NETWORKS.c.digest == digest,
            KNOWN_NETWORKS.c.last_sign_in_at_us > microseconds(since),
        )
        async with read_transaction(self._engine) as connection:
            return (await connection.execute(query)).one_or_none() is not None


async def remember_network(
    connection: AsyncConnection, user: UserId, digest: bytes, now: datetime
) -> None:
    """Store a sign-in from a network. The caller has locked the user's row."""
    row = {"digest": digest, "user_id": user, "last_sign_in_at_us": microseconds(now)}
    newest = (
        sa.select(KNOWN_NETWORKS.c.digest)
        .where(
            KNOWN_NETWORKS.c.user_id == user,
            KNOWN_NETWORKS.c.last_sign_in_at_us > microseconds(now - LIFETIME),
        )
        .order_by(KNOWN_NETWORKS.c.last_sign_in_at_us.desc(), KNOWN_NETWORKS.c.digest)
        .limit(MAX_NETWORKS)
    )
    await connection.execute(sa.delete(KNOWN_NETWORKS).where(KNOWN_NETWORKS.c.digest == digest))
    await connection.execute(sa.insert(KNOWN_NETWORKS), row)
    is_old = sa.and_(KNOWN_NETWORKS.c.user_id == user, KNOWN_NETWORKS.c.digest.not_in(newest))
    await connection.execute(sa.delete(KNOWN_NETWORKS).where(is_old))
