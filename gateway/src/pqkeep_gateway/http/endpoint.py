"""The row that describes an endpoint, and the request that its handler gets."""

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

from msgspec import Struct

from pqkeep_gateway.access.callers import COVERED_BY_PROOF, Permission
from pqkeep_gateway.access.idempotency import IdempotencyKey, idempotency_of
from pqkeep_gateway.access.principals import (
    Principal,
    SessionPrincipal,
    TenantPrincipal,
)
from pqkeep_gateway.access.rate_limit import Limit, Usage
from pqkeep_gateway.access.trusted_proxies import Client
from pqkeep_gateway.http.cookies import NO_COOKIES, SentCookies
from pqkeep_gateway.http.envelope import Data
from pqkeep_gateway.http.errors import ApiError, Code, forbidden
from pqkeep_gateway.http.field import Field, FieldCodes
from pqkeep_gateway.shards import Placement
from pqkeep_protocol.algorithms import Algorithm
from pqkeep_protocol.audit_events import AuditEvent, GatewayOperation
from pqkeep_protocol.keys import KeyringName
from pqkeep_protocol.messages import Attribution, Idempotency, RedactedRepr, Request
from pqkeep_protocol.rules import RuleNotice

T = TypeVar("T")

JSON = "application/json"
JSON_LINES = "application/jsonl"
JWK_SET = "application/jwk-set+json"
TEXT = "text/plain; charset=utf-8"

BODY_METHODS = frozenset({"POST", "PUT", "PATCH"})
MAX_TEXT_BODY = 16 * 1024
"""Bytes of a body without binary fields."""
MIN_BINARY_BODY = 256 * 1024
"""The least limit, in bytes, of a body with binary fields."""
MAX_BODY = 4 * 1024 * 1024
"""Bytes of any body."""


@dataclass(frozen=True, slots=True)
class JsonLines:
    """A response of JSON lines, created while it is sent."""

    name: str
    chunks: AsyncGenerator[bytes, None]


@dataclass(frozen=True, slots=True)
class Document:
    """A response without the envelope."""

    content_type: str
    body: bytes
    status: int | None = None
    """A status that replaces the endpoint's status. None keeps it."""


@dataclass(frozen=True, slots=True)
class Existing:
    """A response with existing data and status 200, instead of the endpoint's status."""

    data: Data


@dataclass(frozen=True, slots=True)
class Filed:
    """A response with status 202: the request waits for the approval of a second person."""

    data: Data


@dataclass(frozen=True, slots=True)
class WithCookies:
    """A response with the values of its Set-Cookie headers."""

    data: Data
    cookies: tuple[str, ...] = field(repr=False)


@dataclass(frozen=True, slots=True)
class Warned:
    """A response, and the rule that will end such operations: its dates are headers."""

    response: Data | Document | Existing
    notice: RuleNotice


Response = Data | JsonLines | Document | WithCookies | Existing | Filed | Warned
"""The result types of handlers."""


Outcome = Data | Warned | ApiError
"""The outcome of one item of a batch."""


class SignedBody(RedactedRepr, Struct, frozen=True):
    """The bytes of a body, and the signature in a header."""

    body: bytes = b""
    signature: str = ""


NOT_SIGNED = SignedBody()


class Head(RedactedRepr, Struct, frozen=True):
    """The headers of a request, and the client that sent it."""

    headers: Mapping[bytes, bytes]
    client: Client


class ApiCall(RedactedRepr, Struct, frozen=True, kw_only=True):
    """One request of a caller with the endpoint's permission."""

    principal: Principal
    attribution: Attribution
    values: Mapping[str, object]
    """JSON values of the path, and of the body or the query, by field."""
    idempotency_key: IdempotencyKey | None = None
    sent_cookies: SentCookies = NO_COOKIES
    user_agent: bytes = b""
    """The User-Agent header, or an empty text."""
    accept_language: bytes = b""
    step_up_token: str = ""
    signed: SignedBody = NOT_SIGNED
    """The body, if the endpoint verifies its signature."""
    usage: Usage | None = None
    """The state of the tenant's rate limit, if the request was counted."""
    head: Head | None = None
    """The head of the request, for endpoints of a face."""

    @property
    def idempotency(self) -> Idempotency | None:
        """The digests of the Idempotency-Key; None without a key."""
        return idempotency_of(self.idempotency_key)

    @property
    def cookies(self) -> Mapping[str, str]:
        """The cookies by name."""
        return self.sent_cookies.values

    def __getitem__(self, field: Field[T]) -> T:
        """Return a field's value. Raises FieldError."""
        return field.read(self.values)

    @property
    def person(self) -> SessionPrincipal:
        """The signed-in person. The access table ensures that the caller has a tenant."""
        if isinstance(self.principal, SessionPrincipal):
            return self.principal
        raise forbidden("only signed-in people may do this")

    @property
    def tenant(self) -> TenantPrincipal:
        """The tenant's principal. The access table ensures that the caller has a tenant."""
        if isinstance(self.principal, TenantPrincipal):
            return self.principal
        raise forbidden("only callers of a tenant may do this")


class Subject(NamedTuple):
    """The change that a request would make, as the approving person sees it."""

    summary: str
    """The change as a sentence without a subject, such as ``Delete the keyring x``."""
    state: object
    """The present state of the changed object, which can be encoded as JSON. Approval ends with
    it."""
    permission: Permission
    """The permission that requester and approver need."""


class Question(NamedTuple):
    """An operation's request to the key service."""

    request: Request[Any]
    attribution: Attribution
    """The caller, and the policy that allows the request."""
    placement: Placement
    """The tenant's placement."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """One row of the API. The reference uses the handler's docstring as its text."""

    method: str
    path: str
    name: str
    """The unique identifier of the operation in the reference."""
    handler: Callable[[ApiCall], Awaitable[Response]]
    """Handles a call. With ``ask`` and ``answer``, it combines these."""
    permission: Permission
    """The permission that the caller needs: see the table in ``access.callers``."""
    example: Data | None
    """An example of the response, which also defines its type; None for JSON lines and text."""
    field_codes: FieldCodes
    fields: tuple[Field[Any], ...] = ()
    """All fields. Those in the path have their name there; the others are in the body, or for GET
    in the query."""
    status: int = 200
    may_exist: bool = False
    """Whether it can return ``Existing``."""
    content_type: str = JSON
    """The response's type. Only JSON has an envelope."""
    errors: tuple[type[Exception], ...] = ()
    """Exceptions of the handler that the error table translates."""
    codes: frozenset[Code] = frozenset()
    """Error codes beyond those of every request."""
    recorded_as: GatewayOperation | None = None
    """The operation in the audit log; None: the name in the reference."""
    body_optional: bool = False
    """Whether the body may be missing even if there are fields."""
    one_required: bool = False
    """Whether one of the optional query parameters is needed. The example has the first."""
    idempotent: bool = False
    """Whether a repeated request with the same Idempotency-Key gets the first response."""
    answers_secret: bool = False
    """Whether that response is only for the credential or person of the first request."""
    needs_step_up: bool = False
    """Whether a signed-in person needs a step-up: see ``access.callers.COVERED_BY_PROOF``."""
    step_up_for: Field[Any] | None = None
    """A field that needs a single-use step-up token, unless it is missing, zero or empty."""
    subject_of: Callable[[ApiCall], Awaitable[Subject | None]] | None = None
    """Returns the change that a second person must approve, in tenants that require it; None:
    nothing. Such an endpoint has no ``ask``. Raises the handler's errors."""
    during_enrollment: bool = False
    """Whether people may call it before they have set up their required second factor."""
    address_limit: Limit | None = None
    """The limit per source address; operators are not counted."""
    disabled: str = ""
    """The reason why this installation refuses it to every caller; empty: it does not."""
    default_algorithm: Algorithm | None = None
    """The algorithm if the request names none; None without a default."""
    algorithm_elsewhere: str = ""
    """The field that contains the algorithm, if it is sent."""
    keyring_of: Callable[[Mapping[str, object]], KeyringName | None] | None = None
    """Returns the keyring in a request's fields, for the audit log; None: no keyring."""
    key_version_of: Callable[[Mapping[str, object]], int | None] | None = None
    """Returns the version in the fields, if that is not the field ``key_version``."""
    denial: Callable[[], ApiError] | None = None
    """Returns the error for a caller without a session, instead of 403 ERR_FORBIDDEN_001."""
    signature_header: str = ""
    """The header with the body's signature. The body is then read as bytes."""

    items: Field[Sequence[object]] | None = None
    """The field with elements that each count as one request."""
    outcomes: Callable[[ApiCall], Awaitable[Sequence["Outcome"]]] | None = None
    """For an endpoint with items: handles a call, and returns each item's outcome."""
    ask: Callable[[ApiCall], Question | None] | None = None
    """Returns the single request to the key service, without waiting. None: await the handler,
    because something else must happen first. Raises ApiError, FieldError and errors of the error
    table."""
    response: Callable[[ApiCall, Question, Any], Response] | None = None
    """Returns the response for the outcome of the request: a result or a KeyServiceError. Call it
    exactly once for each request, even if the client has gone: it overwrites secrets. Raises
    ApiError."""

    def __post_init__(self) -> None:
        """Raise ValueError if refusals would be recorded under an unlisted name."""
        _ = self.audit_operation
        if self.subject_of is not None and self.ask is not None:
            raise ValueError(f"{self.name} would pass the approval by")

    @property
    def audit_operation(self) -> GatewayOperation:
        """The operation under which refusals are recorded."""
        return self.recorded_as or AuditEvent(self.name.replace("_", "-"))

    def demands_step_up(self, values: Mapping[str, object]) -> bool:
        """Return whether a signed-in person needs a step-up for these values."""
        return self.needs_step_up or self._is_set(self.step_up_for, values)

    def is_covered_by_proof(self, values: Mapping[str, object]) -> bool:
        """Return whether a session's proof is enough for these values, without a token."""
        return self.name in COVERED_BY_PROOF and not self._is_set(self.step_up_for, values)

    def _is_set(self, field: Field[Any] | None, values: Mapping[str, object]) -> bool:
        return field is not None and bool(values.get(field.name))

    @property
    def takes_body(self) -> bool:
        """Whether its fields are in a JSON body."""
        return self.method in BODY_METHODS

    @property
    def max_body(self) -> int:
        """The largest body in bytes: with binary fields, more than twice their sizes.

        So the operation itself limits the value's size. A text field larger than
        MAX_TEXT_BODY counts as binary, since it holds a document.
        """
        if self.items is not None:
            return MAX_BODY
        lengths = [
            (field, int(str(field.schema.get("maxLength", 0)))) for field in self.other_fields
        ]
        sizes = [size for length, size in lengths if length.is_base64 or size > MAX_TEXT_BODY]
        if not sizes:
            return MAX_TEXT_BODY
        return min(MIN_BINARY_BODY + 2 * sum(sizes), MAX_BODY)

    @property
    def path_fields(self) -> tuple[Field[Any], ...]:
        """The fields in the path."""
        return tuple(field for field in self.fields if f"{{{field.name}}}" in self.path)

    @property
    def other_fields(self) -> tuple[Field[Any], ...]:
        """The fields in the body or the query."""
        return tuple(field for field in self.fields if f"{{{field.name}}}" not in self.path)
