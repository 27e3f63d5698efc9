"""Notices: the open ones, who has read them, and the kinds that the organization wants."""

import asyncio
from typing import Any

from pqkeep_gateway.access.callers import Permission
from pqkeep_gateway.notices import KINDS, Severity
from pqkeep_gateway.portal.pages import Content, Page, Visit
from pqkeep_gateway.portal.reading import Section

CLOSED = 20
"""Closed notices on the page."""
BADGES = {Severity.DANGER: "danger", Severity.WARNING: "warn", Severity.INFO: ""}
"""The badge of each severity."""
_ORDER = tuple(BADGES)


def worst_first(notices: Section) -> list[Any]:
    """Return open notices by severity, then the last raised first."""
    found = notices.data.notices if notices.data else ()
    return sorted(found, key=lambda notice: _ORDER.index(notice.severity))


async def _read(visit: Visit) -> Content:
    reader = visit.reader
    notices, closed, settings = await asyncio.gather(
        reader.section("list_notices"),
        reader.section("list_notices", state="closed", limit=CLOSED),
        reader.section("list_notice_settings"),
    )
    return {
        "notices": notices,
        "open": worst_first(notices),
        "closed": closed.data.notices if closed.data else (),
        "settings": settings,
        "badges": BADGES,
        "dismissible": [kind for kind, row in KINDS.items() if row.may_be_dismissed],
    }


PAGES: tuple[Page, ...] = (
    Page(
        path="/notices",
        title="Notices",
        template="notices/list.html",
        permission=Permission.VIEW_TENANT,
        read=_read,
        icon="bell",
    ),
)
