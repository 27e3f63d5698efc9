"""Plan, use and invoices."""

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from pqkeep_gateway.access.callers import Permission
from pqkeep_gateway.access.rate_limit import NEAR
from pqkeep_gateway.api.plan_limits import LimitName
from pqkeep_gateway.portal.pages import Content, Page, Visit
from pqkeep_gateway.portal.reading import Section

LIMITS = {
    LimitName.OPERATIONS_PER_MONTH: ("Operations", "this month"),
    LimitName.PQC_KEYS: ("Active keys", "now"),
    LimitName.API_KEYS: ("API keys", "now"),
    LimitName.REQUESTS_PER_MINUTE: ("Requests", "in the last minute"),
}
"""The title of each limit, and the time of its use."""


@dataclass(frozen=True, slots=True)
class Meter:
    """The use of a limit."""

    title: str
    when: str
    used: int | None
    """The used part. None: it is not counted."""
    limit: int | None
    """The limit. None: unlimited."""

    @property
    def state(self) -> str:
        """Return ``full``, ``high`` or ``low``."""
        if not self.limit or self.used is None:
            return "low"
        if self.used >= self.limit:
            return "full"
        return "high" if self.used >= NEAR * self.limit else "low"


def price(cents: int, currency: str) -> str:
    """Return an amount: ``1,234.50 USD``, or ``20 USD`` without cents."""
    whole, rest = divmod(abs(cents), 100)
    sign = "-" if cents < 0 else ""
    return f"{sign}{whole:,}{f'.{rest:02}' if rest else ''} {currency.upper()}"


async def _read(visit: Visit) -> Content:
    reader = visit.reader
    plans, subscription, limits, invoices = await asyncio.gather(
        reader.section("list_plans"),
        reader.section("get_subscription"),
        reader.section("get_limits"),
        reader.section("list_invoices"),
    )
    return {
        "plans": plans,
        "subscription": subscription,
        "limits": limits,
        "meters": tuple(_meters(limits)),
        "invoices": invoices,
        "price": price,
        "is_sold": any(plan.self_service for plan in plans.data.plans) if plans.data else False,
        "bought": _bought(subscription),
    }


def _meters(limits: Section) -> Iterator[Meter]:
    by_name = {limit.name: limit for limit in limits.data.limits} if limits.data else {}
    for name, (title, when) in LIMITS.items():
        if name in by_name:
            yield Meter(title, when, by_name[name].used, by_name[name].limit)


def _bought(subscription: Section) -> Any:
    """Return a bought subscription, else None. A plan granted by the operator has no period."""
    data = subscription.data
    return data if data is not None and data.period_end is not None else None


PAGES: tuple[Page, ...] = (
    Page(
        path="/billing",
        title="Plan and billing",
        template="billing/overview.html",
        permission=Permission.VIEW_SUBSCRIPTION,
        read=_read,
        icon="billing",
    ),
)
