"""The overview: usage, active keys, and problems that need attention."""

import asyncio
from dataclasses import dataclass
from datetime import UTC, datetime

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

_EVER = datetime(1970, 1, 1, tzinfo=UTC).isoformat()
SHOWN_KEYS = 100
"""Active keys on the page, from all keyrings."""


@dataclass(frozen=True, slots=True)
class FirstDay:
    """The list of the first day: which steps of an organization are done.

    ``None``: the visitor's role does not include the step.
    """

    key: bool | None
    api_key: bool | None
    api_key_used: bool | None
    second_factor: bool
    second_owner: bool | None
    checkpoint: bool | None
    is_witnessed: bool
    """Whether witnesses have cosigned a checkpoint."""

    @property
    def left(self) -> int:
        """The number of steps that are not done."""
        steps = (self.key, self.api_key_used, self.second_factor, self.second_owner)
        return (*steps, self.checkpoint).count(False)


async def _first_day(visit: Visit, usage: Section) -> FirstDay | None:
    """Return the list of the first day; None if the visitor dismissed it, or may only read."""
    reader = visit.reader
    if reader.principal.user is None or not reader.allows("generate_key"):
        return None
    me = (await reader.section("me")).data
    if me is None or me.first_day.dismissed:
        return None
    tenant_id = str(reader.principal.tenant)
    keys, api_keys, used, owners, witnesses = await asyncio.gather(
        reader.section("list_keys", all_keyrings=True, limit=1),
        reader.section("list_api_keys", tenant_id=tenant_id, limit=1),
        reader.section("list_api_keys", tenant_id=tenant_id, limit=1, used_since=_EVER),
        reader.section("list_members", role="owner", limit=1),
        reader.section("list_audit_witnesses"),
    )
    # A last use is stored within 30 seconds. The requests of the last two minutes are in memory.
    is_used = bool(used.data and used.data.total) or bool(
        usage.data and usage.data.busiest_api_keys
    )
    may_administer = reader.allows("create_api_key")
    is_witnessed = bool(
        witnesses.data and any(witness.size for witness in witnesses.data.witnesses)
    )
    return FirstDay(
        key=bool(keys.data and keys.data.total),
        api_key=bool(api_keys.data and api_keys.data.total) if may_administer else None,
        api_key_used=is_used if may_administer else None,
        second_factor=me.mfa_enabled or me.passkeys > 0,
        second_owner=owners.data.total > 1 if owners.data else None,
        checkpoint=is_witnessed or me.first_day.checkpoint_kept if may_administer else None,
        is_witnessed=is_witnessed,
    )


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
        "first_day": await _first_day(visit, usage),
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
