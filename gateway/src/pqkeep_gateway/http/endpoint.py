"""What happens to every request, in order, exactly once.

route -> credential -> tenant's status -> rate limit -> cross-site -> role -> guard -> body
-> what the endpoint does -> envelope
"""

import logging
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from urllib.parse import parse_qsl

from msgspec import Struct, structs
from starlette.types import Receive, Scope, Send

from pqkeep_gateway.access.admission import (
    Admission,
    RateLimitedError,
    SuspendedError,
    UnknownCredentialError,
)
from pqkeep_gateway.access.idempotency import (
    MAX_LENGTH,
    IdempotencyKey,
    IdempotencyKeyReusedError,
    idempotency_key,
)
from pqkeep_gateway.access.principals import (
    AnonymousPrincipal,
    Principal,
    SessionPrincipal,
    TenantPrincipal,
)
from pqkeep_gateway.access.roles import PERMISSIONS, Permission
from pqkeep_gateway.audit_events import AuditDelivery, event
from pqkeep_gateway.http import envelope
from pqkeep_gateway.http.about import About
from pqkeep_gateway.http.body import ClientGoneError, read_bytes, read_json_object
from pqkeep_gateway.http.cookies import ACCESS, Cookies, read_cookies
from pqkeep_gateway.http.envelope import Data
from pqkeep_gateway.http.errors import (
    ApiError,
    Code,
    idempotency_key_reused,
    too_many,
    unavailable,
    unknown_credential,
)
from pqkeep_gateway.people.attempt_limits import TooManyAttemptsError
from pqkeep_gateway.people.step_up import StepUp, StepUpRequiredError
from pqkeep_gateway.people.users import UserNotFoundError
from pqkeep_gateway.unavailable import UnavailableError
from pqkeep_protocol.audit_events import AuditEvent, GatewayOperation
from pqkeep_protocol.keys import INSTALLATION
from pqkeep_protocol.messages import Attribution, RedactedRepr

_LOG = logging.getLogger(__name__)

MAX_REQUEST_ID = 128
MAX_SIGNED = 512 * 1024
"""Bytes of a body with a signature."""


@dataclass(frozen=True, slots=True)
class JsonLines:
    """An answer that is a file of JSON lines, made while it is sent."""

    name: str
    chunks: AsyncIterator[bytes]


@dataclass(frozen=True, slots=True)
class WithCookies:
    """An answer, and the values of the Set-Cookie headers that go with it."""

    data: Data
    cookies: tuple[str, ...] = field(repr=False)


Response = Data | JsonLines | WithCookies
"""What endpoints give."""


class Signed(RedactedRepr, Struct, frozen=True):
    """A body as it came, and the signature that came with it."""

    body: bytes
    signature: str


_UNSIGNED = Signed(b"", "")

Guard = Callable[[Principal, str], Awaitable[None]]


class ApiCall(RedactedRepr, Struct, frozen=True, kw_only=True):
    """One authenticated request, as an endpoint sees it."""

    principal: Principal
    request_id: str
    source_address: str
    path: Mapping[str, str]
    query: Mapping[str, str]
    body: Mapping[str, object]
    """The JSON object; empty where the endpoint takes none."""
    idempotency_key: IdempotencyKey | None = None
    """Where the endpoint minds one, and the client sent one."""
    cookies: Mapping[str, str] = {}
    step_up_token: str = ""
    signed: Signed = _UNSIGNED
    """Where the endpoint takes a body with a signature."""

    @property
    def attribution(self) -> Attribution:
        """Who asks, for the audit log."""
        return Attribution(self.request_id, str(self.principal), self.source_address)


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One row of the API."""

    method: str
    path: str
    handler: Callable[[ApiCall], Awaitable[Response]]
    status: int = 200
    takes_body: bool = False
    is_body_of_people: bool = False
    """Whether only a signed-in person's body is read, and may be missing."""
    idempotent: bool = False
    """Whether asking again with the same Idempotency-Key gives the first answer again."""
    open_to_anyone: bool = False
    """Whether it may be called without a credential."""
    permission: Permission | None = None
    """What a signed-in person's role must have; None: nobody's session is let in."""
    needs_step_up: bool = False
    """Whether a signed-in person must show a step-up token, which is used up then."""
    is_for_enrolling: bool = False
    """Whether somebody may call it who owes their tenant a second factor."""
    recorded_as: GatewayOperation | None = None
    """What the audit log calls it; None: what the reference calls it."""
    signature_header: str = ""
    """The header that signs the body, which is then taken as it comes."""
    guard: Guard | None = None
    """Turns a principal and source address away, by an ApiError, before their body is read."""
    about: About = field(kw_only=True)
    """For the reference, which takes the rest from the docstring of ``act``."""

    def __post_init__(self) -> None:
        """Raise ValueError if refusals would be recorded under a name that is not listed."""
        _ = self.audit_operation

    @property
    def audit_operation(self) -> GatewayOperation:
        """What refusals are recorded under."""
        return self.recorded_as or AuditEvent(self.about.name.replace("_", "-"))

    def reads_body_of(self, principal: Principal) -> bool:
        """Return whether a body is looked at."""
        return self.takes_body and (
            not self.is_body_of_people or isinstance(principal, SessionPrincipal)
        )


class Resource:
    """An ASGI application for one path: its endpoints by method."""

    def __init__(
        self,
        endpoints: Mapping[str, Endpoint],
        admission: Admission,
        audit_delivery: AuditDelivery,
        cookies: Cookies,
        step_up: StepUp,
    ) -> None:
        """Serve endpoints that share a path."""
        self._step_up = step_up
        self._cookies = cookies
        self._endpoints = endpoints
        self._gatekeeper = admission
        self._courier = audit_delivery

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request, whatever happens, in the envelope."""
        headers: dict[bytes, bytes] = dict(scope["headers"])
        request_id = request_id_of(headers)
        source_address = scope["client"][0] if scope["client"] else ""
        try:
            endpoint = self._endpoint(scope["method"])
            principal = await self._admit(endpoint, headers, request_id, source_address)
            if b"x-api-key" not in headers:
                attribution = Attribution(request_id, str(principal), source_address)
                await self._require_right(endpoint, principal, headers, attribution)
            if endpoint.guard is not None:
                attribution = Attribution(request_id, str(principal), source_address)
                await self._guard(endpoint, endpoint.guard, principal, attribution)
            signed, body = await _read_body(endpoint, principal, headers, receive)
            call = ApiCall(
                principal=principal,
                request_id=request_id,
                source_address=source_address,
                path=scope.get("path_params", {}),
                query=_query(scope),
                body=body,
                cookies=read_cookies(headers[b"cookie"]) if b"cookie" in headers else {},
                step_up_token=headers.get(b"x-step-up-token", b"").decode("latin-1"),
                signed=signed,
            )
            if endpoint.idempotent:
                call = _with_idempotency_key(call, scope, headers)
            data = await self._act(endpoint, call)
            if isinstance(data, JsonLines):
                await send_lines(send, data, request_id)
            else:
                await _send_success(send, endpoint.status, data, request_id)
        except ApiError as error:
            await send_error(send, error, request_id)
        except (
            IdempotencyKeyReusedError,
            TooManyAttemptsError,
            UnavailableError,
            UserNotFoundError,
        ) as refusal:
            await send_error(send, _answer_to(refusal), request_id)
        except ClientGoneError:
            return
        except Exception:  # noqa: BLE001 - a fault of ours is answered in the envelope too
            _LOG.exception("request %s failed", request_id)
            await send_error(send, ApiError(Code.INTERNAL_001, "internal error"), request_id)

    async def _guard(
        self, endpoint: Endpoint, guard: Guard, principal: Principal, attribution: Attribution
    ) -> None:
        """Turn a principal away. A refusal is recorded before it is answered."""
        try:
            await guard(principal, attribution.source_address)
        except ApiError as error:
            await self._record(error, endpoint, principal, attribution)
            raise

    async def _act(self, endpoint: Endpoint, call: ApiCall) -> Response:
        """Do what the endpoint does. A refusal is recorded before it is answered."""
        principal = call.principal
        try:
            if endpoint.needs_step_up and isinstance(principal, SessionPrincipal):
                return await self._step_up.spend(
                    principal, call.step_up_token, lambda: endpoint.handler(call), _did_nothing
                )
            return await endpoint.handler(call)
        except StepUpRequiredError:
            raise ApiError(Code.MFA_013, "prove again who you are: step up first") from None
        except ApiError as error:
            await self._record(error, endpoint, call.principal, call.attribution)
            raise

    async def _record(
        self, error: ApiError, endpoint: Endpoint, principal: Principal, attribution: Attribution
    ) -> None:
        if error.code.status != HTTPStatus.FORBIDDEN or error.is_recorded:
            return
        if isinstance(principal, AnonymousPrincipal):
            return  # or anyone could fill the log
        tenant = principal.tenant if isinstance(principal, TenantPrincipal) else INSTALLATION
        refusal = event(
            attribution,
            tenant,
            endpoint.audit_operation,
            outcome=error.code.code,
            policy=error.policy,
            algorithm=error.algorithm,
        )
        await self._courier.record(refusal)

    def _endpoint(self, method: str) -> Endpoint:
        if method not in self._endpoints:
            raise ApiError(
                Code.METHOD_NOT_ALLOWED,
                "the path does not have this method",
                headers={"Allow": ", ".join(self._endpoints)},
            )
        return self._endpoints[method]

    async def _admit(
        self,
        endpoint: Endpoint,
        headers: Mapping[bytes, bytes],
        request_id: str,
        source_address: str,
    ) -> Principal:
        credential = headers.get(b"x-api-key")
        if credential is None and endpoint.open_to_anyone:
            return AnonymousPrincipal()
        try:
            if credential is not None:
                return await self._gatekeeper.admit(credential.decode("latin-1"))
            access_token = read_cookies(headers.get(b"cookie")).get(ACCESS, "")
            return await self._gatekeeper.admit_session(access_token)
        except UnknownCredentialError:
            raise unknown_credential() from None
        except SuspendedError as refusal:
            error = ApiError(Code.FORBIDDEN_001, "the tenant is suspended")
            attribution = Attribution(request_id, str(refusal.principal), source_address)
            await self._record(error, endpoint, refusal.principal, attribution)
            raise error from None
        except RateLimitedError as error:
            raise too_many("too many requests", error.limit, error.wait) from None

    async def _require_right(
        self,
        endpoint: Endpoint,
        principal: Principal,
        headers: Mapping[bytes, bytes],
        attribution: Attribution,
    ) -> None:
        """Refuse what another site's page asks for, and what a person's role does not allow."""
        if self._cookies.is_cross_site(endpoint.method, headers):
            error = ApiError(Code.FORBIDDEN_001, "another site's page may not ask for this")
        elif (
            isinstance(principal, SessionPrincipal)
            and endpoint.permission not in PERMISSIONS[principal.role]
        ):
            error = ApiError(Code.FORBIDDEN_001, "your role does not allow this")
        elif (
            isinstance(principal, SessionPrincipal)
            and principal.must_enroll
            and not endpoint.is_for_enrolling
        ):
            error = ApiError(Code.AUTH_MFA_001, "your organization requires a second factor")
        else:
            return
        await self._record(error, endpoint, principal, attribution)
        raise error


def _answer_to(
    refusal: IdempotencyKeyReusedError
    | TooManyAttemptsError
    | UnavailableError
    | UserNotFoundError,
) -> ApiError:
    """Return what to say to what any endpoint may raise."""
    match refusal:
        case IdempotencyKeyReusedError():
            return idempotency_key_reused()
        case TooManyAttemptsError(limit=limit, wait=wait):
            return too_many("too many attempts", limit, wait)
        case UnavailableError():
            return unavailable()
        case UserNotFoundError():  # removed since the request was admitted
            return unknown_credential()


def _did_nothing(error: Exception) -> bool:
    return isinstance(error, IdempotencyKeyReusedError | TooManyAttemptsError) or (
        isinstance(error, ApiError) and error.code.status < HTTPStatus.INTERNAL_SERVER_ERROR
    )


def person_of(call: ApiCall) -> SessionPrincipal:
    """Return who is signed in; a program's or the operator's credential is no person."""
    if not isinstance(call.principal, SessionPrincipal):
        raise ApiError(Code.FORBIDDEN_001, "this is for people who have signed in")
    return call.principal


async def _read_body(
    endpoint: Endpoint, principal: Principal, headers: Mapping[bytes, bytes], receive: Receive
) -> tuple[Signed, Mapping[str, object]]:
    """Return a body as it came, and what it says; nothing of what is not looked at."""
    if endpoint.signature_header:
        signature = headers.get(endpoint.signature_header.lower().encode(), b"").decode("latin-1")
        return Signed(await read_bytes(receive, MAX_SIGNED), signature), {}
    if not endpoint.reads_body_of(principal):
        return _UNSIGNED, {}
    content_type, or_nothing = headers.get(b"content-type"), endpoint.is_body_of_people
    return _UNSIGNED, await read_json_object(receive, content_type, or_nothing=or_nothing)


def _with_idempotency_key(call: ApiCall, scope: Scope, headers: Mapping[bytes, bytes]) -> ApiCall:
    text = headers.get(b"idempotency-key")
    if text is None:
        return call
    try:
        key = idempotency_key(
            text.decode("latin-1"),
            call.principal,
            call.source_address,
            scope["method"],
            scope["path"],
            call.body,
        )
    except ValueError:
        message = f"Idempotency-Key must be 1 to {MAX_LENGTH} printable ASCII characters"
        raise ApiError(Code.INVALID_001, message, "Idempotency-Key") from None
    return structs.replace(call, idempotency_key=key)


async def not_found(scope: Scope, receive: Receive, send: Send) -> None:
    """Answer for every path that is none: an ASGI application."""
    error = ApiError(Code.NOT_FOUND_001, "no such path")
    await send_error(send, error, request_id_of(dict(scope["headers"])))


async def send_error(send: Send, error: ApiError, request_id: str) -> None:
    """Answer with an error."""
    body = envelope.failure(error, request_id)
    await _send(send, error.code.status, body, request_id, error.headers.items())


async def _send_success(
    send: Send, status: int, given: Data | WithCookies, request_id: str
) -> None:
    data, cookies = (given.data, given.cookies) if isinstance(given, WithCookies) else (given, ())
    headers = [("set-cookie", cookie) for cookie in cookies]
    await _send(send, status, envelope.success(data, request_id), request_id, headers)


async def send_lines(send: Send, lines: JsonLines, request_id: str) -> None:
    """Answer with a file of lines, as they come.

    If they cannot go on, the connection is cut: a file that is whole has its last line.
    """
    start = {
        "type": "http.response.start",
        "status": HTTPStatus.OK,
        "headers": [
            (b"content-type", b"application/jsonl"),
            (b"content-disposition", f'attachment; filename="{lines.name}"'.encode()),
            (b"cache-control", b"no-store"),
            (b"x-request-id", request_id.encode()),
        ],
    }
    async for chunk in lines.chunks:
        if start:
            await send(start)
            start = {}
        await send({"type": "http.response.body", "body": chunk, "more_body": True})
    await send({"type": "http.response.body", "body": b""})


async def _send(
    send: Send,
    status: int,
    body: bytes,
    request_id: str,
    headers: Iterable[tuple[str, str]] = (),
) -> None:
    await send(
        {
            "type": "http.response.start",
            "status": status,
            "headers": [
                (b"content-type", b"application/json"),
                (b"content-length", str(len(body)).encode()),
                (b"cache-control", b"no-store"),
                (b"x-request-id", request_id.encode()),
                *((k.lower().encode(), v.encode()) for k, v in headers),
            ],
        }
    )
    await send({"type": "http.response.body", "body": body})


def _query(scope: Scope) -> dict[str, str]:
    text = scope["query_string"].decode("latin-1")
    return dict(parse_qsl(text, keep_blank_values=True)) if text else {}


def request_id_of(headers: Mapping[bytes, bytes]) -> str:
    """Return the identifier that a request carries, or a new one."""
    given = headers.get(b"x-request-id", b"").decode("latin-1")
    usable = 0 < len(given) <= MAX_REQUEST_ID and given.isascii() and given.isprintable()
    return given if usable else str(uuid.uuid4())
