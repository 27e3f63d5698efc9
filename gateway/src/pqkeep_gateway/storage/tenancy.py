"""Tenants and API keys in SQL."""

from dataclasses import asdict
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from pqkeep_gateway.access.authentication import Found
from pqkeep_gateway.access.principals import ApiKeyPrincipal
from pqkeep_gateway.access.standing import Standing, Subscription, Tier
from pqkeep_gateway.storage.database import microseconds, time_of, transaction
from pqkeep_gateway.storage.schema import API_KEYS, TENANTS
from pqkeep_gateway.tenancy.api_keys import (
    AlreadyRotatedError,
    ApiKey,
    ApiKeyNotFoundError,
    ApiKeyStatus,
    QuotaReachedError,
)
from pqkeep_gateway.tenancy.tenants import (
    NameTakenError,
    Tenant,
    TenantChange,
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
            "tier": tenant.standing.tier,
            "subscription": tenant.standing.subscription,
            "requests_per_minute": tenant.standing.requests_per_minute,
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
        return _tenant(row)

    async def list(self) -> tuple[Tenant, ...]:
        """Return every tenant, oldest first."""
        query = sa.select(TENANTS).order_by(TENANTS.c.created_at_us, TENANTS.c.id)
        async with transaction(self._engine) as connection:
            return tuple(_tenant(row) for row in await connection.execute(query))

    async def change(self, tenant: TenantId, change: TenantChange, now: datetime) -> Tenant:
        """Change what is named, and nothing else. Raises TenantNotFoundError."""
        this = TENANTS.c.id == tenant
        named: dict[str, object] = {
            name: value for name, value in asdict(change).items() if value is not None
        }
        if change.requests_per_minute == "plan":
            named["requests_per_minute"] = None
        update = sa.update(TENANTS).where(this).values(updated_at_us=microseconds(now), **named)
        async with transaction(self._engine) as connection:
            await connection.execute(update)
            row = (await connection.execute(sa.select(TENANTS).where(this))).one_or_none()
        if row is None:
            raise TenantNotFoundError
        return _tenant(row)


class SqlApiKeys:
    """An ApiKeyStore and an ApiKeyDirectory."""

    def __init__(self, engine: AsyncEngine) -> None:
        """Use an open database."""
        self._engine = engine

    async def add(
        self, tenant: TenantId, digest: bytes, last4: str, created_at: datetime, quota: int
    ) -> ApiKey:
        """Keep a new API key under the next version. Raises QuotaReachedError."""
        async with transaction(self._engine) as connection:
            await _lock(connection, tenant)
            count = sa.select(sa.func.count()).where(_of(tenant), _ACTIVE)
            if (await connection.execute(count)).scalar_one() >= quota:
                raise QuotaReachedError
            return await _add(connection, tenant, digest, last4, created_at)

    async def list(self, tenant: TenantId) -> tuple[ApiKey, ...]:
        """Return a tenant's API keys, by version."""
        query = sa.select(API_KEYS).where(_of(tenant)).order_by(API_KEYS.c.version)
        async with transaction(self._engine) as connection:
            return tuple(_api_key(row) for row in await connection.execute(query))

    async def rotate(
        self,
        tenant: TenantId,
        version: int | None,
        digest: bytes,
        last4: str,
        now: datetime,
        accepted_until: datetime,
    ) -> tuple[ApiKey, int | None]:
        """Revoke a version and keep a new API key, in one step. Raises AlreadyRotatedError."""
        async with transaction(self._engine) as connection:
            await _lock(connection, tenant)
            if version is None:
                newest = sa.select(sa.func.max(API_KEYS.c.version)).where(_of(tenant), _ACTIVE)
                version = (await connection.execute(newest)).scalar()
            if version is not None:
                revoke = sa.update(API_KEYS).where(
                    _of(tenant), API_KEYS.c.version == version, _ACTIVE
                )
                values = {
                    "status": ApiKeyStatus.REVOKED,
                    "revoked_at_us": microseconds(now),
                    "accepted_until_us": microseconds(accepted_until),
                }
                if (await connection.execute(revoke.values(values))).rowcount == 0:
                    raise AlreadyRotatedError
            return await _add(connection, tenant, digest, last4, now), version

    async def revoke(self, tenant: TenantId, version: int, now: datetime) -> ApiKey:
        """Accept a version no longer. Raises ApiKeyNotFoundError."""
        this = sa.and_(_of(tenant), API_KEYS.c.version == version)
        values = {"status": ApiKeyStatus.REVOKED, "revoked_at_us": microseconds(now)}
        async with transaction(self._engine) as connection:
            await connection.execute(sa.update(API_KEYS).where(this, _ACTIVE).values(values))
            await connection.execute(sa.update(API_KEYS).where(this).values(accepted_until_us=None))
            row = (await connection.execute(sa.select(API_KEYS).where(this))).one_or_none()
        if row is None:
            raise ApiKeyNotFoundError
        return _api_key(row)

    async def find(self, digest: bytes) -> Found | None:
        """Return whose API key has this digest, unless it was never there or is revoked."""
        query = (
            sa.select(API_KEYS, *_STANDING, TENANTS.c.status.label("tenant_status"))
            .join(TENANTS, TENANTS.c.id == API_KEYS.c.tenant_id)
            .where(
                API_KEYS.c.digest == digest,
                sa.or_(_ACTIVE, API_KEYS.c.accepted_until_us.is_not(None)),
            )
        )
        async with transaction(self._engine) as connection:
            row = (await connection.execute(query)).one_or_none()
        if row is None:
            return None
        until = row.accepted_until_us
        principal = ApiKeyPrincipal(
            tenant=TenantId(row.tenant_id),
            standing=_standing(row),
            api_key_version=row.version,
            suspended=row.tenant_status != TenantStatus.ACTIVE,
        )
        return Found(principal, None if until is None else time_of(until).timestamp())


_STANDING = (TENANTS.c.tier, TENANTS.c.subscription, TENANTS.c.requests_per_minute)
_ACTIVE = API_KEYS.c.status == ApiKeyStatus.ACTIVE


def _of(tenant: TenantId) -> sa.ColumnElement[bool]:
    return API_KEYS.c.tenant_id == tenant


async def _lock(connection: AsyncConnection, tenant: TenantId) -> None:
    """Take the tenant's row, under which its API keys are counted."""
    await connection.execute(
        sa.select(TENANTS.c.id).where(TENANTS.c.id == tenant).with_for_update()
    )


async def _add(
    connection: AsyncConnection, tenant: TenantId, digest: bytes, last4: str, now: datetime
) -> ApiKey:
    newest = sa.select(sa.func.max(API_KEYS.c.version)).where(_of(tenant))
    version = ((await connection.execute(newest)).scalar() or 0) + 1
    row = {
        "tenant_id": tenant,
        "version": version,
        "digest": digest,
        "last4": last4,
        "status": ApiKeyStatus.ACTIVE,
        "created_at_us": microseconds(now),
    }
    await connection.execute(sa.insert(API_KEYS), row)
    return ApiKey(version, last4, ApiKeyStatus.ACTIVE, now)


def _tenant(row: sa.Row[Any]) -> Tenant:
    return Tenant(
        id=TenantId(row.id),
        name=row.name,
        standing=_standing(row),
        status=TenantStatus(row.status),
        created_at=time_of(row.created_at_us),
        updated_at=time_of(row.updated_at_us),
    )


def _standing(row: sa.Row[Any]) -> Standing:
    return Standing(Tier(row.tier), Subscription(row.subscription), row.requests_per_minute)


def _api_key(row: sa.Row[Any]) -> ApiKey:
    return ApiKey(
        version=row.version,
        last4=row.last4,
        status=ApiKeyStatus(row.status),
        created_at=time_of(row.created_at_us),
        revoked_at=None if row.revoked_at_us is None else time_of(row.revoked_at_us),
    )
