"""The row of a tenant: its lock, and its MAC over what the tenant requires of its people.

A row with a wrong MAC still has a tenant, whose keys must stay reachable. So the row is not ignored:
both requirements count as switched on, until the tenant changes them.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from pqkeep_gateway.access.entitlements import TenantNotFoundError, TenantStatus
from pqkeep_gateway.storage.row_mac import MAC, covered, has_valid_mac, mac_after
from pqkeep_gateway.storage.schema import TENANTS
from pqkeep_protocol.keys import TenantId
from pqkeep_protocol.startup.logs import logger

_LOG = logger(__name__)

REQUIREMENTS = (*(TENANTS.c[name] for name in covered(TENANTS)), TENANTS.c[MAC])
"""The columns for ``requirements_of``."""
_STRICTEST: Mapping[str, object] = {"requires_mfa": True, "requires_approval": True}


@dataclass(frozen=True, slots=True)
class Requirements:
    """What a tenant requires of its people."""

    mfa: bool
    approval: bool
    is_authentic: bool = True
    """False: no gateway wrote the row, so both are required on every plan."""


def requirements_of(connection: AsyncConnection, row: sa.Row[Any]) -> Requirements:
    """Return the requirements in a row with the columns REQUIREMENTS."""
    if _is_authentic(connection, row):
        return Requirements(bool(row.requires_mfa), bool(row.requires_approval))
    return Requirements(mfa=True, approval=True, is_authentic=False)


def _is_authentic(connection: AsyncConnection, row: sa.Row[Any]) -> bool:
    is_valid = has_valid_mac(connection, TENANTS, row)
    if not is_valid:
        _LOG.error(
            "a tenant's row was not written by a gateway: its requirements count as switched on",
            tenant=str(row._mapping[TENANTS.c.id]),  # noqa: SLF001 - the public name of it
        )
    return is_valid


async def change_under_mac(
    connection: AsyncConnection, tenant: TenantId, changes: Mapping[str, object]
) -> None:
    """Change columns of a tenant's row that its MAC covers. A deleted tenant stays unchanged.

    In a row that no gateway wrote, unchanged requirements are switched on.
    """
    await lock_tenant(connection, tenant)
    is_tenant = TENANTS.c.id == tenant
    row = (await connection.execute(sa.select(TENANTS).where(is_tenant))).one_or_none()
    if row is None:
        return
    values = {**({} if _is_authentic(connection, row) else _STRICTEST), **changes}
    values[MAC] = mac_after(connection, TENANTS, row, values)
    await connection.execute(sa.update(TENANTS).where(is_tenant).values(values))


async def lock_tenant(connection: AsyncConnection, tenant: TenantId) -> None:
    """Allow only one transaction at a time to change a tenant's data.

    Inserts of rows that refer to the tenant do not wait (``FOR NO KEY UPDATE``).
    """
    query = sa.select(TENANTS.c.id).where(TENANTS.c.id == tenant)
    await connection.execute(query.with_for_update(key_share=True))


async def lock_tenant_to_add(connection: AsyncConnection, tenant: TenantId) -> None:
    """Lock a tenant before an addition. Raises TenantNotFoundError if it was deleted."""
    await lock_tenant(connection, tenant)
    query = sa.select(TENANTS.c.status).where(TENANTS.c.id == tenant)
    status = (await connection.execute(query)).scalar_one_or_none()
    if status in {None, TenantStatus.DELETED}:
        raise TenantNotFoundError
