"""All pages, and which of them a visitor's navigation lists."""

from collections.abc import Iterable
from dataclasses import dataclass

from pqkeep_gateway.access.callers import Caller
from pqkeep_gateway.portal.pages import ROOT, Page
from pqkeep_gateway.portal.views import (
    api_keys,
    audit,
    billing,
    entering,
    key_import,
    keyrings,
    keys,
    operator,
    overview,
    security,
    team,
    try_it,
)

PAGES: tuple[Page, ...] = (
    *operator.PAGES,
    *overview.PAGES,
    *keys.PAGES,
    *key_import.PAGES,
    *keyrings.PAGES,
    *api_keys.PAGES,
    *try_it.PAGES,
    *audit.PAGES,
    *team.PAGES,
    *security.PAGES,
    *billing.PAGES,
    *entering.PAGES,
    entering.NEEDS_JAVASCRIPT,
)


@dataclass(frozen=True, slots=True)
class Entry:
    """One line of the navigation."""

    title: str
    path: str
    url: str
    icon: str


def navigation(caller: Caller, pages: Iterable[Page]) -> tuple[Entry, ...]:
    """Return the pages that are listed for a caller."""
    return tuple(
        Entry(each.title, each.path, ROOT + each.path, each.icon)
        for each in pages
        if each.is_listed and each.admits(caller)
    )
