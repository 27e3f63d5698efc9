"""The ASGI application: every path, and the endpoints behind it."""

from collections.abc import Iterable

from starlette.routing import Route, Router

from pqkeep_gateway.access.authentication import Authenticator
from pqkeep_gateway.http.endpoint import Endpoint, Resource, not_found

API = "/api/v1"


def create_app(
    api: Iterable[Endpoint], outside: Iterable[Endpoint], authenticator: Authenticator
) -> Router:
    """Route requests to the API's endpoints, and to those outside of it.

    Starlette tries routes in order: what is called most comes first.
    """
    by_path: dict[str, dict[str, Endpoint]] = {}
    for prefix, endpoints in ((API, api), ("", outside)):
        for endpoint in endpoints:
            by_path.setdefault(prefix + endpoint.path, {})[endpoint.method] = endpoint
    return Router(
        [Route(path, Resource(methods, authenticator)) for path, methods in by_path.items()],
        redirect_slashes=False,
        default=not_found,
    )
