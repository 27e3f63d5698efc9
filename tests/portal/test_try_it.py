"""The page to try operations."""

from __future__ import annotations

from base64 import b64encode
from http import HTTPStatus
from pathlib import Path

import pytest
from playwright.sync_api import FilePayload, expect
from tests.fixtures.browser import assert_accessible
from tests.fixtures.installation import Installation
from tests.portal.conftest import SignedIn
from tests.portal.visitors import (
    MARKUP,
    World,
    allowed,
    assert_headings_in_order,
    get_page,
    operations_on,
    world_of,
)

from pqkeep_gateway.access.callers import Role

OPERATIONS = {"encrypt", "decrypt", "sign", "verify", "compute_mac", "verify_mac"}
TEXT = "attack at dawn ☀"


@pytest.fixture(scope="module")
def world(installation: Installation) -> World:
    """A person with a key of each kind."""
    return world_of(
        installation, "Kyber768", "Dilithium3", "XAES-256-GCM", "HMAC-SHA-512", role=Role.DEVELOPER
    )


def test_a_text_is_encrypted_and_decrypted(world: World, visit_as: SignedIn) -> None:
    """The decrypted text is the original; the request is shown in three forms."""
    page = visit_as(world.person).open("/portal/try")
    page.locator("#encrypt-plaintext").fill(TEXT)
    page.locator("#encrypt-key").focus()
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    expect(page.locator("[data-result-of=encrypt]")).to_contain_text("by version 1 of Kyber768")
    page.get_by_role("button", name="Decrypt it").click()
    page.keyboard.press("Enter")
    expect(page.locator("[data-result-of=decrypt] code")).to_have_text(TEXT)

    request = page.locator("[data-pair=first] [data-request]")
    request.locator("summary").click()
    plaintext = b64encode(TEXT.encode()).decode()
    curl, python = request.locator("[data-template] code").all_inner_texts()
    assert "/api/v1/kem/encrypt" in curl
    for text in (curl, python):
        assert f'"{plaintext}"' in text
        assert '"Kyber768"' in text
    body = request.locator("[data-body]").inner_text()
    assert f'"plaintext": "{plaintext}"' in body
    assert_accessible(page)


def test_a_file_is_encrypted_and_decrypted(
    world: World, visit_as: SignedIn, tmp_path: Path
) -> None:
    """Any file is restored; markup in its name is text; a large one is refused."""
    page = visit_as(world.person).open("/portal/try")
    chooser = page.locator("#encrypt-plaintext-file")
    most = 256 * 1024
    chooser.set_input_files(
        FilePayload(name="large", mimeType="application/octet-stream", buffer=bytes(most + 1))
    )
    expect(page.locator("#encrypt-plaintext-problem")).to_have_text(
        "This file is larger than 256 KiB."
    )
    content = bytes(range(256)) * (most // 256)
    chooser.set_input_files(
        FilePayload(name=MARKUP[1], mimeType="application/octet-stream", buffer=content)
    )
    expect(page.locator("[data-pair=first] [data-chosen]")).to_contain_text(MARKUP[1])
    page.get_by_role("button", name="Encrypt", exact=True).click()
    page.get_by_role("button", name="Decrypt it").click()
    page.get_by_role("button", name="Decrypt", exact=True).click()
    with page.expect_download() as downloading:
        page.locator("[data-result-of=decrypt]").get_by_role("button", name="Download").click()
    downloading.value.save_as(tmp_path / "file")
    assert (tmp_path / "file").read_bytes() == content


def test_a_text_is_signed_and_verified(world: World, visit_as: SignedIn) -> None:
    """A signature is valid only for its text."""
    page = visit_as(world.person).open("/portal/try?do=sign")
    page.locator("#sign-message").fill(TEXT)
    page.get_by_role("button", name="Sign", exact=True).click()
    page.get_by_role("button", name="Verify it").click()
    page.get_by_role("button", name="Verify", exact=True).click()
    expect(page.locator("[data-valid]")).to_be_visible()
    page.locator("#verify-message").fill(TEXT + "!")
    expect(page.locator("[data-valid]")).to_be_hidden()
    page.get_by_role("button", name="Verify", exact=True).click()
    expect(page.locator("[data-invalid]")).to_be_visible()


def test_a_mac_is_computed_and_verified(world: World, visit_as: SignedIn) -> None:
    """A MAC is valid for its text only, and its request is shown."""
    page = visit_as(world.person).open("/portal/try?do=mac")
    page.locator("#compute_mac-message").fill(TEXT)
    page.get_by_role("button", name="Compute the MAC", exact=True).click()
    expect(page.locator("[data-result-of=compute_mac]")).to_contain_text(
        "64 bytes, by version 1 of HMAC-SHA-512"
    )
    page.get_by_role("button", name="Verify it").click()
    page.get_by_role("button", name="Verify", exact=True).click()
    expect(page.locator("[data-valid]")).to_be_visible()
    request = page.locator("[data-pair=second] [data-request]")
    request.locator("summary").click()
    assert "/api/v1/mac/verify" in request.locator("[data-template] code").first.inner_text()
    assert_accessible(page)
    page.locator("#verify_mac-message").fill(TEXT + "!")
    page.get_by_role("button", name="Verify", exact=True).click()
    expect(page.locator("[data-invalid]")).to_be_visible()


def test_a_text_is_encrypted_with_a_symmetric_key(world: World, visit_as: SignedIn) -> None:
    """A ciphertext of XAES-256-GCM decrypts with the key that the page chooses for it."""
    page = visit_as(world.person).open("/portal/try")
    page.locator("#encrypt-plaintext").fill(TEXT)
    page.locator("#encrypt-key").select_option("XAES-256-GCM")
    page.get_by_role("button", name="Encrypt", exact=True).click()
    page.get_by_role("button", name="Decrypt it").click()
    page.get_by_role("button", name="Decrypt", exact=True).click()
    expect(page.locator("[data-result-of=decrypt] code")).to_have_text(TEXT)


def test_a_refusal_is_shown_where_it_belongs(world: World, visit_as: SignedIn) -> None:
    """An invalid ciphertext is refused at its field or above the button, and stays."""
    visitor = visit_as(world.person)
    visitor.expected.append("4[0-9][0-9]")
    page = visitor.open("/portal/try")
    page.locator("#decrypt-ciphertext").fill("no base64!")
    page.get_by_role("button", name="Decrypt", exact=True).click()
    expect(page.locator("#decrypt-ciphertext-problem")).to_contain_text("ciphertext")
    expect(page.locator("#decrypt-ciphertext")).to_have_value("no base64!")


@pytest.mark.parametrize("role", Role)
def test_a_role_sees_the_forms_that_it_may_send(world: World, role: Role) -> None:
    """A role that may use keys has the page and its forms. A viewer has neither."""
    person = world.installation.person(world.tenant.tenant_id, role)
    pages = [get_page(person, f"/portal/try?do={name}") for name in ("encrypt", "sign", "mac")]
    found = operations_on("".join(page.text for page in pages))
    assert found == allowed(role, OPERATIONS)
    expected = HTTPStatus.OK if found else HTTPStatus.FORBIDDEN
    assert {each.status_code for each in pages} == {expected}
    assert ('href="/portal/try"' in get_page(person, "/portal/keys").text) is bool(found)


def test_without_a_key_the_page_says_where_to_get_one(installation: Installation) -> None:
    """The empty state leads to the keys."""
    tenant = installation.new_tenant()
    text = get_page(installation.person(tenant.tenant_id), "/portal/try").text
    assert "You need a key first" in text
    assert_headings_in_order(text)
