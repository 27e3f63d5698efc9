"""The page of plan and billing: plans, usage, checkout, cancelling, invoices."""

from __future__ import annotations

from http import HTTPStatus

import pytest
from playwright.sync_api import Route, expect
from tests.fixtures.browser import assert_accessible
from tests.fixtures.installation import Installation
from tests.portal.conftest import SignedIn
from tests.portal.visitors import allowed, assert_fits, get_page, operations_on, prove

from pqkeep_gateway.access.callers import Role
from pqkeep_gateway.portal.views.billing import Meter, price

PATH = "/portal/billing"


def test_an_owner_chooses_a_plan_and_cancels_it(
    installation: Installation, visit_as: SignedIn
) -> None:
    """The new plan is marked, with an invoice; after a cancellation its end is shown."""
    tenant = installation.new_tenant("free")
    name = installation.operator().get(f"/tenants/{tenant.tenant_id}")["name"]
    page = visit_as(installation.person(tenant.tenant_id), phone=True, asks_proof=True).open(PATH)
    expect(page.get_by_text("No invoices yet")).to_be_visible()
    assert_fits(page)
    assert_accessible(page)
    page.get_by_role("button", name="Choose Starter").focus()
    page.keyboard.press("Enter")
    dialog = page.locator("#choose-starter")
    expect(dialog).to_contain_text("99 USD a month")
    dialog.get_by_role("button", name="Choose it").focus()
    page.keyboard.press("Enter")
    prove(page)
    expect(page.get_by_text("The plan is changed.")).to_be_visible()
    expect(page.get_by_role("row", name="Starter").first).to_contain_text("yours")
    expect(page.get_by_role("region", name="Invoices")).to_contain_text("99 USD")
    page.get_by_role("button", name="Cancel the subscription").first.click()
    page.get_by_label(f"Type {name} to confirm").fill(name)
    page.keyboard.press("Enter")  # the first proof covers it
    expect(page.get_by_text("Until then nothing changes")).to_be_visible()


@pytest.mark.parametrize("url", ["https://pay.example.org/1", "javascript:alert(1)"])
def test_only_an_https_address_is_gone_to(
    installation: Installation, visit_as: SignedIn, url: str
) -> None:
    """If checkout returns a payment page, the browser goes there, only over https."""
    tenant = installation.new_tenant("free")
    visitor = visit_as(installation.person(tenant.tenant_id))
    visitor.expected.append("another host: https://pay.example.org")
    response = {"data": {"pending": True, "checkout_url": url, "subscription": None}}

    def pay(route: Route) -> None:
        route.fulfill(body="paid here", content_type="text/plain")

    visitor.context.route(
        "**/billing/subscriptions/checkout", lambda each: each.fulfill(json=response)
    )
    visitor.context.route("https://pay.example.org/*", pay)
    page = visitor.open(PATH)
    page.get_by_role("button", name="Choose Starter").click()
    page.locator("#choose-starter").get_by_role("button", name="Choose it").click()
    if url.startswith("https:"):
        page.wait_for_url(url)
    else:
        expect(page.get_by_text("once the payment is confirmed")).to_be_visible()
        assert page.url.endswith(PATH)


@pytest.mark.parametrize("role", Role)
def test_a_role_sees_what_it_may_do(installation: Installation, role: Role) -> None:
    """Forms and invoices follow the access table."""
    tenant = installation.new_tenant("free")
    page = get_page(installation.person(tenant.tenant_id, role), PATH)
    assert page.status_code == HTTPStatus.OK
    assert operations_on(page.text) == allowed(role, {"check_out"})
    assert ("No invoices yet" in page.text) == bool(allowed(role, {"list_invoices"}))


def test_meters_and_prices() -> None:
    """A meter is full at its limit and high from four fifths; a price has enough digits."""
    states = [Meter("", "", used, 10).state for used in (7, 8, 10, None)]
    assert states == ["low", "high", "full", "low"]
    assert Meter("", "", 7, None).state == "low"
    assert [price(each, "usd") for each in (9900, 123450, -50)] == [
        "99 USD",
        "1,234.50 USD",
        "-0.50 USD",
    ]
