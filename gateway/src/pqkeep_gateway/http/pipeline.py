"""What happens to every request, in order, exactly once.

route -> credential -> rate limit -> suspension -> cross-site -> access table -> scopes -> body
-> fields -> handler -> envelope
"""

from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from time import perf_counter
from typing import Any
from urllib.parse import parse_qsl

from starlette import routing
from starlette.types import ASGIApp, Receive, Scope, Send

from pqkeep_gateway.access.admission import (
    ENDS_ACCESS,
    AddressNotAllowedError,
    Admission,
    SuspendedError,
    UnknownCredentialError,
)
from pqkeep_gateway.access.callers import GRANTS, Credential, Permission, may
from pqkeep_gateway.access.idempotency import (
    MAX_LENGTH,
    IdempotencyKey,
    idempotency_key,
    is_idempotency_key,
)
from pqkeep_gateway.access.principals import AnonymousPrincipal, ApiKeyPrincipal, Principal
from pqkeep_gateway.access.rate_limit import RateLimiter, Usage
from pqkeep_gateway.access.scopes import check_call
from pqkeep_gateway.access.source_address import network_of
from pqkeep_gateway.access.trusted_proxies import Client, TrustedProxies
from pqkeep_gateway.audit_delivery import AuditDelivery
from pqkeep_gateway.http.body import read_json_object
from pqkeep_gateway.http.cookies import ACCESS, NO_COOKIES, SAFE_METHODS, Cookies, SentCookies
from pqkeep_gateway.http.disconnection import ClientGoneError
from pqkeep_gateway.http.endpoint import (
    NOT_SIGNED,
    ApiCall,
    Endpoint,
    Existing,
    JsonLines,
    Response,
)
from pqkeep_gateway.http.errors import (
    ApiError,
    credential_required,
    enrollment_required,
    forbidden,
    internal,
    invalid,
    method_not_allowed,
    too_many,
    unavailable,
)
from pqkeep_gateway.http.field import Field, FieldError, Problem, sent_twice, unknown_field
from pqkeep_gateway.http.large_bodies import LargeBodies, LargeBody
from pqkeep_gateway.http.observer import RequestObserver, Route, route_of
from pqkeep_gateway.http.refusals import UNREAD, is_refusal, refusal_event
from pqkeep_gateway.http.responses import (
    accepts_gzip,
    request_id_of,
    send_error,
    send_not_found,
    send_response,
)
from pqkeep_gateway.http.signed_bodies import SignedBodies
from pqkeep_gateway.people.step_up import StepUp, StepUpRequiredError
from pqkeep_gateway.rehearsal import rehearse
from pqkeep_gateway.unavailable import UnavailableError
from pqkeep_protocol.audit_events import GatewayOperation
from pqkeep_protocol.messages import Attribution
from pqkeep_protocol.metrics import NONE
from pqkeep_protocol.startup.logs import logger

_LOG = logger(__name__)

API = "/api/v1"
MAX_PARAMETERS = 64
"""Of a query. No endpoint has as many."""

Headers = Mapping[bytes, bytes]
ErrorTable = Callable[[Exception, Endpoint, Mapping[str, object]], ApiError | None]
"""Turns an exception into the answer; None: a fault of the service."""


@dataclass(frozen=True, slots=True)
class Pipeline:
    """What every request goes through on its way to a handler."""

    admission: Admission
    rate_limiter: RateLimiter
    cookies: Cookies
    step_up: StepUp
    audit_delivery: AuditDelivery
    error_table: ErrorTable
    trusted_proxies: TrustedProxies
    signed_bodies: SignedBodies
    observer: RequestObserver
    large_bodies: LargeBodies = field(default_factory=LargeBodies)

    def read_cookies(self, scope: Scope, headers: Headers, permission: Permission) -> SentCookies:
        """Return the cookies of a request. Raises ApiError if it depends on one that is there twice."""
        if b"cookie" not in headers:
            return NO_COOKIES
        sent = self.cookies.read(scope["headers"])
        if b"x-api-key" not in headers:
            host, needs_session = headers.get(b"host", b""), permission is not Permission.PUBLIC
            self.cookies.require_once(sent, host, scope["path"], needs_session=needs_session)
        return sent

    async def admit(
        self,
        permission: Permission,
        headers: Headers,
        cookies: Mapping[str, str],
        client: Client,
        operation: GatewayOperation | None = None,
    ) -> tuple[Principal, Usage | None]:
        """Return who is asking for an operation, or a page, and what there is of their limit.

        An operator's session outranks a person's, but only if it is known. Raises what Admission
        raises.
        """
        credential = headers.get(b"x-api-key")
        if credential is not None:
            text = credential.strip(b" \t").decode("latin-1")
            return await self.admission.admit(text, client.address, is_known=client.is_known)
        operator_token = cookies.get(self.cookies.operator)
        if operator_token and permission is not Permission.PUBLIC:
            try:
                return await self.admission.admit_operator_session(operator_token, client.address)
            except UnknownCredentialError:
                if not cookies.get(ACCESS):
                    raise
        if Credential.NONE in GRANTS[permission]:
            return AnonymousPrincipal(), None
        return await self.admission.admit_session(
            cookies.get(ACCESS, ""), client.address, ends_access=operation in ENDS_ACCESS
        )

    def authorize(self, endpoint: Endpoint, principal: Principal, headers: Headers) -> None:
        """Refuse what another site's page asks for, and what table or scopes do not grant.

        What anybody may read, other pages may read.
        """
        is_for_all = principal.caller is Credential.NONE and endpoint.method in SAFE_METHODS
        may_be_cross_site = is_for_all or b"x-api-key" in headers
        if not may_be_cross_site and self.cookies.is_cross_site(endpoint.method, headers):
            raise forbidden("another site's page may not ask for this")
        self.check_access(endpoint, principal, headers)

    def check_access(self, endpoint: Endpoint, principal: Principal, headers: Headers) -> None:
        """Refuse what table or scopes do not grant: alone for pages, to which any page may link."""
        if isinstance(principal, ApiKeyPrincipal):
            if endpoint.name not in principal.decided.permitted:
                self._check_access(endpoint, principal, headers)
                principal.decided.permitted.add(endpoint.name)
        else:
            self._check_access(endpoint, principal, headers)

    def _check_access(self, endpoint: Endpoint, principal: Principal, headers: Headers) -> None:
        is_credential = b"x-api-key" in headers
        if not may(principal.caller, endpoint.permission):
            if not is_credential:
                raise forbidden("your role does not allow this")
            if endpoint.denial is not None:
                raise endpoint.denial()
            raise forbidden("this credential does not allow this")
        if endpoint.permission is not Permission.PUBLIC:
            check_call(principal, endpoint.audit_operation)
        if principal.must_enroll and not endpoint.during_enrollment:
            raise enrollment_required()
        if endpoint.disabled:
            raise forbidden(endpoint.disabled)

    async def count(
        self, endpoint: Endpoint, principal: Principal, attribution: Attribution
    ) -> Usage | None:
        """Count a request of anybody's but the operator, where there is a limit for one address."""
        limit = endpoint.address_limit
        if limit is None or principal.caller is Credential.OPERATOR:
            return None
        usage = await self.rate_limiter.count(
            f"sign-up {network_of(attribution.source_address)}", limit
        )
        if usage.is_refused:
            raise too_many("too many requests from this address", limit, usage.reset)
        return usage

    async def count_items(self, endpoint: Endpoint, call: ApiCall) -> Usage | None:
        """Count each item of a batch as a request."""
        if endpoint.items is None:
            return None
        return await self.admission.count_items(call.tenant, len(call[endpoint.items]))

    async def handle(self, endpoint: Endpoint, call: ApiCall) -> Response:
        """Call the handler; where the request needs a step-up, check it before.

        Without a step-up the request is refused for what is wrong with it, if anything is.
        """
        if call.principal.is_read_only and endpoint.method not in SAFE_METHODS:
            for each in endpoint.fields:
                each.read(call.values)
            raise credential_required()
        if call.principal.user is None or not endpoint.demands_step_up(call.values):
            return await endpoint.handler(call)
        try:
            return await self._handle_proven(endpoint, call)
        except StepUpRequiredError:
            await rehearse(lambda: endpoint.handler(call))
            raise

    async def _handle_proven(self, endpoint: Endpoint, call: ApiCall) -> Response:
        """Call the handler, with the step-up token, or under the session's proof if none is sent.

        Raises StepUpRequiredError before anything is done.
        """
        if not call.step_up_token:
            proof = call.cookies.get(self.cookies.proof, "")
            is_covered = endpoint.is_covered_by_proof(call.values)
            if not (is_covered and await self.step_up.covers(call.person, proof)):
                raise StepUpRequiredError
            return await endpoint.handler(call)

        def did_nothing(error: Exception) -> bool:
            answer = self._answer_to(error, endpoint, call.values)
            return answer is not None and answer.code.status < HTTPStatus.INTERNAL_SERVER_ERROR

        return await self.step_up.spend(
            call.person,
            call.step_up_token,
            lambda: endpoint.handler(call),
            did_nothing,
            call.idempotency,
        )

    async def error_for(
        self,
        raised: Exception,
        endpoint: Endpoint,
        principal: Principal | None,
        values: Mapping[str, object],
        attribution: Attribution,
    ) -> ApiError:
        """Return what to answer. A refusal (403, or by a policy) is recorded in the log before."""
        error = self._answer_to(raised, endpoint, values)
        if error is None:
            _LOG.error("request failed", request_id=attribution.request_id, exc_info=raised)
            return internal()
        if isinstance(raised, SuspendedError | AddressNotAllowedError):
            principal = raised.principal
        if principal is None or principal.caller is Credential.NONE or not is_refusal(error):
            return error  # anonymous refusals are not recorded: anyone could fill the log
        try:
            await self.audit_delivery.record(
                refusal_event(error, endpoint, principal, values, attribution),
                placement=principal.placement,
            )
        except UnavailableError:
            return unavailable()
        return error

    def _answer_to(
        self, raised: Exception, endpoint: Endpoint, values: Mapping[str, object]
    ) -> ApiError | None:
        if isinstance(raised, ApiError):
            return raised
        return self.error_table(raised, endpoint, values)


class Resource:
    """An ASGI application for one path: its endpoints by method."""

    def __init__(self, path: str, endpoints: Mapping[str, Endpoint], pipeline: Pipeline) -> None:
        self._fields = {method: _Fields(row) for method, row in endpoints.items()}
        self._endpoints = endpoints
        self._methods = ", ".join([*endpoints, "HEAD"] if "GET" in endpoints else endpoints)
        self._routes = {method: route_of(row, path) for method, row in endpoints.items()}
        self._no_route = Route(NONE, path, NONE)
        self._pipeline = pipeline

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request, whatever happens, in the envelope."""
        large = LargeBody(self._pipeline.large_bodies, scope["state"])
        try:
            await self._answer(scope, receive, send, large)
            if large.size:
                await large.until_read()
        finally:
            if large.size:  # as few have, and a call costs a microsecond
                large.end()

    async def _answer(self, scope: Scope, receive: Receive, send: Send, large: LargeBody) -> None:
        began = perf_counter()
        headers: dict[bytes, bytes] = dict(scope["headers"])
        request_id = request_id_of(headers)
        method = "GET" if scope["method"] == "HEAD" else scope["method"]
        endpoint = self._endpoints.get(method)
        pipeline = self._pipeline
        client = pipeline.trusted_proxies.client_of(_peer(scope), scope["headers"])
        if endpoint is None:
            refused = method_not_allowed(self._methods)
            await send_error(send, refused, request_id)
            pipeline.observer.finish(
                self._no_route, scope, began, refused, {}, None, request_id, client.address
            )
            return
        attribution = Attribution(request_id, "", client.address)
        principal: Principal | None = None
        usage: Usage | None = None
        values = UNREAD
        answer: ApiError | int | None = None
        try:
            cookies = pipeline.read_cookies(scope, headers, endpoint.permission)
            principal, usage = await pipeline.admit(
                endpoint.permission, headers, cookies.values, client, endpoint.audit_operation
            )
            attribution = Attribution(request_id, str(principal), client.address)
            pipeline.authorize(endpoint, principal, headers)
            usage = await pipeline.count(endpoint, principal, attribution) or usage
            signed = NOT_SIGNED
            body: Mapping[str, object] = {}
            if endpoint.signature_header:
                signed = await pipeline.signed_bodies.read(
                    endpoint.signature_header, headers, receive, client.address
                )
            elif endpoint.takes_body:
                sender = principal.tenant or network_of(client.address)
                body = await self._fields[method].read_body(headers, receive, large.sent_by(sender))
            values = self._fields[method].values(scope, body)
            call = ApiCall(
                principal=principal,
                attribution=attribution,
                values=values,
                idempotency_key=_idempotency_key(
                    endpoint, scope, headers, principal, client.address, body
                )
                if endpoint.idempotent
                else None,
                sent_cookies=cookies,
                user_agent=headers.get(b"user-agent", b""),
                step_up_token=headers.get(b"x-step-up-token", b"").decode("latin-1"),
                signed=signed,
                usage=usage,
            )
            usage = await pipeline.count_items(endpoint, call) or usage
            response = await pipeline.handle(endpoint, call)
            large.answer()
            if endpoint.signature_header:
                pipeline.signed_bodies.accept(client.address)
            await send_response(
                receive,
                send,
                endpoint.status,
                response,
                request_id,
                usage=usage,
                is_head=scope["method"] == "HEAD",
                gzip=isinstance(response, JsonLines) and accepts_gzip(headers),
            )
            answer = HTTPStatus.OK if isinstance(response, Existing) else endpoint.status
        except ClientGoneError:
            return
        except Exception as raised:  # noqa: BLE001 - a fault is answered in the envelope too
            large.answer()
            error = await pipeline.error_for(raised, endpoint, principal, values, attribution)
            if isinstance(raised, SuspendedError):
                usage = raised.usage
            await send_error(send, error, request_id, usage)
            answer = error.without_frames()
        finally:
            pipeline.observer.finish(
                self._routes[method],
                scope,
                began,
                answer,
                values,
                principal,
                request_id,
                client.address,
            )


class _Fields:
    """Where an endpoint's fields are."""

    def __init__(self, endpoint: Endpoint) -> None:
        others = endpoint.other_fields
        self._path = endpoint.path_fields
        self._in_body = frozenset(each.name for each in others if endpoint.takes_body)
        self._in_query = {each.name: each for each in others if not endpoint.takes_body}
        self._nested = frozenset(each.name for each in others if each.is_nested)
        self._max_body = endpoint.max_body
        self._needs_body = bool(self._in_body) and not endpoint.body_optional
        self._known = [each.name for each in others]

    async def read_body(
        self, headers: Headers, receive: Receive, large: LargeBody
    ) -> Mapping[str, object]:
        """Return a body that has no unknown field. Raises ApiError, FieldError."""
        body = await read_json_object(
            receive,
            headers,
            large,
            at_most=self._max_body,
            required=self._needs_body,
            nested=self._nested,
        )
        if not body.keys() <= self._in_body:
            raise unknown_field(body.keys() - self._in_body, self._known)
        return body

    def values(self, scope: Scope, body: Mapping[str, object]) -> Mapping[str, object]:
        """Return the values of all places. Raises FieldError for what is unknown or twice there."""
        if not self._path and not scope["query_string"]:
            return body
        values = dict(body)
        for name, text in _query(scope):
            if name not in self._in_query:
                raise unknown_field([name], self._known)
            if name in values:
                raise sent_twice(name)
            values[name] = self._in_query[name].from_text(text)
        return values | {each.name: _path_value(each, scope) for each in self._path}


def _peer(scope: Scope) -> str:
    return scope["client"][0] if scope["client"] else ""


def _path_value(field: Field[Any], scope: Scope) -> object:
    return field.from_text(scope["path_params"][field.name])


def _query(scope: Scope) -> list[tuple[str, str]]:
    """Return the parameters, in their order. Raises FieldError for more than any endpoint has."""
    text = scope["query_string"].decode("latin-1")
    try:
        return parse_qsl(text, keep_blank_values=True, max_num_fields=MAX_PARAMETERS)
    except ValueError:
        message = f"the query has more than {MAX_PARAMETERS} parameters"
        raise FieldError("", Problem.UNKNOWN, message) from None


def _idempotency_key(
    endpoint: Endpoint,
    scope: Scope,
    headers: Headers,
    principal: Principal,
    source_address: str,
    body: Mapping[str, object],
) -> IdempotencyKey | None:
    given = headers.get(b"idempotency-key")
    if given is None:
        return None
    text = given.decode("latin-1")
    if not is_idempotency_key(text):
        message = f"Idempotency-Key must be 1 to {MAX_LENGTH} printable ASCII characters"
        raise invalid(message, "Idempotency-Key")
    request = [scope["method"], scope["path"], body]
    if endpoint.answers_secret:
        request.append(str(principal))
    return idempotency_key(text, principal, source_address, request)


def create_app(
    api: Iterable[Endpoint],
    outside: Iterable[Endpoint],
    documents: Mapping[str, ASGIApp],
    pipeline: Pipeline,
    wrap: Callable[[str, ASGIApp], ASGIApp] = lambda _, resource: resource,
) -> ASGIApp:
    """Route requests to the API's endpoints, to those outside of it, and to documents.

    ``wrap`` gets each endpoint's path and application, and returns what is called in its place.

    Starlette tries its routes one by one, so only the paths with parameters are left to it.
    """
    by_path: dict[str, dict[str, Endpoint]] = {}
    for prefix, endpoints in ((API, api), ("", outside)):
        for endpoint in endpoints:
            by_path.setdefault(prefix + endpoint.path, {})[endpoint.method] = endpoint
    resources = {
        path: wrap(path, Resource(path, methods, pipeline)) for path, methods in by_path.items()
    }
    served: dict[str, ASGIApp] = {
        **resources,
        **{path: pipeline.observer.watch(document) for path, document in documents.items()},
    }
    fixed = {path: each for path, each in served.items() if "{" not in path}
    others = routing.Router(
        [routing.Route(path, each) for path, each in served.items() if path not in fixed],
        redirect_slashes=False,
        default=pipeline.observer.watch(send_not_found, NONE),
    )

    def app(scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        return fixed.get(scope["path"], others)(scope, receive, send)

    return app
