"""The installation: its state, and its tenants."""

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from pqkeep_gateway.access.callers import Permission, Role
from pqkeep_gateway.access.entitlements import Plan, Subscription, TenantStatus, Tier
from pqkeep_gateway.portal.charts import KINDS, PERIODS, period_of, usage_chart, usage_rows
from pqkeep_gateway.portal.pages import OPERATOR_HOME, SHOWN, Content, Page, Visit
from pqkeep_gateway.portal.rendering import instant, many
from pqkeep_gateway.tenancy.deletion import DEFAULT_DAYS, MAX_DAYS

PAGE = 50
OLD_ROOT_KEY = timedelta(days=365)
"""The age from which a root key ought to be rotated."""
ENDS_SOON = timedelta(days=30)
"""The time from which a certificate ought to be replaced."""
SLOW = timedelta(minutes=5)
"""How long an event may wait for the log, and a message for its delivery."""
PARTS = {
    "key_service": ("Key service", "does everything with keys"),
    "keys_database": ("Keys database", "sealed keys"),
    "accounts_database": ("Accounts database", "tenants, people, API keys"),
    "rate_limits": ("Rate limits", "counts requests"),
    "audit_log": ("Audit log", "takes events before they are answered"),
    "mail_server": ("Mail", "takes invitations and codes"),
    "audit_sink": ("Audit copy", "receives records elsewhere"),
}
"""What each part is called, and what it does."""


@dataclass(frozen=True, slots=True)
class Attention:
    """Something that ought to be looked after."""

    text: str
    kind: str = "warn"


async def _read_installation(visit: Visit) -> Content:
    reader = visit.reader
    installation, operators = await asyncio.gather(
        reader.section("get_installation"), reader.section("list_operators")
    )
    data = installation.data
    return {
        "installation": installation,
        "operators": operators,
        "parts": PARTS,
        "attention": () if data is None else tuple(attention(data, datetime.now(UTC))),
    }


def attention(found: Any, now: datetime) -> Iterator[Attention]:
    """Return what an operator ought to look after, the worst first."""
    for part in found.parts:
        if not part.ready:
            title = PARTS.get(part.name, (part.name,))[0]
            yield Attention(f"{title}: {part.reason}.", "danger")
    yield from _lost_shards(found)
    if found.log.quarantined:
        text = f"Refused by the audit log: {many(found.log.quarantined, 'event')}. See the runbook."
        yield Attention(text, "danger")
    for each in found.certificates:
        left = instant(each.expires_at) - now
        if left < timedelta(0):
            yield Attention(f"The certificate {each.name} has expired.", "danger")
        elif left < ENDS_SOON:
            yield Attention(
                f"The certificate {each.name} expires within {many(left.days + 1, 'day')}."
            )
    old = (
        (found.log.outbox_oldest_at, SLOW, "Events wait long for the audit log."),
        (found.mail.oldest_at, SLOW, "Messages wait long for their delivery."),
        (
            found.root_key and found.root_key.created_at,
            OLD_ROOT_KEY,
            "The root key is more than a year old: rotate it by pqkeepd root-key rotate.",
        ),
    )
    for since, longest, text in old:
        if since and now - instant(since) > longest:
            yield Attention(text)
    yield from _about_tenants_and_operators(found)


def _about_tenants_and_operators(found: Any) -> Iterator[Attention]:
    if found.tenants and found.tenants.scheduled_for_deletion:
        count = many(found.tenants.scheduled_for_deletion, "tenant")
        yield Attention(f"To be deleted, with all keys: {count}. See Tenants.")
    if found.operators == ():
        yield Attention("No operator has a name: the audit log cannot tell who did what.")


def _lost_shards(found: Any) -> Iterator[Attention]:
    """Return the shards that do not work, where there is more than one."""
    for shard in found.shards:
        if not shard.ready and len(found.shards) > 1:
            yield Attention(f"Shard {shard.name}: {shard.reason}.", "danger")


async def _read_tenants(visit: Visit) -> Content:
    query = visit.query
    filters = {name: query.get(name, "").strip() for name in ("name", "status")}
    given = {name: value for name, value in filters.items() if value}
    after = query.get("after") or None
    tenants, installation = await asyncio.gather(
        visit.reader.section("list_tenants", **given, after=after, limit=PAGE),
        visit.reader.section("get_installation"),
    )
    shards = installation.data.shards if installation.data else ()
    return {
        "tenants": tenants,
        "installation": installation,
        "shards": [each.name for each in shards if not each.draining],
        "filters": filters,
        "is_filtered": bool(given) or after is not None,
        "statuses": [each.value for each in TenantStatus],
        "plans": _words(Plan),
    }


async def _read_tenant(visit: Visit) -> Content:
    reader, tenant_id = visit.reader, visit.path["id"]
    shown = await reader.read("get_tenant", tenant_id=tenant_id)
    period = period_of(visit.query)
    in_full, usage, members, invitations = await asyncio.gather(
        _in_full(visit, shown),
        reader.section("get_usage", period=period, tenant_id=tenant_id),
        reader.section("list_members", tenant_id=tenant_id, limit=SHOWN),
        reader.section("list_invitations", tenant_id=tenant_id, limit=SHOWN),
    )
    rows = usage_rows(usage, period)
    return {
        "shown": shown,
        "full": in_full,
        "can_change": shown.status in {TenantStatus.ACTIVE, TenantStatus.SUSPENDED},
        "deletion_at": shown.deletion_at or None,
        "usage": usage,
        "rows": rows,
        "chart": usage_chart(rows),
        "kinds": KINDS,
        "period": period,
        "periods": PERIODS,
        "members": members,
        "first_members": members.data.members if members.data else (),
        "invited": invitations.data.invitations if invitations.data else (),
        "tiers": _words(Tier),
        "subscriptions": _words(Subscription),
        "roles": [each.value for each in (Role.OWNER, Role.ADMIN, Role.DEVELOPER, Role.VIEWER)],
        "days": DEFAULT_DAYS,
        "max_days": MAX_DAYS,
    }


async def _in_full(visit: Visit, shown: Any) -> Any:
    """Return a tenant as the list tells it, with its tier; None for a deleted one."""
    after = None
    while True:
        found = await visit.reader.read("list_tenants", name=shown.name, after=after, limit=PAGE)
        for each in found.tenants:
            if each.id == shown.id:
                return each
        after = found.next or None
        if after is None:
            return None


def _words(values: Any) -> list[tuple[str, str]]:
    return [(each.value, each.value.replace("_", " ")) for each in values]


_TENANTS = f"{OPERATOR_HOME}/tenants"
_PAGES = (
    (OPERATOR_HOME, "Installation", Permission.VIEW_INSTALLATION, _read_installation, "health"),
    (_TENANTS, "Tenants", Permission.MANAGE_TENANTS, _read_tenants, "tenants"),
    (f"{_TENANTS}/{{id}}", "Tenant", Permission.MANAGE_TENANTS, _read_tenant, ""),
)
"""Path, title, permission, what reads it, icon. What has no icon is beneath the tenants."""

PAGES: tuple[Page, ...] = (
    *(
        Page(
            path=path,
            title=title,
            template=f"operator/{title.lower()}.html",
            permission=permission,
            read=read,
            icon=icon,
            parent="" if icon else _TENANTS,
            for_operators=True,
        )
        for path, title, permission, read, icon in _PAGES
    ),
    Page(
        path=f"{OPERATOR_HOME}/sign-in",
        title="Sign in as operator",
        template="operator/sign_in.html",
        permission=Permission.PUBLIC,
    ),
)
