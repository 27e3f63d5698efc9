"""Functions for tests of the portal's pages."""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping
from dataclasses import dataclass
from html.parser import HTMLParser
from typing import Any

import httpx2
from playwright.sync_api import Page
from tests.contract.rows import api_rows
from tests.fixtures.caller import PASSWORD, TLS, Caller
from tests.fixtures.installation import Installation
from tests.patience import PATIENCE

from pqkeep_gateway.access.callers import GRANTS, Role
from pqkeep_gateway.portal.phrases import INLINE

_WIDE = """[...document.querySelectorAll("body *")].filter((each) =>
  each.getBoundingClientRect().right > innerWidth && !each.closest(".table-wrap, pre, dialog"))
  .map((each) => each.outerHTML.slice(0, 200)).slice(0, 5)"""
MARKUP = ("<script>alert(1)</script>", '"><img src=x onerror=alert(1)>')
VOID = frozenset(
    [
        "area",
        "base",
        "br",
        "col",
        "embed",
        "hr",
        "img",
        "input",
        "link",
        "meta",
        "source",
        "track",
        "wbr",
    ]
)
"""Elements without an end tag."""
_OPERATION = re.compile(r'data-operation="([a-z_]+)"')
_PERMISSIONS = {row.name: row.permission for row in api_rows(open_signup=False)}


@dataclass(frozen=True)
class World:
    """A tenant with keys, and one of its people."""

    installation: Installation
    tenant: Caller
    person: Caller


def world_of(
    installation: Installation, *algorithms: str, role: Role = Role.OWNER, email: str = ""
) -> World:
    """Make a tenant with a key of each of some algorithms, and a person with a role."""
    tenant = installation.new_tenant()
    for algorithm in algorithms:
        tenant.post("/kms/keys/generate", {"algorithm": algorithm}, status=201)
    return World(installation, tenant, installation.person(tenant.tenant_id, role, email))


def cookies_of(person: Caller, host: str = "127.0.0.1") -> list[Any]:
    """Return a person's session from the API, for a browser."""
    return [
        {
            "name": each.name,
            "value": each.value or "",
            "domain": host,
            "path": each.path,
            "httpOnly": True,
            "sameSite": "Lax",
        }
        for each in person.client.cookies.jar
    ]


def get_page(
    person: Caller, path: str, headers: Mapping[str, str] | None = None
) -> httpx2.Response:
    """Return the source of a page."""
    cookies = {each.name: each.value or "" for each in person.client.cookies.jar}
    url = f"{person.client.base_url}".rstrip("/") + path
    return httpx2.get(url, cookies=cookies, headers=headers, verify=TLS, timeout=PATIENCE)


def operations_on(html: str) -> set[str]:
    """Return the operations of a page's forms."""
    return set(_OPERATION.findall(html))


def allowed(role: Role, operations: set[str]) -> set[str]:
    """Filter operations by the access table for a role."""
    return {each for each in operations if role in GRANTS[_PERMISSIONS[each]]}


def prove(page: Page) -> None:
    """Answer a step-up."""
    page.locator("#step-up input[type=password]").fill(PASSWORD)
    page.locator("#step-up").get_by_role("button", name="Confirm").click()


def keep_api_key(page: Page) -> None:
    """Close the dialog with a new API key; return when the page is loaded again."""
    with page.expect_navigation():
        page.get_by_role("button", name="I have saved it").click()


def assert_fits(page: Page) -> None:
    """Check that no page scrolls sideways."""
    wide = page.evaluate("document.documentElement.scrollWidth - innerWidth")
    assert wide <= 0, f"{page.url} is {wide} pixels too wide: {page.evaluate(_WIDE)}"


def assert_headings_in_order(html: str) -> None:
    """Check that no heading skips a level after the previous heading."""
    levels = [int(each) for each in re.findall(r"<h([1-6])", html.split("<dialog", maxsplit=1)[0])]
    assert levels[0] == 1
    assert all(below <= above + 1 for above, below in itertools.pairwise(levels)), levels


class _Nesting(HTMLParser):
    """Checks that each element is closed where it must be."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.feed(html)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: object) -> None:
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            assert self.open[-1] == tag, f"</{tag}> at {self.getpos()} closes {self.open[-3:]}"
            self.open.pop()


def assert_well_formed(html: str) -> None:
    """Check that elements nest correctly, and that no markup inside a sentence is shown as text."""
    _Nesting(html)
    shown = re.search(rf"&lt;/?({'|'.join(INLINE)})\b", html)
    assert not shown, f"{shown[0]} is shown as text"
