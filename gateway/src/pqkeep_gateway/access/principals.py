"""Who is asking."""

from dataclasses import dataclass

from pqkeep_gateway.access.standing import Standing
from pqkeep_protocol.keys import TenantId


@dataclass(frozen=True, slots=True)
class ApiKeyPrincipal:
    """A tenant's program, by the API key it showed."""

    tenant: TenantId
    standing: Standing
    api_key_version: int
    suspended: bool

    def __str__(self) -> str:
        return f"api-key:{self.api_key_version}"


@dataclass(frozen=True, slots=True)
class OperatorPrincipal:
    """Whoever runs the installation. Administers every tenant, and uses no tenant's keys."""

    def __str__(self) -> str:
        return "operator"


@dataclass(frozen=True, slots=True)
class AnonymousPrincipal:
    """Nobody: for the few endpoints that are open to anyone."""

    def __str__(self) -> str:
        return "anonymous"


Principal = ApiKeyPrincipal | OperatorPrincipal | AnonymousPrincipal
