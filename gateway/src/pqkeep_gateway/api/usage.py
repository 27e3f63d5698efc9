"""/api/v1/usage: key operations by hour or day, and the tenant's limits."""

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from enum import StrEnum
from itertools import chain
from typing import Annotated, NamedTuple, cast

from msgspec import Meta

from pqkeep_gateway.access.admission import Admission
from pqkeep_gateway.access.callers import Permission
from pqkeep_gateway.access.clock import Clock
from pqkeep_gateway.access.entitlements import Entitlements, TenantNotFoundError
from pqkeep_gateway.api.errors import KEY_SERVICE_OUTAGE, UNPROCESSABLE_FIELDS
from pqkeep_gateway.api.tenants import TENANT
from pqkeep_gateway.http.endpoint import ApiCall, Endpoint
from pqkeep_gateway.http.envelope import Data
from pqkeep_gateway.http.field import Field, choice_field, uuid_field
from pqkeep_gateway.http.text import Timestamp, timestamp
from pqkeep_gateway.shards import Placement, Shards, TenantKeyService
from pqkeep_gateway.storage.tenants import SqlTenants
from pqkeep_gateway.tenancy.quota import Quotas
from pqkeep_protocol.algorithms import Operation
from pqkeep_protocol.audit import REFUSED, CountOperations
from pqkeep_protocol.keys import INSTALLATION, TenantId
from pqkeep_protocol.messages import Attribution

_ATTRIBUTION = Attribution("", "gateway", "")
_HOUR_SECONDS = 3600


class Period(StrEnum):
    """The reporting period."""

    DAY = "24h"
    MONTH = "30d"


class _Buckets(NamedTuple):
    hours: int
    number: int


_BUCKETS = {Period.DAY: _Buckets(hours=1, number=24), Period.MONTH: _Buckets(hours=24, number=30)}


class UsageBucketData(Data, frozen=True, kw_only=True):
    """One hour or one day (UTC). The newest one is incomplete."""

    start: Timestamp
    operations: Annotated[
        dict[Operation, int],
        Meta(description="Successful operations by name, without zeros."),
    ]
    succeeded: Annotated[int, Meta(ge=0, description="The sum of all operations.")]
    refused: Annotated[
        int, Meta(ge=0, description="Records with a refusal as outcome, of any request.")
    ]


class BusyApiKeyData(Data, frozen=True, kw_only=True):
    """An API key that sent requests."""

    version: Annotated[
        int, Meta(ge=0, description="0: all workloads with the role that `name` names.")
    ]
    name: str | None
    requests: Annotated[int, Meta(ge=1)]


class UsageData(Data, frozen=True, kw_only=True):
    """Usage, and the limits of the tenant. Without a tenant there are no limits."""

    period: Period
    buckets: Annotated[
        tuple[UsageBucketData, ...], Meta(description="24 hours or 30 days, the oldest first.")
    ]
    total: Annotated[int, Meta(ge=0, description="Successful operations in all buckets.")]
    operations_used: Annotated[
        int | None,
        Meta(description="The operations of this calendar month (UTC); null without a quota."),
    ]
    operations_per_month: Annotated[
        int | None, Meta(description="The monthly quota; null: unlimited.")
    ]
    requests_per_minute: Annotated[int | None, Meta(description="The rate limit.")]
    busiest_api_keys: Annotated[
        tuple[BusyApiKeyData, ...],
        Meta(
            description="At most five API keys with the most requests to this gateway, in this"
            " minute and the previous one. Refused requests count."
        ),
    ] = ()


_PERIOD = choice_field(
    "period", "24 hours, by the hour, or 30 days, by the day.", tuple(Period), Period.DAY
).or_default(Period.DAY)
_TENANT = cast(
    "Field[TenantId | None]",
    uuid_field(
        TENANT.name,
        "The tenant. Only for operators; left out: all tenants. Other callers have one tenant.",
        str(TENANT.example),
    ).optional(),
)
_EXAMPLE = UsageData(
    period=Period.DAY,
    buckets=(
        UsageBucketData(
            start=timestamp(datetime(2026, 1, 31, 12, tzinfo=UTC)),
            operations={Operation.ENCRYPT: 12, Operation.DECRYPT: 5},
            succeeded=17,
            refused=1,
        ),
    ),
    total=17,
    operations_used=17,
    operations_per_month=1000,
    requests_per_minute=100,
    busiest_api_keys=(BusyApiKeyData(version=3, name="ci", requests=4120),),
)


def endpoints(
    shards: Shards, tenants: SqlTenants, quotas: Quotas, admission: Admission, clock: Clock
) -> tuple[Endpoint, ...]:
    """Return the endpoint of usage."""
    return (
        Endpoint(
            method="GET",
            path="/usage",
            name="get_usage",
            handler=_Usage(shards, tenants, quotas, admission, clock).get,
            permission=Permission.VIEW_TENANT,
            fields=(_PERIOD, _TENANT),
            field_codes=UNPROCESSABLE_FIELDS,
            example=_EXAMPLE,
            errors=(TenantNotFoundError,),
            codes=KEY_SERVICE_OUTAGE,
        ),
    )


class _Usage:
    """The handler."""

    def __init__(
        self,
        shards: Shards,
        tenants: SqlTenants,
        quotas: Quotas,
        admission: Admission,
        clock: Clock,
    ) -> None:
        self._shards = shards
        self._tenants = tenants
        self._quotas = quotas
        self._admission = admission
        self._clock = clock

    async def get(self, call: ApiCall) -> UsageData:
        """Return successful operations and refusals over time, and the limits.

        For the caller's tenant; operators can choose any tenant or all.
        """
        period = call[_PERIOD]
        tenant, entitlements = await self._asked(call)
        placement = call.principal.placement if tenant == call.principal.tenant else None
        buckets = await self._buckets(tenant, placement, _BUCKETS[period])
        used = rate = None
        if entitlements is not None:
            used = await self._quotas.used(tenant, entitlements)
            rate = self._admission.limit_of(entitlements).events
        operations_used, operations_per_month = used or (None, None)
        return UsageData(
            period=period,
            buckets=buckets,
            total=sum(bucket.succeeded for bucket in buckets),
            operations_used=operations_used,
            operations_per_month=operations_per_month,
            requests_per_minute=rate,
            busiest_api_keys=tuple(
                BusyApiKeyData(version=version, name=name, requests=requests)
                for version, name, requests in self._admission.busiest(tenant)
            ),
        )

    async def _asked(self, call: ApiCall) -> tuple[TenantId, Entitlements | None]:
        """Return the requested tenant; INSTALLATION, without limits, means all tenants."""
        named = call[_TENANT]
        if call.principal.tenant is not None:
            if named not in (None, call.principal.tenant):
                raise TenantNotFoundError
            return call.principal.tenant, call.tenant.entitlements
        if named is None:
            return INSTALLATION, None
        tenant = await self._tenants.get(named)
        return tenant.id, tenant.entitlements

    async def _buckets(
        self, tenant: TenantId, placement: Placement | None, buckets: _Buckets
    ) -> tuple[UsageBucketData, ...]:
        newest = int(self._clock()) // _HOUR_SECONDS // buckets.hours * buckets.hours
        first = newest - (buckets.number - 1) * buckets.hours
        request = CountOperations(tenant=tenant, since_hour=first, hours=buckets.hours)
        keys: Sequence[TenantKeyService] = (
            self._shards.all if tenant == INSTALLATION else [self._shards]
        )
        found = await asyncio.gather(
            *(key.execute(request, _ATTRIBUTION, placement) for key in keys)
        )
        counts: Counter[tuple[int, str]] = Counter()
        for count in chain.from_iterable(counted.counts for counted in found):
            counts[count.hour, count.operation] += count.count
        return tuple(_bucket(start, counts) for start in range(first, newest + 1, buckets.hours))


def _bucket(hour: int, counts: Mapping[tuple[int, str], int]) -> UsageBucketData:
    operations = {
        operation: counts[hour, operation] for operation in Operation if (hour, operation) in counts
    }
    return UsageBucketData(
        start=timestamp(datetime.fromtimestamp(hour * _HOUR_SECONDS, UTC)),
        operations=operations,
        succeeded=sum(operations.values()),
        refused=counts.get((hour, REFUSED), 0),
    )
