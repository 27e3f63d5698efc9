"""The issuers and roles by which a tenant's workloads get short-lived API keys.

Listing needs an API key. Changes need the operator's credential, or a session in the portal.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

from pqkeep._call import Call, change, get, in_path
from pqkeep._data import Data
from pqkeep._operation import Operation
from pqkeep.models import Scope, WorkloadIssuer, WorkloadRole
from pqkeep.resources.api_keys import read_scopes, written_scope

T_co = TypeVar("T_co", covariant=True)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Workloads(Generic[T_co]):
    """Issuers and roles by tenant and name."""

    _transport: T_co

    @Operation
    def issuers(self, tenant_id: str) -> Call[tuple[WorkloadIssuer, ...]]:
        """Return a tenant's issuers by name."""
        return get(_path(tenant_id), _issuers)

    @Operation
    def roles(self, tenant_id: str) -> Call[tuple[WorkloadRole, ...]]:
        """Return a tenant's roles by name, with the number of their valid API keys."""
        return get(_path(tenant_id), _roles)

    @Operation
    def put_issuer(
        self,
        tenant_id: str,
        name: str,
        *,
        url: str,
        audience: str,
        algorithms: Iterable[str],
        jwks: str | None = None,
    ) -> Call[WorkloadIssuer]:
        """Add an issuer, or replace the one with this name. The API keys of its workloads end.

        ``jwks`` is a JWK Set as JSON text. Without it the keys are fetched from ``url``.
        """
        body: dict[str, object] = {"url": url, "audience": audience, "algorithms": list(algorithms)}
        if jwks is not None:
            body["jwks"] = jwks
        return change(_path(tenant_id, "issuers", name), _issuer, body, method="PUT")

    @Operation
    def remove_issuer(self, tenant_id: str, name: str) -> Call[None]:
        """Remove an issuer with its roles. The API keys of its workloads end.

        Raises NotFoundError.
        """
        return change(_path(tenant_id, "issuers", name), _nothing, method="DELETE")

    @Operation
    def put_role(
        self,
        tenant_id: str,
        name: str,
        *,
        issuer: str,
        claims: Mapping[str, str | Iterable[str]],
        scopes: Iterable[Scope],
        lifetime_seconds: int | None = None,
        allow_absent_keyrings: bool = False,
    ) -> Call[WorkloadRole]:
        """Add a role, or replace the one with this name. The API keys of its workloads end.

        A claim has one accepted value or several. All claims must fit. A value that ends with ``*``
        accepts every text with this beginning. Raises NotFoundError for an unknown issuer.
        """
        body: dict[str, object] = {
            "issuer": issuer,
            "claims": {
                claim: value if isinstance(value, str) else list(value)
                for claim, value in claims.items()
            },
            "scopes": [written_scope(scope) for scope in scopes],
        }
        if lifetime_seconds is not None:
            body["lifetime_seconds"] = lifetime_seconds
        if allow_absent_keyrings:
            body["allow_absent_keyrings"] = True
        return change(_path(tenant_id, "roles", name), _role, body, method="PUT")

    @Operation
    def remove_role(self, tenant_id: str, name: str) -> Call[None]:
        """Remove a role. The API keys of its workloads end. Raises NotFoundError."""
        return change(_path(tenant_id, "roles", name), _nothing, method="DELETE")


def _path(tenant_id: str, *names: str) -> str:
    return "/".join(("/tenants", in_path(tenant_id), "workloads", *map(in_path, names)))


def _nothing(_: Data) -> None:
    return None


def _issuers(data: Data) -> tuple[WorkloadIssuer, ...]:
    return tuple(map(_issuer, data.objects("issuers")))


def _issuer(data: Data) -> WorkloadIssuer:
    return WorkloadIssuer(
        name=data.text("name"),
        url=data.text("issuer"),
        audience=data.text("audience"),
        algorithms=data.texts_or_none("algorithms") or (),
        jwks=data.text_or_none("jwks"),
        changed_at=data.time("changed_at"),
        changed_by=data.text("changed_by"),
    )


def _roles(data: Data) -> tuple[WorkloadRole, ...]:
    return tuple(map(_role, data.objects("roles")))


def _role(data: Data) -> WorkloadRole:
    claims = data.nested("claims")
    return WorkloadRole(
        name=data.text("name"),
        issuer=data.text("issuer"),
        claims={name: claims.texts_or_none(name) or () for name in claims.names()},
        scopes=read_scopes(data) or (),
        lifetime_seconds=data.integer("lifetime_seconds"),
        valid_keys=data.integer("valid_keys"),
        changed_at=data.time("changed_at"),
        changed_by=data.text("changed_by"),
    )
