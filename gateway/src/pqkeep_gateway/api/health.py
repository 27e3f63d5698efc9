"""/healthz: readiness for supervisors and load balancers."""

from collections.abc import Awaitable, Callable
from typing import Literal

from pqkeep_gateway.access.callers import Permission
from pqkeep_gateway.api.errors import BAD_REQUEST_FIELDS
from pqkeep_gateway.http.endpoint import ApiCall, Endpoint
from pqkeep_gateway.http.envelope import Data
from pqkeep_gateway.unavailable import UnavailableError


class Health(Data, frozen=True, kw_only=True):
    """The gateway can serve requests."""

    status: Literal["ok"]


def endpoint(is_healthy: Callable[[], Awaitable[bool]]) -> Endpoint:
    """Return the endpoint."""

    async def check(call: ApiCall) -> Health:
        """Check whether the gateway can serve requests. For supervisors and load balancers."""
        if not await is_healthy():
            raise UnavailableError
        return Health(status="ok")

    return Endpoint(
        method="GET",
        path="/healthz",
        name="check_health",
        handler=check,
        permission=Permission.PUBLIC,
        example=Health(status="ok"),
        field_codes=BAD_REQUEST_FIELDS,
    )
