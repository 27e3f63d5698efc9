"""/api/v1/tenants/{tenant_id}/api-keys: create, list, rotate and revoke API keys."""

import re
from datetime import UTC, datetime, timedelta
from typing import Annotated

from msgspec import UNSET, Meta, UnsetType, structs

from pqkeep_gateway.access.api_key_limits import BeyondOwnLimitsError
from pqkeep_gateway.access.callers import Permission
from pqkeep_gateway.access.entitlements import TenantNotFoundError
from pqkeep_gateway.access.principals import ApiKeyPrincipal
from pqkeep_gateway.access.scopes import UsableKey
from pqkeep_gateway.api.api_key_fields import (
    ALLOWED_ADDRESSES,
    EXPIRES_AT,
    KEPT_LIMIT_FIELDS,
    LIMIT_FIELDS,
    NAME,
    SCOPES,
    ScopeData,
    limits_in,
    require_keyrings,
    shown_addresses,
    shown_scopes,
    shown_time,
)
from pqkeep_gateway.api.errors import BAD_REQUEST_FIELDS, KEY_SERVICE_OUTAGE
from pqkeep_gateway.api.key_fields import is_keyring_name
from pqkeep_gateway.api.tenants import TENANT, visible_tenant
from pqkeep_gateway.http.endpoint import ApiCall, Endpoint
from pqkeep_gateway.http.envelope import Data
from pqkeep_gateway.http.errors import forbidden
from pqkeep_gateway.http.field import (
    DETAILS,
    OFFSET,
    Field,
    FieldError,
    InvalidValueError,
    Problem,
    integer_field,
    several_field,
    sort_field,
    text_field,
    time_field,
)
from pqkeep_gateway.http.text import Timestamp, timestamp
from pqkeep_gateway.shards import TenantKeyService
from pqkeep_gateway.storage.api_keys import (
    API_KEY_SORTS,
    MAX_LISTED,
    AlreadyRotatedError,
    ApiKey,
    ApiKeyFilter,
    ApiKeyNotFoundError,
    ApiKeyState,
    ApiKeyStatus,
    QuotaReachedError,
    SqlApiKeys,
)
from pqkeep_gateway.storage.pages import Sorted
from pqkeep_gateway.storage.tenants import SqlTenants
from pqkeep_gateway.tenancy.api_keys import ApiKeys, ExpiryPassedError, NewApiKey
from pqkeep_protocol.algorithms import ALGORITHMS, ALIASES, Algorithm
from pqkeep_protocol.keys import TenantId

MAX_VERSION = 10**9 - 1
"""The largest version of an API key."""
MAX_KEY_ID = 32
MAX_WORDS = 8
"""Words of a name that a list compares."""
_VERSION_TEXT = re.compile(r"[1-9][0-9]{0,8}")
"""A version up to MAX_VERSION."""
MAX_OVERLAP = 86_400
"""The longest overlap in seconds. An installation may allow less."""

Last4 = Annotated[str, Meta(min_length=4, max_length=4, description="The last four characters.")]
ApiKeyVersion = Annotated[int, Meta(ge=1, description="Counted from 1 for each tenant.")]


_Name = Annotated[str | UnsetType | None, Meta(description="The owner's name for it.")]
_Scopes = Annotated[
    tuple[ScopeData, ...] | UnsetType | None,
    Meta(description="Its permissions; null: everything that an API key may do."),
]
_ExpiresAt = Annotated[
    Timestamp | UnsetType | None,
    Meta(description="The time from which it is refused; null: it does not expire."),
]
_AllowedAddresses = Annotated[
    tuple[str, ...] | UnsetType | None,
    Meta(description="The networks from which it is accepted; null: all networks."),
]


class NewApiKeyData(Data, frozen=True, kw_only=True):
    """A new API key, shown only once. The last four fields are present if the request has them."""

    api_key: Annotated[str, Meta(description="The API key itself. It is never shown again.")]
    key_last4: Last4
    version: ApiKeyVersion
    status: ApiKeyStatus
    created_at: Timestamp
    name: _Name = UNSET
    scopes: _Scopes = UNSET
    expires_at: _ExpiresAt = UNSET
    allowed_addresses: _AllowedAddresses = UNSET


class ApiKeyData(Data, frozen=True, kw_only=True):
    """The metadata of an API key. Name, scopes, expiry and addresses: with details."""

    key_last4: Last4
    version: ApiKeyVersion
    status: ApiKeyStatus
    created_at: Timestamp
    revoked_at: Annotated[
        Timestamp | None, Meta(description="The time of the revocation; null while it is active.")
    ]
    last_used_at: Annotated[
        Timestamp | UnsetType | None,
        Meta(
            description="With details: the time of the last use; null: never used. Updated within 30 seconds."
        ),
    ] = UNSET
    last_used_from: Annotated[
        str | UnsetType | None,
        Meta(description=("With details: the source address of the last use.")),
    ] = UNSET
    overlap_ends_at: Annotated[
        Timestamp | UnsetType | None,
        Meta(description="With details: the end of a rotated API key's overlap."),
    ] = UNSET
    name: _Name = UNSET
    scopes: _Scopes = UNSET
    expires_at: _ExpiresAt = UNSET
    allowed_addresses: _AllowedAddresses = UNSET


class ApiKeysData(Data, frozen=True, kw_only=True):
    """A tenant's API keys, by version."""

    api_keys: tuple[ApiKeyData, ...]
    total: Annotated[int, Meta(ge=0, description="The number of API keys.")]
    max_overlap_seconds: Annotated[
        int | UnsetType,
        Meta(description=("The longest overlap in seconds, which is also the default.")),
    ] = UNSET


class OwnApiKey(Data, frozen=True, kw_only=True):
    """The API key that sent the request."""

    tenant_id: Annotated[str, Meta(description="Its tenant.", extra_json_schema={"format": "uuid"})]
    version: Annotated[
        int,
        Meta(ge=0, description="0: a short-lived key of a workload, with the role in `name`."),
    ]
    name: Annotated[str | None, Meta(description="The owner's name for it.")]
    scopes: Annotated[
        tuple[ScopeData, ...] | None,
        Meta(description="Its permissions; null: everything that an API key may do."),
    ]
    expires_at: Annotated[
        Timestamp | None,
        Meta(description="The time from which it is refused; null: it does not expire."),
    ]
    allowed_addresses: Annotated[
        tuple[str, ...] | None,
        Meta(description="The networks from which it is accepted; null: all networks."),
    ]
    rotated: Annotated[
        bool, Meta(description="Whether a new API key has replaced it, and its overlap runs.")
    ]


class RotatedApiKey(Data, frozen=True, kw_only=True):
    """A new API key, and the version that it replaces."""

    new_key: NewApiKeyData
    revoked_version: Annotated[
        int | None, Meta(description="The replaced version; null if no API key was active.")
    ]


_VERSION = integer_field(
    "version",
    "The API key's version.",
    1,
    at_least=0,
    at_most=MAX_VERSION,
    not_found="no such API key",
)
_KEY_ID = text_field(
    "key_id",
    "For signed-in people and operators: the version to replace. Left out: the newest active "
    "version. An API key replaces itself and omits it.",
    "1",
    at_most=MAX_KEY_ID,
).optional()
_OVERLAP = integer_field(
    "overlap_seconds",
    "Seconds for which the old API key is still accepted. Left out: the installation's longest"
    " overlap.",
    0,
    at_least=0,
    at_most=MAX_OVERLAP,
).optional()
_DETAILS = DETAILS.described(
    "Whether to include each API key's last use, limits and end of overlap."
)
_TIME = "2026-01-31T12:00:00Z"
_LIST_VERSION = integer_field(
    "version", "Only this version.", 1, at_least=1, at_most=MAX_VERSION
).optional()
_STATES = several_field(
    "status", "Only API keys in these states", tuple(ApiKeyState), ApiKeyState.ACTIVE
).optional()
_WORDS = text_field(
    "name",
    "Only API keys with these words in their name, in any case, or with these last four "
    "characters. Words are separated by spaces.",
    "checkout",
    at_most=128,
).optional()
_SCOPE = text_field(
    "scope",
    "Only API keys with this beginning of an operation, group, keyring or algorithm in their "
    "scopes, or without scopes.",
    "payments.",
    at_most=128,
).optional()
_CREATED_BEFORE = time_field("created_before", "Created before this time.", _TIME).optional()
_CREATED_SINCE = time_field("created_since", "Created at this time or later.", _TIME).optional()
_USED_SINCE = time_field("used_since", "Used at this time or later.", _TIME).optional()
_UNUSED_SINCE = time_field(
    "unused_since", "Without a use at this time or later, or at any time.", _TIME
).optional()


def _usable_key(value: object) -> UsableKey:
    keyring, slash, name = value.rpartition("/") if isinstance(value, str) else ("", "", "")
    algorithm = ALIASES.get(name, name)
    if not slash or not is_keyring_name(keyring) or algorithm not in ALGORITHMS:
        raise InvalidValueError("must be a keyring and an algorithm, such as payments/Kyber768")
    return UsableKey(keyring, Algorithm(algorithm))


_MAY_USE = Field(
    name="may_use",
    description="Only API keys with scopes that allow a use of this key, a keyring and an "
    "algorithm, or without scopes.",
    schema={"type": "string", "pattern": "^[^/]+/[^/]+$"},
    example="payments.cards/Kyber768",
    parse=_usable_key,
).optional()
_EXPIRES_BEFORE = time_field(
    "expires_before", "Active, and expiring before this time.", _TIME
).optional()
_SORT = sort_field(API_KEY_SORTS, "version").described(
    "The order: of `status` with active and new ones first. A leading `-` reverses it. API keys "
    "without a value come last."
)
_LIMIT = integer_field(
    "limit",
    "The most API keys to return. Left out: 1,000, and by version the valid keys and the newest "
    "others.",
    50,
    at_least=1,
    at_most=MAX_LISTED,
).optional()
_LISTING = (
    *(_LIST_VERSION, _STATES, _WORDS, _SCOPE, _CREATED_BEFORE, _CREATED_SINCE, _USED_SINCE),
    *(_UNUSED_SINCE, _EXPIRES_BEFORE, _MAY_USE, _SORT, OFFSET, _LIMIT),
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


def endpoints(
    tenants: SqlTenants, stored: SqlApiKeys, api_keys: ApiKeys, keys: TenantKeyService
) -> tuple[Endpoint, ...]:
    """Return the endpoints of API keys."""
    handlers = _ApiKeys(tenants, stored, api_keys, keys)
    return (
        Endpoint(
            method="GET",
            path="/auth/api-key",
            name="get_own_api_key",
            handler=handlers.get_own,
            permission=Permission.OWN_API_KEY,
            field_codes=BAD_REQUEST_FIELDS,
            example=OwnApiKey(
                tenant_id=str(TENANT.example),
                version=1,
                name="payments-worker",
                scopes=(ScopeData(operations=("use",), keyrings=("payments.*",)),),
                expires_at=None,
                allowed_addresses=None,
                rotated=False,
            ),
        ),
        Endpoint(
            method="POST",
            path="/tenants/{tenant_id}/api-keys",
            name="create_api_key",
            handler=handlers.create,
            permission=Permission.MANAGE_API_KEYS,
            needs_step_up=True,
            fields=(TENANT, *LIMIT_FIELDS),
            field_codes=BAD_REQUEST_FIELDS,
            example=_NEW,
            status=201,
            codes=KEY_SERVICE_OUTAGE,
            idempotent=True,
            answers_secret=True,
            body_optional=True,
            errors=(
                TenantNotFoundError,
                BeyondOwnLimitsError,
                ExpiryPassedError,
                QuotaReachedError,
            ),
        ),
        Endpoint(
            method="GET",
            path="/tenants/{tenant_id}/api-keys",
            name="list_api_keys",
            handler=handlers.list_keys,
            permission=Permission.VIEW_TENANT,
            fields=(TENANT, _DETAILS, *_LISTING),
            field_codes=BAD_REQUEST_FIELDS,
            example=ApiKeysData(api_keys=(_LISTED,), total=1),
            errors=(TenantNotFoundError,),
        ),
        Endpoint(
            method="POST",
            path="/tenants/{tenant_id}/api-keys/rotate",
            name="rotate_api_key",
            handler=handlers.rotate,
            permission=Permission.ROTATE_API_KEYS,
            fields=(TENANT, _KEY_ID, _OVERLAP, *KEPT_LIMIT_FIELDS),
            field_codes=BAD_REQUEST_FIELDS,
            example=RotatedApiKey(new_key=structs.replace(_NEW, version=2), revoked_version=1),
            codes=KEY_SERVICE_OUTAGE,
            idempotent=True,
            answers_secret=True,
            needs_step_up=True,
            body_optional=True,
            errors=(
                TenantNotFoundError,
                BeyondOwnLimitsError,
                ExpiryPassedError,
                ApiKeyNotFoundError,
                AlreadyRotatedError,
            ),
        ),
        Endpoint(
            method="DELETE",
            path="/tenants/{tenant_id}/api-keys/{version}",
            name="revoke_api_key",
            handler=handlers.revoke,
            permission=Permission.MANAGE_API_KEYS,
            needs_step_up=True,
            fields=(TENANT, _VERSION),
            field_codes=BAD_REQUEST_FIELDS,
            example=structs.replace(
                _LISTED, status=ApiKeyStatus.REVOKED, revoked_at=_LISTED.created_at
            ),
            errors=(TenantNotFoundError, ApiKeyNotFoundError),
        ),
    )


class _ApiKeys:
    """The handlers."""

    def __init__(
        self, tenants: SqlTenants, stored: SqlApiKeys, api_keys: ApiKeys, keys: TenantKeyService
    ) -> None:
        self._tenants = tenants
        self._stored = stored
        self._api_keys = api_keys
        self._keys = keys

    async def get_own(self, call: ApiCall) -> OwnApiKey:
        """Return the tenant and the limits of the API key that sends the request.

        Every API key may ask, with any scopes. A signed-in person or an operator gets 403.
        """
        own = call.principal
        if not isinstance(own, ApiKeyPrincipal):
            raise forbidden("only an API key may do this")
        return OwnApiKey(
            tenant_id=str(own.tenant),
            version=own.api_key_version,
            name=own.workload or own.name,
            scopes=shown_scopes(own.limits.scopes),
            expires_at=shown_time(own.limits.expires_at),
            allowed_addresses=shown_addresses(own.limits.addresses),
            rotated=own.is_rotated,
        )

    async def create(self, call: ApiCall) -> NewApiKeyData:
        """Create an API key. The key is shown only once.

        An API key with scopes, an expiry or allowed addresses can create only keys within these
        limits.
        """
        tenant = await visible_tenant(call, self._tenants)
        await require_keyrings(call, tenant.id, self._keys)
        made = await self._api_keys.create(
            tenant,
            call.attribution,
            call.idempotency_key,
            call[NAME],
            limits_in(call),
            within=call.principal.limits,
        )
        return _new_api_key(made, call)

    async def list_keys(self, call: ApiCall) -> ApiKeysData:
        """List a tenant's API keys, without the keys themselves.

        With a limit, it returns one page of the API keys that match every filter. `total` counts
        all matches.
        """
        tenant = await visible_tenant(call, self._tenants)
        if call[_LIMIT] is None and not any(field.name in call.values for field in _LISTING):
            listed = await self._api_keys.list(tenant.id)
            total = await self._stored.count(tenant.id)
        else:
            part = Sorted(call[_SORT], call[OFFSET], call[_LIMIT] or MAX_LISTED)
            page = await self._api_keys.list_sorted(tenant.id, _wanted(call), part)
            listed, total = page.entries, page.total
        if not call[_DETAILS]:
            return ApiKeysData(api_keys=tuple(map(_api_key, listed)), total=total)
        return ApiKeysData(
            api_keys=tuple(map(_in_detail, listed)),
            total=total,
            max_overlap_seconds=self._longest_overlap,
        )

    async def rotate(self, call: ApiCall) -> RotatedApiKey:
        """Replace an API key with a new one. The old one is accepted for a short overlap.

        An API key replaces itself. A signed-in person or an operator names a version, or replaces
        the newest active one. The new key keeps the name and limits of the old one, except for
        those in the request. An API key can narrow its own limits, but not widen them.
        """
        tenant = await visible_tenant(call, self._tenants)
        version = await self._replaced(call, tenant.id)
        await require_keyrings(call, tenant.id, self._keys)
        created, revoked = await self._api_keys.rotate(
            tenant.id,
            version,
            call.attribution,
            call.idempotency_key,
            self._overlap(call),
            call[NAME],
            limits_in(call),
            within=call.principal.limits,
        )
        return RotatedApiKey(new_key=_new_api_key(created, call), revoked_version=revoked)

    async def revoke(self, call: ApiCall) -> ApiKeyData:
        """Revoke an API key immediately. The request may be repeated."""
        tenant = await visible_tenant(call, self._tenants)
        return _api_key(await self._api_keys.revoke(tenant.id, call[_VERSION], call.attribution))

    @property
    def _longest_overlap(self) -> int:
        """Seconds."""
        return self._api_keys.overlap // timedelta(seconds=1)

    def _overlap(self, call: ApiCall) -> timedelta | None:
        """Return the requested overlap, at most the installation's. Raises FieldError."""
        wanted, longest = call[_OVERLAP], self._longest_overlap
        if wanted is None:
            return None
        if wanted > longest:
            raise FieldError(
                _OVERLAP.name, Problem.MALFORMED, f"overlap_seconds must be at most {longest}"
            )
        return timedelta(seconds=wanted)

    async def _replaced(self, call: ApiCall, tenant: TenantId) -> int | None:
        """Return the version to replace; None: the newest active one."""
        own, named = call.principal.api_key_version, call[_KEY_ID]
        if own is not None and named is not None:
            raise FieldError(_KEY_ID.name, Problem.MALFORMED, "an API key replaces only itself")
        if named is None:
            return own
        version = int(named) if _VERSION_TEXT.fullmatch(named) else 0
        if not await self._stored.has(tenant, version):
            raise ApiKeyNotFoundError
        return version


def _wanted(call: ApiCall) -> ApiKeyFilter:
    states = call[_STATES]
    return ApiKeyFilter(
        version=call[_LIST_VERSION],
        states=states or (),
        words=tuple((call[_WORDS] or "").split()[:MAX_WORDS]),
        scope=call[_SCOPE],
        created_before_us=call[_CREATED_BEFORE],
        created_since_us=call[_CREATED_SINCE],
        used_since_us=call[_USED_SINCE],
        unused_since_us=call[_UNUSED_SINCE],
        expires_before_us=call[_EXPIRES_BEFORE],
        may_use=call[_MAY_USE],
    )


def _new_api_key(made: NewApiKey, call: ApiCall) -> NewApiKeyData:
    """Return a new API key, with only those limits that the request has.

    Clients that do not send these fields may not expect them.
    """
    key, limits = made.metadata, made.metadata.limits
    return NewApiKeyData(
        api_key=made.plaintext,
        key_last4=key.last4,
        version=key.version,
        status=key.status,
        created_at=timestamp(key.created_at),
        name=UNSET if call[NAME] is None else key.name,
        scopes=UNSET if call[SCOPES] is None else shown_scopes(limits.scopes),
        expires_at=UNSET if call[EXPIRES_AT] is None else shown_time(limits.expires_at),
        allowed_addresses=(
            UNSET if call[ALLOWED_ADDRESSES] is None else shown_addresses(limits.addresses)
        ),
    )


def _api_key(key: ApiKey) -> ApiKeyData:
    return ApiKeyData(
        key_last4=key.last4,
        version=key.version,
        status=key.status,
        created_at=timestamp(key.created_at),
        revoked_at=shown_time(key.revoked_at),
    )


def _in_detail(key: ApiKey) -> ApiKeyData:
    return structs.replace(
        _api_key(key),
        last_used_at=shown_time(key.last_used_at),
        last_used_from=key.last_used_from,
        overlap_ends_at=shown_time(key.accepted_until),
        name=key.name,
        scopes=shown_scopes(key.limits.scopes),
        expires_at=shown_time(key.limits.expires_at),
        allowed_addresses=shown_addresses(key.limits.addresses),
    )
