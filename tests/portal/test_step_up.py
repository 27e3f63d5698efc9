"""Step-ups at the portal: when they are needed, and the effect of a used code."""

from __future__ import annotations

import re
import time
from collections.abc import Callable

import pytest
from playwright.sync_api import Page, expect
from pyotp import TOTP
from tests.fixtures.caller import Caller
from tests.portal.conftest import SignedIn
from tests.portal.visitors import prove

INVITED = 10
SECONDS = 60.0
ATTEMPTS = 3


def _enroll(person: Caller) -> TOTP:
    """Enrol an authenticator app, with the code of the previous time step."""
    totp = TOTP(person.post_proven("/auth/mfa/enroll")["secret"])
    person.confirm_authenticator(totp)
    return totp


def _confirm(page: Page, code: str) -> None:
    """Answer a step-up by a code."""
    dialog = page.locator("#step-up")
    dialog.locator("input[name=totp_code]").fill(code)
    dialog.get_by_role("button", name="Confirm").click()


def _invite(page: Page, email: str) -> None:
    """Fill in the form and send it."""
    page.get_by_role("button", name="Invite a member").click()
    page.locator("#invite-email").fill(email)
    page.locator("#invite").get_by_role("button", name="Invite", exact=True).click()


def test_ten_are_invited_by_one_code(
    visit_as: SignedIn, new_tenant: Callable[..., Caller], new_person: Callable[..., Caller]
) -> None:
    """A person with an authenticator app invites ten people by one code."""
    _invite_ten(visit_as, new_person(new_tenant().tenant_id))


@pytest.mark.campaign
def test_ten_are_invited_within_a_minute(
    visit_as: SignedIn, new_tenant: Callable[..., Caller], new_person: Callable[..., Caller]
) -> None:
    """Ten invitations take less than a minute. The best of three attempts decides."""
    took: list[float] = []
    while len(took) < ATTEMPTS and not (took and min(took) < SECONDS):
        took.append(_invite_ten(visit_as, new_person(new_tenant().tenant_id)))
    print(took)  # noqa: T201 - a measurement
    assert min(took) < SECONDS, took


def _invite_ten(visit_as: SignedIn, owner: Caller) -> float:
    """Invite ten people by one code at the portal; return the seconds."""
    totp = _enroll(owner)
    page = visit_as(owner, asks_proof=True).open("/portal/team/invitations")
    began = time.monotonic()
    for number in range(INVITED):
        _invite(page, f"invited-{number}@example.com")
        if number == 0:
            _confirm(page, totp.now())
        expect(page.locator("table.listing tbody tr")).to_have_count(number + 1)
    took = time.monotonic() - began
    assert owner.get("/team/invitations")["total"] == INVITED
    return took


def test_a_mistake_is_shown_before_a_proof_is_asked(
    visit_as: SignedIn, new_tenant: Callable[..., Caller], new_person: Callable[..., Caller]
) -> None:
    """A form that cannot succeed shows an error at its field and opens no dialog."""
    owner = new_person(new_tenant().tenant_id)
    visitor = visit_as(owner, asks_proof=True)
    visitor.expected += ["409"]
    page = visitor.open("/portal/team/invitations")
    _invite(page, owner.get("/auth/me")["email"])
    problem = page.locator("#invite [data-problem=email]")
    expect(problem).to_have_text("an account with this e-mail address already exists")
    expect(page.locator("#step-up")).to_be_hidden()
    page.locator("#invite-email").fill("grace@example.com")
    page.locator("#invite").get_by_role("button", name="Invite", exact=True).click()
    prove(page)
    expect(page.locator("table.listing")).to_contain_text("grace@example.com")


def test_a_used_code_counts_down_to_the_next(
    visit_as: SignedIn, new_tenant: Callable[..., Caller], new_person: Callable[..., Caller]
) -> None:
    """A used code is not called wrong: the dialog stays, and shows when the next one works."""
    owner = new_person(new_tenant().tenant_id)
    totp = _enroll(owner)
    code = totp.now()
    owner.post("/auth/step-up", {"totp_code": code})
    page = visit_as(owner, asks_proof=True).open("/portal/team/invitations")
    _invite(page, "grace@example.com")
    _confirm(page, code)
    said = page.locator("#step-up .form-error")
    expect(said).to_have_text(re.compile("used before. Use the next code in [0-9]+ seconds?"))
    first = said.text_content()
    expect(said).not_to_have_text(first or "")
    expect(page.locator("#step-up input[name=totp_code]")).to_have_value(code)
    _confirm(page, totp.at(int(time.time()) + 30))
    expect(page.locator("table.listing")).to_contain_text("grace@example.com")
