"""Tenants: the organisations that own keys."""

import uuid
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Protocol

from pqkeep_gateway.access.principals import Plan
from pqkeep_protocol.keys import TenantId

MAX_NAME = 255


class TenantStatus(StrEnum):
    """A suspended tenant's credentials are known, and allowed nothing."""

    ACTIVE = "active"
    SUSPENDED = "suspended"


@dataclass(frozen=True, slots=True)
class Tenant:
    """One organisation."""

    id: TenantId
    name: str
    plan: Plan
    status: TenantStatus
    created_at: datetime
    updated_at: datetime


class NameTakenError(Exception):
    """Another tenant has the name."""


class TenantNotFoundError(Exception):
    """There is no such tenant."""


class TenantStore(Protocol):
    """Where tenants are kept."""

    async def add(self, tenant: Tenant) -> None:
        """Keep a new tenant. Raises NameTakenError."""
        ...

    async def get(self, tenant: TenantId) -> Tenant:
        """Return a tenant. Raises TenantNotFoundError."""
        ...

    async def list(self) -> tuple[Tenant, ...]:
        """Return every tenant, oldest first."""
        ...

    async def change(
        self,
        tenant: TenantId,
        plan: Plan | None,
        status: TenantStatus | None,
        now: datetime,
    ) -> Tenant:
        """Change what is named, and nothing else. Raises TenantNotFoundError."""
        ...


class Tenants:
    """Keeps tenants; what is known of their credentials is forgotten when they change."""

    def __init__(self, store: TenantStore, forget: Callable[[TenantId], None]) -> None:
        """Keep them in a store; ``forget`` is called after a change."""
        self._store = store
        self._forget = forget

    async def create(self, name: str, plan: Plan) -> Tenant:
        """Make a tenant. Raises NameTakenError."""
        now = datetime.now(UTC)
        tenant = Tenant(
            id=TenantId(uuid.uuid4()),
            name=name,
            plan=plan,
            status=TenantStatus.ACTIVE,
            created_at=now,
            updated_at=now,
        )
        await self._store.add(tenant)
        return tenant

    async def get(self, tenant: TenantId) -> Tenant:
        """Return a tenant. Raises TenantNotFoundError."""
        return await self._store.get(tenant)

    async def list(self) -> tuple[Tenant, ...]:
        """Return every tenant, oldest first."""
        return await self._store.list()

    async def change(
        self, tenant: TenantId, *, plan: Plan | None, status: TenantStatus | None
    ) -> Tenant:
        """Change a tenant's plan or status, at once. Raises TenantNotFoundError."""
        if plan is None and status is None:
            return await self._store.get(tenant)
        try:
            return await self._store.change(tenant, plan, status, datetime.now(UTC))
        finally:
            self._forget(tenant)
