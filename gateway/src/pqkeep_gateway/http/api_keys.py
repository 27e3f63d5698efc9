"""/api/v1/tenants/{tenant_id}/api-keys: made, listed, rotated, revoked."""

from pqkeep_gateway.access.principals import ApiKeyPrincipal
from pqkeep_gateway.http.endpoint import ApiCall, Endpoint
from pqkeep_gateway.http.envelope import Data
from pqkeep_gateway.http.errors import ApiError, Code
from pqkeep_gateway.http.tenants import visible_tenant
from pqkeep_gateway.tenancy.api_keys import (
    AlreadyRotatedError,
    ApiKey,
    ApiKeyNotFoundError,
    ApiKeys,
    NewApiKey,
    QuotaReachedError,
)
from pqkeep_gateway.tenancy.tenants import Tenants

MAX_DIGITS = 9
"""Digits of the largest version anyone will reach."""


def endpoints(tenants: Tenants, api_keys: ApiKeys) -> tuple[Endpoint, ...]:
    """Return the endpoints of API keys."""

    async def create(call: ApiCall) -> Data:
        tenant = await visible_tenant(call, tenants)
        try:
            made = await api_keys.create(tenant, call.idempotency_key)
        except QuotaReachedError:
            raise ApiError(Code.INVALID_001, "the plan allows no more active API keys") from None
        return _new_api_key(made)

    async def list_(call: ApiCall) -> Data:
        listed = await api_keys.list((await visible_tenant(call, tenants)).id)
        return {
            "api_keys": tuple({**_api_key(key), "revoked_at": key.revoked_at} for key in listed),
            "total": len(listed),
        }

    async def rotate(call: ApiCall) -> Data:
        tenant = await visible_tenant(call, tenants)
        caller = call.principal
        version = caller.api_key_version if isinstance(caller, ApiKeyPrincipal) else None
        try:
            made, revoked = await api_keys.rotate(tenant.id, version, call.idempotency_key)
        except AlreadyRotatedError:
            raise ApiError(
                Code.CONFLICT_001, "another API key has taken this one's place"
            ) from None
        return {"new_key": _new_api_key(made), "revoked_version": revoked}

    async def revoke(call: ApiCall) -> Data:
        tenant = await visible_tenant(call, tenants)
        try:
            revoked = await api_keys.revoke(tenant.id, _api_key_version(call))
        except ApiKeyNotFoundError:
            raise ApiError(Code.NOT_FOUND_001, "no such API key", "version") from None
        return {**_api_key(revoked), "revoked_at": revoked.revoked_at}

    return (
        Endpoint("POST", "/tenants/{tenant_id}/api-keys", create, 201, minds_idempotency_key=True),
        Endpoint("GET", "/tenants/{tenant_id}/api-keys", list_),
        Endpoint(
            "POST", "/tenants/{tenant_id}/api-keys/rotate", rotate, minds_idempotency_key=True
        ),
        Endpoint("DELETE", "/tenants/{tenant_id}/api-keys/{version}", revoke),
    )


def _api_key_version(call: ApiCall) -> int:
    text = call.path["version"]
    if not (text.isascii() and text.isdigit() and len(text) <= MAX_DIGITS):
        raise ApiError(Code.NOT_FOUND_001, "no such API key", "version")
    return int(text)


def _new_api_key(made: NewApiKey) -> Data:
    return {"api_key": made.plaintext, **_api_key(made.metadata)}


def _api_key(key: ApiKey) -> Data:
    return {
        "key_last4": key.last4,
        "version": key.version,
        "status": key.status,
        "created_at": key.created_at,
    }
