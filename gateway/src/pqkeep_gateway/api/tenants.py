"""/api/v1/tenants: the organisations that own keys."""

import uuid
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import partial
from typing import Annotated, Literal

from msgspec import UNSET, Meta, UnsetType, structs

from pqkeep_gateway.access.entitlements import Plan, Subscription, Tier
from pqkeep_gateway.access.principals import (
    AnonymousPrincipal,
    OperatorPrincipal,
    Principal,
    TenantPrincipal,
)
from pqkeep_gateway.access.rate_limit import SIGN_UPS, RateLimiter
from pqkeep_gateway.access.roles import Permission
from pqkeep_gateway.api.fields import E, member
from pqkeep_gateway.http.about import About, Caller, Parameter
from pqkeep_gateway.http.endpoint import ApiCall, Endpoint
from pqkeep_gateway.http.envelope import Data
from pqkeep_gateway.http.errors import ApiError, Code, too_many
from pqkeep_gateway.http.text import Timestamp, timestamp
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

TenantName = Annotated[str, Meta(min_length=1, max_length=MAX_NAME, description="Unique.")]


class TenantData(Data, frozen=True, kw_only=True):
    """One organisation. The operator alone is told its tier, subscription and own rate."""

    id: Annotated[str, Meta(extra_json_schema={"format": "uuid"})]
    name: TenantName
    plan: Plan
    status: TenantStatus
    created_at: Timestamp
    updated_at: Timestamp
    tier: Tier | UnsetType = UNSET
    subscription: Subscription | UnsetType = UNSET
    requests_per_minute: Annotated[
        int | UnsetType | None, Meta(description="null where the plan says it.")
    ] = UNSET


class TenantsData(Data, frozen=True, kw_only=True):
    """Tenants, oldest first."""

    tenants: tuple[TenantData, ...]
    total: Annotated[int, Meta(ge=0, description="How many there are.")]


TENANT = Parameter(
    "tenant_id",
    "The tenant's identifier.",
    {"type": "string", "format": "uuid"},
    "6f1c2c52-52a5-4d0e-9a43-7f4d0c8f8a11",
    codes=(Code.NOT_FOUND_001,),
)
NAME = Parameter(
    "name",
    "Printable characters. No two tenants have the same name.",
    {"type": "string", "minLength": 1, "maxLength": MAX_NAME},
    "Example Corporation",
)
_PLAN = Parameter(
    "plan",
    "The plan.",
    {"type": "string", "enum": list(Plan), "default": Plan.FREE},
    Plan.STARTER,
    required=False,
)
_CHANGES = (
    Parameter(
        "plan",
        "The new plan.",
        {"type": "string", "enum": list(Plan)},
        Plan.STARTER,
        required=False,
    ),
    Parameter(
        "tier",
        "The new commercial tier, instead of a plan.",
        {"type": "string", "enum": list(Tier)},
        Tier.STARTER,
        required=False,
    ),
    Parameter(
        "subscription",
        "Whether the tier is paid for.",
        {"type": "string", "enum": list(Subscription)},
        Subscription.ACTIVE,
        required=False,
    ),
    Parameter(
        "status",
        "Suspend the tenant, or let it go on.",
        {"type": "string", "enum": list(TenantStatus)},
        TenantStatus.ACTIVE,
        required=False,
    ),
    Parameter(
        "requests_per_minute",
        "A rate limit of its own, or the plan's again.",
        {
            "oneOf": [
                {"type": "integer", "minimum": 1, "maximum": MAX_RATE},
                {"const": "plan"},
            ]
        },
        1000,
        required=False,
    ),
)
_EXAMPLE = TenantData(
    id=str(TENANT.example),
    name=str(NAME.example),
    plan=Plan.FREE,
    status=TenantStatus.ACTIVE,
    created_at=timestamp(datetime(2026, 1, 31, 12, tzinfo=UTC)),
    updated_at=timestamp(datetime(2026, 1, 31, 12, tzinfo=UTC)),
)


def endpoints(
    tenants: Tenants, rate_limiter: RateLimiter, *, open_signup: bool
) -> tuple[Endpoint, ...]:
    """Return the endpoints of tenant administration."""

    async def create(call: ApiCall) -> TenantData:
        """Make a tenant. It has no API key yet."""
        name, tier = name_in(call.body), Tier(_plan(call.body))
        try:
            return _tenant(await tenants.create(name, tier, call.attribution, call.idempotency_key))
        except NameTakenError:
            raise ApiError(Code.CONFLICT_001, "a tenant has this name", "name") from None

    async def list_tenants(call: ApiCall) -> TenantsData:
        """List tenants: every one for the operator, its own for an API key."""
        if isinstance(call.principal, TenantPrincipal):
            own = await tenants.get(call.principal.tenant)
            return TenantsData(tenants=(_tenant(own),), total=1)
        listed = await tenants.list()
        return TenantsData(tenants=tuple(_in_full(each) for each in listed), total=len(listed))

    async def get(call: ApiCall) -> TenantData:
        """Look a tenant up."""
        return _tenant(await visible_tenant(call, tenants))

    async def change(call: ApiCall) -> TenantData:
        """Change what is named of a tenant, at once."""
        tenant = await visible_tenant(call, tenants)
        if not isinstance(call.principal, OperatorPrincipal):
            raise ApiError(Code.FORBIDDEN_001, "only the operator changes tenants")
        return _in_full(await tenants.change(tenant.id, _change(call.body), call.attribution))

    return (
        Endpoint(
            "POST",
            "/tenants",
            create,
            201,
            takes_body=True,
            idempotent=True,
            open_to_anyone=open_signup,
            guard=partial(_require_creator, rate_limiter),
            about=About(
                name="create_tenant",
                caller=Caller.OPERATOR,
                parameters=(NAME, _PLAN),
                example=_EXAMPLE,
                codes=frozenset({Code.CONFLICT_001}),
            ),
        ),
        Endpoint(
            "GET",
            "/tenants",
            list_tenants,
            permission=Permission.VIEW,
            about=About(
                name="list_tenants",
                caller=Caller.EITHER,
                example=TenantsData(tenants=(_EXAMPLE,), total=1),
            ),
        ),
        Endpoint(
            "GET",
            "/tenants/{tenant_id}",
            get,
            permission=Permission.VIEW,
            about=About(
                name="get_tenant",
                caller=Caller.EITHER,
                parameters=(TENANT,),
                example=_EXAMPLE,
            ),
        ),
        Endpoint(
            "PATCH",
            "/tenants/{tenant_id}",
            change,
            takes_body=True,
            about=About(
                name="change_tenant",
                caller=Caller.OPERATOR,
                parameters=(TENANT, *_CHANGES),
                example=structs.replace(
                    _EXAMPLE,
                    plan=Plan.STARTER,
                    tier=Tier.STARTER,
                    subscription=Subscription.ACTIVE,
                    requests_per_minute=None,
                ),
                codes=frozenset({Code.UNPROCESSABLE}),
            ),
        ),
    )


async def _require_creator(
    rate_limiter: RateLimiter, principal: Principal, source_address: str
) -> None:
    if isinstance(principal, TenantPrincipal):
        raise ApiError(Code.FORBIDDEN_001, "only the operator creates tenants")
    await count_sign_up(rate_limiter, principal, source_address)


async def count_sign_up(
    rate_limiter: RateLimiter, principal: Principal, source_address: str
) -> None:
    """Count one sign-up of somebody without a credential. Raises ApiError where it is too many."""
    if isinstance(principal, AnonymousPrincipal):
        wait = await rate_limiter.enter(f"sign-up {source_address}", SIGN_UPS)
        if wait is not None:
            raise too_many("too many sign-ups", SIGN_UPS, wait)


async def visible_tenant(call: ApiCall, tenants: Tenants) -> Tenant:
    """Return the tenant in the path; another's is answered like one that does not exist."""
    not_found = ApiError(Code.NOT_FOUND_001, "no such tenant")
    try:
        tenant = TenantId(uuid.UUID(call.path["tenant_id"]))
    except ValueError:
        raise not_found from None
    if isinstance(call.principal, TenantPrincipal) and call.principal.tenant != tenant:
        raise not_found
    try:
        return await tenants.get(tenant)
    except TenantNotFoundError:
        raise not_found from None


def name_in(body: Mapping[str, object], invalid_field: Code = Code.INVALID_001) -> str:
    """Return a tenant's name."""
    name = body.get("name")
    if not (isinstance(name, str) and 1 <= len(name) <= MAX_NAME and name.isprintable()):
        raise ApiError(invalid_field, f"name must be 1 to {MAX_NAME} printable characters", "name")
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


def _tenant(tenant: Tenant) -> TenantData:
    return TenantData(
        id=str(tenant.id),
        name=tenant.name,
        plan=tenant.entitlements.plan,
        status=tenant.status,
        created_at=timestamp(tenant.created_at),
        updated_at=timestamp(tenant.updated_at),
    )


def _in_full(tenant: Tenant) -> TenantData:
    """Return what the operator is told beside."""
    return structs.replace(
        _tenant(tenant),
        tier=tenant.entitlements.tier,
        subscription=tenant.entitlements.subscription,
        requests_per_minute=tenant.entitlements.requests_per_minute,
    )
