"""The metrics and the access log of all finished requests.

Neither has any part of a body or a credential.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from time import perf_counter

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pqkeep_gateway.access.callers import ADMINISTERS
from pqkeep_gateway.access.principals import Principal
from pqkeep_gateway.http.endpoint import Endpoint
from pqkeep_gateway.http.errors import ApiError, method_not_allowed, not_found
from pqkeep_gateway.notices import CAUSES
from pqkeep_protocol.metrics import ALGORITHMS, NONE, Distribution
from pqkeep_protocol.startup.logs import logger

_LOG = logger(__name__)

DOCUMENT = "get-document"
"""The operation of requests without an endpoint: the reference and its parts."""
SUCCESS = "success"
CLIENT_GONE = "client-gone"
"""The outcome if the client disconnected before its response."""
_DOCUMENT_OUTCOMES = {
    error.code.status: error.code.code for error in (not_found(""), method_not_allowed(""))
}


@dataclass(frozen=True, slots=True)
class Route:
    """The target of a request, for metrics and the log."""

    method: str
    path: str
    """The template, with the names of its fields."""
    operation: str
    algorithm: str = NONE
    """The algorithm if the request names none."""
    algorithm_elsewhere: str = ""
    """The field that may contain the algorithm. It is not examined."""
    is_cause: bool = False
    """Whether a success may open or close a notice."""
    administers: bool = False
    """Whether a success is more than the use of keys."""


def route_of(endpoint: Endpoint, path: str) -> Route:
    """Return the target of an endpoint's requests."""
    default = endpoint.default_algorithm
    return Route(
        endpoint.method,
        path,
        endpoint.audit_operation.value,
        NONE if default is None else default.value,
        endpoint.algorithm_elsewhere,
        is_cause=endpoint.audit_operation in CAUSES,
        administers=endpoint.permission in ADMINISTERS,
    )


class RequestObserver:
    """Counts requests, and logs them if the access log is on."""

    def __init__(self, *, logs: bool = False) -> None:
        """Take whether the access log is on."""
        self._logs = logs
        self.succeeded: Callable[[Route, Principal], None] | None = None
        """Called for each success of a route that is a cause, or administers."""
        self.outcomes: Counter[tuple[str, str, str]] = Counter()
        """The number of requests by operation, algorithm and outcome."""
        self.durations: defaultdict[str, Distribution] = defaultdict(Distribution)
        """The durations by operation."""

    def finish(  # noqa: PLR0913 - all are in the access log
        self,
        route: Route,
        method: str,
        began: float,
        response: ApiError | int | None,
        values: Mapping[str, object],
        principal: Principal | None,
        request_id: str,
        source_address: str,
        *,
        tls_group: str = "",
    ) -> None:
        """Record a finished request: with an error, a status, or no response.

        ``began``: from ``time.perf_counter``.
        """
        seconds = perf_counter() - began
        if isinstance(response, ApiError):
            outcome, status = response.code.code, response.code.status
        else:
            outcome, status = (SUCCESS, response) if response else (CLIENT_GONE, 0)
            if (route.is_cause or route.administers) and status:
                self._report(route, principal)
        self.outcomes[route.operation, _algorithm(route, values), outcome] += 1
        self.durations[route.operation].observe(seconds)
        if self._logs:
            tenant = None if principal is None else principal.tenant
            _LOG.info(
                "request answered",
                method=method,
                route=route.path,
                operation=route.operation,
                status=status,
                outcome=outcome,
                seconds=round(seconds, 6),
                request_id=request_id,
                tenant=None if tenant is None else str(tenant),
                source_address=source_address,
                tls_group=tls_group or None,
            )

    def _report(self, route: Route, principal: Principal | None) -> None:
        if self.succeeded is not None and principal is not None:
            self.succeeded(route, principal)

    def refuse(self, error: ApiError, request_id: str, source_address: str) -> None:
        """Record an error that was sent before a request was complete."""
        self.outcomes[NONE, NONE, error.code.code] += 1
        if self._logs:
            _LOG.info(
                "request answered",
                route=NONE,
                operation=NONE,
                status=error.code.status,
                outcome=error.code.code,
                request_id=request_id,
                source_address=source_address,
            )

    def watch(self, app: ASGIApp, operation: str = DOCUMENT) -> ASGIApp:
        """Return an application that also records its requests."""
        return _Watched(app, operation, self, logs=self._logs)


class _Watched:
    """Records an application's requests.

    It is a class because a router takes functions for handlers.
    """

    def __init__(
        self, app: ASGIApp, operation: str, observer: RequestObserver, *, logs: bool
    ) -> None:
        self._app = app
        self._operation = operation
        self._observer = observer
        self._logs = logs

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        began, status = perf_counter(), 0

        async def watched_send(message: Message) -> None:
            nonlocal status
            status = message.get("status", status)
            await send(message)

        try:
            await self._app(scope, receive, watched_send)
        finally:
            outcome = _DOCUMENT_OUTCOMES.get(status, SUCCESS if status else CLIENT_GONE)
            self._observer.outcomes[self._operation, NONE, outcome] += 1
            self._observer.durations[self._operation].observe(perf_counter() - began)
            if self._logs:
                _LOG.info(
                    "request answered",
                    method=scope["method"],
                    operation=self._operation,
                    status=status,
                    outcome=outcome,
                    source_address=scope["client"][0] if scope["client"] else "",
                )


def _algorithm(route: Route, values: Mapping[str, object]) -> str:
    if not values:
        return NONE
    named = values.get("algorithm")
    if named is None:
        is_elsewhere = values.get(route.algorithm_elsewhere) is not None
        return NONE if is_elsewhere else route.algorithm
    return named if type(named) is str and named in ALGORITHMS else NONE
