"""Who is asking. Every kind of principal says the same of itself, so that no code has to ask which."""

from dataclasses import dataclass
from typing import ClassVar, NewType
from uuid import UUID

from pqkeep_gateway.access.api_key_limits import UNLIMITED, ApiKeyLimits
from pqkeep_gateway.access.callers import Caller, Credential
from pqkeep_gateway.access.entitlements import Entitlements
from pqkeep_gateway.access.roles import Role
from pqkeep_gateway.access.scopes import Scopes
from pqkeep_gateway.shards import HERE, Placement
from pqkeep_protocol.audit_events import PERSON
from pqkeep_protocol.keys import TenantId

UserId = NewType("UserId", UUID)
SessionId = NewType("SessionId", UUID)


@dataclass(frozen=True, slots=True)
class ApiKeyPrincipal:
    """A tenant's program, by the API key it sent."""

    tenant: TenantId
    entitlements: Entitlements
    api_key_version: int
    suspended: bool
    is_rotated: bool = False
    """Whether another API key has taken its place, and it is in its overlap."""
    name: str | None = None
    """What its owner calls it."""
    limits: ApiKeyLimits = UNLIMITED
    placement: Placement = HERE
    """Which key service has the tenant's keys."""
    has_people: bool = False
    """Whether somebody may sign in to its tenant: they have a share of its rate limit."""
    user: ClassVar[None] = None
    must_enroll: ClassVar[bool] = False
    is_read_only: ClassVar[bool] = False

    @property
    def caller(self) -> Caller:
        """The column of the access table."""
        return Credential.ROTATED_API_KEY if self.is_rotated else Credential.API_KEY

    @property
    def scopes(self) -> Scopes | None:
        """What it may do; None: all that the access table grants."""
        return self.limits.scopes

    def __str__(self) -> str:
        name = "" if self.name is None else f"/{self.name}"
        return f"api-key:{self.api_key_version}{name}"


@dataclass(frozen=True, slots=True)
class SessionPrincipal:
    """A person of a tenant, by their session."""

    tenant: TenantId
    entitlements: Entitlements
    user: UserId
    role: Role
    session: SessionId
    suspended: bool
    must_enroll: bool = False
    """Whether their tenant requires a second factor that they do not have yet."""
    placement: Placement = HERE
    """Which key service has the tenant's keys."""
    api_key_version: ClassVar[None] = None
    limits: ClassVar[ApiKeyLimits] = UNLIMITED
    scopes: ClassVar[None] = None
    is_read_only: ClassVar[bool] = False

    @property
    def caller(self) -> Caller:
        """The column of the access table."""
        return self.role

    def __str__(self) -> str:
        return f"{PERSON}{self.user}"


@dataclass(frozen=True, slots=True)
class OperatorPrincipal:
    """Whoever runs the installation. Administers every tenant, and uses no tenant's keys."""

    name: str | None = None
    """None: the operator whose credential's digest is in the settings."""
    is_read_only: bool = False
    """Whether a browser's session shows it, and not the credential: it changes nothing then."""
    caller: ClassVar[Caller] = Credential.OPERATOR
    tenant: ClassVar[None] = None
    user: ClassVar[None] = None
    api_key_version: ClassVar[None] = None
    limits: ClassVar[ApiKeyLimits] = UNLIMITED
    scopes: ClassVar[None] = None
    must_enroll: ClassVar[bool] = False

    def __str__(self) -> str:
        return "operator" if self.name is None else f"operator:{self.name}"


@dataclass(frozen=True, slots=True)
class AnonymousPrincipal:
    """Somebody without a credential, at an endpoint that is open to anyone."""

    caller: ClassVar[Caller] = Credential.NONE
    tenant: ClassVar[None] = None
    user: ClassVar[None] = None
    api_key_version: ClassVar[None] = None
    limits: ClassVar[ApiKeyLimits] = UNLIMITED
    scopes: ClassVar[None] = None
    must_enroll: ClassVar[bool] = False
    is_read_only: ClassVar[bool] = False

    def __str__(self) -> str:
        return "anonymous"


TenantPrincipal = ApiKeyPrincipal | SessionPrincipal
"""Somebody who acts for one tenant."""

Principal = TenantPrincipal | OperatorPrincipal | AnonymousPrincipal
