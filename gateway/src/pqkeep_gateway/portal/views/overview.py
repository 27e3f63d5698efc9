"""The overview: usage, active keys, and problems that need attention."""

import asyncio

from pqkeep_gateway.access.callers import Permission
from pqkeep_gateway.portal.charts import (
    KINDS,
    PERIODS,
    period_of,
    usage_chart,
    usage_rows,
    uses_and_changes,
)
from pqkeep_gateway.portal.pages import Content, Page, Visit
from pqkeep_gateway.portal.reading import Section
from pqkeep_gateway.portal.views.notices import BADGES, worst_first
from pqkeep_protocol.keys import DEFAULT_KEYRING, KeyStatus

SHOWN_KEYS = 100
"""Active keys on the page, from all keyrings."""


async def _read(visit: Visit) -> Content:
    reader = visit.reader
    period = period_of(visit.query)
    keys, usage, notices = await asyncio.gather(
        reader.section(
            "list_keys", status=KeyStatus.ACTIVE.value, all_keyrings=True, limit=SHOWN_KEYS
        ),
        reader.section("get_usage", period=period),
        reader.section("list_notices"),
    )
    rows = usage_rows(usage, period)
    active = keys.data.keys if keys.data else ()
    return {
        "keys": keys,
        "shown_keys": active[:SHOWN_KEYS],
        "usage": usage,
        "period": period,
        "periods": PERIODS,
        "kinds": KINDS,
        "rows": rows,
        "chart": usage_chart(rows),
        "operations": uses_and_changes(rows),
        "requests_used": _requests_used(visit, usage),
        "refused": sum(bucket.refused for bucket in usage.data.buckets) if usage.data else 0,
        "notices": notices,
        "attention": worst_first(notices),
        "badges": BADGES,
        "has_keyrings": any(key.keyring for key in active),
        "default": DEFAULT_KEYRING,
        "is_new": not (keys.error or active),
    }


def _requests_used(visit: Visit, usage: Section) -> int | None:
    """Return the requests in the last minute, including this page."""
    requests = visit.reader.usage
    if requests is None or not usage.data or usage.data.requests_per_minute is None:
        return None
    return max(0, requests.limit.events - requests.remaining)


PAGES: tuple[Page, ...] = (
    Page(
        path="",
        title="Overview",
        template="overview.html",
        permission=Permission.VIEW_TENANT,
        read=_read,
        icon="overview",
    ),
)
