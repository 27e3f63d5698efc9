"""Five jobs from first to last page, with the keyboard alone."""

from __future__ import annotations

import json
import re

import pytest
from playwright.sync_api import Locator, Page, expect
from tests.fixtures.browser import Visit
from tests.fixtures.caller import PASSWORD
from tests.fixtures.installation import Installation
from tests.portal.conftest import SignedIn

pytestmark = [pytest.mark.campaign, pytest.mark.timeout(300)]
MOST_TABS = 150
MODULES = "body:not(.no-script)"


def _reach(page: Page, wanted: Locator) -> None:
    """Press Tab until an element has the focus."""
    expect(wanted).to_be_visible()
    for _ in range(MOST_TABS):
        if wanted.evaluate("each => each === document.activeElement"):
            return
        page.keyboard.press("Tab")
    raise AssertionError(f"{MOST_TABS} tabs do not reach {wanted}")


def _press(page: Page, name: str, role: str = "button", inside: str = "main") -> None:
    """Reach a button or a link by its name, and press Enter."""
    part = page.locator(inside)
    wanted = part.get_by_role(role, name=name, exact=True)  # type: ignore[arg-type]
    _reach(page, wanted.first)
    page.keyboard.press("Enter")


def _type(page: Page, label: str, text: str, inside: str = "main") -> None:
    """Reach a field by its label, and replace its value."""
    _reach(page, page.locator(inside).get_by_label(label).first)
    page.keyboard.press("Control+a")
    page.keyboard.type(text)


def _go(page: Page, name: str) -> None:
    """Follow a link of the navigation."""
    expect(page.locator(MODULES)).to_have_count(1)
    _press(page, name, "link", "nav")
    expect(page.get_by_role("heading", level=1)).to_contain_text(name)
    expect(page.locator(MODULES)).to_have_count(1)


def _prove(page: Page) -> None:
    expect(page.locator("#step-up")).to_be_visible()
    _type(page, "Password", PASSWORD, "#step-up")
    page.keyboard.press("Enter")


def _confirm(page: Page, dialog: str) -> None:
    """Type the name that a dialog asks for."""
    name = re.search(r"Type (.+) to confirm", page.locator(dialog).inner_text())
    assert name
    _type(page, "to confirm", name[1], dialog)
    page.keyboard.press("Enter")


def test_an_api_key_is_made_and_revoked(installation: Installation, visit: Visit) -> None:
    """A person signs in, makes an API key, revokes it, and signs out."""
    tenant = installation.new_tenant()
    email = "keyboard@example.com"
    installation.person(tenant.tenant_id, email=email)
    page = visit(installation.base_url, asks_proof=True).open("/portal/sign-in")
    _type(page, "E-mail", email)
    _type(page, "Password", PASSWORD)
    page.keyboard.press("Enter")
    page.wait_for_url("**/portal")
    _go(page, "API keys")
    _press(page, "Create an API key")
    _type(page, "Name", "by-keyboard", "#create")
    _press(page, "Create", inside="#create")
    _prove(page)
    with page.expect_navigation():
        _press(page, "I have saved it", inside="#made")
    _press(page, "by-keyboard", "link")
    _press(page, "Revoke")
    _confirm(page, "#revoke")
    expect(page.get_by_role("region", name="Details")).to_contain_text("revoked")
    _press(page, "Sign out", inside="body")
    page.wait_for_url("**/portal/sign-in*")


def test_a_key_is_generated_rotated_and_archived(
    installation: Installation, visit_as: SignedIn
) -> None:
    """A person makes a keyring and a key, rotates the key, schedules an archive, and cancels it."""
    tenant = installation.new_tenant()
    page = visit_as(installation.person(tenant.tenant_id), asks_proof=True).open("/portal")
    _go(page, "Keyrings")
    _press(page, "Create a keyring")
    _type(page, "Name", "cards", "#create")
    _press(page, "Create", inside="#create")
    expect(page.get_by_role("link", name="cards", exact=True)).to_be_visible()
    _press(page, "cards", "link")
    _press(page, "Keys", "link", "main")
    _press(page, "Generate a key")
    _press(page, "Generate", inside="dialog[open]")
    expect(page.locator("tbody")).to_contain_text("v1")
    _press(page, "cards/Kyber768 v1", "link")
    _press(page, "Rotate")
    _press(page, "Rotate", inside="dialog[open]")
    _prove(page)
    expect(page.locator("dl").first).to_contain_text("retired")
    _press(page, "Schedule destruction", inside=".page-head")
    _confirm(page, "#archive")
    _prove(page)  # each destruction asks again
    expect(page.get_by_role("note").first).to_contain_text("is destroyed in")
    _press(page, "Keep it")
    expect(page.get_by_text("stays, and can be used again.")).to_be_visible()


def test_a_person_is_invited(installation: Installation, visit_as: SignedIn) -> None:
    """A person invites somebody with a role, and takes the invitation back."""
    tenant = installation.new_tenant()
    page = visit_as(installation.person(tenant.tenant_id), asks_proof=True).open("/portal")
    _go(page, "Team")
    _press(page, "Invite a member")
    _type(page, "E-mail", "new-by-keyboard@example.com", "dialog[open]")
    _reach(page, page.locator("dialog[open]").get_by_label("Role"))
    page.keyboard.type("Auditor")
    _press(page, "Invite", inside="dialog[open]")
    _prove(page)
    row = page.get_by_role("row", name="new-by-keyboard@example.com")
    expect(row).to_be_visible()


def test_the_log_is_searched(installation: Installation, visit_as: SignedIn) -> None:
    """A person filters the audit log, opens a record, and saves the evidence."""
    tenant = installation.new_tenant()
    tenant.post("/kms/keys/generate", {"algorithm": "Kyber768"}, status=201)
    tenant.post("/kem/encrypt", {"plaintext": "QUJD"})
    page = visit_as(installation.person(tenant.tenant_id)).open("/portal")
    _go(page, "Audit log")
    _reach(page, page.get_by_role("combobox").first)
    page.keyboard.type("operation:encrypt")
    page.keyboard.press("Enter")
    records = page.get_by_role("region", name="Records")
    expect(records.locator("tbody tr")).to_have_count(1)
    with page.expect_download() as saved:
        _press(page, "Save as evidence", "link")
    lines = saved.value.path().read_text().splitlines()
    records_of = [json.loads(line) for line in lines]
    assert "encrypt" in str(records_of), lines[:3]
    _reach(page, records.locator("tbody a").first)
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", level=1)).to_contain_text("Record")


def test_a_profile_is_tried_and_applied(installation: Installation, visit_as: SignedIn) -> None:
    """A person sees what a profile would refuse, and applies it with a date."""
    tenant = installation.new_tenant()
    tenant.post("/kms/keys/generate", {"algorithm": "Kyber768"}, status=201)
    tenant.post("/kem/encrypt", {"plaintext": "QUJD"})
    page = visit_as(installation.person(tenant.tenant_id), asks_proof=True).open("/portal")
    _go(page, "Migration")
    _reach(page, page.get_by_label("Profile or ended algorithm"))
    page.keyboard.type("cnsa-2.0")
    _press(page, "Show")
    page.wait_for_url("**end=cnsa-2.0*")
    expect(page.get_by_role("region", name="What would a rule refuse?")).to_contain_text("refused")
    expect(page.locator(MODULES)).to_have_count(1)
    _press(page, "Apply a profile")
    _type(page, "Warn from", "01012099", "#profile")
    _press(page, "Apply it", inside="#profile")
    _prove(page)
    expect(page.get_by_role("region", name="Rules", exact=True)).to_be_visible()
    expect(page.locator("main")).to_contain_text("2099-01-01")
