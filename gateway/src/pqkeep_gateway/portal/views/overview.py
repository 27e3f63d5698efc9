"""The overview: what is going on, and what needs attention."""

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from urllib.parse import urlencode

from pqkeep_gateway.access.callers import Permission
from pqkeep_gateway.portal.pages import MOST_NAMED, Content, Page, Visit
from pqkeep_gateway.portal.reading import Section
from pqkeep_gateway.portal.rendering import instant
from pqkeep_gateway.portal.usage_chart import (
    KINDS,
    PERIODS,
    period_of,
    usage_chart,
    usage_rows,
    uses_and_changes,
)
from pqkeep_gateway.portal.views.keyrings import in_keyring
from pqkeep_protocol.audit import REFUSED
from pqkeep_protocol.keys import DEFAULT_KEYRING, KeyStatus

OLD = timedelta(days=365)
"""The age from which an active key ought to be rotated."""
NEARLY_USED = 0.8
"""The part of an allowance from which it is nearly used."""

USED_UP = 0.75
"""The part of a minute's rate limit that a single API key sends, in two, where it uses it up."""
SHOWN_KEYS = 100
"""Active keys on the page, of all keyrings together."""


@dataclass(frozen=True, slots=True)
class Attention:
    """Something that ought to be done, and the page where."""

    text: str
    path: str
    action: str


async def _read(visit: Visit) -> Content:
    reader = visit.reader
    period = period_of(visit.query)
    keys, usage, members, me = await asyncio.gather(
        reader.section(
            "list_keys", status=KeyStatus.ACTIVE.value, all_keyrings=True, limit=SHOWN_KEYS
        ),
        reader.section("get_usage", period=period),
        reader.section("list_members", limit=MOST_NAMED),
        reader.section("me"),
    )
    rows = usage_rows(usage, period)
    active = keys.data.keys if keys.data else ()
    return {
        "keys": keys,
        "usage": usage,
        "period": period,
        "periods": PERIODS,
        "kinds": KINDS,
        "rows": rows,
        "chart": usage_chart(rows),
        "operations": uses_and_changes(rows),
        "requests_used": _requests_used(visit, usage),
        "refused": sum(each.refused for each in usage.data.buckets) if usage.data else 0,
        "attention": tuple(_attention(keys, usage, members, me)),
        "has_keyrings": any(each.keyring for each in active),
        "default": DEFAULT_KEYRING,
        "is_new": not (keys.error or active),
    }


def _requests_used(visit: Visit, usage: Section) -> int | None:
    """Return how much of the rate limit the last minute used, this page with it."""
    found = visit.reader.usage
    if found is None or not usage.data or usage.data.requests_per_minute is None:
        return None
    return max(0, found.limit.events - found.remaining)


def _attention(keys: Section, usage: Section, members: Section, me: Section) -> Iterator[Attention]:
    now = datetime.now(UTC)
    for key in keys.data.keys if keys.data else ():
        if now - instant(key.created_at) > OLD:
            where = in_keyring(key.keyring or DEFAULT_KEYRING)
            whose = f" of {key.keyring}" if where else ""
            text = f"The active {key.algorithm} key{whose} is more than a year old."
            yield Attention(text, f"/keys?{urlencode(where)}" if where else "/keys", "Rotate it")
    if me.data and not me.data.mfa_enabled:
        text = "Your account has no authenticator app."
        yield Attention(text, "/security/enroll", "Set one up")
    if members.data:
        without = sum(not each.mfa_enabled for each in members.data.members)
        others = without - bool(me.data and not me.data.mfa_enabled)
        if others > 0:
            text = f"{others} other member{'s have' if others > 1 else ' has'} no second factor."
            yield Attention(text, "/team", "See who")
    if usage.data:
        used, allowance = usage.data.operations_used, usage.data.operations_per_month
        if used and allowance and used >= NEARLY_USED * allowance:
            text = f"{used:,} of this month's {allowance:,} operations are used."
            yield Attention(text, "/billing", "See plans")
        text = used_up(usage)
        if text:
            yield Attention(text, "/api-keys", "See API keys")
        if _rises(usage):
            text = "Refusals rise: more in the last hours than in all before."
            yield Attention(text, f"/audit?outcome={REFUSED}", "See which")


def _rises(usage: Section) -> bool:
    """Return whether a sixth of the time had more refusals than the rest, and more than a few."""
    refused = [each.refused for each in usage.data.buckets]
    newest = len(refused) // 6
    return bool(sum(refused[-newest:]) > max(sum(refused[:-newest]), 9))


def used_up(usage: Section) -> str:
    """Say which API key uses the rate limit up, if one does: it sends more than there may be."""
    if not usage.data or not usage.data.busiest_api_keys or not usage.data.requests_per_minute:
        return ""
    busiest = usage.data.busiest_api_keys[0]
    if busiest.requests < USED_UP * usage.data.requests_per_minute:
        return ""
    name = f" “{busiest.name}”" if busiest.name else ""
    return (
        f"The rate limit is used up: API key version {busiest.version}{name} sent"
        f" {busiest.requests:,} requests in the last two minutes."
    )


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
