"""The checks of requests for the API and for pages.

``road`` has the order of the checks for the API.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus

from starlette.types import Receive

from pqkeep_gateway.access.admission import (
    ENDS_ACCESS,
    AddressNotAllowedError,
    Admission,
    SuspendedError,
    UnknownCredentialError,
)
from pqkeep_gateway.access.callers import (
    GRANTS,
    OPERATORS,
    WITHOUT_SCOPE,
    Credential,
    Permission,
    is_covered_for_operators,
    may,
)
from pqkeep_gateway.access.networks import network_of
from pqkeep_gateway.access.principals import (
    AnonymousPrincipal,
    ApiKeyPrincipal,
    OperatorPrincipal,
    Principal,
)
from pqkeep_gateway.access.rate_limit import MINUTE, Limit, RateLimiter, Usage
from pqkeep_gateway.access.scopes import check_call
from pqkeep_gateway.access.source_budget import SourceBudget
from pqkeep_gateway.access.trusted_proxies import Client, TrustedProxies
from pqkeep_gateway.audit_delivery import AuditDelivery
from pqkeep_gateway.http.body import read_bytes
from pqkeep_gateway.http.cookies import ACCESS, SAFE_METHODS, Cookies, SentCookies
from pqkeep_gateway.http.endpoint import (
    ApiCall,
    Endpoint,
    Filed,
    Response,
    SignedBody,
)
from pqkeep_gateway.http.errors import (
    ApiError,
    credential_required,
    enrollment_required,
    forbidden,
    internal,
    sign_in_again,
    too_many,
    unavailable,
)
from pqkeep_gateway.http.observer import RequestObserver
from pqkeep_gateway.http.refusals import is_refusal, refusal_event
from pqkeep_gateway.people.step_up import StepUp, StepUpRequiredError
from pqkeep_gateway.rehearsal import rehearse
from pqkeep_gateway.tenancy.operators import NotAgainError, OperatorSessions
from pqkeep_gateway.unavailable import UnavailableError
from pqkeep_protocol.audit_events import GatewayOperation
from pqkeep_protocol.messages import Attribution
from pqkeep_protocol.startup.logs import logger

_LOG = logger(__name__)

API = "/api/v1"
MAX_PARAMETERS = 64
"""The most parameters of a query. No endpoint has as many."""

Headers = Mapping[bytes, bytes]
Gate = Callable[[Endpoint, ApiCall], Awaitable[Filed | None]]
"""Stores a request that a second person must approve; returns None for every other request."""
ErrorTable = Callable[[Exception, Endpoint, Mapping[str, object]], ApiError | None]
"""Returns the error for an exception; None for a defect of the service."""


MAX_SIGNED = 128 * 1024
"""Bytes of a signed body. An event of Stripe's has about 5 KB, one of an invoice with ten lines
about 25 KB, and metadata can double that."""
MAX_SIGNED_AT_ONCE = 256
"""Bodies that are read at the same time: 32 MiB."""
UNVERIFIED = Limit(60, MINUTE)
"""Bodies per source address with an invalid or unverified signature."""


class SignedBodies:
    """Limits the number, size and memory of bodies with unverified signatures."""

    def __init__(self, unverified: SourceBudget) -> None:
        """Take a budget with the limit UNVERIFIED."""
        self._unverified = unverified
        self._reading = 0

    async def read(
        self, header: str, headers: Mapping[bytes, bytes], receive: Receive, source_address: str
    ) -> SignedBody:
        """Return a body with the signature in a header; empty if the signature is missing.

        Raises ApiError.
        """
        signature = headers.get(header.lower().encode(), b"").decode("latin-1")
        if not signature:
            return SignedBody()
        wait = self._unverified.spend(source_address)
        if wait is not None:
            raise too_many("too many invalid signatures", self._unverified.limit, wait)
        if self._reading >= MAX_SIGNED_AT_ONCE:
            self._unverified.release(source_address)
            raise unavailable()
        self._reading += 1
        try:
            body = await read_bytes(receive, headers, at_most=MAX_SIGNED)
        finally:
            self._reading -= 1
        return SignedBody(body, signature)

    def accept(self, source_address: str) -> None:
        """Stop counting a body: its signature is valid."""
        self._unverified.release(source_address)


@dataclass(frozen=True, slots=True)
class Pipeline:
    """The checks of every request before its handler."""

    admission: Admission
    rate_limiter: RateLimiter
    cookies: Cookies
    step_up: StepUp
    operator_sessions: OperatorSessions
    audit_delivery: AuditDelivery
    error_table: ErrorTable
    trusted_proxies: TrustedProxies
    signed_bodies: SignedBodies
    observer: RequestObserver
    gate: Gate

    def read_cookies(
        self,
        header_list: Sequence[tuple[bytes, bytes]],
        headers: Headers,
        path: str,
        permission: Permission,
    ) -> SentCookies:
        """Return the cookies of a request.

        Raises ApiError for a duplicate of a cookie that it needs.
        """
        sent = self.cookies.read(header_list)
        if b"x-api-key" not in headers:
            host, needs_session = headers.get(b"host", b""), permission is not Permission.PUBLIC
            self.cookies.require_once(sent, host, path, needs_session=needs_session)
        return sent

    async def admit(
        self,
        permission: Permission,
        headers: Headers,
        cookies: Mapping[str, str],
        client: Client,
        operation: GatewayOperation | None = None,
    ) -> tuple[Principal, Usage | None]:
        """Return the caller of an operation or a page, and the state of its rate limit.

        A known operator session precedes a person's session. Raises the errors of Admission.
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
        """Refuse requests from other sites' pages, and those without permission.

        Public reads are allowed for other sites' pages.
        """
        if b"x-api-key" not in headers:
            is_for_all = principal.caller is Credential.NONE and endpoint.method in SAFE_METHODS
            if not is_for_all and self.cookies.is_cross_site(endpoint.method, headers):
                raise forbidden("a page of another site may not send this request")
        self.check_access(endpoint, principal, headers)

    def check_access(self, endpoint: Endpoint, principal: Principal, headers: Headers) -> None:
        """Refuse what the access table or scopes do not grant.

        Pages need only this: any site may link to them.
        """
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
        if endpoint.permission not in WITHOUT_SCOPE:
            check_call(principal.scopes, endpoint.audit_operation)
        if principal.must_enroll and not endpoint.during_enrollment:
            raise enrollment_required()
        if endpoint.disabled:
            raise forbidden(endpoint.disabled)

    async def count(
        self, endpoint: Endpoint, principal: Principal, attribution: Attribution
    ) -> Usage | None:
        """Count a request against the endpoint's limit per address; operators are not counted."""
        limit = endpoint.address_limit
        if limit is None or principal.caller in OPERATORS:
            return None
        usage = await self.rate_limiter.count(
            f"sign-up {network_of(attribution.source_address)}", limit
        )
        if usage.is_refused:
            raise too_many("too many requests from this address", limit, usage.reset)
        return usage

    async def count_items(self, endpoint: Endpoint, call: ApiCall) -> Usage | None:
        """Count each item of a batch as one request."""
        if endpoint.items is None:
            return None
        return await self.admission.count_items(call.tenant, len(call[endpoint.items]))

    def needs_proof(self, endpoint: Endpoint, call: ApiCall) -> bool:
        """Return whether the handler needs more proof than the session."""
        principal = call.principal
        if principal.is_read_only:
            return endpoint.method not in SAFE_METHODS
        return principal.user is not None and endpoint.demands_step_up(call.values)

    async def handle(self, endpoint: Endpoint, call: ApiCall) -> Response:
        """Call the handler; check the step-up first if the request needs one.

        Without a step-up, errors in the request itself are reported first. A request that a second
        person must approve is stored instead.
        """
        if not self.needs_proof(endpoint, call):
            return await self._act(endpoint, call)
        if isinstance(call.principal, OperatorPrincipal):
            return await self._handle_reauthenticated(endpoint, call, call.principal)
        try:
            return await self._handle_proven(endpoint, call)
        except StepUpRequiredError:
            await rehearse(lambda: endpoint.handler(call))
            raise

    async def _handle_reauthenticated(
        self, endpoint: Endpoint, call: ApiCall, operator: OperatorPrincipal
    ) -> Response:
        """Call the handler if the session's person has signed in at the provider again.

        Errors in the request itself are reported first.
        """
        for field in endpoint.fields:
            field.read(call.values)
        if operator.person is None:
            raise credential_required()
        try:
            return await self.operator_sessions.spend(
                operator,
                call.cookies.get(self.cookies.reauthentication, ""),
                lambda: self._act(endpoint, call),
                partial(self._did_nothing, endpoint, call),
                is_covered=is_covered_for_operators(endpoint.name, call.values),
            )
        except NotAgainError:
            raise sign_in_again() from None

    async def _handle_proven(self, endpoint: Endpoint, call: ApiCall) -> Response:
        """Call the handler with the step-up token, or with the session's proof if no token is sent.

        Raises StepUpRequiredError before any effect.
        """
        if not call.step_up_token:
            proof = call.cookies.get(self.cookies.proof, "")
            is_covered = endpoint.is_covered_by_proof(call.values)
            if not (is_covered and await self.step_up.covers(call.person, proof)):
                raise StepUpRequiredError
            return await self._act(endpoint, call)

        return await self.step_up.spend(
            call.person,
            call.step_up_token,
            lambda: self._act(endpoint, call),
            partial(self._did_nothing, endpoint, call),
            call.idempotency,
        )

    def _did_nothing(self, endpoint: Endpoint, call: ApiCall, error: Exception) -> bool:
        """Return whether an error shows that the handler had no effect."""
        response = self._answer_to(error, endpoint, call.values)
        return response is not None and response.code.status < HTTPStatus.INTERNAL_SERVER_ERROR

    async def _act(self, endpoint: Endpoint, call: ApiCall) -> Response:
        """Call the handler, unless a second person must approve the request."""
        if endpoint.subject_of is not None:
            filed = await self.gate(endpoint, call)
            if filed is not None:
                return filed
        return await endpoint.handler(call)

    async def error_for(
        self,
        raised: Exception,
        endpoint: Endpoint,
        principal: Principal | None,
        values: Mapping[str, object],
        attribution: Attribution,
    ) -> ApiError:
        """Return the error to send. A refusal is recorded in the audit log first."""
        error, refused = self.error_of(raised, endpoint, principal, values, attribution)
        if refused is None:
            return error
        return await self.record(error, endpoint, refused, values, attribution)

    def error_of(
        self,
        raised: Exception,
        endpoint: Endpoint,
        principal: Principal | None,
        values: Mapping[str, object],
        attribution: Attribution,
    ) -> tuple[ApiError, Principal | None]:
        """Return the error to send, and the principal if the refusal must be recorded first."""
        error = self._answer_to(raised, endpoint, values)
        if error is None:
            _LOG.error("request failed", request_id=attribution.request_id, exc_info=raised)
            return internal(), None
        if isinstance(raised, SuspendedError | AddressNotAllowedError):
            principal = raised.principal
        if principal is None or principal.caller is Credential.NONE or not is_refusal(error):
            return error, None  # not recorded: anyone could fill the log with anonymous refusals
        return error, principal

    async def record(
        self,
        error: ApiError,
        endpoint: Endpoint,
        principal: Principal,
        values: Mapping[str, object],
        attribution: Attribution,
    ) -> ApiError:
        """Record a refusal in the audit log; return the error to send."""
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
