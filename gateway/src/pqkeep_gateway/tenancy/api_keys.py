"""API keys of tenants: shown once, stored as a digest."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Protocol

from pqkeep_gateway.access.clock import Clock, date_of
from pqkeep_gateway.access.credentials import CredentialKind, Pepper, new_credential
from pqkeep_gateway.tenancy.plans import Plans
from pqkeep_gateway.tenancy.tenants import Tenant
from pqkeep_protocol.keys import TenantId


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


class ApiKeyStore(Protocol):
    """Where API keys are kept."""

    async def add(
        self, tenant: TenantId, digest: bytes, last4: str, created_at: datetime, quota: int
    ) -> ApiKey:
        """Keep a new API key under the next version. Raises QuotaReachedError."""
        ...

    async def list(self, tenant: TenantId) -> tuple[ApiKey, ...]:
        """Return a tenant's API keys, by version."""
        ...

    async def rotate(
        self,
        tenant: TenantId,
        version: int | None,
        digest: bytes,
        last4: str,
        now: datetime,
        accepted_until: datetime,
    ) -> tuple[ApiKey, int | None]:
        """Revoke a version (None: the newest active) and keep a new API key, in one step.

        Return the new one and the version that was revoked, if there was one to revoke. Raises
        AlreadyRotatedError if the named version is not active any more.
        """
        ...

    async def revoke(self, tenant: TenantId, version: int, now: datetime) -> ApiKey:
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
        self._overlap = overlap
        self._clock = clock

    async def create(self, tenant: Tenant) -> NewApiKey:
        """Make one more API key. Raises QuotaReachedError."""
        plaintext = new_credential(CredentialKind.API_KEY)
        metadata = await self._store.add(
            tenant.id,
            self._pepper.digest(plaintext),
            plaintext[-4:],
            date_of(self._clock()),
            self._plans[tenant.standing.tier_in_force].api_keys,
        )
        return NewApiKey(metadata, plaintext)

    async def list(self, tenant: TenantId) -> tuple[ApiKey, ...]:
        """Return a tenant's API keys, by version."""
        return await self._store.list(tenant)

    async def rotate(self, tenant: TenantId, version: int | None) -> tuple[NewApiKey, int | None]:
        """Put a new API key in a version's place (None: the newest active one's).

        Raises AlreadyRotatedError.
        """
        plaintext = new_credential(CredentialKind.API_KEY)
        now = date_of(self._clock())
        try:
            metadata, revoked = await self._store.rotate(
                tenant,
                version,
                self._pepper.digest(plaintext),
                plaintext[-4:],
                now,
                now + self._overlap,
            )
        finally:
            await self._announce_change()
        return NewApiKey(metadata, plaintext), revoked

    async def revoke(self, tenant: TenantId, version: int) -> ApiKey:
        """Accept a version no longer, from now on. Raises ApiKeyNotFoundError."""
        try:
            return await self._store.revoke(tenant, version, date_of(self._clock()))
        finally:
            await self._announce_change()
