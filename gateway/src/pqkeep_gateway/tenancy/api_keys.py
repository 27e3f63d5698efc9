"""API keys of tenants: shown once, stored as digests."""

import secrets
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from pqkeep_gateway.access.api_key_limits import UNLIMITED, ApiKeyLimits
from pqkeep_gateway.access.clock import Clock, date_of
from pqkeep_gateway.access.credential_lookups import CredentialLookups
from pqkeep_gateway.access.credentials import CredentialKind, Pepper, Purpose, new_credential
from pqkeep_gateway.access.idempotency import IdempotencyKey, idempotency_of
from pqkeep_gateway.audit_delivery import AuditDelivery
from pqkeep_gateway.storage.api_keys import (
    ApiKey,
    ApiKeyDraft,
    ApiKeyFilter,
    SqlApiKeys,
    StoredApiKey,
)
from pqkeep_gateway.storage.pages import Page, Sorted
from pqkeep_gateway.storage.tenants import Tenant
from pqkeep_gateway.tenancy.plans import Plans
from pqkeep_protocol.keys import TenantId
from pqkeep_protocol.messages import Attribution

SALT_SIZE = 16


@dataclass(frozen=True, slots=True)
class NewApiKey:
    """An API key with its plaintext, which is not stored."""

    metadata: ApiKey
    plaintext: str = field(repr=False)


class ExpiryPassedError(Exception):
    """The API key's expiry is in the past."""


def _shown(key: ApiKey, now: datetime) -> ApiKey:
    is_past = key.accepted_until is not None and key.accepted_until <= now
    return replace(key, accepted_until=None) if is_past else key


class ApiKeys:
    """Creates, rotates and revokes API keys, within each plan's quota."""

    def __init__(
        self,
        store: SqlApiKeys,
        plans: Plans,
        pepper: Pepper,
        lookups: CredentialLookups,
        announce_change: Callable[[], Awaitable[None]],
        audit_delivery: AuditDelivery,
        overlap: timedelta,
        clock: Clock,
    ) -> None:
        """Take the time for which a rotated API key is still accepted.

        ``announce_change`` is called after each change.
        """
        self._store = store
        self._plans = plans
        self._pepper = pepper
        self._lookups = lookups
        self._announce_change = announce_change
        self._audit_delivery = audit_delivery
        self.overlap = overlap
        self._clock = clock

    async def create(
        self,
        tenant: Tenant,
        attribution: Attribution,
        idempotency_key: IdempotencyKey | None = None,
        name: str | None = None,
        limits: ApiKeyLimits = UNLIMITED,
        within: ApiKeyLimits = UNLIMITED,
    ) -> NewApiKey:
        """Create an API key, within the caller's own limits.

        Raises BeyondOwnLimitsError, ExpiryPassedError, QuotaReachedError,
        IdempotencyKeyReusedError.
        """
        within.check_covers(limits)
        plaintext, draft = self._draft(tenant.id, idempotency_key, name, limits)
        quota = self._plans[tenant.entitlements.effective_tier].api_keys
        idempotency = idempotency_of(idempotency_key)
        stored = await self._store.add(tenant.id, draft, quota, attribution, idempotency)
        await self._audit_delivery.deliver()
        return self._new_api_key(tenant.id, plaintext, draft, stored, idempotency_key)

    async def list(self, tenant: TenantId) -> tuple[ApiKey, ...]:
        """Return a tenant's API keys by version: MAX_LISTED, first valid and then newest ones.

        A past overlap is not shown.
        """
        now = date_of(self._clock())
        return tuple(_shown(key, now) for key in await self._store.list(tenant, now))

    async def list_sorted(self, tenant: TenantId, only: ApiKeyFilter, part: Sorted) -> Page[ApiKey]:
        """Return a part of a tenant's API keys that match. A past overlap is not shown."""
        now = date_of(self._clock())
        page = await self._store.list_sorted(tenant, only, part, now)
        return replace(page, entries=tuple(_shown(key, now) for key in page.entries))

    async def rotate(
        self,
        tenant: TenantId,
        version: int | None,
        attribution: Attribution,
        idempotency_key: IdempotencyKey | None = None,
        overlap: timedelta | None = None,
        name: str | None = None,
        changes: ApiKeyLimits = UNLIMITED,
        within: ApiKeyLimits = UNLIMITED,
    ) -> tuple[NewApiKey, int | None]:
        """Replace a version (None: the newest active one) with a new API key.

        The old key is accepted for the overlap (None: the installation's). The new key has its name
        and limits, except for the changes. ``within`` has the caller's own limits: an API key can
        replace only itself. Returns the new key, and the replaced version. Raises
        BeyondOwnLimitsError, ExpiryPassedError, AlreadyRotatedError, IdempotencyKeyReusedError.
        """
        within.check_covers(within.with_changes(changes))
        plaintext, draft = self._draft(tenant, idempotency_key, name, changes)
        until = draft.created_at + (self.overlap if overlap is None else overlap)
        idempotency = idempotency_of(idempotency_key)
        try:
            stored = await self._store.rotate(
                tenant, version, draft, until, attribution, idempotency
            )
        finally:
            await self._announce_change()
        await self._audit_delivery.deliver()
        return self._new_api_key(tenant, plaintext, draft, stored, idempotency_key), stored.revoked

    async def revoke(self, tenant: TenantId, version: int, attribution: Attribution) -> ApiKey:
        """Revoke a version immediately. Raises ApiKeyNotFoundError."""
        now = date_of(self._clock())
        try:
            revoked = await self._store.revoke(tenant, version, now, attribution)
        finally:
            await self._announce_change()
        await self._audit_delivery.deliver()
        return revoked

    async def count_valid(self, tenant: TenantId) -> int:
        """Return the number of API keys that count against the plan's quota."""
        return await self._store.count(tenant, valid_at=date_of(self._clock()))

    def _draft(
        self,
        tenant: TenantId,
        idempotency_key: IdempotencyKey | None,
        name: str | None,
        limits: ApiKeyLimits,
    ) -> tuple[str, ApiKeyDraft]:
        salt = secrets.token_bytes(SALT_SIZE)
        plaintext = self._plaintext(tenant, salt, idempotency_key)
        now = date_of(self._clock())
        if limits.expires_at is not None and limits.expires_at <= now:
            raise ExpiryPassedError
        digest = self._pepper.digest(plaintext)
        return plaintext, ApiKeyDraft(digest, plaintext[-4:], salt, now, name, limits)

    def _new_api_key(
        self,
        tenant: TenantId,
        plaintext: str,
        draft: ApiKeyDraft,
        stored: StoredApiKey,
        idempotency_key: IdempotencyKey | None,
    ) -> NewApiKey:
        if stored.salt != draft.salt:  # an earlier request created it
            plaintext = self._plaintext(tenant, stored.salt, idempotency_key)
        self._lookups.accept(self._pepper.digest(plaintext))
        return NewApiKey(stored.metadata, plaintext)

    def _plaintext(
        self, tenant: TenantId, salt: bytes, idempotency_key: IdempotencyKey | None
    ) -> str:
        """Return a random API key, or the one derived from an Idempotency-Key and a salt.

        So a repeated request gets the same API key, although no plaintext is stored.
        """
        if idempotency_key is None:
            return new_credential(CredentialKind.API_KEY)
        random = self._pepper.derive(
            Purpose.API_KEY, tenant.bytes, salt, idempotency_key.text.encode()
        )
        return new_credential(CredentialKind.API_KEY, random)
