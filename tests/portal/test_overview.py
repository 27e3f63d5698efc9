"""The overview: numbers, a chart, what needs attention, first steps."""

from __future__ import annotations

import re
import subprocess

from playwright.sync_api import expect
from tests.fixtures.browser import assert_accessible
from tests.fixtures.installation import Installation
from tests.portal.conftest import SignedIn
from tests.portal.visitors import get_page


def test_an_empty_tenant_is_shown_first_steps_that_work(
    visit_as: SignedIn, installation: Installation
) -> None:
    """Pasted one after the other, the commands generate a key, encrypt and decrypt.

    The API key may do what the page says that it has to. Nothing but answers is shown, each on a
    line of its own.
    """
    tenant = installation.new_tenant()
    scopes = [{"operations": ["use", "manage-keys"]}]
    path = f"/tenants/{tenant.tenant_id}/api-keys"
    api_key = tenant.post(path, {"scopes": scopes}, status=201)["api_key"]
    page = visit_as(installation.person(tenant.tenant_id), phone=True).open("/portal")
    assert_accessible(page)
    steps = page.get_by_role("region", name="First steps").locator(".copy code").all_inner_texts()
    assert len(steps) == 4
    settings = f"export PQKEEP_API_KEY={api_key}\n" + steps[0].split("\n")[0]
    assert settings.endswith(f"PQKEEP_URL={installation.base_url}")
    script = "\n".join(("set -e", settings, "cd $(mktemp -d)", *steps[1:]))
    ended = subprocess.run(
        ["/bin/sh", "-c", script], capture_output=True, text=True, timeout=120, check=False
    )
    assert (ended.returncode, ended.stderr) == (0, "")
    said = ('"status":"active"', '"ciphertext":', '"plaintext":"aGVsbG8sIHdvcmxk"')
    lines = ended.stdout.splitlines()
    assert [each in line for each, line in zip(said, lines, strict=True)] == [True] * 3


def test_the_overview_asks_for_keys_once(installation: Installation) -> None:
    """However many keyrings there are, looking leaves one record of a list, of all of them."""
    tenant = installation.new_tenant()
    for name in ("payments", "releases"):
        tenant.post("/kms/keyrings", {"name": name}, status=201)
        named = {"algorithm": "Kyber768", "keyring": name}
        tenant.post("/kms/keys/generate", named, status=201)
    viewer = installation.person(tenant.tenant_id, "viewer")
    before = len(tenant.get("/audit/records", limit=500)["records"])
    page = get_page(viewer, "/portal").text
    assert page.count('data-label="Keyring">payments<') == 1
    left = tenant.get("/audit/records", limit=500)["records"][before:]
    assert [(each["operation"], each["keyring"]) for each in left] == [("list-keys", None)]


def test_looking_is_not_an_operation(installation: Installation) -> None:
    """What pages look up is not in the overview's numbers: an empty tenant has done nothing."""
    owner = installation.person(installation.new_tenant().tenant_id)
    for _ in range(2):
        page = get_page(owner, "/portal").text
    assert "Nothing yet" in page
    assert re.search(r'operations with keys</span><span class="value">0<', page)


def test_a_busy_tenant_is_shown_its_operations(
    visit_as: SignedIn, installation: Installation
) -> None:
    """Operations and refusals are counted, drawn, and in a table; active keys have their age."""
    tenant = installation.new_tenant()
    tenant.post("/kms/keys/generate", {"algorithm": "Kyber768"}, status=201)
    for _ in range(3):
        tenant.post("/kem/encrypt", {"plaintext": "QUJD"})
    page = visit_as(installation.person(tenant.tenant_id)).open("/portal?period=30d")
    expect(page.get_by_role("img", name="Operations by kind in 30 days")).to_be_visible()
    page.get_by_text("As a table").click()
    newest = page.get_by_role("table").first.get_by_role("row").last
    assert newest.get_by_role("cell").nth(1).inner_text() == "3"
    expect(page.get_by_role("link", name="Kyber768")).to_be_visible()
    expect(page.get_by_text("Your account has no authenticator app.")).to_be_visible()
    assert_accessible(page)
