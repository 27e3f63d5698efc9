"""/api/v1/tenants: the organisations that own keys."""

from dataclasses import replace
from datetime import UTC, datetime
from typing import Annotated, Literal, cast

from msgspec import UNSET, Meta, UnsetType, structs

from pqkeep_gateway.access.callers import OPERATORS, Credential, Permission
from pqkeep_gateway.access.entitlements import (
    Plan,
    Subscription,
    TenantNotFoundError,
    TenantStatus,
    Tier,
)
from pqkeep_gateway.access.rate_limit import SIGN_UPS
from pqkeep_gateway.api.errors import BAD_REQUEST_FIELDS, UNPROCESSABLE_FIELDS
from pqkeep_gateway.api.key_fields import shard_field
from pqkeep_gateway.http.endpoint import ApiCall, Endpoint
from pqkeep_gateway.http.envelope import Data
from pqkeep_gateway.http.errors import forbidden
from pqkeep_gateway.http.field import (
    LIST_LIMIT,
    OFFSET,
    Field,
    FieldError,
    InvalidValueError,
    Problem,
    choice_field,
    integer_field,
    several_field,
    sort_field,
    text_field,
    time_field,
    uuid_field,
)
from pqkeep_gateway.http.text import Timestamp, timestamp
from pqkeep_gateway.shards import ShardFullError, ShardNotFoundError
from pqkeep_gateway.storage.billing import BilledElsewhereError
from pqkeep_gateway.storage.database import microseconds
from pqkeep_gateway.storage.deletion import NoDeletionError, NotSuspendedError
from pqkeep_gateway.storage.pages import Sorted
from pqkeep_gateway.storage.tenants import (
    MAX_NAME,
    TENANT_SORTS,
    DeletionScheduledError,
    NameTakenError,
    SqlTenants,
    Tenant,
    TenantChange,
    TenantFilter,
    folded_name,
    normalized_name,
)
from pqkeep_gateway.tenancy.deletion import DEFAULT_DAYS, MAX_DAYS, Deletions
from pqkeep_gateway.tenancy.tenants import Tenants
from pqkeep_protocol.keys import TenantId

MAX_RATE = 1_000_000
"""The highest rate limit of one tenant, in requests per minute."""
PLAN_S_RATE: Literal["plan"] = "plan"

TenantName = Annotated[
    str, Meta(min_length=1, max_length=MAX_NAME, description="The tenant's name, which is unique.")
]


class TenantData(Data, frozen=True, kw_only=True):
    """One organisation. Only operators see its tier, subscription and own rate limit."""

    id: Annotated[str, Meta(extra_json_schema={"format": "uuid"})]
    name: TenantName
    plan: Plan
    status: TenantStatus
    created_at: Timestamp
    updated_at: Timestamp
    tier: Tier | UnsetType = UNSET
    subscription: Subscription | UnsetType = UNSET
    requests_per_minute: Annotated[
        int | UnsetType | None,
        Meta(description="The tenant's own rate limit; null: the plan's rate limit applies."),
    ] = UNSET
    deletion_at: Annotated[
        Timestamp | UnsetType,
        Meta(description=("The time of its deletion, in the future or the past.")),
    ] = UNSET


class TenantsData(Data, frozen=True, kw_only=True):
    """Tenants, the oldest first."""

    tenants: tuple[TenantData, ...]
    total: Annotated[int, Meta(ge=0, description="The number of tenants on all pages.")]
    next: Annotated[
        str | UnsetType, Meta(description="Present if there are more: send it as after.")
    ] = UNSET


TENANT = cast(
    "Field[TenantId]",
    uuid_field(
        "tenant_id",
        "The tenant's identifier.",
        "6f1c2c52-52a5-4d0e-9a43-7f4d0c8f8a11",
        not_found="no such tenant",
    ),
)


def _parse_name(value: object) -> str:
    try:
        return normalized_name(value if isinstance(value, str) else "")
    except ValueError:
        message = (
            f"must be 1 to {MAX_NAME} letters, marks, numbers, symbols, punctuation and spaces"
        )
        raise InvalidValueError(message) from None


NAME = Field(
    name="name",
    description="Letters, marks, numbers, punctuation, symbols, joiners and spaces, in NFC. "
    "Unique and case-insensitive.",
    schema={"type": "string", "minLength": 1, "maxLength": MAX_NAME},
    example="Example Corporation",
    parse=_parse_name,
)
_PLAN = choice_field(
    "plan", "The plan. Without a credential only free is allowed.", tuple(Plan), Plan.STARTER
).optional()
_SHARD = shard_field(
    "The shard for its keys. Only for operators. Left out: the shard with the fewest tenants."
).optional()
_AFTER = cast(
    "Field[TenantId | None]",
    uuid_field(
        "after",
        "Only tenants after this one: the value `next` of the previous page.",
        str(TENANT.example),
    ).optional(),
)
_PART_OF_NAME = text_field(
    "name", "Only tenants with this text in their name, case-insensitive.", "Ex", at_most=MAX_NAME
).optional()
_OF_STATUS = several_field(
    "status", "Only tenants in these statuses", tuple(TenantStatus), TenantStatus.ACTIVE
).optional()
_OF_PLAN = several_field("plan", "Only tenants on these plans", tuple(Plan), Plan.FREE).optional()
_TIME = "2026-01-31T12:00:00Z"
_CREATED_BEFORE = time_field("created_before", "Created before this time.", _TIME).optional()
_CREATED_SINCE = time_field("created_since", "Created at this time or later.", _TIME).optional()
_SORT = sort_field(tuple(TENANT_SORTS), "created")
_NEW_PLAN = choice_field("plan", "The new plan.", tuple(Plan), Plan.STARTER).optional()
_NEW_TIER = choice_field(
    "tier", "The new commercial tier, instead of a plan.", tuple(Tier), Tier.STARTER
).optional()
_SUBSCRIPTION = choice_field(
    "subscription",
    "The state of the subscription to the tier.",
    tuple(Subscription),
    Subscription.ACTIVE,
).optional()
_STATUS = choice_field(
    "status",
    "Suspend the tenant, or reactivate it.",
    (TenantStatus.ACTIVE, TenantStatus.SUSPENDED),
    TenantStatus.ACTIVE,
).optional()


def _days(at_least: int) -> Field[int]:
    return integer_field(
        "days", "Days until the deletion.", DEFAULT_DAYS, at_least=at_least, at_most=MAX_DAYS
    ).or_default(DEFAULT_DAYS)


def _parse_rate(value: object) -> int | Literal["plan"]:
    if value == PLAN_S_RATE:
        return PLAN_S_RATE
    if type(value) is int and 1 <= value <= MAX_RATE:
        return value
    raise InvalidValueError(f'must be an integer from 1 to {MAX_RATE}, or "{PLAN_S_RATE}"')


_RATE: Field[int | Literal["plan"] | None] = Field(
    name="requests_per_minute",
    description="The tenant's own rate limit, or plan for the plan's rate limit.",
    schema={
        "oneOf": [
            {"type": "integer", "minimum": 1, "maximum": MAX_RATE},
            {"const": PLAN_S_RATE},
        ]
    },
    example=1000,
    parse=_parse_rate,
    required=False,
)
_EXAMPLE = TenantData(
    id=str(TENANT.example),
    name=str(NAME.example),
    plan=Plan.FREE,
    status=TenantStatus.ACTIVE,
    created_at=timestamp(datetime(2026, 1, 31, 12, tzinfo=UTC)),
    updated_at=timestamp(datetime(2026, 1, 31, 12, tzinfo=UTC)),
)


_SCHEDULED = structs.replace(
    _EXAMPLE,
    status=TenantStatus.SUSPENDED,
    tier=Tier.FREE,
    subscription=Subscription.ACTIVE,
    requests_per_minute=None,
    deletion_at=timestamp(datetime(2026, 2, 7, 12, tzinfo=UTC)),
)


def endpoints(
    tenants: Tenants,
    stored: SqlTenants,
    deletions: Deletions,
    *,
    open_signup: bool,
    default_plan: Plan,
    min_deletion_days: int,
) -> tuple[Endpoint, ...]:
    """Return the endpoints of tenant administration.

    ``default_plan``: for tenants that an operator creates without a plan.
    """
    days = _days(min_deletion_days)
    handlers = _Tenants(tenants, stored, deletions, default_plan, days)
    plan = replace(_PLAN, schema={**_PLAN.schema, "default": default_plan})
    return (
        Endpoint(
            method="POST",
            path="/tenants",
            name="create_tenant",
            handler=handlers.create,
            permission=Permission.SIGN_UP if open_signup else Permission.CREATE_TENANTS,
            address_limit=SIGN_UPS,
            fields=(NAME, plan, _SHARD),
            field_codes=BAD_REQUEST_FIELDS,
            example=_EXAMPLE,
            status=201,
            idempotent=True,
            errors=(NameTakenError, ShardNotFoundError, ShardFullError),
        ),
        Endpoint(
            method="GET",
            path="/tenants",
            name="list_tenants",
            handler=handlers.list_tenants,
            permission=Permission.VIEW_TENANT,
            fields=(
                *(LIST_LIMIT, _AFTER, _PART_OF_NAME, _OF_STATUS, _OF_PLAN),
                *(_CREATED_BEFORE, _CREATED_SINCE, _SORT, OFFSET),
            ),
            field_codes=BAD_REQUEST_FIELDS,
            errors=(TenantNotFoundError,),
            example=TenantsData(tenants=(_EXAMPLE,), total=1),
        ),
        Endpoint(
            method="GET",
            path="/tenants/{tenant_id}",
            name="get_tenant",
            handler=handlers.get,
            permission=Permission.VIEW_TENANT,
            fields=(TENANT,),
            field_codes=BAD_REQUEST_FIELDS,
            example=_EXAMPLE,
            errors=(TenantNotFoundError,),
        ),
        Endpoint(
            method="PATCH",
            path="/tenants/{tenant_id}",
            name="change_tenant",
            handler=handlers.change,
            permission=Permission.MANAGE_TENANTS,
            fields=(TENANT, _NEW_PLAN, _NEW_TIER, _SUBSCRIPTION, _STATUS, _RATE),
            field_codes=UNPROCESSABLE_FIELDS,
            example=structs.replace(
                _EXAMPLE,
                plan=Plan.STARTER,
                tier=Tier.STARTER,
                subscription=Subscription.ACTIVE,
                requests_per_minute=None,
            ),
            errors=(TenantNotFoundError, DeletionScheduledError),
        ),
        Endpoint(
            method="DELETE",
            path="/tenants/{tenant_id}",
            name="delete_tenant",
            handler=handlers.delete,
            permission=Permission.MANAGE_TENANTS,
            fields=(TENANT, days),
            field_codes=UNPROCESSABLE_FIELDS,
            example=_SCHEDULED,
            errors=(TenantNotFoundError, NotSuspendedError, BilledElsewhereError),
        ),
        Endpoint(
            method="DELETE",
            path="/tenants/{tenant_id}/deletion",
            name="cancel_tenant_deletion",
            handler=handlers.cancel_deletion,
            permission=Permission.MANAGE_TENANTS,
            fields=(TENANT,),
            field_codes=UNPROCESSABLE_FIELDS,
            example=structs.replace(_SCHEDULED, deletion_at=UNSET),
            errors=(TenantNotFoundError, NoDeletionError),
        ),
    )


class _Tenants:
    """The handlers."""

    def __init__(
        self,
        tenants: Tenants,
        stored: SqlTenants,
        deletions: Deletions,
        default_plan: Plan,
        days: Field[int],
    ) -> None:
        self._tenants = tenants
        self._stored = stored
        self._deletions = deletions
        self._default_plan = default_plan
        self._days = days

    async def create(self, call: ApiCall) -> TenantData:
        """Create a tenant. It has no API key yet.

        A caller without a credential gets the free plan and cannot choose another.
        """
        is_sign_up = call.principal.caller is Credential.NONE
        plan = call[_PLAN] or (Plan.FREE if is_sign_up else self._default_plan)
        if is_sign_up and plan is not Plan.FREE:
            raise forbidden("a sign-up gets the free plan; only an operator can set another one")
        if call[_SHARD] is not None and call.principal.caller not in OPERATORS:
            raise forbidden("only an operator may send shard")
        tier = Tier(plan)
        created = await self._tenants.create(
            call[NAME], tier, call.attribution, call.idempotency_key, call[_SHARD]
        )
        return _tenant(created)

    async def list_tenants(self, call: ApiCall) -> TenantsData:
        """List tenants: all for an operator, their own for other callers.

        Every filter must match. The page begins at `offset`, or `after` a tenant.
        """
        own = call.principal.tenant
        statuses, plans = call[_OF_STATUS], call[_OF_PLAN]
        only = TenantFilter(
            name=call[_PART_OF_NAME],
            statuses=statuses or (),
            plans=plans or (),
            created_before_us=call[_CREATED_BEFORE],
            created_since_us=call[_CREATED_SINCE],
        )
        if own is not None:
            tenant = await self._stored.get(own)
            found = (_tenant(tenant),) if _is_asked(tenant, only) else ()
            return TenantsData(tenants=found, total=len(found))
        if call[OFFSET] or call[_SORT] != _SORT.default:
            if call[_AFTER] is not None:
                message = "after works only in the order by creation, without offset"
                raise FieldError(_AFTER.name, Problem.MALFORMED, message)
            part = Sorted(call[_SORT], call[OFFSET], call[LIST_LIMIT])
            listed = await self._stored.list_sorted(only, part)
            return TenantsData(tenants=tuple(map(_in_full, listed.entries)), total=listed.total)
        page = await self._stored.list(call[LIST_LIMIT], call[_AFTER], only)
        return TenantsData(
            tenants=tuple(_in_full(tenant) for tenant in page.tenants),
            total=page.total,
            next=str(page.tenants[-1].id) if page.has_more else UNSET,
        )

    async def get(self, call: ApiCall) -> TenantData:
        """Return a tenant. Operators can also see deleted tenants."""
        return _tenant(await _own_or_any(call, self._stored))

    async def change(self, call: ApiCall) -> TenantData:
        """Change the fields that are sent, immediately."""
        tenant = await visible_tenant(call, self._stored)
        return _in_full(await self._tenants.change(tenant.id, _change(call), call.attribution))

    async def delete(self, call: ApiCall) -> TenantData:
        """Schedule the deletion of a suspended tenant. Its keys are then destroyed for ever.

        Its people, API keys and invitations are removed too; its records remain. A repeated request
        returns the scheduled time.
        """
        tenant = await visible_tenant(call, self._stored)
        days = call[self._days]
        return _in_full(await self._deletions.schedule(tenant.id, days, call.attribution))

    async def cancel_deletion(self, call: ApiCall) -> TenantData:
        """Cancel a scheduled deletion that has not begun. The tenant remains suspended."""
        tenant = await visible_tenant(call, self._stored)
        return _in_full(await self._deletions.cancel(tenant.id, call.attribution))


async def visible_tenant(call: ApiCall, tenants: SqlTenants) -> Tenant:
    """Return the tenant in the path.

    Raises TenantNotFoundError for an unknown or deleted tenant, and for another caller's tenant.
    """
    tenant = await _own_or_any(call, tenants)
    if tenant.status is TenantStatus.DELETED:
        raise TenantNotFoundError
    return tenant


async def _own_or_any(call: ApiCall, tenants: SqlTenants) -> Tenant:
    tenant = call[TENANT]
    if call.principal.tenant not in (None, tenant):
        raise TenantNotFoundError
    return await tenants.get(tenant)


def _is_asked(tenant: Tenant, only: TenantFilter) -> bool:
    is_named = only.name is None or folded_name(only.name) in folded_name(tenant.name)
    created_us = microseconds(tenant.created_at)
    is_of_age = (only.created_since_us or 0) <= created_us and (
        only.created_before_us is None or created_us < only.created_before_us
    )
    return (
        is_named
        and is_of_age
        and (not only.statuses or tenant.status in only.statuses)
        and (not only.plans or tenant.entitlements.plan in only.plans)
    )


def _change(call: ApiCall) -> TenantChange:
    plan, tier, subscription = call[_NEW_PLAN], call[_NEW_TIER], call[_SUBSCRIPTION]
    if plan is not None and tier is not None:
        raise FieldError(_NEW_TIER.name, Problem.MALFORMED, "send plan or tier, not both")
    if plan is not None:
        tier = Tier(plan)
    if tier is not None and subscription is None:
        subscription = Subscription.ACTIVE
    return TenantChange(
        tier=tier,
        subscription=subscription,
        status=call[_STATUS],
        requests_per_minute=call[_RATE],
    )


def _tenant(tenant: Tenant) -> TenantData:
    return TenantData(
        id=str(tenant.id),
        name=tenant.name,
        plan=tenant.entitlements.plan,
        status=tenant.status,
        created_at=timestamp(tenant.created_at),
        updated_at=timestamp(tenant.updated_at),
        deletion_at=UNSET if tenant.deletion_at is None else timestamp(tenant.deletion_at),
    )


def _in_full(tenant: Tenant) -> TenantData:
    """Return a tenant with the fields for operators."""
    return structs.replace(
        _tenant(tenant),
        tier=tenant.entitlements.tier,
        subscription=tenant.entitlements.subscription,
        requests_per_minute=tenant.entitlements.requests_per_minute,
    )
