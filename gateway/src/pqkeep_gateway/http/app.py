"""The ASGI application: every path, and the endpoints behind it."""

from collections.abc import Iterable, Mapping

from starlette.routing import Route, Router
from starlette.types import ASGIApp, Receive, Scope, Send

from pqkeep_gateway.access.admission import Admission
from pqkeep_gateway.audit_events import AuditDelivery
from pqkeep_gateway.http.cookies import Cookies
from pqkeep_gateway.http.endpoint import Endpoint, Resource, not_found
from pqkeep_gateway.people.step_up import StepUp

API = "/api/v1"


def create_app(
    api: Iterable[Endpoint],
    outside: Iterable[Endpoint],
    documents: Mapping[str, ASGIApp],
    admission: Admission,
    audit_delivery: AuditDelivery,
    cookies: Cookies,
    step_up: StepUp,
) -> ASGIApp:
    """Route requests to the API's endpoints, to those outside of it, and to documents.

    Starlette tries its routes one by one, so only the paths with parameters are left to it.
    """
    by_path: dict[str, dict[str, Endpoint]] = {}
    for prefix, endpoints in ((API, api), ("", outside)):
        for endpoint in endpoints:
            by_path.setdefault(prefix + endpoint.path, {})[endpoint.method] = endpoint
    resources = {
        path: Resource(methods, admission, audit_delivery, cookies, step_up)
        for path, methods in by_path.items()
    }
    fixed: dict[str, ASGIApp] = {
        **{path: resource for path, resource in resources.items() if "{" not in path},
        **documents,
    }
    others = Router(
        [Route(path, resource) for path, resource in resources.items() if path not in fixed],
        redirect_slashes=False,
        default=not_found,
    )

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await fixed.get(scope["path"], others)(scope, receive, send)

    return app
