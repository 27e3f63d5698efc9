"""/api/v1/tenants: tenants and their API keys."""

import uuid
from collections.abc import Mapping
from datetime import UTC, datetime

from pqkeep_gateway.access.principals import (
    AnonymousPrincipal,
    ApiKeyPrincipal,
    OperatorPrincipal,
    Plan,
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

    async def create(call: ApiCall) -> Data:
        _require_creator(call, limiter, open_signup=open_signup)
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
        Endpoint("POST", "/tenants", create, 201, takes_body=True, open_to_anyone=True),
        Endpoint("GET", "/tenants/{tenant_id}", get),
        Endpoint("POST", "/tenants/{tenant_id}/api-keys", create_api_key, 201),
    )


def _require_creator(call: ApiCall, limiter: RateLimiter, *, open_signup: bool) -> None:
    match call.principal:
        case OperatorPrincipal():
            return
        case AnonymousPrincipal() if open_signup:
            seconds = limiter.retry_after(SIGN_UPS, "sign-up", call.source_address)
            if seconds is not None:
                raise too_many("too many sign-ups", seconds)
        case AnonymousPrincipal():
            raise ApiError(Code.AUTH_001, "missing or invalid credential")
        case ApiKeyPrincipal():
            raise ApiError(Code.FORBIDDEN_001, "only the operator creates tenants")


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
