"""/healthz: whether requests would be answered. For supervisors and load balancers."""

from collections.abc import Awaitable, Callable

from pqkeep_gateway.http.endpoint import ApiCall, Endpoint
from pqkeep_gateway.http.envelope import Data
from pqkeep_gateway.http.errors import unavailable


def endpoint(is_key_service_reachable: Callable[[], Awaitable[bool]]) -> Endpoint:
    """Return the endpoint."""

    async def check(call: ApiCall) -> Data:
        if not await is_key_service_reachable():
            raise unavailable()
        return {"status": "ok"}

    return Endpoint("GET", "/healthz", check, open_to_anyone=True)
