"""The page that makes an import key and shows the result of the import."""

from __future__ import annotations

from base64 import b64encode
from http import HTTPStatus
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.mldsa import MLDSA65PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from playwright.sync_api import Page, expect
from tests.fixtures.browser import assert_accessible
from tests.fixtures.caller import Caller
from tests.fixtures.installation import Installation
from tests.portal.conftest import SignedIn
from tests.portal.visitors import assert_fits, get_page

from pqkeep.key_import import read_import_key, wrap

PATH = "/portal/keys/import?keyring=cards"
DER = (Encoding.DER, PrivateFormat.PKCS8, NoEncryption())


def _made(page: Page, directory: Path, algorithm: str = "Dilithium3") -> bytes:
    """Make an import key on the page; return the saved file."""
    page.get_by_label("Algorithm of the key").select_option(algorithm)
    page.get_by_role("button", name="Make an import key").click()
    expect(page.locator("[data-command] code")).to_contain_text(f"import {algorithm}")
    expect(page.get_by_role("timer")).to_contain_text("left")
    expect(page.locator("[data-verdict]")).to_have_text("waiting")
    with page.expect_download() as saved:
        page.get_by_role("button", name="Download import-key.json").click()
    saved.value.save_as(directory / "import-key.json")
    return (directory / "import-key.json").read_bytes()


def _send(tenant: Caller, import_key: bytes, private_key: bytes, damage: int = 0) -> int:
    """Wrap a private key for a saved import key and import it, perhaps damaged; return the status."""
    issued = read_import_key(import_key)
    wrapped = wrap(issued, private_key)
    wrapped = wrapped[:-1] + bytes((wrapped[-1] ^ damage,))
    body = {
        "algorithm": issued.algorithm,
        "keyring": "cards",
        "import_key_id": issued.import_key_id,
        "wrapped_private_key": b64encode(wrapped).decode(),
    }
    return tenant.ask("POST", "/kms/keys/import", body).status_code


def test_a_key_is_imported_by_what_the_page_made(
    installation: Installation, visit_as: SignedIn, tmp_path: Path
) -> None:
    """The page saves the import key, shows the command, and shows refusals and the import."""
    tenant = installation.new_tenant()
    tenant.post("/kms/keyrings", {"name": "cards"}, status=201)
    page = visit_as(installation.person(tenant.tenant_id, "developer"), phone=True).open(PATH)
    private_key = MLDSA65PrivateKey.generate().private_bytes(*DER)
    _made(page, tmp_path, "ECDSA-P-256")
    assert "ECDSA-P-256 public-key.pem" in page.locator("[data-command] code").inner_text()
    import_key = _made(page, tmp_path)
    assert page.locator("[data-command] code").inner_text() == (
        "pqkeep keys import Dilithium3 private-key.pem --keyring cards --import-key import-key.json"
    )
    assert_fits(page)
    assert_accessible(page)
    verdict = page.locator("[data-verdict]")
    expect(verdict).to_have_text("waiting")
    issued = read_import_key(import_key)
    assert _send(tenant, import_key, private_key, damage=1) == HTTPStatus.BAD_REQUEST
    expect(verdict).to_have_text("refused")
    expect(page.locator("[data-says]")).to_contain_text("decryption failed. The import key is used")
    import_key = _made(page, tmp_path)
    assert read_import_key(import_key).import_key_id != issued.import_key_id
    expect(verdict).to_have_text("waiting")
    assert _send(tenant, import_key, private_key) == HTTPStatus.CREATED
    expect(verdict).to_have_text("imported")
    expect(page.locator("[data-says]")).to_contain_text("Dilithium3 version 1 is active")
    page.get_by_role("link", name="Look at the key").click()
    expect(page.get_by_text("imported", exact=True)).to_be_visible()


def test_an_import_key_that_was_not_used_ends(
    installation: Installation, visit_as: SignedIn
) -> None:
    """The page counts down the remaining time, and then shows that the import key has expired."""
    tenant = installation.new_tenant()
    tenant.post("/kms/keyrings", {"name": "cards"}, status=201)
    page = visit_as(installation.person(tenant.tenant_id), is_fresh=True).open(PATH)
    page.clock.install()
    page.get_by_role("button", name="Make an import key").click()
    expect(page.get_by_role("timer")).to_have_text("10 min left")
    page.clock.fast_forward(121_000)
    expect(page.get_by_role("timer")).to_have_text("7 min left")
    page.clock.fast_forward(600_000)
    expect(page.get_by_role("timer")).to_have_text("ended")
    expect(page.locator("[data-says]")).to_contain_text("The import key expired without an import.")


def test_only_algorithms_without_an_active_key_are_offered(installation: Installation) -> None:
    """Legacy algorithms are offered in each plan; an unknown keyring is an error."""
    tenant = installation.new_tenant(plan="free")
    owner = installation.person(tenant.tenant_id)
    assert '<option value="Kyber768"' in get_page(owner, "/portal/keys/import").text
    for algorithm in ("Kyber768", "Dilithium3"):
        tenant.post("/kms/keys/generate", {"algorithm": algorithm}, status=201)
    shown = get_page(owner, "/portal/keys/import").text
    assert '<option value="Kyber768"' not in shown
    assert '<option value="RSA-OAEP-SHA-256"' in shown
    assert "no such keyring" in get_page(owner, "/portal/keys/import?keyring=none").text.lower()
