"""Who is asking. Every kind of principal says the same of itself, so that no code has to ask which."""

from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple, NewType
from uuid import UUID

from pqkeep_gateway.access.api_key_limits import UNLIMITED, ApiKeyLimits
from pqkeep_gateway.access.callers import Caller, Credential, Role
from pqkeep_gateway.access.entitlements import Entitlements
from pqkeep_gateway.access.rate_limit import Limit
from pqkeep_gateway.access.scopes import Scopes
from pqkeep_gateway.shards import HERE, Placement
from pqkeep_protocol.algorithms import Algorithm, Operation
from pqkeep_protocol.audit_events import PERSON
from pqkeep_protocol.keys import KeyringName, TenantId

UserId = NewType("UserId", UUID)
SessionId = NewType("SessionId", UUID)


class Grant(NamedTuple):
    """Why an operation with keys is allowed."""

    policy: str
    is_counted: bool
    """Whether it counts against the month's allowance of operations."""


class Decided:
    """What was decided about a principal since it was looked up, and depends on nothing else.

    A change of the tenant or the credential is followed by a new look-up, and so by a new principal:
    what was decided about the old one ends with it. What depends on time or on counts is not here.
    """

    __slots__ = ("grants", "limit", "limit_as_of", "permitted", "subject", "text")

    def __init__(self) -> None:
        self.text = ""
        """The principal as the audit log names it; empty: not made yet."""
        self.subject = ""
        """Whose rate limit counts."""
        self.limit: Limit | None = None
        self.limit_as_of = 0
        """Of which state of the admission the limit is."""
        self.permitted: set[str] = set()
        """The names of endpoints which access table and scopes have granted."""
        self.grants: dict[tuple[Operation, Algorithm, KeyringName], Grant] = {}
        """What scopes and policies have allowed, at most GRANTS."""


GRANTS = 64
"""Callers choose the names of keyrings."""


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
    decided: Decided = field(default_factory=Decided, init=False, repr=False, compare=False)
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
        if not self.decided.text:
            name = "" if self.name is None else f"/{self.name}"
            self.decided.text = f"api-key:{self.api_key_version}{name}"
        return self.decided.text


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
    decided: Decided = field(default_factory=Decided, init=False, repr=False, compare=False)
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
    placement: ClassVar[Placement] = HERE
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
    placement: ClassVar[Placement] = HERE
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


class OperatorError(Exception):
    """The operators stay as they are. The message is for the person who wants them changed."""
