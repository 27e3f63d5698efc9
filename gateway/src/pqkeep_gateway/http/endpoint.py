"""The row that describes an endpoint, and the request as its handler sees it."""

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
from pqkeep_gateway.http.cookies import NO_COOKIES, SentCookies
from pqkeep_gateway.http.envelope import Data
from pqkeep_gateway.http.errors import ApiError, Code, forbidden
from pqkeep_gateway.http.field import Field, FieldCodes
from pqkeep_gateway.shards import Placement
from pqkeep_protocol.algorithms import Algorithm
from pqkeep_protocol.audit_events import AuditEvent, GatewayOperation
from pqkeep_protocol.keys import KeyringName
from pqkeep_protocol.messages import Attribution, Idempotency, RedactedRepr, Request

T = TypeVar("T")

JSON = "application/json"
JSON_LINES = "application/jsonl"
JWK_SET = "application/jwk-set+json"
TEXT = "text/plain; charset=utf-8"

BODY_METHODS = frozenset({"POST", "PUT", "PATCH"})
MAX_TEXT_BODY = 16 * 1024
"""Bytes of a body without binary fields."""
MIN_BINARY_BODY = 256 * 1024
"""Bytes of a body with binary fields, if these are small."""
MAX_BODY = 4 * 1024 * 1024
"""Bytes of any body."""


@dataclass(frozen=True, slots=True)
class JsonLines:
    """A response that is a file of JSON lines, made while it is sent."""

    name: str
    chunks: AsyncGenerator[bytes, None]


@dataclass(frozen=True, slots=True)
class Document:
    """A response that is sent as it is, without the envelope."""

    content_type: str
    body: bytes


@dataclass(frozen=True, slots=True)
class Existing:
    """A response with what was there before: with 200, whatever status the endpoint has."""

    data: Data


@dataclass(frozen=True, slots=True)
class WithCookies:
    """A response, and the values of the Set-Cookie headers that go with it."""

    data: Data
    cookies: tuple[str, ...] = field(repr=False)


Response = Data | JsonLines | Document | WithCookies | Existing
"""What handlers return."""


class SignedBody(RedactedRepr, Struct, frozen=True):
    """A body byte for byte, and the signature that came with it in a header."""

    body: bytes = b""
    signature: str = ""


NOT_SIGNED = SignedBody()


class ApiCall(RedactedRepr, Struct, frozen=True, kw_only=True):
    """One request whose caller has the endpoint's permission."""

    principal: Principal
    attribution: Attribution
    values: Mapping[str, object]
    """JSON values of the path, and of the body or the query, by field."""
    idempotency_key: IdempotencyKey | None = None
    sent_cookies: SentCookies = NO_COOKIES
    user_agent: bytes = b""
    """The header User-Agent, if there is one."""
    step_up_token: str = ""
    signed: SignedBody = NOT_SIGNED
    """Where the endpoint takes a signed body."""
    usage: Usage | None = None
    """What the request found of its tenant's rate limit, if it was counted."""

    @property
    def idempotency(self) -> Idempotency | None:
        """What is kept of the Idempotency-Key, if there is one."""
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
        """Who is signed in. The access table lets nobody else through to handlers that ask."""
        if isinstance(self.principal, SessionPrincipal):
            return self.principal
        raise forbidden("this is for people who have signed in")

    @property
    def tenant(self) -> TenantPrincipal:
        """Who acts for a tenant. The access table lets nobody else through to handlers that ask."""
        if isinstance(self.principal, TenantPrincipal):
            return self.principal
        raise forbidden("this is for callers of one tenant")


class Question(NamedTuple):
    """What an operation asks the key service."""

    request: Request[Any]
    attribution: Attribution
    """Who asks, and the policy that allows it."""
    placement: Placement
    """Where the tenant is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """One row of the API. The reference takes its text from the handler's docstring."""

    method: str
    path: str
    name: str
    """The operation's identifier in the reference; no two have the same."""
    handler: Callable[[ApiCall], Awaitable[Response]]
    """Answers a call. Of ``ask`` and ``answer``, if the endpoint has these."""
    permission: Permission
    """What the caller must have: see the table in ``access.callers``."""
    example: Data | None
    """An answer, whose type is the answer's type; None for JSON lines and text."""
    field_codes: FieldCodes
    fields: tuple[Field[Any], ...] = ()
    """Everything that may be sent. By name in the path, else in the body, or the query of a GET."""
    status: int = 200
    may_exist: bool = False
    """Whether it can answer ``Existing``."""
    content_type: str = JSON
    """Of its answer, which is in no envelope where it is not JSON."""
    errors: tuple[type[Exception], ...] = ()
    """Exceptions of the handler that the error table turns into answers."""
    codes: frozenset[Code] = frozenset()
    """What else it can be refused with, beyond what every request can."""
    recorded_as: GatewayOperation | None = None
    """What the audit log calls it; None: what the reference calls it."""
    body_optional: bool = False
    """Whether the body may be missing, though it can have fields."""
    idempotent: bool = False
    """Whether asking again with the same Idempotency-Key gives the first answer again."""
    answers_secret: bool = False
    """Whether that answer is only for the credential or person who asked first."""
    needs_step_up: bool = False
    """Whether a signed-in person must have stepped up: see ``access.callers.COVERED_BY_PROOF``."""
    step_up_for: Field[Any] | None = None
    """The field that demands a step-up token, which is used up then, unless it is left out, zero or
    empty."""
    during_enrollment: bool = False
    """Whether somebody may call it who owes their tenant a second factor."""
    address_limit: Limit | None = None
    """How often one address may call it; the operator is not counted."""
    disabled: str = ""
    """Why this installation refuses it, to everybody."""
    default_algorithm: Algorithm | None = None
    """The algorithm where the request names none, if it has one."""
    algorithm_elsewhere: str = ""
    """The field inside of which the algorithm is named, if it is sent."""
    keyring_of: Callable[[Mapping[str, object]], KeyringName | None] | None = None
    """Which keyring a request's fields name; None: it concerns none. The audit log has it."""
    key_version_of: Callable[[Mapping[str, object]], int | None] | None = None
    """Which version they name, where that is not the field ``key_version``."""
    denial: Callable[[], ApiError] | None = None
    """What a caller without a session is told instead of 403 ERR_FORBIDDEN_001."""
    signature_header: str = ""
    """The header that signs the body, which is then taken byte for byte."""

    items: Field[Sequence[object]] | None = None
    """The field whose elements each count as a request."""
    ask: Callable[[ApiCall], Question | None] | None = None
    """Returns the one question to the key service that the answer takes, without waiting. None: the
    handler must be awaited, because something else has to be asked first. Raises ApiError, FieldError
    and what else the error table knows."""
    answer: Callable[[ApiCall, Question, Any], Response] | None = None
    """Returns the response to a call from the outcome of its question: a result or a KeyServiceError.
    Call it once for each question, also if the client has gone: it overwrites secrets. Raises
    ApiError."""

    def __post_init__(self) -> None:
        """Raise ValueError if refusals would be recorded under a name that is not listed."""
        _ = self.audit_operation

    @property
    def audit_operation(self) -> GatewayOperation:
        """What refusals are recorded under."""
        return self.recorded_as or AuditEvent(self.name.replace("_", "-"))

    def demands_step_up(self, values: Mapping[str, object]) -> bool:
        """Return whether a signed-in person must have stepped up for these values."""
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
        """How many bytes a body may have: with binary fields, more than twice what fits into them.

        So a value that is too large is refused as such by its operation. A text that is longer than
        a body of texts counts as binary: it has a document.
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
