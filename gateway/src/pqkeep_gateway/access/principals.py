"""Who is asking."""

from dataclasses import dataclass
from typing import NewType
from uuid import UUID

from pqkeep_gateway.access.entitlements import Entitlements
from pqkeep_gateway.access.roles import Role
from pqkeep_protocol.keys import TenantId

UserId = NewType("UserId", UUID)
SessionId = NewType("SessionId", UUID)


@dataclass(frozen=True, slots=True)
class ApiKeyPrincipal:
    """A tenant's program, by the API key it showed."""

    tenant: TenantId
    entitlements: Entitlements
    api_key_version: int
    suspended: bool

    def __str__(self) -> str:
        return f"api-key:{self.api_key_version}"


@dataclass(frozen=True, slots=True)
class SessionPrincipal:
    """A person of a tenant, by the session they began."""

    tenant: TenantId
    entitlements: Entitlements
    user: UserId
    role: Role
    session: SessionId
    suspended: bool
    must_enroll: bool = False
    """Whether their tenant requires a second factor that they do not have yet."""

    def __str__(self) -> str:
        return f"user:{self.user}"


@dataclass(frozen=True, slots=True)
class OperatorPrincipal:
    """Whoever runs the installation. Administers every tenant, and uses no tenant's keys."""

    def __str__(self) -> str:
        return "operator"


@dataclass(frozen=True, slots=True)
class AnonymousPrincipal:
    """Nobody: for the few endpoints that are open to anyone."""

    def __str__(self) -> str:
        return "anonymous"


TenantPrincipal = ApiKeyPrincipal | SessionPrincipal
"""Somebody who acts for one tenant."""

Principal = TenantPrincipal | OperatorPrincipal | AnonymousPrincipal
