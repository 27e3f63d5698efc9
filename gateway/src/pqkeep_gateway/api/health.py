"""/healthz: whether requests would be answered. For supervisors and load balancers."""

from collections.abc import Awaitable, Callable
from typing import Literal

from pqkeep_gateway.http.about import About, Caller
from pqkeep_gateway.http.endpoint import ApiCall, Endpoint
from pqkeep_gateway.http.envelope import Data
from pqkeep_gateway.http.errors import unavailable


class Health(Data, frozen=True, kw_only=True):
    """Requests would be answered."""

    status: Literal["ok"]


def endpoint(is_key_service_reachable: Callable[[], Awaitable[bool]]) -> Endpoint:
    """Return the endpoint."""

    async def check(call: ApiCall) -> Health:
        """Tell whether requests would be answered. For supervisors and load balancers."""
        if not await is_key_service_reachable():
            raise unavailable()
        return Health(status="ok")

    return Endpoint(
        "GET",
        "/healthz",
        check,
        open_to_anyone=True,
        about=About(name="check_health", caller=Caller.ANYONE, example=Health(status="ok")),
    )
