"""The page of workloads: issuers and roles are added, changed and removed."""

from __future__ import annotations

from typing import Any

from playwright.sync_api import expect
from tests.fixtures.browser import assert_accessible
from tests.fixtures.caller import Caller
from tests.fixtures.installation import Installation
from tests.portal.conftest import SignedIn
from tests.portal.example import ISSUER, ROLE, trust
from tests.portal.visitors import MARKUP, assert_fits, get_page, operations_on, prove

PATH = "/portal/workloads"
JWKS = (
    '{"keys": [{"kty": "OKP", "crv": "Ed25519", "kid": "a",'
    ' "x": "11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"}]}'
)
SCOPES = [
    {"operations": ["verify-only"], "keyrings": ["payments.*", "later"]},
    {"operations": ["use"], "algorithms": ["X-Wing"]},
]


def _workloads(owner: Caller) -> dict[str, Any]:
    return owner.get(f"/tenants/{owner.tenant_id}/workloads")


def test_an_issuer_and_a_role_are_added(installation: Installation, visit_as: SignedIn) -> None:
    """The API has what was typed: keys, audience, several values of a claim, scopes, lifetime."""
    owner = installation.person(installation.new_tenant().tenant_id)
    page = visit_as(owner, phone=True, asks_proof=True).open(PATH)
    expect(page.get_by_text("No issuers yet")).to_be_visible()
    expect(page.get_by_role("button", name="Add a role")).to_have_count(0)
    page.get_by_role("button", name="Add an issuer").click()
    dialog = page.locator("#put-issuer")
    dialog.get_by_label("Name", exact=True).fill("cluster")
    dialog.get_by_label("URL", exact=True).fill("https://kubernetes.default.svc")
    expect(dialog.get_by_label("Audience")).to_have_value(installation.base_url)
    dialog.get_by_label("RS256").uncheck()
    dialog.get_by_label("EdDSA").check()
    dialog.get_by_label("Its public keys").fill(JWKS)
    assert_fits(page)
    assert_accessible(page)
    dialog.get_by_role("button", name="Save").click()
    prove(page)
    expect(page.get_by_role("row", name="cluster")).to_contain_text("sent to the service")

    page.get_by_role("button", name="Add a role").first.click()
    dialog = page.locator("#put-role")
    dialog.get_by_label("Name", exact=True).fill("pods")
    claims = dialog.get_by_label("Conditions on the token's claims")
    dialog.get_by_role("button", name="Save").click()
    expect(dialog).to_contain_text("This field is required.")
    name = "https://example.com/team"
    claims.fill(f"sub=system:serviceaccount:shop:*\n{name}=a=b\n\n{name}=c\n__proto__={MARKUP[0]}")
    dialog.get_by_label("Only in these keyrings").fill("payments.*")
    dialog.get_by_label("Seconds that an API key lives").fill("600")
    assert_accessible(page)
    dialog.get_by_role("button", name="Save").click()
    prove(page)
    row = page.get_by_role("row", name="pods")
    expect(row).to_contain_text("use keys, in payments.*")
    assert_fits(page)

    found = _workloads(owner)
    (issuer,), (role,) = found["issuers"], found["roles"]
    assert (issuer["name"], issuer["issuer"]) == ("cluster", "https://kubernetes.default.svc")
    assert (issuer["audience"], issuer["algorithms"]) == (installation.base_url, ["EdDSA"])
    assert issuer["jwks"] == JWKS
    assert (role["name"], role["issuer"], role["lifetime_seconds"]) == ("pods", "cluster", 600)
    assert role["claims"] == {
        "sub": ["system:serviceaccount:shop:*"],
        name: ["a=b", "c"],
        "__proto__": [MARKUP[0]],
    }
    assert role["scopes"] == [{"operations": ["use"], "keyrings": ["payments.*"]}]


def test_a_role_is_changed_and_removed(installation: Installation, visit_as: SignedIn) -> None:
    """Unchanged fields and scopes stay as they are, and a removal asks for the name."""
    owner = installation.person(installation.new_tenant().tenant_id)
    trust(owner)
    path = f"/tenants/{owner.tenant_id}/workloads/roles/ci-deploy"
    kept = ROLE | {"issuer": "ci-github", "scopes": SCOPES, "allow_absent_keyrings": True}
    assert owner.ask_proven("PUT", path, kept).is_success
    before = _workloads(owner)["roles"][0]
    page = visit_as(owner, asks_proof=True).open(PATH)
    page.get_by_role("link", name="Change the role ci-deploy").click()
    dialog = page.locator("#put-role")
    expect(dialog).to_be_visible()
    expect(dialog.get_by_label("Name", exact=True)).not_to_be_editable()
    dialog.get_by_label("Seconds that an API key lives").fill("60")
    dialog.get_by_label("Allow keyrings that do not exist yet").check()
    dialog.get_by_role("button", name="Save").click()
    prove(page)
    expect(page.get_by_role("row", name="ci-deploy")).to_contain_text("1 min")
    after = _workloads(owner)["roles"][0]
    changed = {"lifetime_seconds", "changed_at"}
    assert {name for name in after if after[name] != before[name]} == changed

    page.get_by_role("link", name="Change the issuer ci-github").click()
    dialog = page.locator("#put-issuer")
    dialog.get_by_label("PS256").check()
    dialog.get_by_role("button", name="Save").click()
    prove(page)
    expect(page.locator("#all-issuers tbody tr")).to_contain_text("RS256, PS256")
    assert _workloads(owner)["issuers"][0]["issuer"] == ISSUER["url"]

    page.get_by_role("button", name="Remove the issuer ci-github").click()
    dialog = page.locator("#remove-issuer")
    dialog.get_by_label("Type ci-github to confirm").fill("ci-deploy")
    page.keyboard.press("Enter")
    expect(dialog).to_contain_text("This must be exactly")
    dialog.get_by_label("Type ci-github to confirm").fill("ci-github")
    page.keyboard.press("Enter")  # the last proof covers it
    expect(page.get_by_text("No issuers yet")).to_be_visible()
    assert _workloads(owner) == {"issuers": [], "roles": []}


def test_a_viewer_sees_workloads_and_changes_none(installation: Installation) -> None:
    """A role without the permission sees the lists, but no form, button or link to change them."""
    owner = installation.person(installation.new_tenant().tenant_id)
    trust(owner)
    viewer = installation.person(owner.tenant_id, "viewer")
    text = get_page(viewer, f"{PATH}?issuer=ci-github&role=ci-deploy").text
    assert "repository=northwind/shop" in text
    workloads = {name for name in operations_on(text) if "workload" in name}
    assert workloads == set()
    assert "#put-" not in text.partition("<main")[2]
