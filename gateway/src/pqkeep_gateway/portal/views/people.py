"""The team's members, invitations and requests for approval, and the visitor's own password, second factors, sessions."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from pqkeep_gateway.access.callers import Permission, Role, may
from pqkeep_gateway.portal import lists
from pqkeep_gateway.portal.lists import Export, ListKind, Query, exported
from pqkeep_gateway.portal.pages import MOST_NAMED, SHOWN, Content, Page, Visit
from pqkeep_gateway.portal.reading import Reader, Section
from pqkeep_protocol.audit_events import PERSON


async def addresses(reader: Reader) -> Mapping[str, str]:
    """Return members' addresses by principal; empty if they cannot be read."""
    members = (await reader.section("list_members", limit=MOST_NAMED)).data
    return {f"{PERSON}{member.id}": member.email for member in members.members} if members else {}


ROLES = {
    Role.OWNER: "everything, including billing and owners",
    Role.ADMIN: "everything except billing and owners",
    Role.DEVELOPER: "keys, but not members or API keys",
    Role.VIEWER: "can read, but not change",
}


KIND = ListKind(
    path="/team",
    filters=(
        lists.choice("role", "the role", "role", tuple(Role)),
        lists.yes_or_no("mfa", "whether there is a second factor", "mfa"),
        lists.within("used", "signed in within this time", "signed_in_since"),
        lists.within("unused", "not signed in within this time, or never", "not_signed_in_since"),
        lists.age(
            "age", "the time since they joined", older="joined_before", younger="joined_since"
        ),
    ),
    sorts=("joined", "email", "role", "mfa", "last-sign-in"),
    words="email",
    noun="member",
    examples=("mfa:no", "role:owner", "unused:90d"),
)
"""The list of members."""
COLUMNS = ("id", "email", "role", "status", "mfa_enabled", "last_sign_in_at", "created_at")
"""The columns of an export."""

INVITATIONS = ListKind(
    path="/team/invitations",
    filters=(
        lists.choice("role", "the role", "role", tuple(Role)),
        lists.upcoming("expires", "expires within this time", "expires_before"),
    ),
    sorts=("expires", "email", "role"),
    words="email",
    noun="invitation",
    examples=("expires:1d", "role:admin"),
)
"""The list of invitations."""
INVITATION_COLUMNS = ("id", "email", "role", "expires_at")
"""The columns of an export."""


async def _export(visit: Visit) -> Export:
    """Return the rows that match the filters. Raises ApiError."""
    query = Query.of(KIND, visit.query)

    async def read(offset: int, limit: int) -> tuple[Sequence[Any], int]:
        page = await visit.reader.read("list_members", **query.request(limit, offset))
        return page.members, page.total

    return await exported(query, read, "members", COLUMNS)


async def _read(visit: Visit) -> Content:
    reader, query = visit.reader, Query.of(KIND, visit.query)
    asked = {} if query.error else query.request()
    members, invitations, organization = await asyncio.gather(
        reader.section("list_members", **asked),
        reader.section("list_invitations", limit=1),
        reader.section("get_organization"),
    )
    shown = members.data.members if members.data and not query.error else ()
    return {
        "members": members,
        "query": query,
        "position": query.page(len(shown), members.data.total if members.data else 0),
        "shown": shown,
        "invited": invitations.data.total if invitations.data else None,
        "organization": organization,
        **_assignable(reader),
    }


def _assignable(reader: Reader) -> Content:
    """Return the roles that the visitor may give."""
    may_manage_owners = may(reader.principal.caller, Permission.MANAGE_OWNERS)
    roles = [role for role in Role if role is not Role.OWNER or may_manage_owners]
    return {
        "may_manage_owners": may_manage_owners,
        "roles": [(role.value, f"{role.value}: {ROLES[role]}") for role in reversed(roles)],
    }


async def _read_invitations(visit: Visit) -> Content:
    reader, query = visit.reader, Query.of(INVITATIONS, visit.query)
    listed = Section()
    if not query.error:
        listed = await reader.section("list_invitations", **query.request())
    shown = listed.data.invitations if listed.data else ()
    return {
        "query": query,
        "listed": listed,
        "shown": shown,
        "position": query.page(len(shown), listed.data.total if listed.data else 0),
        **_assignable(reader),
    }


async def _export_invitations(visit: Visit) -> Export:
    """Return the rows that match the filters. Raises ApiError."""
    query = Query.of(INVITATIONS, visit.query)

    async def read(offset: int, limit: int) -> tuple[Sequence[Any], int]:
        page = await visit.reader.read("list_invitations", **query.request(limit, offset))
        return page.invitations, page.total

    return await exported(query, read, "invitations", INVITATION_COLUMNS)


async def _read_approvals(visit: Visit) -> Content:
    reader, query = visit.reader, visit.query
    waiting, ended, organization, names = await asyncio.gather(
        reader.section("list_approvals", waiting=True, limit=MOST_WAITING),
        reader.section(
            "list_approvals", waiting=False, limit=SHOWN, after=query.get("after") or None
        ),
        reader.section("get_organization"),
        addresses(reader),
    )
    return {
        "waiting": waiting,
        "ended": ended,
        "organization": organization,
        "names": {principal.removeprefix(PERSON): name for principal, name in names.items()},
        "may_decide": {
            approval.id
            for approval in (waiting.data.approvals if waiting.data else ())
            if approval.requested_by != str(reader.principal.user)
            and may(reader.principal.caller, approval.permission)
        },
    }


async def _read_security(visit: Visit) -> Content:
    after = visit.query.get("after") or None
    sessions, passkeys = await asyncio.gather(
        visit.reader.section("list_sessions", details=True, limit=SHOWN, after=after),
        visit.reader.section("list_passkeys"),
    )
    return {
        "sessions": sessions,
        "shown": sessions.data.sessions if sessions.data else (),
        "passkeys": passkeys,
    }


MOST_WAITING = 100
"""Waiting requests on the page."""

PAGES: tuple[Page, ...] = (
    Page(
        path="/team",
        title="Team",
        template="team/overview.html",
        permission=Permission.MANAGE_TEAM,
        read=_read,
        export=_export,
        icon="team",
    ),
    Page(
        path="/team/invitations",
        title="Invitations",
        template="team/invitations.html",
        permission=Permission.MANAGE_TEAM,
        read=_read_invitations,
        export=_export_invitations,
        parent="/team",
    ),
    Page(
        path="/approvals",
        title="Approvals",
        template="team/approvals.html",
        permission=Permission.APPROVE_REQUESTS,
        read=_read_approvals,
        icon="check",
    ),
    Page(
        path="/security",
        title="Security",
        template="security/overview.html",
        permission=Permission.OWN_ACCOUNT,
        read=_read_security,
        icon="security",
    ),
    Page(
        path="/security/passkey",
        title="Add a passkey",
        template="security/passkey.html",
        permission=Permission.OWN_ACCOUNT,
        during_enrollment=True,
        parent="/security",
    ),
    Page(
        path="/security/enroll",
        title="Set up an authenticator app",
        template="security/enroll.html",
        permission=Permission.OWN_ACCOUNT,
        during_enrollment=True,
        parent="/security",
    ),
)
