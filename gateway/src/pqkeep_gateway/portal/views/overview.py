"""The overview: what is going on, and what needs attention."""

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from pqkeep_gateway.access.callers import Permission
from pqkeep_gateway.api.keyrings import Keyring
from pqkeep_gateway.api.keys import Key
from pqkeep_gateway.portal.charts import (
    KINDS,
    PERIODS,
    period_of,
    usage_chart,
    usage_rows,
    uses_and_changes,
)
from pqkeep_gateway.portal.pages import MOST_NAMED, Content, Page, Visit
from pqkeep_gateway.portal.reading import Section
from pqkeep_gateway.portal.rendering import instant, many, moment, until
from pqkeep_gateway.portal.views.keyrings import in_keyring
from pqkeep_gateway.portal.views.keys import Version
from pqkeep_protocol.audit import REFUSED
from pqkeep_protocol.keys import DEFAULT_KEYRING, KeyStatus

OLD = timedelta(days=365)
"""The age from which an active key ought to be rotated."""
NEARLY_USED = 0.8
"""The part of an allowance from which it is nearly used."""

USED_UP = 0.75
"""The part of a minute's rate limit that a single API key sends, in two, where it uses it up."""
LATE = timedelta(days=1)
"""How long after its time a key that is rotated by itself may still be active."""
SHOWN_OF_A_KIND = 5
"""How many keys of a kind need attention one by one; the others are counted."""
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
    keys, scheduled, keyrings, usage, members, me = await asyncio.gather(
        reader.section("list_keys", status=KeyStatus.ACTIVE.value, all_keyrings=True),
        reader.section("list_keys", scheduled=True, all_keyrings=True),
        reader.section("list_keyrings"),
        reader.section("get_usage", period=period),
        reader.section("list_members", limit=MOST_NAMED),
        reader.section("me"),
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
        "refused": sum(each.refused for each in usage.data.buckets) if usage.data else 0,
        "attention": (
            *old_keys(active, keyrings.data.keyrings if keyrings.data else ()),
            *_destructions(scheduled.data.keys if scheduled.data else ()),
            *_unread(keyrings),
            *_attention(usage, members, me),
        ),
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


def old_keys(active: Sequence[Key], keyrings: Sequence[Keyring]) -> Iterator[Attention]:
    """Return the active keys that are older than their keyring says, or than a year where it does not."""
    days = {each.name: each.rotation_days for each in keyrings if each.rotation_days}
    now = datetime.now(UTC)
    old = []
    for key in active:
        of_keyring = days.get(key.keyring or DEFAULT_KEYRING)
        longest = OLD if of_keyring is None else timedelta(days=of_keyring) + LATE
        if now - instant(key.created_at) > longest:
            old.append((key, of_keyring))
    for key, of_keyring in old[:SHOWN_OF_A_KIND]:
        age = "a year" if of_keyring is None else f"the {many(of_keyring, 'day')} of its keyring"
        text = f"The active {key.algorithm} key{_of(key)} is older than {age}."
        yield Attention(text, _path(key), "Rotate it")
    yield from _further(len(old), "active keys are", "older than they should be")


def _destructions(scheduled: Sequence[Key]) -> Iterator[Attention]:
    """Return the key versions that are going to be destroyed, the next one first."""
    ordered = sorted(
        (each for each in scheduled if each.archive_at), key=lambda key: str(key.archive_at)
    )
    for key in ordered[:SHOWN_OF_A_KIND]:
        when = f"{until(str(key.archive_at))}, at {moment(str(key.archive_at))} UTC"
        text = f"{key.algorithm} v{key.key_version}{_of(key)} is destroyed {when}."
        yield Attention(text, _path(key), "Look at it")
    yield from _further(len(ordered), "key versions are", "to be destroyed")


def _unread(keyrings: Section) -> Iterator[Attention]:
    if keyrings.error:
        text = "The keyrings' days of rotation cannot be read: keys count as old after a year."
        yield Attention(f"{text} {keyrings.error.message}", "/keyrings", "Try again")


def _further(count: int, are: str, what: str) -> Iterator[Attention]:
    if count > SHOWN_OF_A_KIND:
        text = f"{count - SHOWN_OF_A_KIND:,} more {are} {what}."
        yield Attention(text, "/keys", "See all")


def _of(key: Key) -> str:
    """Say in which keyring a key is, where it is not the default one."""
    return f" in {key.keyring}" if in_keyring(key.keyring or DEFAULT_KEYRING) else ""


def _path(key: Key) -> str:
    return Version(key, None, key.keyring or DEFAULT_KEYRING).path


def _attention(usage: Section, members: Section, me: Section) -> Iterator[Attention]:
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
        used, quota = usage.data.operations_used, usage.data.operations_per_month
        if used and quota and used >= NEARLY_USED * quota:
            text = f"{used:,} of this month's {quota:,} operations are used."
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
