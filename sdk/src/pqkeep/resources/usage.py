"""How much is done with keys, and how much of it is allowed."""

from dataclasses import dataclass
from typing import Generic, TypeVar

from pqkeep._call import Call, get
from pqkeep._data import Data
from pqkeep._operation import Operation
from pqkeep.models import BusyApiKey, Usage, UsageBucket

T_co = TypeVar("T_co", covariant=True)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class UsageCounts(Generic[T_co]):
    """What the audit log says was done."""

    _transport: T_co

    @Operation
    def get(self, *, period: str | None = None, tenant_id: str | None = None) -> Call[Usage]:
        """Return the usage of 24 hours by the hour, or of ``30d`` by the day.

        Of one's own tenant; the operator names one, or gets everybody's.
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
                version=each.integer("version"),
                name=each.text_or_none("name"),
                requests=each.integer("requests"),
            )
            for each in data.objects("busiest_api_keys")
        ),
    )


def _bucket(data: Data) -> UsageBucket:
    return UsageBucket(
        start=data.time("start"),
        operations=data.integers("operations"),
        succeeded=data.integer("succeeded"),
        refused=data.integer("refused"),
    )
