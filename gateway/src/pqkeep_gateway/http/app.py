"""The ASGI application: every path, and the endpoints behind it."""

from collections.abc import Awaitable, Callable, Iterable, Mapping

from starlette.routing import Route, Router
from starlette.types import ASGIApp, Receive, Scope, Send

from pqkeep_gateway.http.endpoint import Endpoint
from pqkeep_gateway.http.pipeline import Pipeline, Resource
from pqkeep_gateway.http.responses import send_not_found
from pqkeep_protocol.metrics import NONE

API = "/api/v1"


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
    others = Router(
        [Route(path, each) for path, each in served.items() if path not in fixed],
        redirect_slashes=False,
        default=pipeline.observer.watch(send_not_found, NONE),
    )

    def app(scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        return fixed.get(scope["path"], others)(scope, receive, send)

    return app
