"""Principals: the authenticated callers. All kinds have the same attributes."""

from base64 import urlsafe_b64encode
from dataclasses import dataclass, field
from hashlib import sha256
from typing import ClassVar, NamedTuple, NewType
from urllib.parse import quote
from uuid import UUID

from pqkeep_gateway.access.api_key_limits import UNLIMITED, ApiKeyLimits
from pqkeep_gateway.access.callers import (
    OPERATOR_CALLERS,
    Caller,
    Credential,
    OperatorRole,
    Role,
)
from pqkeep_gateway.access.entitlements import Entitlements
from pqkeep_gateway.access.rate_limit import Limit
from pqkeep_gateway.access.scopes import Scopes
from pqkeep_gateway.shards import HERE, Placement
from pqkeep_protocol.algorithms import Algorithm, Operation
from pqkeep_protocol.audit_events import API_KEY, OPERATOR, PERSON, WORKLOAD
from pqkeep_protocol.keys import KeyringName, TenantId

UserId = NewType("UserId", UUID)
SessionId = NewType("SessionId", UUID)


class Grant(NamedTuple):
    """The reason why a key operation is allowed."""

    policy: str
    is_counted: bool
    """Whether it counts against the monthly quota of operations."""


class Decided:
    """Cached decisions about a principal that depend only on its look-up.

    A change of the tenant or credential causes a new look-up, and so a new principal without cached
    decisions. Decisions that depend on time or counts are not cached here.
    """

    __slots__ = ("grants", "limit", "limit_as_of", "permitted", "subject", "text")

    def __init__(self) -> None:
        self.text = ""
        """The principal's name in the audit log; empty until it is needed."""
        self.subject = ""
        """The rate limiter's subject."""
        self.limit: Limit | None = None
        self.limit_as_of = 0
        """The admission's state when the limit was calculated."""
        self.permitted: set[str] = set()
        """Names of endpoints that the access table and the scopes have granted."""
        self.grants: dict[tuple[Operation, Algorithm, KeyringName], Grant] = {}
        """Operations that scopes and policies have allowed, at most GRANTS."""


GRANTS = 64
"""A limit is needed because callers choose the names of keyrings."""


@dataclass(frozen=True, slots=True)
class ApiKeyPrincipal:
    """A tenant's program, authenticated by its API key."""

    tenant: TenantId
    entitlements: Entitlements
    api_key_version: int
    suspended: bool
    is_rotated: bool = False
    """Whether another API key has replaced it, and its overlap runs."""
    name: str | None = None
    """The name that the owner gave it."""
    limits: ApiKeyLimits = UNLIMITED
    placement: Placement = HERE
    """The key service with the tenant's keys."""
    has_people: bool = False
    """Whether people can sign in to its tenant: they have a share of the rate limit."""
    workload: str | None = None
    """The role of the workload that got this short-lived API key for a token; the version is 0."""
    decided: Decided = field(default_factory=Decided, init=False, repr=False, compare=False)
    user: ClassVar[None] = None
    must_enroll: ClassVar[bool] = False
    is_read_only: ClassVar[bool] = False

    @property
    def caller(self) -> Caller:
        """The column of the access table."""
        if self.workload is not None:
            return Credential.WORKLOAD
        return Credential.ROTATED_API_KEY if self.is_rotated else Credential.API_KEY

    @property
    def scopes(self) -> Scopes | None:
        """The key's scopes; None: everything that the access table allows."""
        return self.limits.scopes

    def __str__(self) -> str:
        if not self.decided.text:
            name = "" if self.name is None else f"/{self.name}"
            self.decided.text = (
                f"{API_KEY}{self.api_key_version}{name}"
                if self.workload is None
                else f"{WORKLOAD}{self.workload}"
            )
        return self.decided.text


@dataclass(frozen=True, slots=True)
class SessionPrincipal:
    """A person of a tenant, authenticated by a session."""

    tenant: TenantId
    entitlements: Entitlements
    user: UserId
    role: Role
    session: SessionId
    suspended: bool
    must_enroll: bool = False
    """Whether the tenant requires a second factor that the person does not have yet."""
    placement: Placement = HERE
    """The key service with the tenant's keys."""
    language: str | None = field(default=None, compare=False)
    """The language of the last page of the portal; None before the first one."""
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
class OperatorPerson:
    """An operator who signed in by a provider of single sign-on."""

    provider: str
    """The provider's name in the settings."""
    subject: str = field(repr=False)
    """The person's identifier at the provider."""
    email: str | None = field(default=None, repr=False, compare=False)
    """The address that the provider vouches for, or None."""

    def __str__(self) -> str:
        """Return the person's name in the audit log. A long subject is shown by its SHA-256."""
        subject = quote(self.subject, safe="@|+=")
        if len(subject) > MAX_SUBJECT:
            digest = sha256(self.subject.encode()).digest()
            subject = f"sha256-{urlsafe_b64encode(digest).decode().rstrip('=')}"
        return f"{self.provider}:{subject}"


MAX_SUBJECT = 64
"""Characters of a subject in the audit log."""


@dataclass(frozen=True, slots=True)
class OperatorPrincipal:
    """An operator of the installation. Administers tenants, but cannot use their keys."""

    name: str | None = None
    """None: the operator with the credential digest in the settings, or a person."""
    is_read_only: bool = False
    """Whether it was authenticated by a browser session, which cannot change anything by itself."""
    role: OperatorRole = OperatorRole.ADMIN
    person: OperatorPerson | None = None
    """The person, if the session began at a provider. Only such a session can step up."""
    session: bytes = field(default=b"", repr=False, compare=False)
    """The digest of the session's token (32 bytes); empty without a session."""
    tenant: ClassVar[None] = None
    placement: ClassVar[Placement] = HERE
    user: ClassVar[None] = None
    api_key_version: ClassVar[None] = None
    limits: ClassVar[ApiKeyLimits] = UNLIMITED
    scopes: ClassVar[None] = None
    must_enroll: ClassVar[bool] = False

    @property
    def caller(self) -> Caller:
        """The column of the access table."""
        return OPERATOR_CALLERS[self.role]

    def __str__(self) -> str:
        if self.person is not None:
            return f"{OPERATOR}{self.person}/{self.role}"
        if self.name is None:
            return "operator"
        role = "" if self.role is OperatorRole.ADMIN else f"/{self.role}"
        return f"{OPERATOR}{self.name}{role}"


@dataclass(frozen=True, slots=True)
class AnonymousPrincipal:
    """A caller without a credential, at a public endpoint."""

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
"""A principal of one tenant."""

Principal = TenantPrincipal | OperatorPrincipal | AnonymousPrincipal


class OperatorError(Exception):
    """A change of the operators was refused. The message is for the person at the command line."""
