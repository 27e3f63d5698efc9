"""Members and invitations."""

import asyncio

from pqkeep_gateway.access.callers import Permission, may
from pqkeep_gateway.access.roles import Role
from pqkeep_gateway.portal.pages import SHOWN, Content, Page, Visit

ROLES = {
    Role.OWNER: "everything, with billing and owners",
    Role.ADMIN: "everything but billing and owners",
    Role.DEVELOPER: "keys, but no people or API keys",
    Role.VIEWER: "reads and changes nothing",
}


async def _read(visit: Visit) -> Content:
    reader = visit.reader
    query = visit.query
    members, invitations, organization = await asyncio.gather(
        reader.section(
            "list_members",
            limit=SHOWN,
            after=query.get("after") or None,
            email=query.get("name", "").strip() or None,
        ),
        reader.section("list_invitations", limit=SHOWN, after=query.get("invited_after") or None),
        reader.section("get_organization"),
    )
    may_manage_owners = may(reader.principal.caller, Permission.MANAGE_OWNERS)
    given = [each for each in Role if each is not Role.OWNER or may_manage_owners]
    return {
        "members": members,
        "shown": members.data.members if members.data else (),
        "invitations": invitations,
        "invited": invitations.data.invitations if invitations.data else (),
        "organization": organization,
        "may_manage_owners": may_manage_owners,
        "roles": [(each.value, f"{each.value}: {ROLES[each]}") for each in reversed(given)],
    }


PAGES: tuple[Page, ...] = (
    Page(
        path="/team",
        title="Team",
        template="team/overview.html",
        permission=Permission.MANAGE_TEAM,
        read=_read,
        icon="team",
    ),
)
