"""API keys of tenants: shown once, stored as a digest."""

import secrets
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Protocol

from pqkeep_gateway.access.clock import Clock, date_of
from pqkeep_gateway.access.credentials import CredentialKind, Pepper, new_credential
from pqkeep_gateway.access.idempotency import IdempotencyKey, idempotency_of
from pqkeep_gateway.audit_events import AuditDelivery
from pqkeep_gateway.tenancy.plans import Plans
from pqkeep_gateway.tenancy.tenants import Tenant
from pqkeep_protocol.keys import TenantId
from pqkeep_protocol.messages import Attribution, Idempotency

SALT_SIZE = 16


class ApiKeyStatus(StrEnum):
    """There is no way back from revoked."""

    ACTIVE = "active"
    REVOKED = "revoked"


@dataclass(frozen=True, slots=True)
class ApiKey:
    """What may be told about an API key."""

    version: int
    last4: str
    status: ApiKeyStatus
    created_at: datetime
    revoked_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class NewApiKey:
    """An API key and, this once, its plaintext."""

    metadata: ApiKey
    plaintext: str = field(repr=False)


class QuotaReachedError(Exception):
    """The plan allows no more active API keys."""


class ApiKeyNotFoundError(Exception):
    """The tenant has no API key of this version."""


class AlreadyRotatedError(Exception):
    """Another API key has taken this one's place already."""


@dataclass(frozen=True, slots=True)
class Draft:
    """An API key that is not kept yet."""

    digest: bytes = field(repr=False)
    last4: str
    salt: bytes = field(repr=False)
    """16 bytes, from which an Idempotency-Key makes the plaintext again."""
    created_at: datetime


@dataclass(frozen=True, slots=True)
class Kept:
    """An API key as it was first kept, now or earlier, and the version that it replaced."""

    metadata: ApiKey
    salt: bytes = field(repr=False)
    revoked: int | None = None


class ApiKeyStore(Protocol):
    """Where API keys are kept, and an event of each change.

    What was kept with an Idempotency-Key before is not kept again.
    """

    async def add(
        self,
        tenant: TenantId,
        draft: Draft,
        quota: int,
        attribution: Attribution,
        idempotency: Idempotency | None = None,
    ) -> Kept:
        """Keep a new API key under the next version.

        Raises QuotaReachedError, IdempotencyKeyReusedError.
        """
        ...

    async def list(self, tenant: TenantId) -> tuple[ApiKey, ...]:
        """Return a tenant's API keys, by version."""
        ...

    async def rotate(
        self,
        tenant: TenantId,
        version: int | None,
        draft: Draft,
        accepted_until: datetime,
        attribution: Attribution,
        idempotency: Idempotency | None = None,
    ) -> Kept:
        """Revoke a version (None: the newest active) and keep a new API key, in one step.

        Raises AlreadyRotatedError if the named version is not active any more; IdempotencyKeyReusedError.
        """
        ...

    async def revoke(
        self, tenant: TenantId, version: int, now: datetime, attribution: Attribution
    ) -> ApiKey:
        """Accept a version no longer. Raises ApiKeyNotFoundError."""
        ...


class ApiKeys:
    """Makes, rotates and revokes API keys, within each plan's quota."""

    def __init__(
        self,
        store: ApiKeyStore,
        plans: Plans,
        pepper: Pepper,
        announce_change: Callable[[], Awaitable[None]],
        audit_delivery: AuditDelivery,
        overlap: timedelta,
        clock: Clock,
    ) -> None:
        """Keep them in a store, as digests under the pepper.

        ``announce_change`` is called after a change. A rotated API key is accepted for the
        overlap.
        """
        self._store = store
        self._plans = plans
        self._pepper = pepper
        self._announce_change = announce_change
        self._courier = audit_delivery
        self._overlap = overlap
        self._clock = clock

    async def create(
        self,
        tenant: Tenant,
        attribution: Attribution,
        idempotency_key: IdempotencyKey | None = None,
    ) -> NewApiKey:
        """Make one more API key. Raises QuotaReachedError, IdempotencyKeyReusedError."""
        plaintext, draft = self._draft(tenant.id, idempotency_key)
        quota = self._plans[tenant.entitlements.effective_tier].api_keys
        idempotency = idempotency_of(idempotency_key)
        kept = await self._store.add(tenant.id, draft, quota, attribution, idempotency)
        await self._courier.deliver()
        return self._shown(tenant.id, plaintext, draft, kept, idempotency_key)

    async def list(self, tenant: TenantId) -> tuple[ApiKey, ...]:
        """Return a tenant's API keys, by version."""
        return await self._store.list(tenant)

    async def rotate(
        self,
        tenant: TenantId,
        version: int | None,
        attribution: Attribution,
        idempotency_key: IdempotencyKey | None = None,
    ) -> tuple[NewApiKey, int | None]:
        """Put a new API key in a version's place (None: the newest active one's).

        Return it, and the version it replaced. Raises AlreadyRotatedError, IdempotencyKeyReusedError.
        """
        plaintext, draft = self._draft(tenant, idempotency_key)
        until = draft.created_at + self._overlap
        idempotency = idempotency_of(idempotency_key)
        try:
            kept = await self._store.rotate(tenant, version, draft, until, attribution, idempotency)
        finally:
            await self._announce_change()
        await self._courier.deliver()
        return self._shown(tenant, plaintext, draft, kept, idempotency_key), kept.revoked

    async def revoke(self, tenant: TenantId, version: int, attribution: Attribution) -> ApiKey:
        """Accept a version no longer, from now on. Raises ApiKeyNotFoundError."""
        now = date_of(self._clock())
        try:
            revoked = await self._store.revoke(tenant, version, now, attribution)
        finally:
            await self._announce_change()
        await self._courier.deliver()
        return revoked

    def _draft(self, tenant: TenantId, idempotency_key: IdempotencyKey | None) -> tuple[str, Draft]:
        salt = secrets.token_bytes(SALT_SIZE)
        plaintext = self._plaintext(tenant, salt, idempotency_key)
        now = date_of(self._clock())
        return plaintext, Draft(self._pepper.digest(plaintext), plaintext[-4:], salt, now)

    def _shown(
        self,
        tenant: TenantId,
        plaintext: str,
        draft: Draft,
        kept: Kept,
        idempotency_key: IdempotencyKey | None,
    ) -> NewApiKey:
        if kept.salt != draft.salt:  # it was kept earlier
            plaintext = self._plaintext(tenant, kept.salt, idempotency_key)
        return NewApiKey(kept.metadata, plaintext)

    def _plaintext(
        self, tenant: TenantId, salt: bytes, idempotency_key: IdempotencyKey | None
    ) -> str:
        """Return a random API key, or the one that belongs to an Idempotency-Key and a salt.

        So the first answer can be given again, and no plaintext is kept for it.
        """
        if idempotency_key is None:
            return new_credential(CredentialKind.API_KEY)
        random = self._pepper.derive(
            "pqkeep/v1/api-key", tenant.bytes, salt, idempotency_key.text.encode()
        )
        return new_credential(CredentialKind.API_KEY, random)
