"""Bulk actions on chosen rows."""

from __future__ import annotations

import re

from playwright.sync_api import Route, expect
from tests.fixtures.installation import Installation
from tests.portal.conftest import SignedIn
from tests.portal.visitors import prove

PATH = "/portal/api-keys"


def test_chosen_api_keys_are_revoked_with_one_proof_and_over_a_reload(
    installation: Installation, visit_as: SignedIn
) -> None:
    """One step-up is enough for all; after a failure and a reload, Continue does the rest."""
    tenant = installation.new_tenant()
    for number in range(4):
        path = f"/tenants/{tenant.tenant_id}/api-keys"
        tenant.post(path, {"name": f"old-{number}"}, status=201)
    owner = installation.person(tenant.tenant_id)
    visitor = visit_as(owner, asks_proof=True)
    visitor.expected.append("ERR_FAILED")
    page = visitor.open(f"{PATH}?q=old&sort=name")
    dialog = page.get_by_role("dialog", name="Revoke: 4")
    page.get_by_role("checkbox", name="Select all rows of this page").focus()
    page.keyboard.press("Space")
    expect(page.get_by_text("4 selected")).to_be_visible()

    def lost(route: Route) -> None:
        route.abort()

    page.route(re.compile(r"/api-keys/4$"), lost)
    page.get_by_role("button", name="Revoke").focus()
    page.keyboard.press("Enter")
    dialog.get_by_role("button", name="Revoke").focus()
    page.keyboard.press("Enter")
    prove(page)
    expect(dialog.get_by_role("status")).to_have_text("2 of 4 done")
    expect(dialog.get_by_text("The service cannot be reached")).to_be_visible()
    page.unroute(re.compile(r"/api-keys/4$"))
    page.reload()
    expect(dialog.get_by_role("status")).to_have_text("2 of 4 done")
    dialog.get_by_role("button", name="Continue").click()
    expect(dialog.get_by_role("status")).to_have_text("4 of 4 done")
    dialog.get_by_role("button", name="Close").click()
    expect(page.get_by_role("cell", name="revoked")).to_have_count(4)
    listed = tenant.get(f"/tenants/{tenant.tenant_id}/api-keys", status="revoked", limit=10)
    assert [key["version"] for key in listed["api_keys"]] == [2, 3, 4, 5]


def test_versions_of_one_key_are_rotated_once(
    installation: Installation, visit_as: SignedIn
) -> None:
    """Two chosen versions of a key are one rotation, and two requests that disable."""
    tenant = installation.new_tenant()
    tenant.post("/kms/keys/generate", {"algorithm": "Kyber768"}, status=201)
    tenant.post("/kms/keys/rotate", {"algorithm": "Kyber768"}, status=201)
    owner = installation.person(tenant.tenant_id)
    page = visit_as(owner, asks_proof=True).open("/portal/keys?q=Kyber768")
    page.get_by_role("checkbox", name="Select all rows of this page").check()
    page.get_by_role("button", name="Rotate").click()
    dialog = page.get_by_role("dialog", name="Rotate: 1")
    dialog.get_by_role("button", name="Rotate").click()
    prove(page)
    expect(dialog.get_by_role("status")).to_have_text("1 of 1 done")
    dialog.get_by_role("button", name="Close").click()
    expect(page.locator("table.listing tbody tr")).to_have_count(3)
    page.get_by_role("checkbox", name="Select all rows of this page").check()
    page.get_by_role("button", name="Disable").click()
    dialog = page.get_by_role("dialog", name="Disable: 3")
    dialog.get_by_role("button", name="Disable").click()
    expect(dialog.get_by_role("status")).to_have_text("3 of 3 done")
    statuses = {key["status"] for key in tenant.get("/kms/keys")["keys"]}
    assert statuses == {"disabled"}


def test_labels_are_set_on_the_keyrings_of_chosen_rows(
    installation: Installation, visit_as: SignedIn
) -> None:
    """Labels are added, replaced and removed in several keyrings at once; others stay."""
    tenant = installation.new_tenant()
    for name, labels in (("cards", {"team": "old", "env": "test"}), ("cash", {"keep": "yes"})):
        tenant.post("/kms/keyrings", {"name": name, "labels": labels}, status=201)
    tenant.post("/kms/keys/generate", {"algorithm": "Kyber768"}, status=201)
    owner = installation.person(tenant.tenant_id)
    visitor = visit_as(owner, asks_proof=True)
    visitor.expected += ["400"]
    page = visitor.open("/portal/keyrings?q=ca")
    page.get_by_role("checkbox", name="Select all rows of this page").check()
    page.get_by_role("button", name="Label").click()
    dialog = page.get_by_role("dialog", name="Label: 2")
    dialog.get_by_role("button", name="Label").click()
    expect(dialog.get_by_text("This field is required.")).to_be_visible()
    dialog.get_by_label("Labels").fill("team: payments\nenv:\n")
    dialog.get_by_role("button", name="Label").click()
    prove(page)
    expect(dialog.get_by_role("status")).to_have_text("2 of 2 done")
    dialog.get_by_role("button", name="Close").click()
    expect(page.get_by_role("row", name="cards")).to_contain_text("team: payments")
    of = {ring["name"]: ring["labels"] for ring in tenant.get("/kms/keyrings")["keyrings"]}
    assert of["cards"] == {"team": "payments"}
    assert of["cash"] == {"keep": "yes", "team": "payments"}
    page = visitor.open("/portal/keys")
    page.get_by_role("checkbox", name="Select default/Kyber768 v1").check()
    page.get_by_role("button", name="Label").click()
    dialog = page.get_by_role("dialog", name="Label: 1")
    dialog.get_by_label("Labels").fill("keep: yes\nenv\nTEAM: x")
    dialog.get_by_role("button", name="Label").click()
    expect(dialog.get_by_text("“env” has no colon")).to_be_visible()
    dialog.get_by_label("Labels").fill("TEAM: x")
    dialog.get_by_role("button", name="Label").click()
    expect(dialog.get_by_role("status")).to_have_text("1 of 1 done, 1 failed")
    assert tenant.get("/kms/keyrings", prefix="default")["keyrings"][0]["labels"] == {}


def test_labels_of_two_people_at_once_are_kept(
    installation: Installation, visit_as: SignedIn
) -> None:
    """A label that another person sets between a page's requests stays."""
    tenant = installation.new_tenant()
    tenant.post("/kms/keyrings", {"name": "cards", "labels": {"env": "test"}}, status=201)
    owner = installation.person(tenant.tenant_id)
    page = visit_as(owner, asks_proof=True).open("/portal/keyrings?q=cards")
    page.get_by_role("checkbox", name="Select cards").check()
    page.get_by_role("button", name="Label").click()
    dialog = page.get_by_role("dialog", name="Label: 1")
    dialog.get_by_label("Labels").fill("team: payments")

    def after_another(route: Route) -> None:
        if route.request.method == "PATCH":
            body = {"label_changes": {"owner": "ada", "env": None}}
            assert owner.ask_proven("PATCH", "/kms/keyrings/cards", body).is_success
        route.continue_()

    page.route(re.compile(r"/kms/keyrings/cards$"), after_another)
    dialog.get_by_role("button", name="Label").click()
    prove(page)
    expect(dialog.get_by_role("status")).to_have_text("1 of 1 done")
    (cards,) = tenant.get("/kms/keyrings", prefix="cards")["keyrings"]
    assert cards["labels"] == {"owner": "ada", "team": "payments"}


def test_chosen_invitations_are_withdrawn(installation: Installation, visit_as: SignedIn) -> None:
    """Invitations have no page of their own, and can be chosen too. A filter limits the choice."""
    tenant = installation.new_tenant()
    for name in ("ada", "bob", "eve"):
        email = f"{name}-{tenant.tenant_id}@example.com"
        body = {"email": email, "role": "viewer" if name == "eve" else "admin"}
        operator = installation.operator()
        operator.post(f"/tenants/{tenant.tenant_id}/invitations", body, status=201)
    owner = installation.person(tenant.tenant_id)
    page = visit_as(owner, asks_proof=True).open("/portal/team/invitations?q=role:admin")
    expect(page.locator("table.listing tbody tr")).to_have_count(2)
    page.get_by_role("checkbox", name="Select all rows of this page").check()
    page.get_by_role("button", name="Withdraw", exact=True).click()
    dialog = page.get_by_role("dialog", name="Withdraw: 2")
    dialog.get_by_role("button", name="Withdraw").click()
    expect(dialog.get_by_role("status")).to_have_text("2 of 2 done")
    dialog.get_by_role("button", name="Close").click()
    expect(page.get_by_text("No invitation matches")).to_be_visible()
    (left,) = owner.get("/team/invitations")["invitations"]
    assert left["email"].startswith("eve-")
