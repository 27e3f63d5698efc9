"""The description of a page."""

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from pqkeep_gateway.access.callers import OPERATORS, Caller, Permission, may
from pqkeep_gateway.portal.lists import Export
from pqkeep_gateway.portal.reading import Reader

ROOT = "/portal"
SIGN_IN = f"{ROOT}/sign-in"
OPERATOR_HOME = "/operator"
"""The path prefix of pages for operators only."""


@dataclass(frozen=True, slots=True)
class Visit:
    """One request for a page."""

    reader: Reader
    query: Mapping[str, str]
    """The query's parameters. If a name is repeated, the last one counts."""
    path: Mapping[str, str]
    """The path's parameters."""
    origin: str = ""
    """Scheme and host of the request."""


Content = Mapping[str, Any]
"""The values for a page's template."""


async def nothing(_: Visit) -> Content:
    """Return no values, for a page with the same content for all visitors."""
    return {}


class Download(NamedTuple):
    """A file that is made while it is sent."""

    name: str
    """The file's name. It needs no quoting."""
    kind: str
    """The media type."""
    chunks: AsyncGenerator[bytes, None]
    """If it raises ApiError before its first chunk, the visitor sees an error page."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """One row of the portal."""

    path: str
    """Beneath /portal."""
    title: str
    template: str
    permission: Permission
    """The visitor's required permission; see the table in ``access.callers``."""
    read: Callable[[Visit], Awaitable[Content]] = nothing
    """Returns the template's values. If it raises ApiError, the visitor sees an error page."""
    export: Callable[[Visit], Awaitable[Export]] | None = None
    """Returns the page's list as a file, for ``format`` in the address."""
    download: Callable[[Visit], Download] | None = None
    """Returns a file, for ``format=zip`` in the address. Other sites' pages cannot ask for it."""
    icon: str = ""
    """The icon in the navigation. Without it, the navigation does not list the page."""
    during_enrollment: bool = False
    """Whether a visitor may see it who must still set up a second factor."""
    parent: str = ""
    """The path of the navigation entry to mark. Empty: the page's own."""

    takes_forms: bool = False
    """Whether it also accepts POST, from forms sent without JavaScript."""
    for_operators: bool = False
    """Whether operators may see it. Most pages show one tenant, and operators have none."""

    def admits(self, caller: Caller) -> bool:
        """Return whether the caller may see the page."""
        is_operator = caller in OPERATORS
        is_theirs = is_operator if self.is_operators else self.for_operators or not is_operator
        return (self.is_public or is_theirs) and may(caller, self.permission)

    @property
    def is_operators(self) -> bool:
        """Whether the page is for operators only."""
        return self.path.startswith(OPERATOR_HOME)

    @property
    def is_public(self) -> bool:
        """Whether the page needs no sign-in."""
        return self.permission is Permission.PUBLIC

    @property
    def is_listed(self) -> bool:
        """Whether the navigation lists the page."""
        return bool(self.icon)


SHOWN = 25
"""Entries on one page, in most lists."""
MOST_NAMED = 1000
"""A page reads the addresses of at most this many members."""
