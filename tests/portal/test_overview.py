"""The overview: numbers, a chart, warnings, first steps."""

from __future__ import annotations

import re
import subprocess
from datetime import UTC, datetime, timedelta

import pytest
from msgspec import structs
from playwright.sync_api import expect
from tests.fixtures.browser import assert_accessible
from tests.fixtures.installation import Installation
from tests.portal.conftest import SignedIn
from tests.portal.visitors import get_page

from pqkeep_gateway.api.keyrings import EXAMPLE as KEYRING_EXAMPLE
from pqkeep_gateway.api.keys import EXAMPLE as KEY_EXAMPLE
from pqkeep_gateway.http.text import timestamp
from pqkeep_gateway.portal.views.overview import old_keys


def test_an_empty_tenant_is_shown_first_steps_that_work(
    visit_as: SignedIn, installation: Installation
) -> None:
    """The shown commands generate a key, encrypt and decrypt.

    The API key needs only the permissions on the page. The output is only responses, each on its
    own line.
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


def test_the_overview_asks_for_each_thing_once(installation: Installation) -> None:
    """With any number of keyrings, a view leaves the same three records of lists."""
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
    lists = [
        "list-keyrings",
        "list-keys",
        "list-keys",
    ]  # keyrings, active keys, keys to be destroyed
    assert sorted(each["operation"] for each in left) == lists
    assert {each["keyring"] for each in left} == {None}


def test_a_destruction_needs_attention(installation: Installation) -> None:
    """A key version with a scheduled destruction, in any keyring, is named with its time and page."""
    tenant = installation.new_tenant()
    tenant.post("/kms/keyrings", {"name": "payments"}, status=201)
    named = {"algorithm": "Kyber768", "keyring": "payments"}
    tenant.post("/kms/keys/generate", named, status=201)
    tenant.post("/kms/keys/rotate", named, status=201)
    owner = installation.person(tenant.tenant_id)
    assert "will be destroyed" not in get_page(owner, "/portal").text
    of_it = {**named, "key_version": 1}
    at = owner.post_proven("/kms/keys/archive", {**of_it, "delay_days": 9})["archive_at"]
    page = get_page(owner, "/portal").text
    when = f"{at[:10]} {at[11:16]} UTC"
    assert f"Kyber768 v1 in payments will be destroyed in 9 days, at {when}." in page
    assert 'href="/portal/keys/Kyber768/1?keyring=payments">Open the key' in page
    assert owner.get("/kms/keys", scheduled="true", all_keyrings="true")["total"] == 1
    tenant.post("/kms/keys/archive/cancel", of_it)
    assert "will be destroyed" not in get_page(owner, "/portal").text


DAYS_OLD = 200


@pytest.mark.parametrize(
    ("rotation_days", "is_old"),
    [(None, False), (90, True), (199, True), (200, False), (400, False)],
)
def test_a_key_is_old_by_its_own_keyrings_days(rotation_days: int | None, *, is_old: bool) -> None:
    """The keyring's setting decides when a key is old; without it a year."""
    ring = structs.replace(KEYRING_EXAMPLE, name="payments", rotation_days=rotation_days)
    created = timestamp(datetime.now(UTC) - timedelta(days=DAYS_OLD, hours=1))
    key = structs.replace(KEY_EXAMPLE, keyring="payments", created_at=created)
    found = [each.text for each in old_keys([key], [ring])]
    assert bool(found) is is_old
    year = structs.replace(key, keyring="default", created_at="2020-01-01T00:00:00.000Z")
    (text,) = [each.text for each in old_keys([year], [ring])]
    assert "is older than a year" in text


def test_many_old_keys_are_counted() -> None:
    """All old keys are counted, and the first ones are named."""
    created = "2020-01-01T00:00:00.000Z"
    keys = [
        structs.replace(KEY_EXAMPLE, keyring=f"ring-{n:04}", created_at=created)
        for n in range(2000)
    ]
    found = [each.text for each in old_keys(keys, [])]
    assert len(found) == 6
    assert found[-1] == "1,995 more active keys are older than they should be."


def test_looking_is_not_an_operation(installation: Installation) -> None:
    """Reads by pages are not in the overview's numbers: a new tenant has none."""
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
