"""The overview: usage, active keys, and problems that need attention."""

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
"""The age at which an active key should be rotated."""
NEARLY_USED = 0.8
"""The used part of a quota that counts as nearly used."""

USED_UP = 0.75
"""An API key uses up the rate limit if it sends this part of a minute's limit in two minutes."""
LATE = timedelta(days=1)
"""The accepted delay of an automatic rotation."""
SHOWN_OF_A_KIND = 5
"""Keys of one kind that are listed; the others are counted."""
EXAMINED = 1_000
"""Keys of all keyrings that are examined for problems. A tenant can have many more."""
SHOWN_KEYS = 100
"""Active keys on the page, from all keyrings."""


@dataclass(frozen=True, slots=True)
class Attention:
    """A problem, and the page to solve it."""

    text: str
    path: str
    action: str


async def _read(visit: Visit) -> Content:
    reader = visit.reader
    period = period_of(visit.query)
    keys, scheduled, keyrings, usage, members, me = await asyncio.gather(
        reader.section(
            "list_keys", status=KeyStatus.ACTIVE.value, all_keyrings=True, limit=EXAMINED
        ),
        reader.section("list_keys", scheduled=True, all_keyrings=True, limit=EXAMINED),
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
        "refused": sum(bucket.refused for bucket in usage.data.buckets) if usage.data else 0,
        "attention": (
            *old_keys(active, keyrings.data.keyrings if keyrings.data else ()),
            *_destructions(scheduled.data.keys if scheduled.data else ()),
            *_unread(keyrings),
            *_attention(usage, members, me),
        ),
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


def old_keys(active: Sequence[Key], keyrings: Sequence[Keyring]) -> Iterator[Attention]:
    """Return the active keys older than their keyring's rotation period, or than a year."""
    days = {keyring.name: keyring.rotation_days for keyring in keyrings if keyring.rotation_days}
    now = datetime.now(UTC)
    old = []
    for key in active:
        of_keyring = days.get(key.keyring or DEFAULT_KEYRING)
        longest = OLD if of_keyring is None else timedelta(days=of_keyring) + LATE
        if now - instant(key.created_at) > longest:
            old.append((key, of_keyring))
    for key, of_keyring in old[:SHOWN_OF_A_KIND]:
        age = "a year" if of_keyring is None else f"its keyring's {many(of_keyring, 'day')}"
        text = f"The active {key.algorithm} key{_of(key)} is older than {age}."
        yield Attention(text, _path(key), "Rotate it")
    yield from _further(len(old), "active keys are", "older than they should be")


def _destructions(scheduled: Sequence[Key]) -> Iterator[Attention]:
    """Return the key versions scheduled for destruction, the next one first."""
    ordered = sorted(
        (key for key in scheduled if key.archive_at), key=lambda key: str(key.archive_at)
    )
    for key in ordered[:SHOWN_OF_A_KIND]:
        when = f"{until(str(key.archive_at))}, at {moment(str(key.archive_at))} UTC"
        text = f"{key.algorithm} v{key.key_version}{_of(key)} will be destroyed {when}."
        yield Attention(text, _path(key), "Open the key")
    yield from _further(len(ordered), "key versions are", "to be destroyed")


def _unread(keyrings: Section) -> Iterator[Attention]:
    if keyrings.error:
        text = "The keyrings' rotation periods cannot be read. Keys count as old after a year."
        yield Attention(f"{text} {keyrings.error.message}", "/keyrings", "Try again")


def _further(count: int, are: str, what: str) -> Iterator[Attention]:
    if count > SHOWN_OF_A_KIND:
        text = f"{count - SHOWN_OF_A_KIND:,} more {are} {what}."
        yield Attention(text, "/keys", "See all")


def _of(key: Key) -> str:
    """Return `` in NAME`` for a keyring other than the default one."""
    return f" in {key.keyring}" if in_keyring(key.keyring or DEFAULT_KEYRING) else ""


def _path(key: Key) -> str:
    return Version(key, None, key.keyring or DEFAULT_KEYRING).path


def _attention(usage: Section, members: Section, me: Section) -> Iterator[Attention]:
    if me.data and not me.data.mfa_enabled:
        text = "Your account has no authenticator app."
        yield Attention(text, "/security/enroll", "Set one up")
    if members.data:
        without = sum(not member.mfa_enabled for member in members.data.members)
        others = without - bool(me.data and not me.data.mfa_enabled)
        if others > 0:
            text = f"{others} other member{'s have' if others > 1 else ' has'} no second factor."
            yield Attention(text, "/team", "See members")
    if usage.data:
        used, quota = usage.data.operations_used, usage.data.operations_per_month
        if used and quota and used >= NEARLY_USED * quota:
            text = f"{used:,} of this month's {quota:,} operations are used."
            yield Attention(text, "/billing", "See plans")
        text = used_up(usage)
        if text:
            yield Attention(text, "/api-keys", "See API keys")
        if _rises(usage):
            text = "Refusals increase: there were more in the last hours than before."
            yield Attention(text, f"/audit?outcome={REFUSED}", "See refusals")


def _rises(usage: Section) -> bool:
    """Return whether the last sixth of the period had more refusals than the rest, and over 9."""
    refused = [bucket.refused for bucket in usage.data.buckets]
    newest = len(refused) // 6
    return bool(sum(refused[-newest:]) > max(sum(refused[:-newest]), 9))


def used_up(usage: Section) -> str:
    """Return a message about an API key that uses up the rate limit, or an empty text."""
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
