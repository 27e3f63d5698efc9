"""The steps of one API request in the gateway. The code carries their numbers.

1. Find the path and the method (404, 405).
2. Authenticate the caller: credential, rate limit, suspension (401, 403, 429).
3. Authorize the caller: cross-site requests, access table, scopes, address limit (403, 429).
4. Read the body as JSON (400).
5. Read the fields and the headers of the call (400).
6. Ask the key service, or await a handler.

Steps 7 to 12 are in the key service: see ``pqkeep_keyservice.transaction``.

13. Send the response in one write.
14. Or send an error; a refusal is recorded in the audit log first.
15. Count the request, once.

A step returns None if the request is done or a callback continues it. Otherwise it returns a
coroutine that waits and then takes the remaining steps. A request that finds everything in memory
needs no task. A request that waits takes the same steps.
"""

import asyncio
import re
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from time import perf_counter
from typing import Any
from urllib.parse import parse_qsl

from starlette import routing
from starlette.types import ASGIApp

from pqkeep_gateway.access.admission import SuspendedError
from pqkeep_gateway.access.callers import Permission
from pqkeep_gateway.access.idempotency import (
    MAX_LENGTH,
    IdempotencyKey,
    idempotency_key,
    is_idempotency_key,
)
from pqkeep_gateway.access.networks import network_of
from pqkeep_gateway.access.principals import Principal
from pqkeep_gateway.access.rate_limit import Usage
from pqkeep_gateway.http.body import JsonBody
from pqkeep_gateway.http.connection import HttpConnection, Request
from pqkeep_gateway.http.cookies import NO_COOKIES, SentCookies
from pqkeep_gateway.http.endpoint import (
    NOT_SIGNED,
    ApiCall,
    Endpoint,
    Head,
    JsonLines,
    Question,
    SignedBody,
)
from pqkeep_gateway.http.errors import (
    ApiError,
    ClientGoneError,
    invalid,
    method_not_allowed,
    not_found,
)
from pqkeep_gateway.http.field import Field, FieldError, Problem, sent_twice, unknown_field
from pqkeep_gateway.http.large_bodies import LARGE, LargeBodies, LargeBody
from pqkeep_gateway.http.observer import Route, route_of
from pqkeep_gateway.http.pipeline import Headers, Pipeline
from pqkeep_gateway.http.refusals import UNREAD
from pqkeep_gateway.http.responses import (
    Whole,
    WholeResponse,
    accepts_gzip,
    error_response,
    request_id_of,
    response_of,
    send_lines,
    send_not_found,
)
from pqkeep_gateway.shards import TenantKeyService
from pqkeep_protocol.messages import Attribution
from pqkeep_protocol.metrics import NONE
from pqkeep_protocol.startup.logs import logger

_LOG = logger(__name__)

API = "/api/v1"
MAX_PARAMETERS = 64
"""The most parameters of a query. No endpoint has as many."""
Parameters = Mapping[str, str]
"""The fields in a path, as received."""
Rest = Coroutine[Any, Any, None]
"""A wait, and the steps after it."""
Trace = Callable[[str, str, str], AbstractContextManager[Callable[[int, str], None]]]
"""Creates the span of a request; see ``Tracing.request``."""
_NONE: Parameters = {}
_SLASHES = re.compile("//+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Face:
    """Another interface to the API: paths under a prefix, with their own credential and errors.

    Unknown fields are ignored, PUT does what POST does, and several slashes count as one.
    """

    prefix: str
    endpoints: Sequence[Endpoint]
    read_credential: Callable[[Headers, Permission], dict[bytes, bytes]]
    """Returns a request's headers with the credential in X-API-Key, and without cookies."""
    error_response: Callable[[ApiError, str, Usage | None], WholeResponse]
    """Returns the response for an error, as ``responses.error_response`` does."""


class Resource:
    """A path and its endpoints by method."""

    def __init__(
        self, path: str, endpoints: Mapping[str, Endpoint], face: Face | None = None
    ) -> None:
        self.face = face
        self.rows = {method: _Row(endpoint, path, face) for method, endpoint in endpoints.items()}
        self.methods = ", ".join([*endpoints, "HEAD"] if "GET" in endpoints else endpoints)
        self.no_route = Route(NONE, path, NONE)

    async def __call__(self, *_: object) -> None:
        """Do nothing: the router requires an ASGI application."""


class _Row:
    """An endpoint with everything about its requests that is known in advance."""

    def __init__(self, endpoint: Endpoint, path: str, face: Face | None) -> None:
        others = endpoint.other_fields
        self.endpoint = endpoint
        self.face = face
        self.route = route_of(endpoint, path)
        self.waits_for_more = bool(endpoint.address_limit or endpoint.signature_header)
        """Whether the request waits between the access table and the body."""
        self.ask = endpoint.ask if endpoint.items is None else None
        """Calls the key service at once. Batches do not: their items are counted first."""
        self.takes_body = endpoint.takes_body and not endpoint.signature_header
        self._path = endpoint.path_fields
        self._in_body = frozenset(field.name for field in others if endpoint.takes_body)
        self._in_query = {field.name: field for field in others if not endpoint.takes_body}
        self._known = [field.name for field in others]
        self.body = JsonBody(
            at_most=endpoint.max_body,
            required=bool(self._in_body) and not endpoint.body_optional,
            nested=frozenset(field.name for field in others if field.is_nested),
            any_type=face is not None,
        )

    def values(
        self, body: Mapping[str, object], query: bytes, parameters: Parameters
    ) -> Mapping[str, object]:
        """Return the values of all places. Raises FieldError for unknown or duplicate names."""
        if self.face is None and not body.keys() <= self._in_body:
            raise unknown_field(body.keys() - self._in_body, self._known)
        if not self._path and not query:
            return body
        values = dict(body)
        for name, text in _query(query):
            if name not in self._in_query:
                if self.face is not None:
                    continue
                raise unknown_field([name], self._known)
            if name in values:
                raise sent_twice(name)
            values[name] = self._in_query[name].from_text(text)
        return values | {part.name: _path_value(part, parameters) for part in self._path}


class _Passage:
    """The state of one request."""

    __slots__ = (
        "address",
        "attribution",
        "began",
        "call",
        "cookies",
        "is_finished",
        "is_traced",
        "large",
        "parameters",
        "principal",
        "question",
        "request",
        "request_id",
        "row",
        "signed",
        "usage",
        "values",
    )

    def __init__(
        self, request: Request, row: _Row, parameters: Parameters, *, is_traced: bool
    ) -> None:
        self.address = ""
        self.attribution: Attribution | None = None
        self.began = perf_counter()
        self.call: ApiCall | None = None
        self.cookies: SentCookies = NO_COOKIES
        self.is_finished = False
        self.is_traced = is_traced
        """Whether it has a span, which is the current one of a task."""
        self.large: LargeBody | None = None
        self.parameters = parameters
        self.principal: Principal | None = None
        self.question: Question | None = None
        """The pending request to the key service."""
        self.request = request
        self.request_id = request_id_of(request.headers)
        self.row = row
        self.signed: SignedBody = NOT_SIGNED
        self.usage: Usage | None = None
        self.values = UNREAD


class Road:
    """Handles requests: those of the API itself, others through ASGI applications."""

    def __init__(
        self,
        pipeline: Pipeline,
        keys: TenantKeyService,
        api: Iterable[Endpoint],
        outside: Iterable[Endpoint],
        pages: Mapping[str, ASGIApp],
        trace: Trace | None = None,
        face: Face | None = None,
    ) -> None:
        """Take the API's endpoints, other endpoints, other pages by path, and a face."""
        self._pipeline = pipeline
        self._keys = keys
        self._trace = trace
        self._observer = observer = pipeline.observer
        self._large_bodies = LargeBodies()
        by_path: dict[str, dict[str, Endpoint]] = {}
        for prefix, endpoints in ((API, api), ("", outside)):
            for endpoint in endpoints:
                by_path.setdefault(prefix + endpoint.path, {})[endpoint.method] = endpoint
        served: dict[str, Resource | ASGIApp] = {
            **{path: Resource(path, methods) for path, methods in by_path.items()},
            **{path: observer.watch(page) for path, page in pages.items()},
        }
        self._fixed = {path: document for path, document in served.items() if "{" not in path}
        # Starlette tries its routes in order, so it gets only the paths with parameters.
        self._routes = [
            routing.Route(path, document) for path, document in served.items() if "{" in path
        ]
        self._not_found = observer.watch(send_not_found, NONE)
        self._face = None if face is None else _FacePaths(face)

    def begin(self, request: Request) -> None:
        """1. Find the target of a request, and handle it."""
        found, parameters = self._fixed.get(request.path), _NONE
        if found is None:
            found, parameters = self._routed(request.path)
        if not isinstance(found, Resource):
            request.run(found, parameters)
            return
        row = found.rows.get("GET" if request.method == "HEAD" else request.method)
        if row is None:
            self._refuse_method(request, found)
            return
        if found.face is not None:
            permission = row.endpoint.permission
            request.headers = found.face.read_credential(request.headers, permission)
        passage = _Passage(request, row, parameters, is_traced=self._trace is not None)
        if self._trace is None:
            self._take(passage, self._enter)
        else:
            request.connection.listener.begin(self._traced(passage, self._trace))

    def _routed(self, path: str) -> tuple[Resource | ASGIApp, Parameters]:
        if self._face is not None and path.startswith(self._face.prefix):
            return self._face.find(path)
        scope = {"type": "http", "method": "GET", "path": path}
        for route in self._routes:
            match, found = route.matches(scope)
            if match is not routing.Match.NONE:
                return route.endpoint, found["path_params"]
        return self._not_found, _NONE

    def _refuse_method(self, request: Request, resource: Resource) -> None:
        began, request_id = perf_counter(), request_id_of(request.headers)
        refused = (
            method_not_allowed(resource.methods) if resource.rows else not_found("no such path")
        )
        client = self._pipeline.trusted_proxies.client_of(request.peer, request.header_list)
        error_to = error_response if resource.face is None else resource.face.error_response
        request.respond(error_to(refused, request_id, None))
        self._observer.finish(
            resource.no_route,
            request.method,
            began,
            refused,
            {},
            None,
            request_id,
            client.address,
            tls_group=request.connection.tls_group,
        )

    def _enter(self, passage: _Passage) -> Rest | None:
        """2. Admit a request from memory, or with look-ups."""
        request, pipeline = passage.request, self._pipeline
        headers = request.headers
        client = pipeline.trusted_proxies.client_of(request.peer, request.header_list)
        passage.address = client.address
        if b"cookie" in headers:
            passage.cookies = pipeline.read_cookies(
                request.header_list, headers, request.path, passage.row.endpoint.permission
            )
        credential = headers.get(b"x-api-key")
        if credential is not None and not passage.is_traced:
            text = credential.strip(b" \t").decode("latin-1")
            known = pipeline.admission.recall(text, client.address, is_known=client.is_known)
            if known is not None:
                return self._proceed(passage, *known)

        async def ask() -> None:
            admitted = await pipeline.admit(
                passage.row.endpoint.permission,
                headers,
                passage.cookies.values,
                client,
                passage.row.endpoint.audit_operation,
            )
            await _rest(self._proceed(passage, *admitted))

        return ask()

    def _proceed(self, passage: _Passage, principal: Principal, usage: Usage | None) -> Rest | None:
        """3. Authorise an admitted request."""
        passage.principal, passage.usage = principal, usage
        passage.attribution = Attribution(passage.request_id, str(principal), passage.address)
        self._pipeline.authorize(passage.row.endpoint, principal, passage.request.headers)
        if passage.row.waits_for_more:
            return self._wait_for_more(passage, principal, passage.attribution)
        return self._read(passage)

    async def _wait_for_more(
        self, passage: _Passage, principal: Principal, attribution: Attribution
    ) -> None:
        endpoint, request, pipeline = passage.row.endpoint, passage.request, self._pipeline
        passage.usage = await pipeline.count(endpoint, principal, attribution) or passage.usage
        if endpoint.signature_header:
            passage.signed = await pipeline.signed_bodies.read(
                endpoint.signature_header, request.headers, request.receive, passage.address
            )
        await _rest(self._read(passage))

    def _read(self, passage: _Passage) -> Rest | None:
        """4. Read the body, at once or when it arrives, within the memory limits."""
        row, request = passage.row, passage.request
        if not row.takes_body:
            return self._ask(passage, {})
        row.body.check_head(request.headers)
        request.expect_body()
        request.connection.flow.resume_reading()  # to notice a disconnection
        if request.is_whole and len(request.body) <= LARGE:
            body = row.body.value_of(self._piece(passage), request.headers)
            return self._ask(passage, body)
        principal = passage.principal
        sender = (principal and principal.tenant) or network_of(passage.address)
        large = LargeBody(self._large_bodies, request.connection.evict).sent_by(sender)
        passage.large = large
        if passage.is_traced or int(request.headers.get(b"content-length", LARGE + 1)) > LARGE:

            async def read() -> None:
                body = await row.body.read(request.receive, request.headers, large)
                await _rest(self._ask(passage, body))

            return read()
        request.on_body = lambda: self._take(passage, self._read_on)
        return self._read_on(passage)

    def _read_on(self, passage: _Passage) -> Rest | None:
        """4. Take the next piece of a body that is not large."""
        request, large = passage.request, passage.large
        if large is None:
            return None
        large.add(self._piece(passage))
        if not request.is_whole:
            return None
        request.on_body = None
        body = passage.row.body.value_of(large.received, request.headers)
        large.received.clear()
        return self._ask(passage, body)

    def _piece(self, passage: _Passage) -> bytearray:
        request = passage.request
        if request.disconnected:
            raise ClientGoneError
        piece = request.body
        passage.row.body.check_size(len(piece))
        request.body = bytearray()
        return piece

    def _ask(self, passage: _Passage, body: Mapping[str, object]) -> Rest | None:
        """5. Read the fields. 6. Call the key service, or the handler."""
        request, endpoint = passage.request, passage.row.endpoint
        passage.values = values = passage.row.values(body, request.query, passage.parameters)
        headers = request.headers
        principal, attribution = passage.principal, passage.attribution
        if principal is None or attribution is None:
            raise RuntimeError("no principal was admitted")
        passage.call = call = ApiCall(
            principal=principal,
            attribution=attribution,
            values=values,
            idempotency_key=_idempotency_key(passage, principal, body)
            if endpoint.idempotent
            else None,
            sent_cookies=passage.cookies,
            user_agent=headers.get(b"user-agent", b""),
            accept_language=headers.get(b"accept-language", b""),
            step_up_token=headers.get(b"x-step-up-token", b"").decode("latin-1"),
            signed=passage.signed,
            usage=passage.usage,
            head=None if passage.row.face is None else self._head(request),
        )
        if (
            passage.row.ask is None
            or passage.is_traced
            or self._pipeline.needs_proof(endpoint, call)
        ):
            return self._handle(passage, call)
        question = passage.row.ask(call)
        if question is None:
            return self._handle(passage, call)
        self._keys.call(*question, partial(self._take, passage, self._told))
        passage.question = question
        return None

    def _head(self, request: Request) -> Head:
        proxies = self._pipeline.trusted_proxies
        return Head(request.headers, proxies.client_of(request.peer, request.header_list))

    async def _handle(self, passage: _Passage, call: ApiCall) -> None:
        """6. Await a handler."""
        endpoint, request, pipeline = passage.row.endpoint, passage.request, self._pipeline
        passage.usage = await pipeline.count_items(endpoint, call) or passage.usage
        response = await pipeline.handle(endpoint, call)
        if passage.large is not None:
            passage.large.respond()
        if endpoint.signature_header:
            pipeline.signed_bodies.accept(passage.address)
        if isinstance(response, JsonLines):
            await send_lines(
                request.receive,
                request.send,
                response,
                passage.request_id,
                passage.usage,
                is_head=request.method == "HEAD",
                gzips=accepts_gzip(request.headers),
            )
            self._finish(passage, endpoint.status)
        else:
            self._answered(passage, response)

    def _told(self, passage: _Passage, outcome: object) -> None:
        """6. Take the outcome from the key service."""
        question, passage.question = passage.question, None
        answer, call = passage.row.endpoint.response, passage.call
        if answer is None or question is None or call is None:
            raise RuntimeError("no request to the key service is pending")
        response = answer(call, question, outcome)
        if isinstance(response, JsonLines):
            raise TypeError("a streamed response needs a handler")
        self._answered(passage, response)

    def _answered(self, passage: _Passage, response: Whole) -> None:
        """13. Send the response."""
        status = passage.row.endpoint.status
        answer = response_of(status, response, passage.request_id, passage.usage)
        passage.request.respond(answer)
        self._finish(passage, answer.status)

    def _refused(self, passage: _Passage, raised: Exception) -> Rest | None:
        """14. Send an error; a refusal is recorded first."""
        if passage.large is not None:
            passage.large.respond()
        if isinstance(raised, ClientGoneError):
            self._finish(passage, None)
            return None
        if isinstance(raised, SuspendedError):
            passage.usage = raised.usage
        pipeline, endpoint, values = self._pipeline, passage.row.endpoint, passage.values
        attribution = passage.attribution
        if attribution is None:
            attribution = Attribution(passage.request_id, "", passage.address)
        error, refused = pipeline.error_of(raised, endpoint, passage.principal, values, attribution)
        if refused is None:
            self._send_error(passage, error)
            return None

        async def record() -> None:
            told = await pipeline.record(error, endpoint, refused, values, attribution)
            self._send_error(passage, told)

        return record()

    def _failed(self, passage: _Passage, raised: Exception) -> Rest | None:
        try:
            return self._refused(passage, raised)
        except Exception:  # noqa: BLE001 - the client must get a response
            _LOG.exception("an error could not be answered", request_id=passage.request_id)
            return passage.request.fail()

    def _send_error(self, passage: _Passage, error: ApiError) -> None:
        passage.request.on_body = None
        face = passage.row.face
        error_to = error_response if face is None else face.error_response
        passage.request.respond(error_to(error, passage.request_id, passage.usage))
        self._finish(passage, error.without_frames())

    def _finish(self, passage: _Passage, answer: ApiError | int | None) -> None:
        """15. Count a request that ended, and release its body."""
        if passage.is_finished:
            return
        passage.is_finished = True
        request = passage.request
        request.on_body = None
        self._observer.finish(
            passage.row.route,
            request.method,
            passage.began,
            answer,
            passage.values,
            passage.principal,
            passage.request_id,
            passage.address,
            tls_group=request.connection.tls_group,
        )
        large = passage.large
        if large is None:
            return
        if not large.size or answer is None:
            large.end()
        else:  # after the response has been written
            asyncio.get_running_loop().call_soon(_let_go, request, large)

    # --- Waiting and failing steps
    # -----------------------------------------------------------------

    def _take(
        self, passage: _Passage, step: Callable[..., Rest | None], *arguments: object
    ) -> None:
        """Take a step. If it fails, send an error; if it returns a coroutine, run it in a task."""
        try:
            rest = step(passage, *arguments)
        except Exception as raised:  # noqa: BLE001 - a fault is answered in the envelope too
            rest = self._failed(passage, raised)
        if rest is not None:
            passage.request.connection.listener.begin(self._wait(passage, rest))

    async def _wait(self, passage: _Passage, rest: Rest) -> None:
        try:
            await rest
        except Exception as raised:  # noqa: BLE001 - a fault is answered in the envelope too
            await _rest(self._failed(passage, raised))
        finally:
            if passage.question is None and passage.request.on_body is None:
                self._finish(passage, None)

    async def _traced(self, passage: _Passage, trace: Trace) -> None:
        """Take all steps in a single task. Its current span is the request's."""
        request = passage.request
        parent = request.headers.get(b"traceparent", b"").decode("latin-1")
        with trace(request.method, passage.row.route.path, parent) as answered:

            async def steps() -> None:
                await _rest(self._enter(passage))

            await self._wait(passage, steps())
            if request.response_started:
                answered(request.status, passage.request_id)


class _FacePaths:
    """The paths of a face."""

    def __init__(self, face: Face) -> None:
        by_path: dict[str, dict[str, Endpoint]] = {}
        for endpoint in face.endpoints:
            methods = by_path.setdefault(face.prefix + endpoint.path, {})
            methods[endpoint.method] = endpoint
            if endpoint.method == "POST":
                methods["PUT"] = endpoint
        self.prefix = face.prefix
        self._routes: dict[str, list[tuple[routing.Route, Resource]]] = {}
        """By the first two parts of their paths after the prefix: Starlette tries routes one by
        one."""
        for path, methods in by_path.items():
            resource = Resource(path, methods, face)
            route = routing.Route(path, resource)
            self._routes.setdefault(self._beginning(path), []).append((route, resource))
        self._unknown = Resource(face.prefix, {}, face)

    def find(self, path: str) -> tuple[Resource, Parameters]:
        """Return the resource of a path and its parameters."""
        path = _SLASHES.sub("/", path).removesuffix("/")
        scope = {"type": "http", "method": "GET", "path": path}
        for route, resource in self._routes.get(self._beginning(path), ()):
            match, found = route.matches(scope)
            if match is not routing.Match.NONE:
                return resource, found["path_params"]
        return self._unknown, _NONE

    def _beginning(self, path: str) -> str:
        return "/".join(path.removeprefix(self.prefix).split("/", 2)[:2])


async def _rest(rest: Rest | None) -> None:
    if rest is not None:
        await rest


def _let_go(request: Request, large: LargeBody) -> None:
    """Stop counting a body, unless its response is not read yet."""
    if request.connection.flow.write_paused:
        request.connection.listener.begin(_until_read(request.connection, large))
    else:
        large.end()


async def _until_read(connection: HttpConnection, large: LargeBody) -> None:
    """Count a body until its response was read."""
    try:
        await connection.drained()
    finally:
        large.end()


def _path_value(field: Field[Any], parameters: Parameters) -> object:
    return field.from_text(parameters[field.name])


def _query(query: bytes) -> list[tuple[str, str]]:
    """Return the parameters in their order. Raises FieldError for more than any endpoint has."""
    text = query.decode("latin-1")
    try:
        return parse_qsl(text, keep_blank_values=True, max_num_fields=MAX_PARAMETERS)
    except ValueError:
        message = f"the query has more than {MAX_PARAMETERS} parameters"
        raise FieldError("", Problem.UNKNOWN, message) from None


def _idempotency_key(
    passage: _Passage, principal: Principal, body: Mapping[str, object]
) -> IdempotencyKey | None:
    request = passage.request
    given = request.headers.get(b"idempotency-key")
    if given is None:
        return None
    text = given.decode("latin-1")
    if not is_idempotency_key(text):
        message = f"Idempotency-Key must be 1 to {MAX_LENGTH} printable ASCII characters"
        raise invalid(message, "Idempotency-Key")
    compared = [request.method, request.path, body]
    if passage.row.endpoint.answers_secret:
        compared.append(str(principal))
    return idempotency_key(text, principal, passage.address, compared)
