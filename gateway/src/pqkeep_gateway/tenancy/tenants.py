"""Tenants: the organisations that own keys."""

from dataclasses import dataclass
from datetime import datetime
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
