"""Tenants: the organisations that own keys.

Creating and changing them needs the operator's credential.

Usage counts the operations of one tenant, or of all tenants, in a period.
"""

from dataclasses import dataclass
from typing import Generic, Literal, TypeVar

from pqkeep._call import Call, Page, Pages, change, get, in_path
from pqkeep._data import Data
from pqkeep._operation import Operation, WholeListing
from pqkeep.models import BusyApiKey, ListPage, Tenant, Usage, UsageBucket

T_co = TypeVar("T_co", covariant=True)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Tenants(Generic[T_co]):
    """Tenants. An API key sees only its own tenant."""

    _transport: T_co

    @Operation
    def create(
        self, name: str, *, plan: str | None = None, shard: str | None = None
    ) -> Call[Tenant]:
        """Create a tenant, by default on the plan ``free``. It has no API key yet.

        By default, the shard with the fewest tenants takes it. The operator can name another.
        """
        return change("/tenants", _tenant, {"name": name, "plan": plan, "shard": shard})

    @Operation
    def get(self, tenant_id: str) -> Call[Tenant]:
        """Return a tenant."""
        return get(_path(tenant_id), _tenant)

    @WholeListing
    def list(self, *, name: str | None = None, status: str | None = None) -> Pages[Tenant]:
        """Return tenants, the oldest first, optionally with a text in their name or in one status.

        An API key gets only its own tenant.
        """
        return lambda place: get(
            "/tenants", _tenants, {"name": name, "status": status, "after": place}
        )

    @Operation
    def list_page(
        self,
        *,
        limit: int | None = None,
        after: int | str | None = None,
        name: str | None = None,
        status: str | None = None,
    ) -> Call[ListPage[Tenant]]:
        """Return a part of the list: at most ``limit`` items after a position from an earlier part."""
        query = {"name": name, "status": status, "limit": limit, "after": after}
        return get("/tenants", _part, query)

    @Operation
    def update(
        self,
        tenant_id: str,
        *,
        plan: str | None = None,
        tier: str | None = None,
        subscription: str | None = None,
        status: str | None = None,
        requests_per_minute: int | Literal["plan"] | None = None,
    ) -> Call[Tenant]:
        """Change the named fields at once: plan or tier, not both.

        ``requests_per_minute`` is 1 to 1,000,000, or ``plan`` for the plan's value.
        """
        body = {
            "plan": plan,
            "tier": tier,
            "subscription": subscription,
            "status": status,
            "requests_per_minute": requests_per_minute,
        }
        return change(_path(tenant_id), _tenant, body, method="PATCH")

    @Operation
    def suspend(self, tenant_id: str) -> Call[Tenant]:
        """Suspend a tenant: all its requests are refused from now on."""
        return change(_path(tenant_id), _tenant, {"status": "suspended"}, method="PATCH")

    @Operation
    def resume(self, tenant_id: str) -> Call[Tenant]:
        """Accept the requests of a suspended tenant again."""
        return change(_path(tenant_id), _tenant, {"status": "active"}, method="PATCH")

    @Operation
    def delete(self, tenant_id: str, *, days: int | None = None) -> Call[Tenant]:
        """Schedule the deletion of a suspended tenant in 1 to 90 days, by default 7.

        Its keys are then destroyed. An earlier schedule is not changed.
        """
        return change(_path(tenant_id), _tenant, method="DELETE", query={"days": days})

    @Operation
    def cancel_deletion(self, tenant_id: str) -> Call[Tenant]:
        """Cancel the scheduled deletion of a tenant. It stays suspended."""
        return change(f"{_path(tenant_id)}/deletion", _tenant, method="DELETE")


def _path(tenant_id: str) -> str:
    return f"/tenants/{in_path(tenant_id)}"


def _tenants(data: Data) -> Page[Tenant]:
    return Page(items=tuple(map(_tenant, data.objects("tenants"))), next=data.text_or_none("next"))


def _part(data: Data) -> ListPage[Tenant]:
    page = _tenants(data)
    return ListPage(items=page.items, next=page.next)


def _tenant(data: Data) -> Tenant:
    return Tenant(
        id=data.text("id"),
        name=data.text("name"),
        plan=data.text("plan"),
        status=data.text("status"),
        created_at=data.time("created_at"),
        updated_at=data.time("updated_at"),
        tier=data.text_or_none("tier"),
        subscription=data.text_or_none("subscription"),
        requests_per_minute=data.integer_or_none("requests_per_minute"),
        deletion_at=data.time_or_none("deletion_at"),
    )


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class UsageCounts(Generic[T_co]):
    """The number of operations, from the audit log."""

    _transport: T_co

    @Operation
    def get(self, *, period: str | None = None, tenant_id: str | None = None) -> Call[Usage]:
        """Return the usage of 24 hours by the hour, or of ``30d`` by the day.

        It is the usage of your tenant; for the operator, of a named tenant or of all tenants.
        """
        return get("/usage", _usage, {"period": period, "tenant_id": tenant_id})


def _usage(data: Data) -> Usage:
    return Usage(
        period=data.text("period"),
        buckets=tuple(map(_bucket, data.objects("buckets"))),
        total=data.integer("total"),
        operations_used=data.integer_or_none("operations_used"),
        operations_per_month=data.integer_or_none("operations_per_month"),
        requests_per_minute=data.integer_or_none("requests_per_minute"),
        busiest_api_keys=tuple(
            BusyApiKey(
                version=key.integer("version"),
                name=key.text_or_none("name"),
                requests=key.integer("requests"),
            )
            for key in data.objects("busiest_api_keys")
        ),
    )


def _bucket(data: Data) -> UsageBucket:
    return UsageBucket(
        start=data.time("start"),
        operations=data.integers("operations"),
        succeeded=data.integer("succeeded"),
        refused=data.integer("refused"),
    )
