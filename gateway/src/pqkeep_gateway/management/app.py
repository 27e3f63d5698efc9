"""The paths of the management address, for everybody who reaches it: they tell no secrets.

A page of another site could have a browser ask, under a name of its own that it has resolve to this
address (DNS rebinding): so a name in the Host header has to be known here.
"""

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from http import HTTPStatus
from ipaddress import ip_address

import msgspec
from starlette.types import ASGIApp, Receive, Scope, Send

from pqkeep_gateway.management.collection import Collection
from pqkeep_gateway.management.installation import Inspection
from pqkeep_gateway.management.readiness import Readiness

METHODS = frozenset({"GET", "HEAD"})
JSON = b"application/json"
PROMETHEUS = b"text/plain; version=0.0.4; charset=utf-8"

Answer = tuple[HTTPStatus, bytes, bytes]
"""Status, type and body."""


@dataclass(frozen=True, slots=True)
class Management:
    """What the management address answers, and what it is answered from."""

    app: ASGIApp
    readiness: Readiness
    collection: Collection
    inspection: Inspection


def management_app(
    readiness: Readiness, collection: Collection, names: Iterable[str] = ()
) -> ASGIApp:
    """Return the ASGI application; ``names`` are those it may be asked under."""
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
        answer = paths.get(scope["path"])
        if not _is_known(headers.get(b"host", b""), known):
            status, kind, body = _status("unknown host", HTTPStatus.MISDIRECTED_REQUEST)
        elif answer is None:
            status, kind, body = _status("not found", HTTPStatus.NOT_FOUND)
        elif scope["method"] not in METHODS:
            status, kind, body = _status("method not allowed", HTTPStatus.METHOD_NOT_ALLOWED)
        else:
            status, kind, body = await answer()
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
    """Return whether a Host header has an address, or a known name. No browser leaves it out."""
    text = host.decode("latin-1").lower()
    name = text[1:].partition("]")[0] if text.startswith("[") else text.partition(":")[0]
    if not text or name in names:
        return True
    try:
        ip_address(name)
    except ValueError:
        return False
    return True
