"""API keys of tenants: shown once, stored as a digest."""

from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from typing import Protocol

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


class ApiKeyStore(Protocol):
    """Where API keys are kept."""

    async def add(
        self, tenant: TenantId, digest: bytes, last4: str, created_at: datetime, quota: int
    ) -> ApiKey:
        """Keep a new API key under the next version. Raises QuotaReachedError."""
        ...


class ApiKeys:
    """Makes API keys, within each plan's quota."""

    def __init__(self, store: ApiKeyStore, plans: Plans, pepper: Pepper) -> None:
        """Keep them in a store, as digests under the pepper."""
        self._store = store
        self._plans = plans
        self._pepper = pepper

    async def create(self, tenant: Tenant) -> NewApiKey:
        """Make one more API key. Raises QuotaReachedError."""
        plaintext = new_credential(CredentialKind.API_KEY)
        metadata = await self._store.add(
            tenant.id,
            self._pepper.digest(plaintext),
            plaintext[-4:],
            datetime.now(UTC),
            self._plans[tenant.plan].api_keys,
        )
        return NewApiKey(metadata, plaintext)
