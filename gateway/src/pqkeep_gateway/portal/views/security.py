"""One's own password, second factors and sessions."""

from pqkeep_gateway.access.callers import Permission
from pqkeep_gateway.portal.pages import SHOWN, Content, Page, Visit


async def _read(visit: Visit) -> Content:
    after = visit.query.get("after") or None
    sessions = await visit.reader.section("list_sessions", details=True, limit=SHOWN, after=after)
    return {"sessions": sessions, "shown": sessions.data.sessions if sessions.data else ()}


PAGES: tuple[Page, ...] = (
    Page(
        path="/security",
        title="Security",
        template="security/overview.html",
        permission=Permission.OWN_ACCOUNT,
        read=_read,
        icon="security",
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
