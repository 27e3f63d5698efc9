"""Calls API endpoints for a page, with the visitor's own permissions.

A page therefore shows only what the access table allows its visitor.
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
"""The API's endpoints by name."""


@dataclass(frozen=True, slots=True)
class Section:
    """A part of a page: its data, or an error."""

    data: Any = None
    error: ApiError | None = None


@dataclass(frozen=True, slots=True)
class Reader:
    """Calls the API for one visitor."""

    endpoints: Endpoints
    pipeline: Pipeline
    principal: Principal
    attribution: Attribution
    headers: Headers
    usage: Usage | None = None
    """The rate limit's state after the page's own request."""

    def allows(self, name: str) -> bool:
        """Return whether the visitor may call an operation. Raises KeyError."""
        endpoint = self.endpoints[name]
        return not endpoint.disabled and may(self.principal.caller, endpoint.permission)

    async def read(self, name: str, /, **values: object) -> Any:
        """Return the result of a GET of the API. Raises ApiError."""
        endpoint = self.endpoints[name]
        if endpoint.method != "GET":
            raise ValueError(f"{name} is not a GET")
        parameters = {key: value for key, value in values.items() if value is not None}
        try:
            self.pipeline.check_access(endpoint, self.principal, self.headers)
            return await endpoint.handler(
                ApiCall(
                    principal=self.principal,
                    attribution=self.attribution,
                    values=parameters,
                    usage=self.usage,
                )
            )
        except Exception as raised:  # noqa: BLE001 - the page shows the API's error for a fault
            raise await self.pipeline.error_for(
                raised, endpoint, self.principal, parameters, self.attribution
            ) from None

    async def section(self, name: str, /, **values: object) -> Section:
        """Return the result of a GET, or its error. It is empty if the visitor may not call it."""
        if name not in self.endpoints or not self.allows(name):
            return Section()
        try:
            return Section(data=await self.read(name, **values))
        except ApiError as error:
            return Section(error=error)
