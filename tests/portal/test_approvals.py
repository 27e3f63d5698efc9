"""Approvals in the portal: one owner requests, another owner decides."""

from __future__ import annotations

from collections.abc import Callable

from playwright.sync_api import expect
from tests.fixtures.browser import go_to
from tests.fixtures.caller import Caller
from tests.portal.conftest import SignedIn
from tests.portal.visitors import get_page, operations_on, prove

PATH = "/portal/approvals"


def test_one_asks_and_another_approves(
    visit_as: SignedIn, new_tenant: Callable[..., Caller], new_person: Callable[..., Caller]
) -> None:
    """A keyring's deletion waits on the page, and only another person can approve it."""
    tenant = new_tenant()
    ada, bob = new_person(tenant.tenant_id), new_person(tenant.tenant_id)
    tenant.post("/kms/keyrings", {"name": "payments"}, status=201)
    page = visit_as(ada, asks_proof=True).open("/portal/team")
    page.get_by_role("button", name="Require approval").click()
    prove(page)
    expect(page.get_by_role("button", name="No longer require it")).to_be_visible()
    go_to(page, "/portal/keyrings/payments")
    page.get_by_role("button", name="Delete").click()
    page.get_by_role("dialog").get_by_role("button", name="Delete it").click()
    prove(page)
    page.wait_for_url(f"**{PATH}")
    expect(page.locator("#toasts")).to_contain_text("Nothing is changed yet")
    waiting = page.locator("section", has=page.get_by_role("heading", name="Waiting"))
    expect(waiting).to_contain_text("Delete the keyring payments")
    expect(waiting.get_by_role("button", name="Approve")).to_have_count(0)
    expect(waiting.get_by_role("button", name="Withdraw")).to_be_visible()
    other = visit_as(bob, asks_proof=True).open(PATH)
    other.get_by_role("button", name="Approve: Delete the keyring payments").click()
    dialog = other.get_by_role("dialog")
    expect(dialog).to_contain_text(ada.get("/auth/me")["email"])
    dialog.get_by_role("button", name="Approve and execute").click()
    prove(other)
    ended = other.locator("section", has=other.get_by_role("heading", name="Ended"))
    expect(ended).to_contain_text("executed")
    expect(ended).to_contain_text("you")
    assert tenant.ask("GET", "/kms/keyrings/payments").status_code == 404


def test_who_sees_the_page(
    new_tenant: Callable[..., Caller], new_person: Callable[..., Caller]
) -> None:
    """Owners and admins see the page, and others do not."""
    tenant = new_tenant()
    for role, status in (("owner", 200), ("admin", 200), ("developer", 403), ("viewer", 403)):
        page = get_page(new_person(tenant.tenant_id, role), PATH)
        assert page.status_code == status
        assert operations_on(page.text) == set()
