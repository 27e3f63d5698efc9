"""Shards and their tenants, in SQL."""

from collections.abc import Collection, Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from pqkeep_gateway.access.entitlements import TenantNotFoundError, TenantStatus
from pqkeep_gateway.shards import (
    HERE,
    MOVING,
    SERVING,
    Placement,
    ShardFullError,
    ShardInUseError,
    ShardNotFoundError,
    StoredShard,
)
from pqkeep_gateway.storage.audit_outbox import add_audit_event
from pqkeep_gateway.storage.database import (
    insert_if_absent,
    microseconds,
    read_transaction,
    transaction,
)
from pqkeep_gateway.storage.schema import AUDIT_OUTBOX, SHARDS, TENANT_SHARDS, TENANTS
from pqkeep_gateway.unavailable import UnavailableError
from pqkeep_protocol.audit import Event
from pqkeep_protocol.keys import TenantId
from pqkeep_protocol.startup.logs import logger

_LOG = logger(__name__)

PLACEMENT = (TENANTS.c.shard, TENANTS.c.shard_state)
"""The columns of a tenant's placement."""
_COUNTED = sa.select(sa.func.count()).where(
    TENANTS.c.shard == SHARDS.c.name, TENANTS.c.status != TenantStatus.DELETED
)
_COUNT = _COUNTED.scalar_subquery()
_MOVING = _COUNTED.where(TENANTS.c.shard_state == MOVING).scalar_subquery()


class SqlShards:
    """Placements of tenants in shards. All methods raise UnavailableError."""

    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine

    async def find(self, tenant: TenantId) -> Placement:
        """Return a tenant's placement; ``default`` for an unknown tenant."""
        query = sa.select(*PLACEMENT).where(TENANTS.c.id == tenant)
        async with read_transaction(self._engine) as connection:
            row = (await connection.execute(query)).one_or_none()
        return HERE if row is None else placement_of(row)

    async def visited(self, tenant: TenantId) -> Sequence[str]:
        """Return the shards with a tenant's records, in the order of its arrival."""
        query = sa.select(TENANT_SHARDS.c.shard).where(TENANT_SHARDS.c.tenant_id == tenant)
        async with read_transaction(self._engine) as connection:
            found = await connection.execute(query.order_by(TENANT_SHARDS.c.position))
            shards = tuple(found.scalars())
        return shards or ((await self.find(tenant)).shard,)

    async def list(self) -> Sequence[StoredShard]:
        """Return all shards that ever existed, by name."""
        columns = (SHARDS.c.name, SHARDS.c.draining, _COUNT, _MOVING)
        async with read_transaction(self._engine) as connection:
            found = await connection.execute(sa.select(*columns).order_by(SHARDS.c.name))
            return [
                StoredShard(name, bool(draining), tenants, moving)
                for name, draining, tenants, moving in found
            ]

    async def tenants_in(self, shard: str) -> Sequence[TenantId]:
        """Return the tenants of a shard, oldest first. Deleted tenants are left out."""
        query = sa.select(TENANTS.c.id).where(
            TENANTS.c.shard == shard, TENANTS.c.status != TenantStatus.DELETED
        )
        async with read_transaction(self._engine) as connection:
            found = await connection.execute(query.order_by(TENANTS.c.created_at_us, TENANTS.c.id))
            return tuple(map(TenantId, found.scalars()))

    async def begin_move(self, tenant: TenantId) -> str:
        """Refuse the tenant's requests from now on; return its shard. Raises TenantNotFoundError.

        Changes nothing if the tenant is already being moved.
        """
        is_it = TENANTS.c.id == tenant
        async with transaction(self._engine) as connection:
            await connection.execute(sa.update(TENANTS).where(is_it).values(shard_state=MOVING))
            query = sa.select(TENANTS.c.shard).where(is_it)
            found: str | None = (await connection.execute(query)).scalar()
        if found is None:
            raise TenantNotFoundError
        return found

    async def end_move(self, tenant: TenantId, source: str, target: str) -> None:
        """Serve the tenant again, in the target shard; only if it is being moved from the source.

        Source and target are equal if the tenant stays. Raises ShardNotFoundError.
        """
        is_moving = (
            TENANTS.c.id == tenant,
            TENANTS.c.shard == source,
            TENANTS.c.shard_state == MOVING,
        )
        values = {"shard": target, "shard_state": SERVING}
        try:
            async with transaction(self._engine) as connection:
                moved = await connection.execute(
                    sa.update(TENANTS).where(*is_moving).values(values)
                )
                if moved.rowcount and source != target:
                    for shard in (source, target):
                        await _note_visit(connection, tenant, shard)
        except sa.exc.IntegrityError:
            raise ShardNotFoundError from None

    async def set_draining(self, shard: str, *, draining: bool) -> None:
        """Set whether a shard accepts new tenants. Raises ShardNotFoundError."""
        change = sa.update(SHARDS).where(SHARDS.c.name == shard).values(draining=draining)
        async with transaction(self._engine) as connection:
            changed = await connection.execute(change)
        if not changed.rowcount:
            raise ShardNotFoundError

    async def remove(self, shard: str, audit_event: Event, *, leaves_records: bool) -> int:
        """Forget that tenants have records in a drained shard; return their number.

        Raises ShardInUseError if there are any, unless ``leaves_records``; also if the shard
        accepts tenants, has some, or events wait for its log. Raises ShardNotFoundError.
        """
        is_it = SHARDS.c.name == shard
        has_records = TENANT_SHARDS.c.shard == shard
        with_records = (
            sa.select(sa.func.count())
            .select_from(TENANT_SHARDS.join(TENANTS))
            .where(has_records, TENANTS.c.status != TenantStatus.DELETED)
        )
        waiting = sa.select(sa.func.count()).where(
            AUDIT_OUTBOX.c.shard == shard, AUDIT_OUTBOX.c.refusal.is_(None)
        )
        async with transaction(self._engine) as connection:
            # FOR UPDATE: also counts a tenant that is being placed there
            row = (
                await connection.execute(sa.select(SHARDS).where(is_it).with_for_update())
            ).one_or_none()
            if row is None:
                raise ShardNotFoundError
            if not row.draining:
                raise ShardInUseError("it accepts new tenants: run pqkeepd shard drain first")
            counted = _COUNTED.where(is_it)
            if tenants := (await connection.execute(counted)).scalar_one():
                raise ShardInUseError(f"it has tenants ({tenants}): run pqkeepd shard drain")
            if events := (await connection.execute(waiting)).scalar_one():
                raise ShardInUseError(
                    f"events ({events}) wait for its log: start a gateway and its key service"
                )
            left = (await connection.execute(with_records)).scalar_one()
            if left and not leaves_records:
                raise ShardInUseError(
                    f"its log has records of tenants that were moved ({left}): export it (pqkeep"
                    f" audit export --shard {shard} --after 0), then add --leave-records: afterwards these"
                    " tenants see only the records of their other shards"
                )
            await connection.execute(sa.delete(TENANT_SHARDS).where(has_records))
            await add_audit_event(connection, audit_event)
        return int(left)

    async def add(self, names: Collection[str], now: datetime) -> None:
        """Store shards that are not stored yet."""
        async with transaction(self._engine) as connection:
            for name in names:
                row = {"name": name, "draining": False, "created_at_us": microseconds(now)}
                await insert_if_absent(connection, SHARDS, row)

    async def claim_database(self, shard: str, database: UUID) -> UUID:
        """Store a shard's database id unless it has one; return the stored id.

        Raises UnavailableError.
        """
        is_it = SHARDS.c.name == shard
        async with transaction(self._engine) as connection:
            unclaimed = sa.update(SHARDS).where(is_it, SHARDS.c.database_id.is_(None))
            await connection.execute(unclaimed.values(database_id=database))
            query = sa.select(SHARDS.c.database_id).where(is_it)
            found: UUID | None = (await connection.execute(query)).scalar()
        if found is None:
            raise UnavailableError
        return found


async def _note_visit(connection: AsyncConnection, tenant: TenantId, shard: str) -> None:
    is_its = TENANT_SHARDS.c.tenant_id == tenant
    last = sa.select(sa.func.max(TENANT_SHARDS.c.position)).where(is_its)
    position = (await connection.execute(last)).scalar()
    row = {
        "tenant_id": tenant,
        "shard": shard,
        "position": 0 if position is None else position + 1,
    }
    await insert_if_absent(connection, TENANT_SHARDS, row)


def placement_of(row: Any) -> Placement:
    """Return the placement in a row with the columns PLACEMENT."""
    return Placement(row.shard, is_moving=row.shard_state == MOVING)


async def place(connection: AsyncConnection, shards: Collection[str], wanted: str | None) -> str:
    """Return the shard of a new tenant: the wanted one, or the one with the fewest tenants.

    Raises ShardNotFoundError, ShardFullError; UnavailableError if no shard accepts new tenants.
    """
    query = sa.select(SHARDS.c.name).where(SHARDS.c.name.in_(shards), SHARDS.c.draining.is_(False))
    if wanted is not None:
        if wanted not in shards:
            raise ShardNotFoundError
        query = query.where(SHARDS.c.name == wanted)
    elif len(shards) > 1:
        query = query.order_by(_COUNT, SHARDS.c.name)
    found: str | None = (await connection.execute(query.limit(1))).scalar()
    if found is not None:
        return found
    if wanted is not None:
        raise ShardFullError
    _LOG.error("no tenant can be created: every shard is being drained")
    raise UnavailableError
