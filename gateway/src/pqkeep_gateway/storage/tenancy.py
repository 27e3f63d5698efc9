"""Tenants and API keys in SQL."""

from collections.abc import Sequence
from dataclasses import asdict, replace
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from pqkeep_gateway.access.authentication import Found
from pqkeep_gateway.access.entitlements import Entitlements, Subscription, Tier
from pqkeep_gateway.access.principals import ApiKeyPrincipal
from pqkeep_gateway.audit_events import event
from pqkeep_gateway.storage.contracts import end_contract
from pqkeep_gateway.storage.database import microseconds, time_of, transaction
from pqkeep_gateway.storage.idempotency import find_earlier, remember
from pqkeep_gateway.storage.outbox import put
from pqkeep_gateway.storage.schema import API_KEYS, TENANTS
from pqkeep_gateway.tenancy.api_keys import (
    AlreadyRotatedError,
    ApiKey,
    ApiKeyNotFoundError,
    ApiKeyStatus,
    Draft,
    Kept,
    QuotaReachedError,
)
from pqkeep_gateway.tenancy.tenants import (
    NameTakenError,
    Tenant,
    TenantChange,
    TenantNotFoundError,
    TenantStatus,
)
from pqkeep_protocol.audit import Event
from pqkeep_protocol.audit_events import AuditEvent
from pqkeep_protocol.keys import TenantId
from pqkeep_protocol.messages import Attribution, Idempotency


class SqlTenants:
    """A TenantStore."""

    def __init__(self, engine: AsyncEngine) -> None:
        """Use an open database."""
        self._engine = engine

    async def add(
        self, tenant: Tenant, made: Event, idempotency: Idempotency | None = None
    ) -> Tenant:
        """Keep a new tenant and its event. Raises NameTakenError, IdempotencyKeyReusedError."""
        earlier = await self._earlier(tenant, idempotency)
        if earlier is not None:
            return earlier
        try:
            async with transaction(self._engine) as connection:
                await connection.execute(sa.insert(TENANTS), tenant_row(tenant))
                await put(connection, (made,))
                if idempotency is not None:
                    await remember(connection, idempotency, tenant.created_at, tenant_id=tenant.id)
        except sa.exc.IntegrityError:
            # The name is taken: perhaps by the same request, which came twice at once.
            earlier = await self._earlier(tenant, idempotency)
            if earlier is None:
                raise NameTakenError from None
            return earlier
        return tenant

    async def _earlier(self, tenant: Tenant, idempotency: Idempotency | None) -> Tenant | None:
        if idempotency is None:
            return None
        async with transaction(self._engine) as connection:
            earlier = await find_earlier(connection, idempotency, tenant.created_at)
            if earlier is None:
                return None
            query = sa.select(TENANTS.c.created_at_us).where(TENANTS.c.id == earlier.tenant_id)
            made = time_of((await connection.execute(query)).scalar_one())
        return replace(tenant, id=TenantId(earlier.tenant_id), created_at=made, updated_at=made)

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

    async def change(
        self, tenant: TenantId, change: TenantChange, now: datetime, events: Sequence[Event]
    ) -> Tenant:
        """Change what is named, and nothing else. Raises TenantNotFoundError.

        Another tier or subscription takes the place of what was bought.
        """
        this = TENANTS.c.id == tenant
        named: dict[str, object] = {
            name: value for name, value in asdict(change).items() if value is not None
        }
        if change.requests_per_minute == "plan":
            named["requests_per_minute"] = None
        update = sa.update(TENANTS).where(this).values(updated_at_us=microseconds(now), **named)
        async with transaction(self._engine) as connection:
            if change.tier is not None or change.subscription is not None:
                await end_contract(connection, tenant)
            await connection.execute(update)
            row = (await connection.execute(sa.select(TENANTS).where(this))).one_or_none()
            if row is not None:
                await put(connection, events)
        if row is None:
            raise TenantNotFoundError
        return _tenant(row)

    async def require_mfa(self, tenant: TenantId, made: Event, *, required: bool) -> None:
        """Keep whether a tenant requires a second factor, and the event."""
        change = sa.update(TENANTS).where(TENANTS.c.id == tenant).values(requires_mfa=required)
        async with transaction(self._engine) as connection:
            await connection.execute(change)
            await put(connection, (made,))


class SqlApiKeys:
    """An ApiKeyStore and an ApiKeyDirectory."""

    def __init__(self, engine: AsyncEngine) -> None:
        """Use an open database."""
        self._engine = engine

    async def add(
        self,
        tenant: TenantId,
        draft: Draft,
        quota: int,
        attribution: Attribution,
        idempotency: Idempotency | None = None,
    ) -> Kept:
        """Keep a new API key under the next version. Raises QuotaReachedError, IdempotencyKeyReusedError."""
        async with transaction(self._engine) as connection:
            await _lock(connection, tenant)
            earlier = await _kept_earlier(connection, idempotency, draft)
            if earlier is not None:
                return earlier
            count = sa.select(sa.func.count()).where(_of(tenant), _ACTIVE)
            if (await connection.execute(count)).scalar_one() >= quota:
                raise QuotaReachedError
            kept = await _add(connection, tenant, draft, None, idempotency)
            await _tell(
                connection, attribution, tenant, AuditEvent.CREATE_API_KEY, kept.metadata.version
            )
            return kept

    async def list(self, tenant: TenantId) -> tuple[ApiKey, ...]:
        """Return a tenant's API keys, by version."""
        query = sa.select(API_KEYS).where(_of(tenant)).order_by(API_KEYS.c.version)
        async with transaction(self._engine) as connection:
            return tuple(_api_key(row) for row in await connection.execute(query))

    async def rotate(
        self,
        tenant: TenantId,
        version: int | None,
        draft: Draft,
        accepted_until: datetime,
        attribution: Attribution,
        idempotency: Idempotency | None = None,
    ) -> Kept:
        """Revoke a version and keep a new API key, in one step.

        Raises AlreadyRotatedError, IdempotencyKeyReusedError.
        """
        async with transaction(self._engine) as connection:
            await _lock(connection, tenant)
            earlier = await _kept_earlier(connection, idempotency, draft)
            if earlier is not None:
                return earlier
            if version is None:
                newest = sa.select(sa.func.max(API_KEYS.c.version)).where(_of(tenant), _ACTIVE)
                version = (await connection.execute(newest)).scalar()
            if version is not None:
                revoke = sa.update(API_KEYS).where(
                    _of(tenant), API_KEYS.c.version == version, _ACTIVE
                )
                values = {
                    "status": ApiKeyStatus.REVOKED,
                    "revoked_at_us": microseconds(draft.created_at),
                    "accepted_until_us": microseconds(accepted_until),
                }
                if (await connection.execute(revoke.values(values))).rowcount == 0:
                    raise AlreadyRotatedError
            kept = await _add(connection, tenant, draft, version, idempotency)
            await _tell(
                connection, attribution, tenant, AuditEvent.ROTATE_API_KEY, kept.metadata.version
            )
            return kept

    async def revoke(
        self, tenant: TenantId, version: int, now: datetime, attribution: Attribution
    ) -> ApiKey:
        """Accept a version no longer. Raises ApiKeyNotFoundError."""
        this = sa.and_(_of(tenant), API_KEYS.c.version == version)
        values = {"status": ApiKeyStatus.REVOKED, "revoked_at_us": microseconds(now)}
        async with transaction(self._engine) as connection:
            await _lock(connection, tenant)
            await connection.execute(sa.update(API_KEYS).where(this, _ACTIVE).values(values))
            await connection.execute(sa.update(API_KEYS).where(this).values(accepted_until_us=None))
            row = (await connection.execute(sa.select(API_KEYS).where(this))).one_or_none()
            if row is not None:
                await _tell(connection, attribution, tenant, AuditEvent.REVOKE_API_KEY, version)
        if row is None:
            raise ApiKeyNotFoundError
        return _api_key(row)

    async def find(self, digest: bytes) -> Found | None:
        """Return whose API key has this digest, unless it was never there or is revoked."""
        query = (
            sa.select(API_KEYS, *STANDING, TENANTS.c.status.label("tenant_status"))
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
            entitlements=standing_of(row),
            api_key_version=row.version,
            suspended=row.tenant_status != TenantStatus.ACTIVE,
        )
        return Found(principal, None if until is None else time_of(until).timestamp())


STANDING = (TENANTS.c.tier, TENANTS.c.subscription, TENANTS.c.requests_per_minute)
_ACTIVE = API_KEYS.c.status == ApiKeyStatus.ACTIVE


def tenant_row(tenant: Tenant) -> dict[str, object]:
    """Return a tenant as it is stored."""
    return {
        "id": tenant.id,
        "name": tenant.name,
        "tier": tenant.entitlements.tier,
        "subscription": tenant.entitlements.subscription,
        "requests_per_minute": tenant.entitlements.requests_per_minute,
        "status": tenant.status,
        "created_at_us": microseconds(tenant.created_at),
        "updated_at_us": microseconds(tenant.updated_at),
    }


def _of(tenant: TenantId) -> sa.ColumnElement[bool]:
    return API_KEYS.c.tenant_id == tenant


async def _lock(connection: AsyncConnection, tenant: TenantId) -> None:
    """Take the tenant's row, under which its API keys are counted."""
    await connection.execute(
        sa.select(TENANTS.c.id).where(TENANTS.c.id == tenant).with_for_update()
    )


async def _tell(
    connection: AsyncConnection,
    attribution: Attribution,
    tenant: TenantId,
    operation: AuditEvent,
    version: int,
) -> None:
    await put(connection, (event(attribution, tenant, operation, key_version=version),))


async def _add(
    connection: AsyncConnection,
    tenant: TenantId,
    draft: Draft,
    revoked: int | None,
    idempotency: Idempotency | None,
) -> Kept:
    newest = sa.select(sa.func.max(API_KEYS.c.version)).where(_of(tenant))
    version = ((await connection.execute(newest)).scalar() or 0) + 1
    row = {
        "tenant_id": tenant,
        "version": version,
        "digest": draft.digest,
        "last4": draft.last4,
        "status": ApiKeyStatus.ACTIVE,
        "created_at_us": microseconds(draft.created_at),
    }
    await connection.execute(sa.insert(API_KEYS), row)
    if idempotency is not None:
        await remember(
            connection,
            idempotency,
            draft.created_at,
            tenant_id=tenant,
            api_key_version=version,
            revoked_version=revoked,
            salt=draft.salt,
        )
    metadata = ApiKey(version, draft.last4, ApiKeyStatus.ACTIVE, draft.created_at)
    return Kept(metadata, draft.salt, revoked)


async def _kept_earlier(
    connection: AsyncConnection, idempotency: Idempotency | None, draft: Draft
) -> Kept | None:
    """Return what was kept with an Idempotency-Key before, as it was then."""
    earlier = (
        None
        if idempotency is None
        else await find_earlier(connection, idempotency, draft.created_at)
    )
    if earlier is None:
        return None
    query = sa.select(API_KEYS).where(
        _of(earlier.tenant_id), API_KEYS.c.version == earlier.api_key_version
    )
    row = (await connection.execute(query)).one()
    metadata = ApiKey(row.version, row.last4, ApiKeyStatus.ACTIVE, time_of(row.created_at_us))
    return Kept(metadata, earlier.salt, earlier.revoked_version)


def _tenant(row: sa.Row[Any]) -> Tenant:
    return Tenant(
        id=TenantId(row.id),
        name=row.name,
        entitlements=standing_of(row),
        status=TenantStatus(row.status),
        created_at=time_of(row.created_at_us),
        updated_at=time_of(row.updated_at_us),
    )


def standing_of(row: Any) -> Entitlements:
    """Return what a row says of it, in the columns STANDING."""
    return Entitlements(Tier(row.tier), Subscription(row.subscription), row.requests_per_minute)


def _api_key(row: sa.Row[Any]) -> ApiKey:
    return ApiKey(
        version=row.version,
        last4=row.last4,
        status=ApiKeyStatus(row.status),
        created_at=time_of(row.created_at_us),
        revoked_at=None if row.revoked_at_us is None else time_of(row.revoked_at_us),
    )
