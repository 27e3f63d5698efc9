"""What is seen of every request once it has been answered: its metrics, and its line in the access log.

Neither has anything of a body or a credential.
"""

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from time import perf_counter

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pqkeep_gateway.access.principals import Principal
from pqkeep_gateway.http.endpoint import Endpoint
from pqkeep_gateway.http.errors import ApiError, method_not_allowed, not_found
from pqkeep_protocol.metrics import ALGORITHMS, NONE, Distribution
from pqkeep_protocol.startup.logs import logger

_LOG = logger(__name__)

DOCUMENT = "get-document"
"""The operation of what is no endpoint: the reference, and its parts."""
SUCCESS = "success"
CLIENT_GONE = "client-gone"
"""The outcome where the client hung up before it had an answer."""
_DOCUMENT_OUTCOMES = {
    error.code.status: error.code.code for error in (not_found(""), method_not_allowed(""))
}


@dataclass(frozen=True, slots=True)
class Route:
    """What a request asked for, as it is counted and logged."""

    method: str
    path: str
    """The template, with the names of its fields."""
    operation: str
    algorithm: str = NONE
    """The algorithm where the request names none."""
    algorithm_elsewhere: str = ""
    """The field inside of which it is named. It is not looked for there."""


def route_of(endpoint: Endpoint, path: str) -> Route:
    """Return what requests of an endpoint ask for."""
    default = endpoint.default_algorithm
    return Route(
        endpoint.method,
        path,
        endpoint.audit_operation.value,
        NONE if default is None else default.value,
        endpoint.algorithm_elsewhere,
    )


class RequestObserver:
    """Counts requests, and logs them if that is wanted."""

    def __init__(self, *, logs: bool = False) -> None:
        """Take whether there is an access log."""
        self._logs = logs
        self.outcomes: Counter[tuple[str, str, str]] = Counter()
        """How many requests there were, by operation, algorithm and outcome."""
        self.durations: defaultdict[str, Distribution] = defaultdict(Distribution)
        """How long they took, by operation."""

    def finish(  # noqa: PLR0913 - each is in the access log
        self,
        route: Route,
        method: str,
        began: float,
        answer: ApiError | int | None,
        values: Mapping[str, object],
        principal: Principal | None,
        request_id: str,
        source_address: str,
        *,
        tls_group: str = "",
    ) -> None:
        """Take note of a request that has been answered: with an error, a status, or not at all.

        ``began`` is of ``time.perf_counter``.
        """
        seconds = perf_counter() - began
        if isinstance(answer, ApiError):
            outcome, status = answer.code.code, answer.code.status
        else:
            outcome, status = (SUCCESS, answer) if answer else (CLIENT_GONE, 0)
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

    def refuse(self, error: ApiError, request_id: str, source_address: str) -> None:
        """Take note of what was refused before it was a request."""
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
        """Return an application that is no endpoint, and takes note of its requests."""
        return _Watched(app, operation, self, logs=self._logs)


class _Watched:
    """An application whose requests are noted. A class: a router takes functions for handlers."""

    def __init__(
        self, app: ASGIApp, operation: str, observer: RequestObserver, *, logs: bool
    ) -> None:
        self._app = app
        self._operation = operation
        self._observer = observer
        self._logs = logs

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
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
