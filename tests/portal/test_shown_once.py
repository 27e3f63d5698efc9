"""A value that is shown once stays until its reader confirms."""

from __future__ import annotations

import uuid

import pyotp
from playwright.sync_api import Locator, Page, Route, expect
from tests.fixtures.browser import go_to
from tests.fixtures.caller import PASSWORD
from tests.fixtures.installation import Installation
from tests.portal.conftest import SignedIn
from tests.portal.visitors import prove


def _assert_stays(page: Page, shown: Locator, secret: Locator) -> None:
    """Check that no way out closes the value without a question."""
    text = secret.inner_text()
    assert text
    for _ in range(3):
        page.keyboard.press("Escape")
    page.mouse.click(2, 2)
    expect(shown).to_be_visible()
    for leave in ("location.assign('/portal')", "location.reload()", "history.back()"):
        with page.expect_event("dialog") as asked:
            page.evaluate(f"setTimeout(() => {leave})")
        assert asked.value.type == "beforeunload"
        asked.value.dismiss()
        expect(shown).to_be_visible()
        expect(secret).to_have_text(text, use_inner_text=True)
    expect(page.locator("html.is-loading")).to_have_count(0)


def test_an_api_key_stays_until_it_is_kept(visit_as: SignedIn, installation: Installation) -> None:
    """Escape, a click outside, a link, a reload and the back button do not close the dialog."""
    tenant = installation.new_tenant()
    page = visit_as(installation.person(tenant.tenant_id), asks_proof=True).open("/portal/keys")
    go_to(page, "/portal/api-keys")
    page.get_by_role("button", name="Create an API key").click()
    page.get_by_role("button", name="Create", exact=True).click()
    prove(page)
    key = page.locator("[data-made=key] code")
    expect(key).to_contain_text("pqk_")
    _assert_stays(page, page.locator("#made"), key)
    with page.expect_navigation():
        page.get_by_role("button", name="I have saved it").click()
    expect(page.locator("#made")).to_be_hidden()


def test_an_invitations_link_stays_until_it_is_kept(
    visit_as: SignedIn, installation: Installation
) -> None:
    """The invitation of an owner by an operator is shown once, and stays until confirmed."""
    tenant = installation.new_tenant()
    operator = installation.caller(None)
    key = installation.ready["operator_key"]
    operator.post("/auth/operator", {"operator_key": key})
    page = visit_as(operator, asks_proof=True).open("/portal/operator/tenants")
    go_to(page, f"/portal/operator/tenants/{tenant.tenant_id}")
    page.get_by_role("button", name="Invite an owner").click()
    page.locator("#invite-email").fill(f"{uuid.uuid4()}@example.com")
    page.get_by_role("button", name="Invite", exact=True).click()
    page.locator("#step-up input[type=password]").fill(key)
    page.locator("#step-up").get_by_role("button", name="Confirm").click()
    link = page.locator("[data-invitation-link]")
    expect(link).to_contain_text("/portal/invitation#")
    _assert_stays(page, page.locator("#invited"), link)
    with page.expect_navigation():
        page.get_by_role("button", name="I have saved it").click()


def test_recovery_codes_stay_until_they_are_saved(
    visit_as: SignedIn, installation: Installation
) -> None:
    """The codes stay until the person confirms that they are saved."""
    tenant = installation.new_tenant()
    page = visit_as(installation.person(tenant.tenant_id, "viewer"), asks_proof=True).open(
        "/portal/security"
    )
    go_to(page, "/portal/security/enroll")
    page.get_by_role("button", name="Show the code to scan").click()
    page.get_by_label("Your password").fill(PASSWORD)
    page.get_by_role("button", name="Confirm").click()
    secret = page.locator("[data-result=secret]")
    expect(secret).not_to_be_empty()
    page.get_by_label("Six digits").fill(pyotp.TOTP(secret.inner_text()).now())
    page.get_by_role("button", name="Confirm").click()
    codes = page.locator("[data-codes]")
    expect(codes).not_to_be_empty()
    _assert_stays(page, page.locator("[data-enroll=codes]"), codes)
    page.get_by_label("I have saved them").check()
    page.get_by_role("button", name="Done").click()
    expect(page.get_by_role("button", name="Switch it off")).to_be_visible()


def test_an_answer_on_its_way_is_waited_for(visit_as: SignedIn, installation: Installation) -> None:
    """Leaving while an API key is created asks first, because the response comes once."""
    tenant = installation.new_tenant()
    visitor = visit_as(installation.person(tenant.tenant_id))
    visitor.expected += ["401", "409"]
    page = visitor.open("/portal/api-keys")
    held: list[Route] = []
    asked_before: list[Route] = []  # is answered by a question for a proof

    def hold(route: Route) -> None:
        if asked_before:
            held.append(route)
        else:
            asked_before.append(route)
            route.continue_()

    page.route("**/api-keys", hold)
    page.get_by_role("button", name="Create an API key").click()
    page.get_by_role("button", name="Create", exact=True).click()
    prove(page)
    while not held:
        page.wait_for_timeout(20)
    with page.expect_event("dialog") as asked:
        page.evaluate("setTimeout(() => location.reload())")
    asked.value.dismiss()
    held[0].fulfill(
        status=409,
        json={"error": {"error_code": "ERR_CONFLICT_001", "message": "another was quicker"}},
    )
    expect(page.get_by_text("another was quicker")).to_be_visible()
    page.unroute_all()
    with page.expect_navigation():
        page.evaluate("setTimeout(() => location.reload())")
