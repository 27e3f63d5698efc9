"""The paths of the management address. They reveal no secrets.

A page of another site could make a browser send requests under a name that resolves to this address
(DNS rebinding). So names in the Host header must be known here.
"""

import asyncio
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from http import HTTPStatus
from ipaddress import ip_address

import msgspec
from starlette.types import ASGIApp, Receive, Scope, Send

from pqkeep_gateway.access.rate_limit import Limit
from pqkeep_gateway.access.source_budget import SourceBudget
from pqkeep_gateway.http.connection import ConnectionLimits, Listener, application
from pqkeep_gateway.http.connections import Connections
from pqkeep_gateway.http.observer import RequestObserver
from pqkeep_gateway.http.watching import watch_connections
from pqkeep_gateway.management.collection import Collection
from pqkeep_gateway.management.installation import Inspection
from pqkeep_gateway.management.readiness import Readiness
from pqkeep_protocol.startup.background_tasks import BackgroundTasks
from pqkeep_protocol.startup.logs import logger
from pqkeep_protocol.startup.settings import ConfigError

METHODS = frozenset({"GET", "HEAD"})
JSON = b"application/json"
PROMETHEUS = b"text/plain; version=0.0.4; charset=utf-8"

Answer = tuple[HTTPStatus, bytes, bytes]
"""Status, type and body."""


@dataclass(frozen=True, slots=True)
class Management:
    """The management address's application and its data sources."""

    app: ASGIApp
    readiness: Readiness
    collection: Collection
    inspection: Inspection


def management_app(
    readiness: Readiness, collection: Collection, names: Iterable[str] = ()
) -> ASGIApp:
    """Return the ASGI application; ``names`` are the accepted host names."""
    known = {"localhost", *(name.lower() for name in names)}

    async def live() -> Answer:
        return _status("alive")

    async def ready() -> Answer:
        reasons, degraded = await readiness.reasons(), await readiness.degraded()
        body = {"status": "ready", "degraded": list(degraded), "causes": {**degraded, **reasons}}
        if not reasons:
            return HTTPStatus.OK, JSON, msgspec.json.encode(body)
        body |= {"status": "not ready", "reasons": list(reasons)}
        return HTTPStatus.SERVICE_UNAVAILABLE, JSON, msgspec.json.encode(body)

    async def metrics() -> Answer:
        text = await collection.text()
        status = HTTPStatus.OK if text else HTTPStatus.SERVICE_UNAVAILABLE
        return status, PROMETHEUS, text

    paths: dict[str, Callable[[], Awaitable[Answer]]] = {
        "/livez": live,
        "/readyz": ready,
        "/metrics": metrics,
    }

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        headers: dict[bytes, bytes] = dict(scope["headers"])
        response = paths.get(scope["path"])
        if not _is_known(headers.get(b"host", b""), known):
            status, kind, body = _status("unknown host", HTTPStatus.MISDIRECTED_REQUEST)
        elif response is None:
            status, kind, body = _status("not found", HTTPStatus.NOT_FOUND)
        elif scope["method"] not in METHODS:
            status, kind, body = _status("method not allowed", HTTPStatus.METHOD_NOT_ALLOWED)
        else:
            status, kind, body = await response()
        sent = [
            (b"content-type", kind),
            (b"content-length", str(len(body)).encode()),
            (b"cache-control", b"no-store"),
        ]
        await send({"type": "http.response.start", "status": status, "headers": sent})
        await send({"type": "http.response.body", "body": body})

    return app


def _status(text: str, status: HTTPStatus = HTTPStatus.OK) -> Answer:
    return status, JSON, msgspec.json.encode({"status": text})


def _is_known(host: bytes, names: Iterable[str]) -> bool:
    """Return whether a Host header is empty, an address or a known name.

    Every browser sends the header.
    """
    text = host.decode("latin-1").lower()
    name = text[1:].partition("]")[0] if text.startswith("[") else text.partition(":")[0]
    if not text or name in names:
        return True
    try:
        ip_address(name)
    except ValueError:
        return False
    return True


_LOG = logger(__name__)
BACKLOG = 16
LIMITS = ConnectionLimits(
    connections=32,
    per_address=32,
    new_per_second=50,
    request_seconds=5,
    idle_seconds=65,
    write_seconds=10,
    close_seconds=2,
)


def open_listener(host: str, port: int) -> socket.socket:
    """Listen on an address. Raises ConfigError."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=BACKLOG)
    except OSError as error:
        reason = str(error.strerror).partition(" (while attempting ")[0]  # added by create_server
        raise ConfigError(
            f"management_address: cannot listen on {host} port {port}: {reason}"
        ) from None


@asynccontextmanager
async def serving(
    app: ASGIApp, listener: socket.socket, tasks: BackgroundTasks
) -> AsyncIterator[None]:
    """Serve while a block runs, and watch the connections in a background task."""
    host, port = listener.getsockname()[:2]
    if not ip_address(host).is_loopback:
        _LOG.warning("the management address can be reached from other machines", address=host)
    arrivals = SourceBudget(Limit(LIMITS.new_per_second, 1), time.monotonic)
    counted = Connections(LIMITS.connections, LIMITS.per_address, arrivals)
    observer = RequestObserver()  # requests for metrics have no metrics
    http = Listener(application(app), counted, observer, LIMITS)
    server = await asyncio.get_running_loop().create_server(http.connection, sock=listener)
    end_watch = tasks.begin(watch_connections(http.connections, LIMITS))
    _LOG.info("serving on the management address", host=host, port=port)
    try:
        yield
    finally:
        end_watch()
        server.close()
        for connection in list(http.connections):
            connection.transport.abort()
