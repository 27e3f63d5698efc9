"""Pages on a slow connection, without JavaScript, and their requests."""

from __future__ import annotations

import re

import httpx2
from playwright.sync_api import expect
from tests.fixtures.browser import Visit
from tests.fixtures.caller import PASSWORD
from tests.fixtures.installation import Installation
from tests.patience import PATIENCE
from tests.portal.conftest import SignedIn
from tests.portal.visitors import get_page

from pqkeep_gateway.portal import assets
from pqkeep_gateway.portal.app import PAGES
from pqkeep_gateway.portal.pages import ROOT

SLOW = {"offline": False, "latency": 100, "downloadThroughput": 93_750, "uploadThroughput": 93_750}
"""3G: milliseconds, and bytes per second."""
NAMED = re.compile(r'(?:src|href)="([^"]*/static/[^"]*)"')


def test_signing_in_works_on_a_slow_connection(visit: Visit, installation: Installation) -> None:
    """A person signs in over 3G with an empty cache."""
    email = "slow@example.com"
    installation.person(installation.new_tenant().tenant_id, email=email)
    visitor = visit(installation.base_url, phone=True, is_fresh=True)
    page = visitor.context.new_page()
    protocol = visitor.context.new_cdp_session(page)
    protocol.send("Network.enable")
    protocol.send("Network.emulateNetworkConditions", SLOW)
    page.goto(f"{ROOT}/sign-in")
    page.get_by_label("E-mail").fill(email)
    page.get_by_label("Password", exact=True).fill(PASSWORD)
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="Overview")).to_be_visible()


def test_pages_can_be_read_without_javascript(
    visit_as: SignedIn, installation: Installation
) -> None:
    """With a session the lists and the navigation are there, and a line says what is missing."""
    tenant = installation.new_tenant()
    tenant.post("/kms/keys/generate", {"algorithm": "Kyber768"}, status=201)
    owner = installation.person(tenant.tenant_id)
    visitor = visit_as(owner, java_script_enabled=False, phone=True)
    page = visitor.open(f"{ROOT}/keys")
    without = page.locator("noscript .notice")
    expect(without).to_be_visible()
    expect(without).to_contain_text("Without JavaScript you can only read these pages.")
    expect(page.get_by_role("link", name="default/Kyber768 v1")).to_be_visible()
    page.get_by_role("link", name="Audit log").click()
    expect(page.get_by_role("heading", name="Audit log")).to_be_visible()


def test_the_navigation_waits_on_a_phone(visit_as: SignedIn, installation: Installation) -> None:
    """While modules load, the navigation is closed. Its button already works."""
    owner = installation.person(installation.new_tenant().tenant_id)
    visitor = visit_as(owner, phone=True)
    visitor.expected.append("ERR_FAILED")
    page = visitor.context.new_page()
    page.route(re.compile(r"\.js$"), lambda route: route.abort())
    page.goto(f"{ROOT}/keys")
    navigation = page.get_by_role("navigation", name="Portal")
    expect(page.get_by_role("heading", name="Keys", exact=True)).to_be_visible()
    expect(navigation).to_be_hidden()
    page.get_by_role("button", name="Menu").focus()
    expect(navigation).to_be_visible()


def test_every_file_that_a_page_names_is_served(installation: Installation) -> None:
    """Each page without variables in its path names only existing files of this server."""
    owner = installation.person(installation.new_tenant().tenant_id)
    named = set()
    for each in PAGES:
        if "{" not in each.path and not each.path.startswith("/operator"):
            response = get_page(owner, ROOT + each.path)
            found = NAMED.findall(response.text)
            assert found or response.is_redirect, each.path
            named |= set(found)
    assert named <= assets.documents().keys()
    modules = {url for url in named if url.endswith(".js")}
    for url in modules:
        text = httpx2.get(installation.base_url + url, timeout=PATIENCE).text
        for name in re.findall(r'^import .*from "\./([^"]+)"', text, re.MULTILINE):
            assert name in assets.contents(), (url, name)
