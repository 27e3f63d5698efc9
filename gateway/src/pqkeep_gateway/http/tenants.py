"""/api/v1/tenants: the organisations that own keys."""

import uuid
from collections.abc import Mapping
from functools import partial
from typing import Literal

from pqkeep_gateway.access.principals import (
    AnonymousPrincipal,
    ApiKeyPrincipal,
    OperatorPrincipal,
    Principal,
)
from pqkeep_gateway.access.rate_limit import SIGN_UPS, Windows
from pqkeep_gateway.access.standing import Plan, Subscription, Tier
from pqkeep_gateway.http.endpoint import ApiCall, Endpoint
from pqkeep_gateway.http.envelope import Data
from pqkeep_gateway.http.errors import ApiError, Code, too_many
from pqkeep_gateway.http.fields import E, member
from pqkeep_gateway.tenancy.tenants import (
    MAX_NAME,
    NameTakenError,
    Tenant,
    TenantChange,
    TenantNotFoundError,
    Tenants,
    TenantStatus,
)
from pqkeep_protocol.keys import TenantId

MAX_RATE = 1_000_000
"""Requests a minute that can be granted to one tenant."""


def endpoints(tenants: Tenants, windows: Windows, *, open_signup: bool) -> tuple[Endpoint, ...]:
    """Return the endpoints of tenant administration."""

    async def create(call: ApiCall) -> Data:
        name, tier = _name(call.body), Tier(_plan(call.body))
        try:
            return _tenant(await tenants.create(name, tier, call.idempotency_key))
        except NameTakenError:
            raise ApiError(Code.CONFLICT_001, "a tenant has this name", "name") from None

    async def list_tenants(call: ApiCall) -> Data:
        if isinstance(call.principal, ApiKeyPrincipal):
            own = await tenants.get(call.principal.tenant)
            return {"tenants": (_tenant(own),), "total": 1}
        listed = await tenants.list()
        return {"tenants": tuple(_in_full(each) for each in listed), "total": len(listed)}

    async def get(call: ApiCall) -> Data:
        return _tenant(await visible_tenant(call, tenants))

    async def change(call: ApiCall) -> Data:
        tenant = await visible_tenant(call, tenants)
        if not isinstance(call.principal, OperatorPrincipal):
            raise ApiError(Code.FORBIDDEN_001, "only the operator changes tenants")
        return _in_full(await tenants.change(tenant.id, _change(call.body)))

    return (
        Endpoint(
            "POST",
            "/tenants",
            create,
            201,
            takes_body=True,
            minds_idempotency_key=True,
            open_to_anyone=open_signup,
            guard=partial(_require_creator, windows),
        ),
        Endpoint("GET", "/tenants", list_tenants),
        Endpoint("GET", "/tenants/{tenant_id}", get),
        Endpoint("PATCH", "/tenants/{tenant_id}", change, takes_body=True),
    )


async def _require_creator(windows: Windows, principal: Principal, source_address: str) -> None:
    if isinstance(principal, ApiKeyPrincipal):
        raise ApiError(Code.FORBIDDEN_001, "only the operator creates tenants")
    if isinstance(principal, AnonymousPrincipal):
        wait = await windows.enter(f"sign-up {source_address}", SIGN_UPS)
        if wait is not None:
            raise too_many("too many sign-ups", SIGN_UPS, wait)


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


def _change(body: Mapping[str, object]) -> TenantChange:
    plan = _choice(Plan, body, "plan")
    tier = _choice(Tier, body, "tier")
    subscription = _choice(Subscription, body, "subscription")
    if plan is not None and tier is not None:
        raise ApiError(Code.UNPROCESSABLE, "give plan or tier, not both", "tier")
    if plan is not None:
        tier = Tier(plan)
    if tier is not None and subscription is None:
        subscription = Subscription.ACTIVE
    return TenantChange(
        tier=tier,
        subscription=subscription,
        status=_choice(TenantStatus, body, "status"),
        requests_per_minute=_requests_per_minute(body),
    )


def _requests_per_minute(body: Mapping[str, object]) -> int | Literal["plan"] | None:
    value = body.get("requests_per_minute")
    if value is None:
        return None
    if value == "plan":
        return "plan"
    if isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= MAX_RATE:
        return value
    raise ApiError(
        Code.UNPROCESSABLE,
        f'requests_per_minute must be an integer from 1 to {MAX_RATE}, or "plan"',
        "requests_per_minute",
    )


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
        "plan": tenant.standing.plan,
        "status": tenant.status,
        "created_at": tenant.created_at,
        "updated_at": tenant.updated_at,
    }


def _in_full(tenant: Tenant) -> Data:
    """Return what the operator is told beside."""
    return {
        **_tenant(tenant),
        "tier": tenant.standing.tier,
        "subscription": tenant.standing.subscription,
        "requests_per_minute": tenant.standing.requests_per_minute,
    }
