"""The search over every page, by keyboard alone."""

from __future__ import annotations

import re

from playwright.sync_api import Page, expect
from tests.fixtures.installation import Installation
from tests.portal.conftest import SignedIn
from tests.portal.example import trust
from tests.portal.visitors import get_page

from pqkeep_gateway.portal.pages import ROOT
from pqkeep_gateway.portal.views.search import ACTIONS


def _search(page: Page, text: str, shortcut: str = "/") -> None:
    page.keyboard.press(shortcut)
    expect(page.get_by_role("combobox", name="Search")).to_be_focused()
    page.keyboard.type(text)


def test_the_keyboard_finds_names_pages_and_actions(
    visit_as: SignedIn, installation: Installation
) -> None:
    """Ctrl+K, ⌘K and / open it; arrows choose, Enter opens; Escape returns to the page."""
    tenant = installation.new_tenant()
    for number in range(3):
        tenant.post("/kms/keyrings", {"name": f"needle-{number}"}, status=201)
    page = visit_as(installation.person(tenant.tenant_id)).open(ROOT)
    chosen = page.locator("#search [aria-selected=true]")
    _search(page, "needle")
    expect(page.locator("#search [role=option]")).to_have_count(3)
    page.keyboard.press("ArrowDown")
    expect(chosen).to_contain_text("needle-1")
    described = page.get_by_role("combobox", name="Search").get_attribute("aria-activedescendant")
    assert described == chosen.get_attribute("id")
    page.keyboard.press("Escape")
    expect(page.locator("#search")).to_be_hidden()
    _search(page, "needle-2", "Control+k")
    expect(chosen).to_contain_text("needle-2")
    page.keyboard.press("Enter")
    page.wait_for_url(re.compile("needle-2"))
    _search(page, "create an api", "Meta+k")
    page.keyboard.press("Enter")
    expect(page.get_by_role("dialog", name="Create an API key")).to_be_visible()
    page.get_by_label("Name").first.focus()
    page.keyboard.type("a/b")
    expect(page.get_by_label("Name").first).to_have_value("a/b")
    page.keyboard.press("Control+k")
    expect(page.locator("#search")).to_be_hidden()  # over a dialog it would hide what was typed


def test_a_visitor_is_offered_only_what_their_role_may_do(
    visit_as: SignedIn, installation: Installation
) -> None:
    """A viewer is offered no action of admins, and the page works without JavaScript."""
    tenant = installation.new_tenant()
    tenant.post("/kms/keyrings", {"name": "plain"}, status=201)
    viewer = installation.person(tenant.tenant_id, "viewer")
    page = visit_as(viewer).open(ROOT)
    _search(page, "create")
    expect(page.locator("#search [role=status]")).to_contain_text("Nothing found")
    plain = visit_as(viewer, java_script_enabled=False).open(f"{ROOT}/search?q=plain")
    expect(plain.get_by_role("link", name="plain")).to_have_attribute(
        "href", f"{ROOT}/keys?q=keyring:plain"
    )


def test_each_offered_action_opens_what_it_names(installation: Installation) -> None:
    """The address of an action is a page of the visitor, which has the part behind the #."""
    owner = installation.person(installation.new_tenant().tenant_id)
    trust(owner)  # a role needs an issuer
    operator = installation.caller(None)
    operator.post("/auth/operator", {"operator_key": installation.ready["operator_key"]})
    found: set[str] = set()
    for visitor, home in ((owner, ROOT), (operator, f"{ROOT}/operator")):
        links = re.findall(r'<a href="([^"]+)" data-kind="action"', get_page(visitor, home).text)
        for link in links:
            path, _, part = link.partition("#")
            page = get_page(visitor, path)
            assert page.status_code == 200, link
            assert not part or f'id="{part}"' in page.text, link
        found |= set(links)
    offered = {ROOT + path for _, path, operation in ACTIONS if operation != "change_password"}
    assert offered <= found
