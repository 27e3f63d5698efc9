"""Contracts in SQL: each change is one conditional statement, so that one of many succeeds.

Every change locks the tenant's row first, so that a contract and the tier in force stay consistent.
"""

from typing import Any

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from pqkeep_gateway.access.entitlements import Tier
from pqkeep_gateway.storage.database import microseconds, time_of
from pqkeep_gateway.storage.schema import CONTRACTS
from pqkeep_gateway.storage.tenant_lock import lock_tenant
from pqkeep_gateway.tenancy.billing import ContractChangedError
from pqkeep_gateway.tenancy.contracts import Contract, ContractStatus
from pqkeep_protocol.keys import TenantId

IS_RUNNING = CONTRACTS.c.status != ContractStatus.ENDED


async def save_contract(connection: AsyncConnection, old: Contract | None, new: Contract) -> None:
    """Replace a contract. Raises ContractChangedError.

    If another contract began meanwhile, the insert raises sqlalchemy.exc.IntegrityError.
    """
    await lock_tenant(connection, new.tenant)
    if old is not None and old.id == new.id:
        await _update(connection, old, _row(new))
        return
    if old is not None:
        await _update(connection, old, {"status": ContractStatus.ENDED})
    await connection.execute(sa.insert(CONTRACTS), _row(new))


async def end_contract(connection: AsyncConnection, tenant: TenantId) -> None:
    """End a tenant's running contract, if there is one."""
    await lock_tenant(connection, tenant)
    end = sa.update(CONTRACTS).where(CONTRACTS.c.tenant_id == tenant, IS_RUNNING)
    await connection.execute(
        end.values(status=ContractStatus.ENDED, revision=CONTRACTS.c.revision + 1)
    )


def contract_of(row: sa.Row[Any]) -> Contract:
    """Return the contract in a row of CONTRACTS."""
    return Contract(
        id=row.id,
        tenant=TenantId(row.tenant_id),
        tier=Tier(row.tier),
        status=ContractStatus(row.status),
        started_at=time_of(row.started_at_us),
        period_start=time_of(row.period_start_us),
        period_end=time_of(row.period_end_us),
        as_of=time_of(row.as_of_us),
        price_cents=row.price_cents,
        cancel_at_period_end=row.cancel_at_period_end,
        external_id=row.external_id,
        revision=row.revision,
    )


def _row(contract: Contract) -> dict[str, object]:
    return {
        "id": contract.id,
        "tenant_id": contract.tenant,
        "tier": contract.tier,
        "status": contract.status,
        "started_at_us": microseconds(contract.started_at),
        "period_start_us": microseconds(contract.period_start),
        "period_end_us": microseconds(contract.period_end),
        "as_of_us": microseconds(contract.as_of),
        "price_cents": contract.price_cents,
        "cancel_at_period_end": contract.cancel_at_period_end,
        "external_id": contract.external_id,
        "revision": contract.revision,
    }


async def _update(connection: AsyncConnection, old: Contract, values: dict[str, object]) -> None:
    is_unchanged = sa.and_(CONTRACTS.c.id == old.id, CONTRACTS.c.revision == old.revision)
    update = sa.update(CONTRACTS).where(is_unchanged)
    change = update.values({"revision": old.revision + 1, **values})
    if (await connection.execute(change)).rowcount == 0:
        raise ContractChangedError
