"""Pages before the sign-in, in a browser with the real service."""

from __future__ import annotations

import re
import uuid

import httpx2
import pyotp
import pytest
from playwright.sync_api import expect
from tests.fixtures.browser import Visit, go_to
from tests.fixtures.caller import PASSWORD, Caller
from tests.fixtures.installation import Installation
from tests.portal.conftest import SignedIn
from tests.sampling import sampled

UNAUTHORIZED = "401"
"""Chromium's console message for a response with that status."""


@pytest.fixture(scope="module")
def tenant(installation: Installation) -> Caller:
    """A tenant for this file."""
    return installation.new_tenant()


def _email() -> str:
    return f"{uuid.uuid4()}@example.com"


def test_signing_in_by_keyboard_leads_to_the_page_that_was_asked_for(
    visit: Visit, installation: Installation, tenant: Caller
) -> None:
    """A visitor without a session signs in and then sees the requested page."""
    email = _email()
    installation.person(tenant.tenant_id, "viewer", email)
    page = visit(installation.base_url).open("/portal/security")
    page.wait_for_url("**/portal/sign-in?next=%2Fportal%2Fsecurity")
    expect(page.get_by_label("E-mail address")).to_be_visible()
    page.locator("#sign-in-email").focus()
    page.keyboard.type(email)
    page.keyboard.press("Tab")
    page.keyboard.type(PASSWORD)
    page.keyboard.press("Enter")
    page.wait_for_url("**/portal/security")
    expect(page.get_by_role("heading", name="Security", exact=True)).to_be_visible()


def test_the_bare_address_leads_browsers_to_the_portal(installation: Installation) -> None:
    """Only a GET or HEAD that accepts HTML is redirected. Programs get 404 as for any other path."""
    page = "text/html,application/xhtml+xml,*/*;q=0.8"
    with httpx2.Client(base_url=installation.base_url) as client:
        for method in ("GET", "HEAD"):
            led = client.request(method, "/", headers={"Accept": page})
            assert (led.status_code, led.headers["location"]) == (303, "/portal")
            assert led.headers["cache-control"] == "no-store"
        for accepted in ("*/*", "application/json", "text/html;q=0, */*"):
            assert client.get("/", headers={"Accept": accepted}).status_code == 404
        assert client.post("/", headers={"Accept": page}).status_code == 404
        assert client.get("/other", headers={"Accept": page}).status_code == 404


def test_the_link_of_a_development_installation_signs_its_owner_in(
    visit: Visit, installation: Installation
) -> None:
    """The link signs in by the invitation first and by the password later, and leaves no trace."""
    link = installation.ready["portal_link"]
    for _ in range(2):
        visitor = visit(installation.ready["portal_url"])
        visitor.expected.append(UNAUTHORIZED)
        page = visitor.open(link)
        page.wait_for_url(installation.ready["portal_url"])
        expect(page.get_by_text("owner@localhost")).to_be_visible()
        assert page.evaluate("history.length") <= 3


def test_a_wrong_password_is_said_and_leaves_what_was_typed(
    visit: Visit, installation: Installation
) -> None:
    """The form reports the wrong password, and the address stays."""
    visitor = visit(installation.base_url)
    visitor.expected.append(UNAUTHORIZED)
    page = visitor.open("/portal/sign-in")
    page.get_by_label("E-mail address").fill("nobody@example.com")
    page.get_by_label("Password").fill("not the password")
    page.get_by_role("button", name="Sign in").click()
    expect(page.locator("[data-step=password] .form-error")).not_to_be_empty()
    expect(page.get_by_label("E-mail address")).to_have_value("nobody@example.com")


@pytest.mark.parametrize(
    "elsewhere",
    sampled(
        [
            "//example.org/portal",
            "https://example.org/portal",
            "/\\example.org",
            "/portal.example.org",
        ],
        4,
    ),
)
def test_signing_in_leads_to_no_other_origin(
    visit: Visit, installation: Installation, tenant: Caller, elsewhere: str
) -> None:
    """A link with a foreign page in ``next`` leads to the overview."""
    email = _email()
    installation.person(tenant.tenant_id, "viewer", email)
    page = visit(installation.base_url).open(f"/portal/sign-in?next={elsewhere}")
    page.get_by_label("E-mail address").fill(email)
    page.get_by_label("Password").fill(PASSWORD)
    page.get_by_role("button", name="Sign in").click()
    page.wait_for_url(re.compile(r"^http://127\.0\.0\.1:\d+/portal$"))


def test_an_invitation_by_mail_is_accepted_and_leaves_no_token_behind(
    visit: Visit, installation: Installation, tenant: Caller
) -> None:
    """The message's link opens the page; a password makes a signed-in member."""
    email = _email()
    owner = installation.person(tenant.tenant_id)
    owner.post_proven(
        f"/tenants/{tenant.tenant_id}/invitations", {"email": email, "role": "viewer"}, status=201
    )
    link = installation.mailbox.link(email, "invitation")
    page = visit(installation.base_url).open(link)
    expect(page).to_have_url(installation.base_url + "/portal/invitation")
    page.get_by_label("Password", exact=True).fill(PASSWORD)
    page.get_by_label("The same password again").fill("another one")
    page.get_by_role("button", name="Join").click()
    expect(page.get_by_text("The passwords do not match.")).to_be_visible()
    page.get_by_label("The same password again").fill(PASSWORD)
    page.get_by_role("button", name="Join").click()
    page.wait_for_url("**/portal")
    expect(page.get_by_text(email)).to_be_visible()


def test_a_forgotten_password_is_replaced_by_mail(
    visit: Visit, installation: Installation, tenant: Caller
) -> None:
    """The page sends the message, and its link accepts a new password, which then works."""
    email, chosen = _email(), "another horse prefers hay"
    installation.person(tenant.tenant_id, "viewer", email)
    page = visit(installation.base_url).open("/portal/forgot-password")
    page.get_by_label("E-mail address").fill(email)
    page.get_by_role("button", name="Send the link").click()
    expect(page.get_by_role("heading", name="Check your mailbox")).to_be_visible()
    go_to(page, installation.mailbox.link(email, "password-reset"))
    page.get_by_label("Password", exact=True).fill(chosen)
    page.get_by_label("The same password again").fill(chosen)
    page.get_by_role("button", name="Set the password").click()
    page.wait_for_url("**/portal/sign-in")
    page.get_by_label("E-mail address").fill(email)
    page.get_by_label("Password").fill(chosen)
    page.get_by_role("button", name="Sign in").click()
    page.wait_for_url("**/portal")


def test_an_authenticator_app_is_set_up_and_asked_for(
    visit: Visit, visit_as: SignedIn, installation: Installation, tenant: Caller
) -> None:
    """Enrolment shows a secret and recovery codes. Signing in then needs a code."""
    email = _email()
    visitor = visit_as(installation.person(tenant.tenant_id, "viewer", email), asks_proof=True)
    page = visitor.open("/portal/security/enroll")
    page.get_by_role("button", name="Show the code to scan").click()
    page.get_by_label("Your password").fill(PASSWORD)
    page.get_by_role("button", name="Confirm").click()
    secret = page.locator("[data-result=secret]")
    expect(secret).not_to_be_empty()
    assert page.locator("#qr").evaluate("image => image.decode().then(() => image.naturalWidth)")
    page.get_by_label("Six digits").fill(pyotp.TOTP(secret.inner_text()).now())
    page.get_by_role("button", name="Confirm").click()
    expect(page.locator("[data-codes]")).not_to_be_empty()
    codes = page.locator("[data-codes]").inner_text().split()
    assert len(codes) == 10
    page.get_by_label("I have saved them").check()
    page.get_by_role("button", name="Done").click()
    expect(page.get_by_role("button", name="Switch it off")).to_be_visible()

    visitor = visit(installation.base_url, asks_proof=True)
    visitor.expected.append(UNAUTHORIZED)
    page = visitor.open("/portal/sign-in")
    page.get_by_label("E-mail address").fill(email)
    page.get_by_label("Password").fill(PASSWORD)
    page.get_by_role("button", name="Sign in").click()
    page.get_by_role("button", name="Use a recovery code").click()
    page.get_by_label("Recovery code").fill(codes[0])
    page.get_by_role("button", name="Continue").click()
    page.wait_for_url("**/portal")


def test_what_was_typed_survives_the_end_of_a_session(
    visit_as: SignedIn, installation: Installation, tenant: Caller
) -> None:
    """If a session ends while a form is open, a sign-in dialog appears and the form is then sent."""
    person = installation.person(tenant.tenant_id)
    visitor = visit_as(person)
    visitor.expected.append(UNAUTHORIZED)
    page = visitor.open("/portal/team")
    page.get_by_role("button", name="Invite a member").click()
    invited = _email()
    page.locator("#invite-email").fill(invited)
    person.post("/auth/logout")
    page.get_by_role("button", name="Invite", exact=True).click()
    again = page.locator("#sign-in-again")
    again.get_by_label("Password").fill(PASSWORD)
    again.get_by_role("button", name="Sign in").click()
    page.get_by_label("Your password").fill(PASSWORD)
    page.get_by_role("button", name="Confirm").click()
    expect(page.locator("table.listing")).to_contain_text(invited)
