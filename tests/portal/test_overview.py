"""The overview: numbers, a chart, warnings, first steps."""

from __future__ import annotations

import re
import subprocess

from playwright.sync_api import expect
from tests.fixtures.browser import assert_accessible
from tests.fixtures.installation import Installation
from tests.patience import PATIENCE
from tests.portal.conftest import SignedIn
from tests.portal.visitors import get_page


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
        ["/bin/sh", "-c", script], capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    assert (ended.returncode, ended.stderr) == (0, "")
    said = ('"status":"active"', '"ciphertext":', '"plaintext":"aGVsbG8sIHdvcmxk"')
    lines = ended.stdout.splitlines()
    assert [each in line for each, line in zip(said, lines, strict=True)] == [True] * 3


def test_first_steps_tick_themselves_until_they_are_dismissed(
    visit_as: SignedIn, installation: Installation
) -> None:
    """Each step follows the tenant's state.

    A person who hides the list hides it for themselves only.
    """
    tenant = installation.new_tenant()
    owner = installation.person(tenant.tenant_id)
    page = visit_as(owner).open("/portal")
    steps = page.get_by_role("region", name="First steps")

    def done() -> list[bool]:
        return ["(done)" in step for step in steps.locator(".step").all_inner_texts()]

    tenant.post("/kms/keyrings", {"name": "first"}, status=201)  # the API key's first use
    page.reload()
    assert done() == [False, True, False, False, False]
    tenant.post("/kms/keys/generate", {"algorithm": "Kyber768", "keyring": "first"}, status=201)
    installation.person(tenant.tenant_id)
    page.reload()
    assert done() == [True, True, False, True, False]
    with page.expect_navigation():
        steps.get_by_role("button", name="I keep it elsewhere").click()
    assert done() == [True, True, False, True, True]
    assert_accessible(page)
    with page.expect_navigation():
        steps.get_by_role("button", name="Hide this list").click()
    expect(steps).to_have_count(0)
    assert owner.get("/auth/me")["first_day"] == {"dismissed": True, "checkpoint_kept": True}
    colleague = installation.person(tenant.tenant_id)
    assert colleague.get("/auth/me")["first_day"] == {"dismissed": False, "checkpoint_kept": False}
    assert 'id="first"' in get_page(colleague, "/portal").text
    assert (
        'id="first"'
        not in get_page(installation.person(tenant.tenant_id, "viewer"), "/portal").text
    )
    shown = colleague.ask("PATCH", "/auth/me/first-day", {"dismissed": True})
    assert shown.json()["data"] == {"dismissed": True, "checkpoint_kept": False}


def test_the_overview_asks_for_each_thing_once(installation: Installation) -> None:
    """With any number of keyrings, a view leaves one record of a list."""
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
    lists = ["list-keys"]
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
    assert f"payments/Kyber768 v1 will be destroyed at {when}." in page
    assert 'href="/portal/keys?q=is%3Ascheduled&amp;sort=destruction">See the keys' in page
    assert owner.get("/kms/keys", scheduled="true", all_keyrings="true")["total"] == 1
    tenant.post("/kms/keys/archive/cancel", of_it)
    assert "will be destroyed" not in get_page(owner, "/portal").text


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
    expect(page.get_by_text("Your account has no second factor.")).to_be_visible()
    assert_accessible(page)


def test_a_notice_is_new_until_a_person_has_seen_it(
    visit_as: SignedIn, installation: Installation
) -> None:
    """The bell counts new notices on every page, and the page of notices records its readers."""
    tenant = installation.new_tenant()
    owner = installation.person(tenant.tenant_id)
    tenant.post(f"/tenants/{tenant.tenant_id}/api-keys", {}, status=201)
    found = {notice["kind"]: notice for notice in owner.get("/notices")["notices"]}
    assert {"api-key-too-powerful", "member-without-factor"} <= set(found)
    visit = visit_as(owner)
    page = visit.open("/portal/keyrings")
    bell = page.get_by_role("navigation", name="Portal").get_by_role("link", name="Notices")
    expect(bell).to_contain_text(f"{len(found)} new")
    bell.focus()
    with page.expect_response("**/api/v1/notices/seen"):
        page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="Notices")).to_be_visible()
    assert_accessible(page)
    page.reload()
    expect(bell).not_to_contain_text("new")
    expect(page.get_by_text("seen by").first).to_be_visible()
    admin = installation.person(tenant.tenant_id, "admin")
    seen = admin.get("/notices")["notices"]
    assert all(notice["new"] and notice["seen"] == 1 for notice in seen if notice["count"] == 1)
    viewer = installation.person(tenant.tenant_id, "viewer").get("/notices")["notices"]
    assert "member-without-factor" not in {notice["kind"] for notice in viewer}
    assert all(not notice["seen_by"] for notice in viewer)
