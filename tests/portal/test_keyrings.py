"""Keyrings: created, changed, found, and selected on the pages of keys."""

from __future__ import annotations

from collections.abc import Callable
from http import HTTPStatus

import pytest
from playwright.sync_api import Page, expect
from tests.fixtures.browser import go_to
from tests.fixtures.caller import Caller
from tests.fixtures.installation import Installation
from tests.portal.conftest import SignedIn
from tests.portal.visitors import MARKUP, allowed, get_page, operations_on, prove

from pqkeep_gateway.access.callers import Role
from pqkeep_gateway.portal.views.keyrings import sentence
from pqkeep_protocol.keyrings import ALL_PURPOSES, KeyPurpose

PATH = "/portal/keyrings"
NAME = "payments.cards"


@pytest.fixture(scope="module")
def tenant(installation: Installation) -> Caller:
    """A tenant with markup in a keyring's values."""
    made = installation.new_tenant()
    fields = {"name": "hostile", "description": MARKUP[0], "labels": {"team": MARKUP[1]}}
    made.post("/kms/keyrings", fields, status=201)
    return made


def _create(page: Page) -> None:
    """Create a keyring by its form; automatic archiving needs a step-up."""
    _fill(page)
    prove(page)


def _fill(page: Page) -> None:
    """Fill the form of a new keyring, and send it."""
    page.get_by_role("button", name="Create a keyring").click()
    dialog = page.locator("#create")
    dialog.get_by_label("Name").fill(NAME)
    dialog.get_by_label("Description").fill("Card numbers")
    dialog.get_by_label("Labels").fill("team: payments\nurl: a:b")
    for purpose in ("sign", "verify"):
        dialog.get_by_label(purpose, exact=True).uncheck()
    dialog.get_by_label("Archive a retired version").fill("400")
    dialog.get_by_role("button", name="Create").click()


def test_a_change_of_something_else_takes_no_second_proof(
    visit_as: SignedIn, new_tenant: Callable[..., Caller], new_person: Callable[..., Caller]
) -> None:
    """Only a change of the days before destruction needs its own proof."""
    owner = new_person(new_tenant().tenant_id)
    page = visit_as(owner, asks_proof=True).open(PATH)
    _create(page)
    change = page.get_by_role("button", name=f"Change {NAME}")
    change.click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Description").fill("")
    dialog.get_by_role("button", name="Change it").click()
    expect(page.get_by_role("row", name=NAME)).not_to_contain_text("Card numbers")
    assert owner.get(f"/kms/keyrings/{NAME}")["archive_after_days"] == 400
    change.click()
    dialog.get_by_label("Archive a retired version").fill("90")
    dialog.get_by_role("button", name="Change it").click()
    prove(page)
    expect(page.get_by_role("row", name=NAME)).to_contain_text("90 days after")


def test_a_taken_name_is_told_before_a_proof(
    visit_as: SignedIn, new_tenant: Callable[..., Caller], new_person: Callable[..., Caller]
) -> None:
    """A taken keyring name is reported at once, without a step-up."""
    tenant = new_tenant()
    tenant.post("/kms/keyrings", {"name": NAME}, status=201)
    visitor = visit_as(new_person(tenant.tenant_id))
    visitor.expected.append("409")
    page = visitor.open(PATH)
    _fill(page)
    expect(page.locator("#create [data-problem=name]")).to_be_visible()
    expect(page.locator("#step-up")).not_to_be_visible()


def test_a_keyring_is_created_changed_and_chosen(
    installation: Installation, visit_as: SignedIn, tenant: Caller
) -> None:
    """The API stores the keyring's settings. Its keys are generated and used only in it."""
    owner = installation.person(tenant.tenant_id)
    page = visit_as(owner, asks_proof=True).open(PATH)
    _create(page)
    row = page.get_by_role("row", name=NAME)
    expect(row).to_contain_text("Card numbers")
    expect(row).to_contain_text("400 days after")
    made = owner.get(f"/kms/keyrings/{NAME}")
    purposes = [each for each in ALL_PURPOSES if each not in {"sign", "verify"}]
    labels = {"team": "payments", "url": "a:b"}
    assert (made["labels"], made["purposes"], made["rotation_days"]) == (labels, purposes, None)

    page.get_by_role("button", name=f"Change {NAME}").click()
    dialog = page.locator(f"dialog[id='edit-{NAME}']")
    expect(dialog.get_by_label("Labels")).to_have_value("team: payments\nurl: a:b")
    dialog.get_by_label("Labels").fill("")
    dialog.get_by_label("Rotate the active key").fill("90")
    dialog.get_by_role("button", name="Change it").click()
    expect(row).to_contain_text("every 90 days")
    changed = owner.get(f"/kms/keyrings/{NAME}")
    assert (changed["labels"], changed["rotation_days"]) == ({}, 90)
    assert changed["description"] == "Card numbers"
    assert changed["purposes"] == made["purposes"]

    row.get_by_role("link").click()
    expect(page.get_by_role("heading", name=f"Keys in {NAME}")).to_be_visible()
    page.get_by_role("button", name="Generate a key").first.click()
    page.get_by_role("button", name="Generate", exact=True).click()
    page.get_by_role("link", name="Kyber768 v1").click()
    expect(page.get_by_role("heading", name=f"{NAME}/Kyber768 v1")).to_be_visible()
    assert owner.get("/kms/keys")["total"] == 0
    assert owner.get("/kms/keys", keyring=NAME)["total"] == 1

    go_to(page, "/portal/try")
    page.locator("#keyring-s").select_option(NAME)
    page.get_by_role("button", name="Choose", exact=True).click()
    page.locator("#encrypt-plaintext").fill("a card")
    page.get_by_role("button", name="Encrypt", exact=True).click()
    page.get_by_role("button", name="Decrypt it").click()
    page.get_by_role("button", name="Decrypt", exact=True).click()
    expect(page.locator("[data-result-of=decrypt] code")).to_have_text("a card")
    expect(page.locator("[data-pair=first] [data-body]")).to_contain_text(f'"keyring": "{NAME}"')
    go_to(page, f"/portal/audit?keyring={NAME}&operation=encrypt")
    expect(page.get_by_role("cell", name=f"{NAME}/Kyber768 v1")).to_be_visible()
    go_to(page, "/portal")
    expect(page.get_by_role("row", name=NAME).last).to_contain_text("Kyber768")


def test_keyrings_are_found_by_a_label(installation: Installation, tenant: Caller) -> None:
    """A label finds its keyring, an unknown label shows a message, and markup stays text."""
    owner = installation.person(tenant.tenant_id)
    tenant.post("/kms/keyrings", {"name": "found", "labels": {"env": "test"}}, status=201)
    text = get_page(owner, f"{PATH}?label=env: test").text
    assert "q=keyring%3Afound" in text
    assert "keyring%3Ahostile" not in text
    assert "No keyring matches" in get_page(owner, f"{PATH}?label=env:production").text
    for path in (PATH, f"{PATH}?label=team:{MARKUP[1]}", "/portal/keys?q=keyring:hostile"):
        page = get_page(owner, path)
        assert page.status_code == HTTPStatus.OK
        assert not any(markup in page.text for markup in MARKUP)
    for markup in MARKUP:
        for path in ("/portal/keys", "/portal/try", "/portal/audit", "/portal/keys/Kyber768/1"):
            assert markup not in get_page(owner, f"{path}?keyring={markup}").text


def test_keyrings_are_found_by_the_beginning_of_their_name(
    installation: Installation, tenant: Caller
) -> None:
    """A prefix finds its keyrings in pages, and an unknown one shows a message."""
    owner = installation.person(tenant.tenant_id)
    for number in range(60):
        tenant.post("/kms/keyrings", {"name": f"many.{number:02}"}, status=201)
    text = get_page(owner, f"{PATH}?prefix=many.").text
    assert "q=keyring%3Amany.00" in text
    assert "keyring%3Ahostile" not in text
    assert "q=keyring%3Amany.59" not in text
    assert "q=keyring%3Amany.59" in get_page(owner, f"{PATH}?prefix=many.&after=many.40").text
    assert "No keyring matches" in get_page(owner, f"{PATH}?prefix=none").text


def test_a_keyring_is_deleted_and_restored(
    visit_as: SignedIn, new_tenant: Callable[..., Caller], new_person: Callable[..., Caller]
) -> None:
    """A deleted keyring leaves the list, and is restored on the page of deleted keyrings."""
    tenant = new_tenant()
    tenant.post("/kms/keyrings", {"name": NAME}, status=201)
    page = visit_as(new_person(tenant.tenant_id), asks_proof=True).open(PATH)
    page.get_by_role("button", name=f"Delete {NAME}").click()
    page.get_by_role("dialog").get_by_role("button", name="Delete it").click()
    prove(page)
    expect(page.get_by_role("row", name=NAME)).to_have_count(0)
    assert tenant.get("/kms/keyrings")["total"] == 1
    page.get_by_role("link", name="Show deleted keyrings").click()
    expect(page.get_by_role("row", name=NAME)).to_contain_text("destroyed")
    page.get_by_role("button", name=f"Restore {NAME}").click()
    page.get_by_role("dialog").get_by_role("button", name="Restore it").click()
    expect(page.get_by_text("No deleted keyrings")).to_be_visible()
    assert tenant.get("/kms/keyrings")["total"] == 2


@pytest.mark.parametrize("role", Role)
def test_a_role_sees_the_forms_that_it_may_send(
    installation: Installation, tenant: Caller, role: Role
) -> None:
    """The page has exactly the forms that the access table allows."""
    page = get_page(installation.person(tenant.tenant_id, role), PATH)
    assert page.status_code == HTTPStatus.OK
    assert operations_on(page.text) == allowed(
        role, {"create_keyring", "update_keyring", "delete_keyring"}
    )


def test_what_a_keyring_is_for_is_said() -> None:
    """All purposes are shown as everything; fewer are named."""
    assert sentence(ALL_PURPOSES) == "everything"
    assert sentence((KeyPurpose.SIGN, KeyPurpose.VERIFY)) == "sign, verify"
