"""Passkeys at the portal, with the browser's virtual authenticator."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import CDPSession, Page, expect
from tests.fixtures.browser import Visit, Visitor, assert_accessible, go_to
from tests.fixtures.caller import PASSWORD, Caller
from tests.fixtures.installation import Installation
from tests.portal.conftest import HAS_SIGNED_IN, SignedIn
from tests.portal.visitors import cookies_of, prove

HERE = "localhost"
INTERNAL: Mapping[str, Any] = {
    "protocol": "ctap2",
    "transport": "internal",
    "hasResidentKey": True,
    "hasUserVerification": True,
    "isUserVerified": True,
    "automaticPresenceSimulation": True,
}


OFFERED = "offered"
ON_REQUEST = f"""
if (location.protocol === 'http:' && !sessionStorage.getItem('{OFFERED}')) {{
  PublicKeyCredential.isConditionalMediationAvailable = async () => false;
}}"""
"""The virtual authenticator accepts an offer in the e-mail field at once, so most pages offer
nothing."""


class Device:
    """A virtual authenticator of one page."""

    def __init__(self, page: Page, **options: Any) -> None:
        self._session: CDPSession = page.context.new_cdp_session(page)
        self._session.send("WebAuthn.enable")
        added = self._session.send(
            "WebAuthn.addVirtualAuthenticator", {"options": {**INTERNAL, **options}}
        )
        self._id = {"authenticatorId": added["authenticatorId"]}

    @property
    def credentials(self) -> list[dict[str, Any]]:
        """The credentials, with their private keys."""
        found: list[dict[str, Any]] = self._session.send("WebAuthn.getCredentials", self._id)[
            "credentials"
        ]
        return found

    def set_verified(self, *, verified: bool) -> None:
        """Choose whether the device recognizes the person."""
        self._session.send("WebAuthn.setUserVerified", {**self._id, "isUserVerified": verified})

    def set_counter(self, counter: int) -> None:
        """Replace the only credential by a copy with another counter."""
        (credential,) = self.credentials
        known = {"credentialId": credential["credentialId"]}
        self._session.send("WebAuthn.removeCredential", {**self._id, **known})
        copy = {**credential, "signCount": counter}
        self._session.send("WebAuthn.addCredential", {**self._id, "credential": copy})


@pytest.fixture
def named(installation: Installation) -> str:
    """The installation's address with a host name."""
    return f"http://{HERE}:{urlsplit(installation.base_url).port}"


@pytest.fixture
def visit_named(visit: Visit, named: str) -> SignedIn:
    """Begin a visit at the host name with a caller's session."""

    def begin(caller: Caller, **options: object) -> Visitor:
        visitor = visit(named, init_script=HAS_SIGNED_IN + ON_REQUEST, is_fresh=True, **options)
        visitor.context.add_cookies(cookies_of(caller, HERE))
        return visitor

    return begin


def _add(page: Page) -> None:
    """Add a passkey and keep the recovery codes; a password proves the person."""
    page.get_by_role("button", name="Add a passkey").click()
    prove(page)
    page.get_by_label("I have saved them").check()
    page.get_by_role("button", name="Done").click()


def _sign_out(page: Page) -> None:
    page.get_by_role("button", name="Sign out").click()
    page.wait_for_url("**/portal/sign-in")


def _sign_in(page: Page) -> None:
    page.get_by_role("button", name="Use a passkey").click()


@pytest.mark.threat("stolen-passkey")
def test_a_passkey_from_its_addition_to_its_removal(
    visit_named: SignedIn, new_tenant: Callable[..., Caller], new_person: Callable[..., Caller]
) -> None:
    """A person adds a passkey. It is enough to sign in, to step up, and to confirm its removal."""
    owner = new_person(new_tenant().tenant_id)
    email = owner.get("/auth/me")["email"]
    visitor = visit_named(owner, asks_proof=True)
    page = visitor.open("/portal/security")
    device = Device(page)
    page.get_by_role("link", name="Add a passkey").click()
    assert_accessible(page)
    _add(page)
    expect(page.locator("#passkeys tbody tr")).to_have_count(1)
    assert_accessible(page)
    assert len(device.credentials) == 1

    _sign_out(page)
    _sign_in(page)
    page.wait_for_url("**/portal")
    _sign_out(page)
    page.locator("#sign-in-email").fill(email)
    page.locator("#sign-in-password").fill(PASSWORD)
    page.get_by_role("button", name="Sign in", exact=True).click()
    expect(page.get_by_text("Your account has a passkey")).to_be_visible()
    page.get_by_role("button", name="Use a passkey").click()
    page.wait_for_url("**/portal")

    go_to(page, "/portal/security")
    page.evaluate(f"sessionStorage.setItem('{OFFERED}', '1')")
    page.get_by_role("button", name="Sign out").click()
    page.wait_for_url("**/portal")  # by the offer in the e-mail field

    go_to(page, "/portal/security")
    page.get_by_role("button", name=re.compile("^Rename")).click()
    dialog = page.locator("dialog[open]")
    dialog.get_by_label("Name").fill("Work laptop")
    dialog.get_by_role("button", name="Rename", exact=True).click()
    page.locator("#step-up").get_by_role("button", name="Use a passkey").click()
    expect(page.locator("#passkeys")).to_contain_text("Work laptop")
    page.get_by_role("button", name="Remove Work laptop").click()
    page.locator("dialog[open]").get_by_role("button", name="Remove it").click()
    page.locator("#step-up").get_by_role("button", name="Use a passkey").click()
    expect(page.get_by_text("No passkeys")).to_be_visible()
    expect(page.locator("#passkeys")).to_have_count(0)


@pytest.mark.threat("stolen-passkey")
def test_a_copy_and_a_stranger_are_refused(
    visit_named: SignedIn, new_tenant: Callable[..., Caller], new_person: Callable[..., Caller]
) -> None:
    """A cloned counter and a device that does not verify the person do not sign in."""
    tenant = new_tenant()
    visitor = visit_named(new_person(tenant.tenant_id), asks_proof=True)
    page = visitor.open("/portal/security/passkey")
    device = Device(page)
    _add(page)
    page.wait_for_url("**/portal/security")
    _sign_out(page)
    device.set_verified(verified=False)
    _sign_in(page)
    problem = page.locator("[data-step=password] .form-error")
    expect(problem).to_contain_text("No passkey was used")
    device.set_verified(verified=True)
    device.set_counter(0)
    _sign_in(page)
    expect(problem).to_contain_text("the passkey is not accepted")
    records = tenant.get("/audit/records", operation="passkey-cloned")["records"]
    assert len(records) == 1


def test_an_address_without_a_name_is_explained(
    visit_as: SignedIn, new_tenant: Callable[..., Caller], new_person: Callable[..., Caller]
) -> None:
    """At an IP address the pages say where passkeys work, and call no authenticator."""
    owner = new_person(new_tenant().tenant_id)
    page = visit_as(owner).open("/portal/security/passkey")
    expect(page.locator(".form-error").first).to_contain_text("localhost")
    page = visit_as(owner).open("/portal/sign-in")
    _sign_in(page)
    expect(page.locator("[data-step=password] .form-error")).to_contain_text("localhost")
