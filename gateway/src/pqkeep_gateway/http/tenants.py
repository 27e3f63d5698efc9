"""/api/v1/tenants: tenants and their API keys."""

import uuid
from collections.abc import Mapping
from datetime import UTC, datetime

from pqkeep_gateway.access.principals import (
    AnonymousPrincipal,
    ApiKeyPrincipal,
    Plan,
    Principal,
)
from pqkeep_gateway.access.rate_limit import SIGN_UPS, RateLimiter
from pqkeep_gateway.http.endpoint import ApiCall, Endpoint
from pqkeep_gateway.http.envelope import Data
from pqkeep_gateway.http.errors import ApiError, Code, too_many
from pqkeep_gateway.http.fields import member
from pqkeep_gateway.tenancy.api_keys import ApiKey, ApiKeys, QuotaReachedError
from pqkeep_gateway.tenancy.tenants import (
    MAX_NAME,
    NameTakenError,
    Tenant,
    TenantNotFoundError,
    TenantStatus,
    TenantStore,
)
from pqkeep_protocol.keys import TenantId


def endpoints(
    tenants: TenantStore, api_keys: ApiKeys, limiter: RateLimiter, *, open_signup: bool
) -> tuple[Endpoint, ...]:
    """Return the endpoints of tenant administration."""

    def require_creator(principal: Principal, source_address: str) -> None:
        if isinstance(principal, ApiKeyPrincipal):
            raise ApiError(Code.FORBIDDEN_001, "only the operator creates tenants")
        if isinstance(principal, AnonymousPrincipal):
            seconds = limiter.retry_after(SIGN_UPS, "sign-up", source_address)
            if seconds is not None:
                raise too_many("too many sign-ups", seconds)

    async def create(call: ApiCall) -> Data:
        now = datetime.now(UTC)
        tenant = Tenant(
            id=TenantId(uuid.uuid4()),
            name=_name(call.body),
            plan=_plan(call.body),
            status=TenantStatus.ACTIVE,
            created_at=now,
            updated_at=now,
        )
        try:
            await tenants.add(tenant)
        except NameTakenError:
            raise ApiError(Code.CONFLICT_001, "a tenant has this name", "name") from None
        return _tenant(tenant)

    async def get(call: ApiCall) -> Data:
        return _tenant(await _visible(call, tenants))

    async def create_api_key(call: ApiCall) -> Data:
        tenant = await _visible(call, tenants)
        try:
            made = await api_keys.create(tenant)
        except QuotaReachedError:
            raise ApiError(Code.INVALID_001, "the plan allows no more active API keys") from None
        return {"api_key": made.plaintext, **_api_key(made.metadata)}

    return (
        Endpoint(
            "POST",
            "/tenants",
            create,
            201,
            takes_body=True,
            open_to_anyone=open_signup,
            guard=require_creator,
        ),
        Endpoint("GET", "/tenants/{tenant_id}", get),
        Endpoint("POST", "/tenants/{tenant_id}/api-keys", create_api_key, 201),
    )


async def _visible(call: ApiCall, tenants: TenantStore) -> Tenant:
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


def _tenant(tenant: Tenant) -> Data:
    return {
        "id": str(tenant.id),
        "name": tenant.name,
        "plan": tenant.plan,
        "status": tenant.status,
        "created_at": tenant.created_at,
        "updated_at": tenant.updated_at,
    }


def _api_key(key: ApiKey) -> Data:
    return {
        "key_last4": key.last4,
        "version": key.version,
        "status": key.status,
        "created_at": key.created_at,
    }
