"""/api/v1/billing/limits: a tenant's usage of its plan's limits."""

from enum import StrEnum
from typing import Annotated

from msgspec import Meta

from pqkeep_gateway.access.admission import Admission
from pqkeep_gateway.access.callers import Permission
from pqkeep_gateway.api.errors import KEY_SERVICE_OUTAGE, UNPROCESSABLE_FIELDS
from pqkeep_gateway.http.endpoint import ApiCall, Endpoint
from pqkeep_gateway.http.envelope import Data
from pqkeep_gateway.shards import TenantKeyService
from pqkeep_gateway.tenancy.api_keys import ApiKeys
from pqkeep_gateway.tenancy.plans import Plans, bound
from pqkeep_gateway.tenancy.quota import Quotas
from pqkeep_protocol.keys import KeyStatus
from pqkeep_protocol.messages import ListKeys


class LimitName(StrEnum):
    """The limits of a plan."""

    PQC_KEYS = "pqc_keys"
    API_KEYS = "api_keys"
    REQUESTS_PER_MINUTE = "requests_per_minute"
    OPERATIONS_PER_MONTH = "operations_per_month"


class LimitData(Data, frozen=True, kw_only=True):
    """One limit."""

    name: LimitName
    used: Annotated[
        int | None,
        Meta(
            description="Active keys and API keys, requests in the last 60 seconds, operations"
            " in this calendar month (UTC); null if nothing is counted."
        ),
    ]
    limit: Annotated[int | None, Meta(description="The limit; null: unlimited.")]


class LimitsData(Data, frozen=True, kw_only=True):
    """The limits of the plan in force."""

    limits: tuple[LimitData, ...]


_EXAMPLE = LimitsData(
    limits=(
        LimitData(name=LimitName.PQC_KEYS, used=1, limit=2),
        LimitData(name=LimitName.API_KEYS, used=1, limit=2),
        LimitData(name=LimitName.REQUESTS_PER_MINUTE, used=3, limit=100),
        LimitData(name=LimitName.OPERATIONS_PER_MONTH, used=17, limit=1000),
    )
)


def endpoints(
    keys: TenantKeyService,
    api_keys: ApiKeys,
    plans: Plans,
    quotas: Quotas,
    admission: Admission,
) -> tuple[Endpoint, ...]:
    """Return the endpoint of limits."""
    return (
        Endpoint(
            method="GET",
            path="/billing/limits",
            name="get_limits",
            handler=_Limits(keys, api_keys, plans, quotas, admission).get,
            permission=Permission.VIEW_SUBSCRIPTION,
            field_codes=UNPROCESSABLE_FIELDS,
            example=_EXAMPLE,
            codes=KEY_SERVICE_OUTAGE,
        ),
    )


class _Limits:
    """The handler."""

    def __init__(
        self,
        keys: TenantKeyService,
        api_keys: ApiKeys,
        plans: Plans,
        quotas: Quotas,
        admission: Admission,
    ) -> None:
        self._keys = keys
        self._api_keys = api_keys
        self._plans = plans
        self._quotas = quotas
        self._admission = admission

    async def get(self, call: ApiCall) -> LimitsData:
        """Return the tenant's usage of each limit of its plan."""
        tenant, entitlements = call.tenant.tenant, call.tenant.entitlements
        terms = self._plans[entitlements.effective_tier]
        active = ListKeys(
            tenant=tenant,
            algorithm=None,
            status=KeyStatus.ACTIVE,
            limit=1,
            all_keyrings=True,
            legacy=True,  # the quota counts them
        )
        found = await self._keys.execute(active, call.attribution, call.tenant.placement)
        api_keys = await self._api_keys.count_valid(tenant)
        rate = self._admission.limit_of(entitlements)
        operations = await self._quotas.used(tenant, entitlements)
        limits = {
            LimitName.PQC_KEYS: (found.total, bound(terms.pqc_keys)),
            LimitName.API_KEYS: (api_keys, terms.api_keys),
            LimitName.REQUESTS_PER_MINUTE: (
                None if call.usage is None else call.usage.limit.events - call.usage.remaining,
                rate.events,
            ),
            LimitName.OPERATIONS_PER_MONTH: operations or (None, None),
        }
        return LimitsData(
            limits=tuple(
                LimitData(name=name, used=used, limit=limit)
                for name, (used, limit) in limits.items()
            )
        )
