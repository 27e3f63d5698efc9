"""What pages show: the answers of the API's own rows, to whoever is looking.

A page may show what the access table lets its visitor ask of the API, since it asks just that.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pqkeep_gateway.access.callers import may
from pqkeep_gateway.access.principals import Principal
from pqkeep_gateway.access.rate_limit import Usage
from pqkeep_gateway.http.endpoint import ApiCall, Endpoint
from pqkeep_gateway.http.errors import ApiError
from pqkeep_gateway.http.pipeline import Headers, Pipeline
from pqkeep_protocol.messages import Attribution

Endpoints = Mapping[str, Endpoint]
"""The API's rows by name."""


@dataclass(frozen=True, slots=True)
class Section:
    """A part of a page: what is to be shown there, or why it cannot be."""

    data: Any = None
    error: ApiError | None = None


@dataclass(frozen=True, slots=True)
class Reader:
    """Asks the API for one visitor."""

    endpoints: Endpoints
    pipeline: Pipeline
    principal: Principal
    attribution: Attribution
    headers: Headers
    usage: Usage | None = None
    """What the page's own request found of the rate limit."""

    def allows(self, name: str) -> bool:
        """Return whether the visitor would be let through to an operation. Raises KeyError."""
        endpoint = self.endpoints[name]
        return not endpoint.disabled and may(self.principal.caller, endpoint.permission)

    async def read(self, name: str, /, **values: object) -> Any:
        """Return what a GET of the API answers. Raises ApiError."""
        endpoint = self.endpoints[name]
        if endpoint.method != "GET":
            raise ValueError(f"{name} is not a GET")
        given = {key: value for key, value in values.items() if value is not None}
        try:
            self.pipeline.check_access(endpoint, self.principal, self.headers)
            return await endpoint.handler(
                ApiCall(
                    principal=self.principal,
                    attribution=self.attribution,
                    values=given,
                    usage=self.usage,
                )
            )
        except Exception as raised:  # noqa: BLE001 - a fault is shown as the API would answer it
            raise await self.pipeline.error_for(
                raised, endpoint, self.principal, given, self.attribution
            ) from None

    async def section(self, name: str, /, **values: object) -> Section:
        """Return what a GET of the API answers, or its error, or nothing if it is not for them."""
        if name not in self.endpoints or not self.allows(name):
            return Section()
        try:
            return Section(data=await self.read(name, **values))
        except ApiError as error:
            return Section(error=error)
