"""The operator's pages: the installation, and the complete life of a tenant."""

from __future__ import annotations

import html
import re
import uuid
from datetime import UTC, datetime
from http import HTTPStatus

from playwright.sync_api import Page, expect
from tests.fixtures.browser import Visit, assert_accessible, go_to
from tests.fixtures.caller import Caller
from tests.fixtures.installation import Installation
from tests.portal.conftest import SignedIn
from tests.portal.visitors import MARKUP, assert_fits, get_page

from pqkeep_gateway.portal.views.operator import PAGE

NOW = datetime(2026, 1, 31, 12, tzinfo=UTC)


def _signed_in(installation: Installation) -> Caller:
    operator = installation.caller(None)
    operator.post("/auth/operator", {"operator_key": installation.ready["operator_key"]})
    return operator


def _prove(page: Page, credential: str) -> None:
    page.locator("#step-up input[type=password]").fill(credential)
    page.locator("#step-up").get_by_role("button", name="Confirm").click()


def test_an_operator_signs_in_looks_around_and_leaves(
    installation: Installation, visit: Visit
) -> None:
    """The entrance leads back to the requested page, and never to another host."""
    visitor = visit(installation.base_url, phone=True)
    visitor.expected.append("401")
    page = visitor.open("/portal/operator")
    page.wait_for_url("**/portal/operator/sign-in?next=%2Fportal%2Foperator")
    assert_accessible(page)
    page.get_by_label("Operator credential").fill("pqo_wrong")
    page.keyboard.press("Enter")
    expect(page.locator(".form-error")).not_to_be_empty()
    page.get_by_label("Operator credential").fill(installation.ready["operator_key"])
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="Installation")).to_be_visible()
    assert_fits(page)
    assert_accessible(page)
    go_to(page, "/portal/audit")
    record = page.get_by_role("table").first.get_by_role("link").first
    record.click()
    expect(page.get_by_text("verified: it is in the log")).to_be_visible()
    page.get_by_role("button", name="Menu").click()
    page.get_by_role("button", name="Sign out").click()
    page.wait_for_url("**/portal/operator/sign-in")
    go_to(page, "/portal/operator/sign-in?next=//evil.example/portal")
    page.get_by_label("Operator credential").fill(installation.ready["operator_key"])
    page.keyboard.press("Enter")
    page.wait_for_url(f"{installation.base_url}/portal/operator")


def test_a_tenant_is_created_suspended_and_deleted(
    installation: Installation, visit_as: SignedIn
) -> None:
    """Each change asks for the credential. After a wrong one, the typed values stay."""
    key, name = installation.ready["operator_key"], f"tenant {MARKUP[1]}"
    visitor = visit_as(_signed_in(installation))
    visitor.expected.append("401")
    page = visitor.open("/portal/operator/tenants")
    assert_accessible(page)
    page.get_by_role("button", name="Create a tenant").first.click()
    field = page.locator("#create-name")
    field.fill(name)
    page.keyboard.press("Enter")
    _prove(page, "pqo_wrong")
    expect(page.locator("#create .form-error")).not_to_be_empty()
    expect(field).to_have_value(name)
    page.locator("#create").get_by_role("button", name="Create").click()
    _prove(page, key)
    expect(page.get_by_role("heading", name=name)).to_be_visible()
    assert_accessible(page)

    page.get_by_role("button", name="Invite an owner").click()
    page.get_by_label("E-mail address").fill("ada@example.com")
    page.keyboard.press("Enter")
    _prove(page, key)
    link = page.locator("[data-invitation-link]")
    expect(link).to_contain_text(f"{installation.base_url}/portal/invitation#pqi_")
    page.get_by_role("button", name="I have saved it").click()
    expect(page.get_by_text("ada@example.com, invited as owner")).to_be_visible()

    page.get_by_role("button", name="Change").click()
    page.get_by_label("Tier").select_option("starter")
    page.get_by_label("Requests a minute").fill("77")
    page.keyboard.press("Enter")
    _prove(page, key)
    expect(page.get_by_role("region", name="Plan")).to_contain_text("77")

    page.get_by_role("button", name="Suspend the tenant").first.click()
    page.locator("#confirm-suspend").fill(name)
    page.keyboard.press("Enter")
    _prove(page, key)
    page.get_by_role("button", name="Delete the tenant").first.click()
    page.get_by_label("Waiting time in days").fill("3")
    page.locator("#confirm-delete").fill(name)
    page.keyboard.press("Enter")
    _prove(page, key)
    expect(page.get_by_text("Its keys are destroyed in 3 days")).to_be_visible()
    page.get_by_role("button", name="Cancel the deletion").click()
    _prove(page, key)
    page.get_by_role("button", name="Resume the tenant").first.click()
    page.locator("#resume").get_by_role("button", name="Resume it").click()
    _prove(page, key)
    expect(page.get_by_role("button", name="Suspend the tenant").first).to_be_visible()


def test_a_session_of_an_operator_is_ended(installation: Installation, visit_as: SignedIn) -> None:
    """On a phone, the page lists sessions; after the credential, one is ended for good."""
    other = _signed_in(installation)
    (session,) = (each for each in other.get("/operators/sessions")["sessions"] if each["current"])
    visitor = visit_as(_signed_in(installation), phone=True)
    visitor.expected.append("401")
    page = visitor.open("/portal/operator")
    expect(page.get_by_role("region", name="Operators' sessions")).to_contain_text("this one")
    opener = page.locator(f'[data-open="end-{session["id"]}"]')
    opener.click()
    assert_accessible(page)
    assert_fits(page)
    page.get_by_role("button", name="End it").click()
    _prove(page, installation.ready["operator_key"])
    expect(opener).to_have_count(0)
    assert other.ask("GET", "/auth/operator").status_code == HTTPStatus.UNAUTHORIZED


def test_whoever_is_signed_in_as_somebody_else_is_told_where_to_sign_in(
    installation: Installation,
) -> None:
    """A person on an operator's page, and the reverse, are led to the other sign-in."""
    owner = installation.person(installation.new_tenant().tenant_id, email="elsewhere@example.com")
    page = get_page(owner, "/portal/operator/tenants")
    assert page.status_code == HTTPStatus.FORBIDDEN
    assert "You are signed in as <bdi>elsewhere@example.com</bdi>" in page.text
    assert 'href="/portal/operator/sign-in?next=/portal/operator/tenants"' in page.text
    page = get_page(_signed_in(installation), "/portal/keys")
    assert page.status_code == HTTPStatus.FORBIDDEN
    assert 'href="/portal/sign-in?next=/portal/keys"' in page.text
    viewer = installation.person(owner.tenant_id, "viewer")
    assert "sign-in?next" not in get_page(viewer, "/portal/try").text


def test_tenants_are_searched(installation: Installation) -> None:
    """A part of a name and a status find tenants, and markup is text."""
    tenant = installation.new_tenant()
    name = installation.operator().get(f"/tenants/{tenant.tenant_id}")["name"]
    operator = _signed_in(installation)
    path = "/portal/operator/tenants"
    assert name in get_page(operator, f"{path}?q={name[10:]}").text
    assert "No tenant matches" in get_page(operator, f"{path}?q={name} status:suspended").text
    assert name in get_page(operator, f"{path}?q={name} plan:enterprise_plus -status:deleted").text
    for markup in MARKUP:
        assert markup not in get_page(operator, f"{path}?q={markup}&sort={markup}").text


def test_a_long_list_of_tenants_has_pages(installation: Installation) -> None:
    """The oldest tenants come first, and the link to the next page keeps the search."""
    prefix = f"paged {uuid.uuid4()}"
    for number in range(PAGE + 1):
        fields = {"name": f"{prefix} {number}", "plan": "free"}
        installation.operator().post("/tenants", fields, status=201)
    operator, path = _signed_in(installation), "/portal/operator/tenants"
    first = get_page(operator, f"{path}?q={prefix}").text
    assert first.count('data-label="Name"') == PAGE
    more = re.search(r'rel="next" href="(\?[^"]*)"', first)
    assert more
    rest = get_page(operator, path + html.unescape(more[1])).text
    assert rest.count('data-label="Name"') == 1
    assert f"{prefix} {PAGE}<" in rest
    assert 'rel="next"' not in rest
