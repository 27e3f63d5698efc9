"""Operators' pages: the installation's state, and its tenants."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from pqkeep_gateway.access.callers import Permission, Role
from pqkeep_gateway.access.entitlements import Plan, Subscription, TenantStatus, Tier
from pqkeep_gateway.api.single_sign_on import portal_path
from pqkeep_gateway.portal import lists
from pqkeep_gateway.portal.charts import KINDS, PERIODS, period_of, usage_chart, usage_rows
from pqkeep_gateway.portal.lists import Export, ListKind, Query, exported
from pqkeep_gateway.portal.pages import OPERATOR_HOME, SHOWN, Content, Page, Visit
from pqkeep_gateway.portal.reading import Section
from pqkeep_gateway.portal.views.notices import BADGES, worst_first
from pqkeep_gateway.storage.identities import Refusal
from pqkeep_gateway.storage.tenants import TENANT_SORTS
from pqkeep_gateway.tenancy.deletion import DEFAULT_DAYS, MAX_DAYS

PAGE = 50
PARTS = {
    "key_service": ("Key service", "runs all key operations"),
    "keys_database": ("Keys database", "stores encrypted keys"),
    "accounts_database": ("Accounts database", "stores tenants, members, API keys"),
    "rate_limits": ("Rate limits", "count requests"),
    "audit_log": ("Audit log", "records operations before their response"),
    "mail_server": ("Mail", "delivers invitations and codes"),
    "audit_sink": ("Audit copy", "receives copies of the records"),
}
"""The name and the task of each part."""


async def _read_installation(visit: Visit) -> Content:
    reader = visit.reader
    installation, operators, sessions, notices = await asyncio.gather(
        reader.section("get_installation"),
        reader.section("list_operators"),
        reader.section("list_operator_sessions"),
        reader.section("list_notices"),
    )
    return {
        "installation": installation,
        "operators": operators,
        "sessions": sessions,
        "signed_in": sessions.data.sessions if sessions.data else (),
        "parts": PARTS,
        "attention": worst_first(notices),
        "badges": BADGES,
    }


KIND = ListKind(
    path=f"{OPERATOR_HOME}/tenants",
    filters=(
        lists.choice("status", "the status", "status", tuple(TenantStatus)),
        lists.choice("plan", "the plan", "plan", tuple(Plan)),
        lists.age(
            "age", "the time since it was created", older="created_before", younger="created_since"
        ),
    ),
    sorts=tuple(TENANT_SORTS),
    words="name",
    noun="tenant",
    examples=("status:suspended", "plan:free age:<30d"),
)
"""The list of tenants."""
COLUMNS = (
    *("id", "name", "status", "plan", "tier", "subscription", "requests_per_minute"),
    *("created_at", "deletion_at"),
)
"""The columns of an export."""


async def _read_tenants(visit: Visit) -> Content:
    query = Query.of(KIND, visit.query)
    tenants = Section()
    installation = await visit.reader.section("get_installation")  # empty without the permission
    if not query.error:
        tenants = await visit.reader.section("list_tenants", **query.request())
    shown = tenants.data.tenants if tenants.data else ()
    shards = installation.data.shards if installation.data else ()
    return {
        "query": query,
        "position": query.page(len(shown), tenants.data.total if tenants.data else 0),
        "tenants": tenants,
        "shown": shown,
        "installation": installation,
        "shards": [shard.name for shard in shards if not shard.draining],
        "plans": _words(Plan),
    }


async def _export_tenants(visit: Visit) -> Export:
    """Return the rows that match the filters. Raises ApiError."""
    query = Query.of(KIND, visit.query)

    async def read(offset: int, limit: int) -> tuple[Sequence[Any], int]:
        page = await visit.reader.read("list_tenants", **query.request(limit, offset))
        return page.tenants, page.total

    return await exported(query, read, "tenants", COLUMNS)


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
        "roles": [role.value for role in (Role.OWNER, Role.ADMIN, Role.DEVELOPER, Role.VIEWER)],
        "days": DEFAULT_DAYS,
        "max_days": MAX_DAYS,
    }


async def _in_full(visit: Visit, shown: Any) -> Any:
    """Return a tenant's entry in the list of tenants, with its tier; None for a deleted one."""
    after = None
    while True:
        listed = await visit.reader.read("list_tenants", name=shown.name, after=after, limit=PAGE)
        for tenant in listed.tenants:
            if tenant.id == shown.id:
                return tenant
        after = listed.next or None
        if after is None:
            return None


_REFUSALS: Mapping[str, str] = {
    Refusal.TOO_MANY: "Too many sign-in attempts from your network. Try again in a few minutes.",
    Refusal.UNAVAILABLE: "The provider's sign-in is unavailable. Try again, or use a credential.",
    Refusal.COOKIES: "Your browser sent one of this service's cookies twice. They are deleted now."
    " Sign in again.",
    Refusal.EXPIRED: "The sign-in took too long, or began in another browser. Sign in again.",
    Refusal.CANCELLED: "The provider did not sign you in. Try again.",
    Refusal.PROVIDER: "The provider sent an invalid response. The gateway's log names the part.",
    Refusal.EMAIL: "The provider sent no confirmed e-mail address of a domain in email_domains.",
    Refusal.NO_GROUPS: "The provider sent no groups. Let it put your groups into the claim that"
    " groups_claim names in the gateway's settings.",
    Refusal.NO_ROLE: "None of your groups has an operator role. Ask for a group that operator_roles"
    " names in the gateway's settings. Groups are compared with their case.",
    Refusal.FROM_ELSEWHERE: "A page of another site began this sign-in. Begin it here.",
    Refusal.SIGNED_OUT: "Your session has ended. Sign in again.",
    Refusal.NOT_AGAIN: "The provider did not ask you to sign in again, or sent no auth_time.",
    Refusal.OTHER_PERSON: "Another person has signed in, or your role has changed. Sign in again.",
}
"""The operators' sign-in page's message for a refused single sign-on."""


async def _read_sign_in(visit: Visit) -> Content:
    return {
        "providers": await visit.reader.section("list_providers"),
        "refusal": _REFUSALS.get(visit.query.get("error", ""), ""),
        "next": portal_path(visit.query.get("next", "")),
    }


async def _read_signed_in(visit: Visit) -> Content:
    return {"next": portal_path(visit.query.get("next", ""))}


def _words(values: Any) -> list[tuple[str, str]]:
    return [(member.value, member.value.replace("_", " ")) for member in values]


_TENANTS = f"{OPERATOR_HOME}/tenants"
_PAGES = (
    (OPERATOR_HOME, "Installation", Permission.VIEW_INSTALLATION, _read_installation, "health"),
    (_TENANTS, "Tenants", Permission.VIEW_TENANT, _read_tenants, "tenants"),
    (f"{_TENANTS}/{{id}}", "Tenant", Permission.VIEW_TENANT, _read_tenant, ""),
)
"""Path, title, permission, reading function, icon. A page without an icon belongs to Tenants."""

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
            export=_export_tenants if path == _TENANTS else None,
        )
        for path, title, permission, read, icon in _PAGES
    ),
    Page(
        path=f"{OPERATOR_HOME}/sign-in",
        title="Sign in as operator",
        template="operator/sign_in.html",
        permission=Permission.PUBLIC,
        read=_read_sign_in,
    ),
    Page(
        path=f"{OPERATOR_HOME}/signed-in",
        title="Signed in",
        template="operator/signed_in.html",
        permission=Permission.PUBLIC,
        read=_read_signed_in,
    ),
)
