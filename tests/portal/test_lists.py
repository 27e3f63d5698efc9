"""Lists with a filter in the browser."""

from __future__ import annotations

import time
from http import HTTPStatus

from playwright.sync_api import expect
from tests.fixtures.caller import Caller
from tests.fixtures.installation import Installation
from tests.portal.conftest import SignedIn
from tests.portal.example import ROLE, trust
from tests.portal.visitors import MARKUP, assert_fits, get_page

FEWEST = 8
"""The number of rows from which a list has a filter."""


def _put_role(owner: Caller, number: int) -> None:
    path = f"/tenants/{owner.tenant_id}/workloads/roles/narrow-{number}-role"
    assert owner.ask_proven("PUT", path, ROLE | {"issuer": "ci-github"}).is_success


def test_a_long_list_shows_only_the_rows_with_a_text(
    installation: Installation, visit_as: SignedIn
) -> None:
    """From eight rows on the filter works, ignores case, treats input as text, and sends no request."""
    owner = installation.person(installation.new_tenant().tenant_id)
    trust(owner)
    for number in range(FEWEST - 2):
        _put_role(owner, number)
    assert "Filter roles" not in get_page(owner, "/portal/workloads").text
    _put_role(owner, FEWEST - 2)
    page = visit_as(owner, phone=True).open("/portal/workloads")
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.resource_type))
    rows, field = page.locator("#all-roles tbody tr:visible"), page.get_by_role("searchbox")
    said = page.locator(".narrow [role=status]")
    expect(rows).to_have_count(FEWEST)
    field.fill(" NARROW-3-")
    expect(rows).to_have_count(1)
    expect(rows).to_contain_text("narrow-3-")
    expect(said).to_have_text(f"1 of {FEWEST}")
    for markup in MARKUP:
        field.fill(markup)
        expect(rows).to_have_count(0)
        expect(said).to_have_text(f"none of {FEWEST}")
    field.fill("")
    expect(rows).to_have_count(FEWEST)
    expect(said).to_be_empty()
    assert not {"fetch", "xhr", "document"} & set(asked)


def _has_uses(owner: Caller, count: int) -> None:
    """Wait until the inventory counts some uses."""
    for _ in range(100):
        response = owner.ask("GET", "/inventory")
        if response.status_code == HTTPStatus.OK:
            keys = response.json()["data"]["keys"]
            if sum(key["uses"] for key in keys) == count:
                return
        time.sleep(0.1)
    raise AssertionError("no checkpoint counts the uses")


NAME = "n" * 64


def _used_keys(installation: Installation) -> Caller:
    """Return the owner of three keys, two of them used by the API key ``checkout``."""
    tenant = installation.new_tenant()
    tenant.post("/kms/keyrings", {"name": NAME}, status=HTTPStatus.CREATED)
    for algorithm, keyring in (("Kyber768", NAME), ("Kyber768", "default"), ("X-Wing", NAME)):
        named = {"algorithm": algorithm, "keyring": keyring}
        tenant.post("/kms/keys/generate", named, status=HTTPStatus.CREATED)
    made = tenant.post(
        f"/tenants/{tenant.tenant_id}/api-keys", {"name": "checkout"}, status=HTTPStatus.CREATED
    )
    checkout = installation.caller(made["api_key"], tenant.tenant_id)
    for algorithm in ("Kyber768", "X-Wing"):
        body = {"algorithm": algorithm, "plaintext": "QUJD", "keyring": NAME}
        checkout.post("/kem/encrypt", body)
    tenant.post("/kem/encrypt", {"plaintext": "QUJD"})
    owner = installation.person(tenant.tenant_id)
    _has_uses(owner, 3)
    return owner


def test_a_filter_is_typed_from_the_overview_by_keyboard(
    installation: Installation, visit_as: SignedIn
) -> None:
    """Typed filters by keyboard list the ML-KEM-768 keys that one API key used.

    An error names its token.
    """
    owner = _used_keys(installation)
    page = visit_as(owner).open("/portal")
    keys = page.locator("nav").get_by_role("link", name="Keys", exact=True)
    while not keys.evaluate("link => link === document.activeElement"):
        page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    page.wait_for_url("**/portal/keys")
    field, options = page.get_by_role("combobox"), page.get_by_role("option")
    while not field.evaluate("input => input === document.activeElement"):
        page.keyboard.press("Tab")
    page.keyboard.type("alg")
    expect(options).to_have_count(1)
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    page.keyboard.type("Ky")
    page.keyboard.press("ArrowDown")
    expect(field).to_have_attribute("aria-activedescendant", "list-suggestions-0")
    page.keyboard.press("Enter")
    expect(field).to_have_value("algorithm:Kyber768 ")
    page.keyboard.type("age:<1y used-by:che")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    expect(field).to_have_value("algorithm:Kyber768 age:<1y used-by:checkout ")
    page.keyboard.type("used:1m")
    page.keyboard.press("Enter")
    rows = page.locator("tbody tr")
    expect(rows).to_have_count(1)
    expect(rows).to_contain_text(f"{NAME}/Kyber768 v1")
    expect(rows).to_contain_text("checkout")
    expect(page.locator(".list-pages")).to_contain_text("1 of 1 key version")
    assert_fits(page)
    address = page.url
    field.press("End")
    page.keyboard.type(" ag:1")
    page.keyboard.press("Escape")
    page.keyboard.press("Enter")
    expect(page.get_by_role("alert").first).to_contain_text("“ag:1” is not a filter")
    expect(field).to_have_attribute("aria-invalid", "true")
    page.goto(address)
    expect(rows).to_have_count(1)
    page.goto(address.replace("age%3A%3C1y", "age%3A%3E1y"))
    expect(page.get_by_text("No key matches")).to_be_visible()


def test_a_filtered_list_is_exported(installation: Installation) -> None:
    """CSV and JSON have the filtered rows as a download; a wrong filter gives an error."""
    tenant = installation.new_tenant()
    for algorithm in ("Kyber768", "X-Wing"):
        tenant.post("/kms/keys/generate", {"algorithm": algorithm}, status=HTTPStatus.CREATED)
    owner = installation.person(tenant.tenant_id)
    table = get_page(owner, "/portal/keys?q=algorithm:X-Wing&format=csv")
    assert table.headers["content-disposition"] == 'attachment; filename="keys.csv"'
    head, row = table.text.splitlines()
    assert head.startswith("keyring,algorithm,key_version,status")
    assert row.startswith("default,X-Wing,1,active")
    found = get_page(owner, "/portal/keys?sort=-name&format=json").json()
    assert [row["algorithm"] for row in found["rows"]] == ["X-Wing", "Kyber768"]
    refused = get_page(owner, "/portal/keys?q=lost:1&format=csv")
    assert refused.status_code == HTTPStatus.BAD_REQUEST
    assert "not a filter" in refused.text
