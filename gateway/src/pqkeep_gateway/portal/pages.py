"""The row that describes a page."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from pqkeep_gateway.access.callers import Caller, Credential, Permission, may
from pqkeep_gateway.portal.reading import Reader

ROOT = "/portal"
SIGN_IN = f"{ROOT}/sign-in"
OPERATOR_HOME = "/operator"
"""Beneath it are the pages of operators only."""


@dataclass(frozen=True, slots=True)
class Visit:
    """One request for a page."""

    reader: Reader
    query: Mapping[str, str]
    """The query's parameters; of several with one name the last."""
    path: Mapping[str, str]
    """The parts of the path that the row names."""
    origin: str = ""
    """Scheme and host by which the visitor has reached the page."""


Content = Mapping[str, Any]
"""What a page's template gets."""


async def nothing(_: Visit) -> Content:
    """Read nothing: a page whose content does not depend on who looks."""
    return {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """One row of the portal."""

    path: str
    """Beneath /portal."""
    title: str
    template: str
    permission: Permission
    """What a visitor must have: see the table in ``access.callers``."""
    read: Callable[[Visit], Awaitable[Content]] = nothing
    """Gets what the template shows. What raises ApiError makes the page an error's page."""
    icon: str = ""
    """Its icon in the navigation; none: the page is not listed there."""
    during_enrollment: bool = False
    """Whether somebody may see it who owes their tenant a second factor."""
    parent: str = ""
    """The path of the page whose entry in the navigation is marked; its own, if there is none."""

    takes_forms: bool = False
    """Whether it is also asked for by POST: by forms of a browser in which no module has run."""
    for_operators: bool = False
    """Whether it is a page of operators too: most show one tenant, and they have none."""

    def admits(self, caller: Caller) -> bool:
        """Return whether it is a page for a caller."""
        is_theirs = caller is not Credential.OPERATOR or self.is_public or self.for_operators
        return is_theirs and may(caller, self.permission)

    @property
    def is_operators(self) -> bool:
        """Whether it is of no use to anyone but operators."""
        return self.path.startswith(OPERATOR_HOME)

    @property
    def is_public(self) -> bool:
        """Whether it is for people who have not signed in."""
        return self.permission is Permission.PUBLIC

    @property
    def is_listed(self) -> bool:
        """Whether the navigation has it."""
        return bool(self.icon)


SHOWN = 25
"""Entries of most lists on one page."""
MOST_NAMED = 1000
"""People of a team whose addresses a page reads."""
