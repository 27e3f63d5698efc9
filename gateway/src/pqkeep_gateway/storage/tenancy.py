"""Tenants and API keys in SQL."""

from datetime import datetime

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncEngine

from pqkeep_gateway.access.principals import ApiKeyPrincipal, Plan
from pqkeep_gateway.storage.database import microseconds, time_of, transaction
from pqkeep_gateway.storage.schema import API_KEYS, TENANTS
from pqkeep_gateway.tenancy.api_keys import ApiKey, ApiKeyStatus, QuotaReachedError
from pqkeep_gateway.tenancy.tenants import (
    NameTakenError,
    Tenant,
    TenantNotFoundError,
    TenantStatus,
)
from pqkeep_protocol.keys import TenantId


class SqlTenants:
    """A TenantStore."""

    def __init__(self, engine: AsyncEngine) -> None:
        """Use an open database."""
        self._engine = engine

    async def add(self, tenant: Tenant) -> None:
        """Keep a new tenant. Raises NameTakenError."""
        row = {
            "id": tenant.id,
            "name": tenant.name,
            "plan": tenant.plan,
            "status": tenant.status,
            "created_at_us": microseconds(tenant.created_at),
            "updated_at_us": microseconds(tenant.updated_at),
        }
        try:
            async with transaction(self._engine) as connection:
                await connection.execute(sa.insert(TENANTS), row)
        except sa.exc.IntegrityError:
            raise NameTakenError from None

    async def get(self, tenant: TenantId) -> Tenant:
        """Return a tenant. Raises TenantNotFoundError."""
        query = sa.select(TENANTS).where(TENANTS.c.id == tenant)
        async with transaction(self._engine) as connection:
            row = (await connection.execute(query)).one_or_none()
        if row is None:
            raise TenantNotFoundError
        return Tenant(
            id=TenantId(row.id),
            name=row.name,
            plan=Plan(row.plan),
            status=TenantStatus(row.status),
            created_at=time_of(row.created_at_us),
            updated_at=time_of(row.updated_at_us),
        )


class SqlApiKeys:
    """An ApiKeyStore and an ApiKeyDirectory."""

    def __init__(self, engine: AsyncEngine) -> None:
        """Use an open database."""
        self._engine = engine

    async def add(
        self, tenant: TenantId, digest: bytes, last4: str, created_at: datetime, quota: int
    ) -> ApiKey:
        """Keep a new API key under the next version. Raises QuotaReachedError."""
        own = API_KEYS.c.tenant_id == tenant
        active = API_KEYS.c.status == ApiKeyStatus.ACTIVE
        newest = sa.select(sa.func.max(API_KEYS.c.version)).where(own)
        async with transaction(self._engine) as connection:
            # The tenant's row is the lock under which versions are counted.
            await connection.execute(
                sa.select(TENANTS.c.id).where(TENANTS.c.id == tenant).with_for_update()
            )
            count = sa.select(sa.func.count()).where(own, active)
            if (await connection.execute(count)).scalar_one() >= quota:
                raise QuotaReachedError
            version = ((await connection.execute(newest)).scalar() or 0) + 1
            row = {
                "tenant_id": tenant,
                "version": version,
                "digest": digest,
                "last4": last4,
                "status": ApiKeyStatus.ACTIVE,
                "created_at_us": microseconds(created_at),
            }
            await connection.execute(sa.insert(API_KEYS), row)
        return ApiKey(version, last4, ApiKeyStatus.ACTIVE, created_at)

    async def find_principal(self, digest: bytes) -> ApiKeyPrincipal | None:
        """Return whose active API key has this digest."""
        query = (
            sa.select(API_KEYS.c.tenant_id, API_KEYS.c.version, TENANTS.c.plan, TENANTS.c.status)
            .join(TENANTS, TENANTS.c.id == API_KEYS.c.tenant_id)
            .where(API_KEYS.c.digest == digest, API_KEYS.c.status == ApiKeyStatus.ACTIVE)
        )
        async with transaction(self._engine) as connection:
            row = (await connection.execute(query)).one_or_none()
        if row is None:
            return None
        return ApiKeyPrincipal(
            tenant=TenantId(row.tenant_id),
            plan=Plan(row.plan),
            api_key_version=row.version,
            suspended=row.status != TenantStatus.ACTIVE,
        )
