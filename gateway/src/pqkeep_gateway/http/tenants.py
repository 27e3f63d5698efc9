"""/api/v1/tenants: the organisations that own keys."""

import uuid
from collections.abc import Mapping
from functools import partial

from pqkeep_gateway.access.principals import (
    AnonymousPrincipal,
    ApiKeyPrincipal,
    OperatorPrincipal,
    Plan,
    Principal,
)
from pqkeep_gateway.access.rate_limit import SIGN_UPS, RateLimiter
from pqkeep_gateway.http.endpoint import ApiCall, Endpoint
from pqkeep_gateway.http.envelope import Data
from pqkeep_gateway.http.errors import ApiError, Code, too_many
from pqkeep_gateway.http.fields import E, member
from pqkeep_gateway.tenancy.tenants import (
    MAX_NAME,
    NameTakenError,
    Tenant,
    TenantNotFoundError,
    Tenants,
    TenantStatus,
)
from pqkeep_protocol.keys import TenantId


def endpoints(tenants: Tenants, limiter: RateLimiter, *, open_signup: bool) -> tuple[Endpoint, ...]:
    """Return the endpoints of tenant administration."""

    async def create(call: ApiCall) -> Data:
        try:
            return _tenant(await tenants.create(_name(call.body), _plan(call.body)))
        except NameTakenError:
            raise ApiError(Code.CONFLICT_001, "a tenant has this name", "name") from None

    async def list_tenants(call: ApiCall) -> Data:
        if isinstance(call.principal, ApiKeyPrincipal):
            listed: tuple[Tenant, ...] = (await tenants.get(call.principal.tenant),)
        else:
            listed = await tenants.list()
        return {"tenants": tuple(_tenant(tenant) for tenant in listed), "total": len(listed)}

    async def get(call: ApiCall) -> Data:
        return _tenant(await visible_tenant(call, tenants))

    async def change(call: ApiCall) -> Data:
        tenant = await visible_tenant(call, tenants)
        if not isinstance(call.principal, OperatorPrincipal):
            raise ApiError(Code.FORBIDDEN_001, "only the operator changes tenants")
        plan = _choice(Plan, call.body, "plan")
        status = _choice(TenantStatus, call.body, "status")
        return _tenant(await tenants.change(tenant.id, plan=plan, status=status))

    return (
        Endpoint(
            "POST",
            "/tenants",
            create,
            201,
            takes_body=True,
            open_to_anyone=open_signup,
            guard=partial(_require_creator, limiter),
        ),
        Endpoint("GET", "/tenants", list_tenants),
        Endpoint("GET", "/tenants/{tenant_id}", get),
        Endpoint("PATCH", "/tenants/{tenant_id}", change, takes_body=True),
    )


def _require_creator(limiter: RateLimiter, principal: Principal, source_address: str) -> None:
    if isinstance(principal, ApiKeyPrincipal):
        raise ApiError(Code.FORBIDDEN_001, "only the operator creates tenants")
    if isinstance(principal, AnonymousPrincipal):
        seconds = limiter.retry_after(SIGN_UPS, "sign-up", source_address)
        if seconds is not None:
            raise too_many("too many sign-ups", seconds)


async def visible_tenant(call: ApiCall, tenants: Tenants) -> Tenant:
    """Return the tenant in the path; another's is answered like one that does not exist."""
    not_found = ApiError(Code.NOT_FOUND_001, "no such tenant")
    try:
        tenant = TenantId(uuid.UUID(call.path["tenant_id"]))
    except ValueError:
        raise not_found from None
    if isinstance(call.principal, ApiKeyPrincipal) and call.principal.tenant != tenant:
        raise not_found
    try:
        return await tenants.get(tenant)
    except TenantNotFoundError:
        raise not_found from None


def _name(body: Mapping[str, object]) -> str:
    name = body.get("name")
    if not (isinstance(name, str) and 1 <= len(name) <= MAX_NAME and name.isprintable()):
        raise ApiError(
            Code.INVALID_001, f"name must be 1 to {MAX_NAME} printable characters", "name"
        )
    return name


def _plan(body: Mapping[str, object]) -> Plan:
    value = body.get("plan", Plan.FREE)
    plan = member(Plan, value)
    if plan is None:
        raise ApiError(Code.INVALID_001, "plan must be one of " + ", ".join(Plan), "plan")
    return plan


def _choice(kind: type[E], body: Mapping[str, object], name: str) -> E | None:
    value = body.get(name)
    chosen = member(kind, value)
    if chosen is None and value is not None:
        raise ApiError(Code.UNPROCESSABLE, f"{name} must be one of " + ", ".join(kind), name)
    return chosen


def _tenant(tenant: Tenant) -> Data:
    return {
        "id": str(tenant.id),
        "name": tenant.name,
        "plan": tenant.plan,
        "status": tenant.status,
        "created_at": tenant.created_at,
        "updated_at": tenant.updated_at,
    }
