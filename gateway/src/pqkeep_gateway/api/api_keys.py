"""/api/v1/tenants/{tenant_id}/api-keys: made, listed, rotated, revoked."""

from datetime import UTC, datetime
from typing import Annotated

from msgspec import Meta, structs

from pqkeep_gateway.access.principals import ApiKeyPrincipal, SessionPrincipal
from pqkeep_gateway.access.roles import Permission
from pqkeep_gateway.api.tenants import TENANT, visible_tenant
from pqkeep_gateway.http.about import About, Caller, Parameter
from pqkeep_gateway.http.endpoint import ApiCall, Endpoint
from pqkeep_gateway.http.envelope import Data
from pqkeep_gateway.http.errors import ApiError, Code
from pqkeep_gateway.http.text import Timestamp, timestamp
from pqkeep_gateway.tenancy.api_keys import (
    AlreadyRotatedError,
    ApiKey,
    ApiKeyNotFoundError,
    ApiKeys,
    ApiKeyStatus,
    NewApiKey,
    QuotaReachedError,
)
from pqkeep_gateway.tenancy.tenants import Tenants
from pqkeep_protocol.keys import TenantId

MAX_DIGITS = 9
"""Digits of the largest version anyone will reach."""


Last4 = Annotated[str, Meta(min_length=4, max_length=4, description="The last characters of it.")]
ApiKeyVersion = Annotated[int, Meta(ge=1, description="Counted from 1 for each tenant.")]


class NewApiKeyData(Data, frozen=True, kw_only=True):
    """An API key, shown this once."""

    api_key: Annotated[str, Meta(description="The API key itself. It is never shown again.")]
    key_last4: Last4
    version: ApiKeyVersion
    status: ApiKeyStatus
    created_at: Timestamp


class ApiKeyData(Data, frozen=True, kw_only=True):
    """What can be told of an API key."""

    key_last4: Last4
    version: ApiKeyVersion
    status: ApiKeyStatus
    created_at: Timestamp
    revoked_at: Annotated[Timestamp | None, Meta(description="null while it is active.")]


class ApiKeysData(Data, frozen=True, kw_only=True):
    """A tenant's API keys, by version."""

    api_keys: tuple[ApiKeyData, ...]
    total: Annotated[int, Meta(ge=0, description="How many there are.")]


class RotatedApiKey(Data, frozen=True, kw_only=True):
    """A new API key, and the one whose place it takes."""

    new_key: NewApiKeyData
    revoked_version: Annotated[
        int | None, Meta(description="The version that is revoked now; null where none was active.")
    ]


_VERSION = Parameter(
    "version",
    "The API key's version.",
    {"type": "integer", "minimum": 0, "maximum": 10**MAX_DIGITS - 1},
    1,
    codes=(Code.NOT_FOUND_001,),
)
_KEY_ID = Parameter(
    "key_id",
    "From a signed-in person only: the version to replace. Left out: the newest active one.",
    {"type": "string"},
    "1",
    required=False,
    codes=(Code.NOT_FOUND_001,),
)
_NEW = NewApiKeyData(
    api_key="pqk_" + "0" * 43 + "3aXb2c",
    key_last4="Xb2c",
    version=1,
    status=ApiKeyStatus.ACTIVE,
    created_at=timestamp(datetime(2026, 1, 31, 12, tzinfo=UTC)),
)
_LISTED = ApiKeyData(
    key_last4=_NEW.key_last4,
    version=_NEW.version,
    status=ApiKeyStatus.ACTIVE,
    created_at=_NEW.created_at,
    revoked_at=None,
)


def endpoints(tenants: Tenants, api_keys: ApiKeys) -> tuple[Endpoint, ...]:
    """Return the endpoints of API keys."""

    async def create(call: ApiCall) -> NewApiKeyData:
        """Make one more API key. It is shown this once."""
        tenant = await visible_tenant(call, tenants)
        try:
            made = await api_keys.create(tenant, call.attribution, call.idempotency_key)
        except QuotaReachedError:
            raise ApiError(Code.INVALID_001, "the plan allows no more active API keys") from None
        return _new_api_key(made)

    async def list_(call: ApiCall) -> ApiKeysData:
        """List a tenant's API keys, by version, without the keys themselves."""
        listed = await api_keys.list((await visible_tenant(call, tenants)).id)
        return ApiKeysData(api_keys=tuple(_api_key(key) for key in listed), total=len(listed))

    async def rotate(call: ApiCall) -> RotatedApiKey:
        """Put a new API key in the place of an old one, which is accepted for a short while longer.

        With an API key, of that one; a signed-in person names one; otherwise the newest active one.
        """
        tenant = await visible_tenant(call, tenants)
        version = await _replaced(call, api_keys, tenant.id)
        try:
            made, revoked = await api_keys.rotate(
                tenant.id, version, call.attribution, call.idempotency_key
            )
        except AlreadyRotatedError:
            raise ApiError(
                Code.CONFLICT_001, "another API key has taken this one's place"
            ) from None
        return RotatedApiKey(new_key=_new_api_key(made), revoked_version=revoked)

    async def revoke(call: ApiCall) -> ApiKeyData:
        """Accept an API key no longer, from now on. It may be done again."""
        tenant = await visible_tenant(call, tenants)
        try:
            revoked = await api_keys.revoke(tenant.id, _api_key_version(call), call.attribution)
        except ApiKeyNotFoundError:
            raise ApiError(Code.NOT_FOUND_001, "no such API key", "version") from None
        return _api_key(revoked)

    return (
        Endpoint(
            "POST",
            "/tenants/{tenant_id}/api-keys",
            create,
            201,
            permission=Permission.API_KEYS,
            idempotent=True,
            about=About(
                name="create_api_key", caller=Caller.EITHER, parameters=(TENANT,), example=_NEW
            ),
        ),
        Endpoint(
            "GET",
            "/tenants/{tenant_id}/api-keys",
            list_,
            permission=Permission.VIEW,
            about=About(
                name="list_api_keys",
                caller=Caller.EITHER,
                parameters=(TENANT,),
                example=ApiKeysData(api_keys=(_LISTED,), total=1),
            ),
        ),
        Endpoint(
            "POST",
            "/tenants/{tenant_id}/api-keys/rotate",
            rotate,
            takes_body=True,
            is_body_of_people=True,
            needs_step_up=True,
            permission=Permission.API_KEYS,
            idempotent=True,
            about=About(
                name="rotate_api_key",
                caller=Caller.EITHER,
                parameters=(TENANT, _KEY_ID),
                example=RotatedApiKey(new_key=structs.replace(_NEW, version=2), revoked_version=1),
                codes=frozenset({Code.CONFLICT_001}),
            ),
        ),
        Endpoint(
            "DELETE",
            "/tenants/{tenant_id}/api-keys/{version}",
            revoke,
            permission=Permission.API_KEYS,
            about=About(
                name="revoke_api_key",
                caller=Caller.EITHER,
                parameters=(TENANT, _VERSION),
                example=structs.replace(
                    _LISTED, status=ApiKeyStatus.REVOKED, revoked_at=_LISTED.created_at
                ),
            ),
        ),
    )


async def _replaced(call: ApiCall, api_keys: ApiKeys, tenant: TenantId) -> int | None:
    """Return the version that a caller wants replaced; None: the newest active one."""
    if isinstance(call.principal, ApiKeyPrincipal):
        return call.principal.api_key_version
    named = call.body.get("key_id")
    if named is None or not isinstance(call.principal, SessionPrincipal):
        return None
    listed = await api_keys.list(tenant)
    version = next((each.version for each in listed if str(each.version) == str(named)), None)
    if version is None:
        raise ApiError(Code.NOT_FOUND_001, "no such API key", "key_id")
    return version


def _api_key_version(call: ApiCall) -> int:
    text = call.path["version"]
    if not (text.isascii() and text.isdigit() and len(text) <= MAX_DIGITS):
        raise ApiError(Code.NOT_FOUND_001, "no such API key", "version")
    return int(text)


def _new_api_key(made: NewApiKey) -> NewApiKeyData:
    key = made.metadata
    return NewApiKeyData(
        api_key=made.plaintext,
        key_last4=key.last4,
        version=key.version,
        status=key.status,
        created_at=timestamp(key.created_at),
    )


def _api_key(key: ApiKey) -> ApiKeyData:
    return ApiKeyData(
        key_last4=key.last4,
        version=key.version,
        status=key.status,
        created_at=timestamp(key.created_at),
        revoked_at=None if key.revoked_at is None else timestamp(key.revoked_at),
    )
