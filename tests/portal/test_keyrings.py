"""Keyrings: created, changed, found, and selected on the pages of keys."""

from __future__ import annotations

from collections.abc import Callable
from http import HTTPStatus
from urllib.parse import quote

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
    dialog.get_by_label("Schedule the destruction").fill("400")
    dialog.get_by_role("button", name="Create").click()


def test_a_change_of_something_else_takes_no_second_proof(
    visit_as: SignedIn, new_tenant: Callable[..., Caller], new_person: Callable[..., Caller]
) -> None:
    """Only a change of the days before destruction needs its own proof."""
    owner = new_person(new_tenant().tenant_id)
    page = visit_as(owner, asks_proof=True).open(PATH)
    _create(page)
    page.get_by_role("link", name=NAME, exact=True).click()
    change = page.get_by_role("button", name="Change")
    change.click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Description").fill("")
    dialog.get_by_role("button", name="Change it").click()
    expect(page.get_by_role("main")).not_to_contain_text("Card numbers")
    assert owner.get(f"/kms/keyrings/{NAME}")["archive_after_days"] == 400
    change.click()
    dialog.get_by_label("Schedule the destruction").fill("90")
    dialog.get_by_role("button", name="Change it").click()
    prove(page)
    expect(page.get_by_role("main")).to_contain_text("90 days after it is retired")


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
    made = owner.get(f"/kms/keyrings/{NAME}")
    purposes = [each for each in ALL_PURPOSES if each not in {"sign", "verify"}]
    labels = {"team": "payments", "url": "a:b"}
    assert (made["labels"], made["purposes"], made["rotation_days"]) == (labels, purposes, None)

    row.get_by_role("link", name=NAME, exact=True).click()
    expect(page.get_by_role("main")).to_contain_text("400 days after it is retired")
    page.get_by_role("button", name="Change").click()
    dialog = page.locator("#edit")
    expect(dialog.get_by_label("Labels")).to_have_value("team: payments\nurl: a:b")
    dialog.get_by_label("Labels").fill("")
    dialog.get_by_label("Rotate the active key").fill("90")
    dialog.get_by_role("button", name="Change it").click()
    expect(page.get_by_role("main")).to_contain_text("every 90 days")
    changed = owner.get(f"/kms/keyrings/{NAME}")
    assert (changed["labels"], changed["rotation_days"]) == ({}, 90)
    assert changed["description"] == "Card numbers"
    assert changed["purposes"] == made["purposes"]

    page.get_by_role("main").get_by_role("link", name="Keys", exact=True).click()
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


def test_keyrings_are_found_by_typed_filters(installation: Installation, tenant: Caller) -> None:
    """Each filter finds its keyrings; a wrong one is an error; markup stays text."""
    owner = installation.person(tenant.tenant_id)
    fields = {"name": "found", "labels": {"env": "test"}, "rotation_days": 90}
    tenant.post("/kms/keyrings", fields, status=201)
    tenant.post("/kms/keys/generate", {"algorithm": "X-Wing", "keyring": "found"}, status=201)
    for query in (
        *("label:env:test", "rotation:yes", "algorithm:X-Wing", "FOUND", "unused:1d found"),
        "age:<1d rotation:yes",
    ):
        text = get_page(owner, f"{PATH}?q={quote(query)}").text
        assert 'href="/portal/keyrings/found"' in text, query
        assert 'href="/portal/keyrings/hostile"' not in text, query
    for query in ("label:env:production", "age:>1y", "used:1d found", "algorithm:ML-DSA-87"):
        assert "No keyring matches" in get_page(owner, f"{PATH}?q={quote(query)}").text, query
    for query, problem in (
        ("labl:env:test", "Did you mean “label:”?"),
        ("label:env", "needs a name and a value"),
        ("-label:env:test", "cannot be excluded"),
        ("rotation:maybe", "must be yes or no"),
    ):
        assert problem in get_page(owner, f"{PATH}?q={quote(query)}").text
    for path in (
        *(PATH, f"{PATH}?q={quote(MARKUP[1])}", "/portal/keys?q=keyring:hostile"),
        f"{PATH}/hostile",
    ):
        page = get_page(owner, path)
        assert page.status_code == HTTPStatus.OK
        assert not any(markup in page.text for markup in MARKUP)
    for markup in MARKUP:
        for path in ("/portal/keys", "/portal/try", "/portal/audit", "/portal/keys/Kyber768/1"):
            assert markup not in get_page(owner, f"{path}?keyring={markup}").text


def test_many_keyrings_have_pages_and_little_text(
    installation: Installation, new_tenant: Callable[..., Caller]
) -> None:
    """A page has 50 keyrings and less than 60 KB, the next one the rest; an export has all."""
    tenant = new_tenant()
    owner = installation.person(tenant.tenant_id)
    for number in range(59):
        tenant.post("/kms/keyrings", {"name": f"many.{number:02}"}, status=201)
    first, second = get_page(owner, PATH), get_page(owner, f"{PATH}?from=51")
    assert len(first.content) < 60_000
    assert "1 to 50 of 60 keyrings" in first.text
    assert 'href="/portal/keyrings/many.00"' in first.text
    assert 'href="/portal/keyrings/many.58"' not in first.text
    assert 'href="/portal/keyrings/many.58"' in second.text
    newest = get_page(owner, f"{PATH}?sort=-created").text
    assert 'href="/portal/keyrings/many.58"' in newest
    assert 'href="/portal/keyrings/default"' not in newest
    assert get_page(owner, f"{PATH}/many.58").status_code == HTTPStatus.OK
    assert get_page(owner, f"{PATH}/many.5").status_code == HTTPStatus.NOT_FOUND
    lines = get_page(owner, f"{PATH}?format=csv").text.splitlines()
    assert len(lines) == 61
    assert lines[1].startswith("default,")


def test_a_keyring_is_deleted_and_restored(
    visit_as: SignedIn, new_tenant: Callable[..., Caller], new_person: Callable[..., Caller]
) -> None:
    """A deleted keyring leaves the list, and is restored on the page of deleted keyrings."""
    tenant = new_tenant()
    tenant.post("/kms/keyrings", {"name": NAME}, status=201)
    page = visit_as(new_person(tenant.tenant_id), asks_proof=True).open(PATH)
    page.get_by_role("link", name=NAME, exact=True).click()
    page.get_by_role("button", name="Delete").click()
    page.get_by_role("dialog").get_by_role("button", name="Delete it").click()
    prove(page)
    page.wait_for_url(f"**{PATH}")
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
    person = installation.person(tenant.tenant_id, role)
    assert operations_on(get_page(person, PATH).text) == allowed(role, {"create_keyring"})
    page = get_page(person, f"{PATH}/hostile")
    assert page.status_code == HTTPStatus.OK
    assert operations_on(page.text) == allowed(role, {"update_keyring", "delete_keyring"})


def test_what_a_keyring_is_for_is_said() -> None:
    """All purposes are shown as everything; fewer are named."""
    assert sentence(ALL_PURPOSES) == "everything"
    assert sentence((KeyPurpose.SIGN, KeyPurpose.VERIFY)) == "sign, verify"
