"""The audit log's pages: records, filters, and proofs that the browser verifies."""

from __future__ import annotations

import html
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from urllib.parse import quote

import pytest
from playwright.sync_api import Route, expect
from tests.fixtures.browser import assert_accessible, go_to
from tests.fixtures.caller import Caller
from tests.fixtures.installation import Installation
from tests.patience import PATIENCE
from tests.portal.conftest import SignedIn
from tests.portal.visitors import get_page
from tests.sampling import sampled

_OPERATION = re.compile('data-label="Operation">([^<]*)')
MARKUP = "<script>document.title='ran'</script>"


@pytest.fixture(scope="module")
def viewer(installation: Installation) -> Caller:
    """A viewer in a tenant with some records."""
    tenant = installation.new_tenant()
    tenant.post("/kms/keys/generate", {"algorithm": "Kyber768"}, status=201)
    for _ in range(5):
        tenant.post("/kem/encrypt", {"plaintext": "QUJD"})
    tenant.client.headers["X-Request-ID"] = MARKUP
    tenant.post("/kem/encapsulate", {"key_version": 1})
    return installation.person(tenant.tenant_id, "viewer")


def test_records_are_listed_and_filtered(visit_as: SignedIn, viewer: Caller) -> None:
    """All records are listed, newest first. A filter shows its matches, or a message."""
    visitor = visit_as(viewer)
    page = visitor.open("/portal/audit")
    rows = page.get_by_role("table").first.get_by_role("row")
    expect(rows.nth(1)).to_contain_text("sign-in")
    assert_accessible(page)
    page.get_by_text("All filters").click()
    page.get_by_label("Operation").fill("encrypt")
    page.get_by_role("button", name="Apply").click()
    expect(rows).to_have_count(6)
    go_to(page, "/portal/audit?principal=api-key:77")
    expect(page.get_by_role("heading", name="No record matches")).to_be_visible()
    go_to(page, "/portal/audit?key_version=newest")
    expect(page.get_by_text("The key version must be a whole number, such as 3.")).to_be_visible()
    go_to(page, "/portal/audit?from=yesterday")
    expect(page.get_by_text("Write the day as 2026-01-31, or the time")).to_be_visible()
    go_to(page, "/portal/audit?outcome=nonsense&key_version=3")
    expect(page.get_by_text("This outcome does not exist")).to_be_visible()
    expect(page.get_by_text("ERR_INVALID_001", exact=True)).to_be_visible()
    expect(page.get_by_label("Key version")).to_have_value("3")


def test_the_filters_take_what_the_table_shows(installation: Installation) -> None:
    """A person's address, an API key's name, "refused" and a source address each find records."""
    tenant = installation.new_tenant()
    tenant.post("/kms/keys/generate", {"algorithm": "Kyber768"}, status=201)
    path = f"/tenants/{tenant.tenant_id}/api-keys"
    named = tenant.post(path, {"name": "billing-run"}, status=201)["api_key"]
    program = installation.caller(named, tenant.tenant_id)
    program.post("/kem/encrypt", {"plaintext": "QUJD"})
    program.refusal("/kem/encrypt", {"plaintext": "QUJD", "algorithm": "X-Wing"})
    email = "table@example.org"
    owner = installation.person(tenant.tenant_id, "owner", email)
    owner.post_proven("/kms/keys/rotate", {"algorithm": "Kyber768"}, status=201)
    for query, operations in (
        ("principal=billing-run", ["encrypt", "encrypt"]),
        ("principal=table%40example.org&operation=rotate-key", ["rotate-key"]),
        ("outcome=refused", ["encrypt"]),
        ("source_address=127.0.0.1&operation=rotate-key", ["rotate-key"]),
        ("source_address=192.0.2.77", []),
        ("q=billing-run", ["encrypt", "encrypt"]),
        ("q=billing-run+refused+last+hour", ["encrypt"]),
        ("q=127.0.0.0%2F8+operation%3Arotate-key", ["rotate-key"]),
        ("q=Table%40example.org+rotate-key", ["rotate-key"]),
        ("q=address%3A192.0.2.0%2F24", []),
    ):
        page = get_page(owner, f"/portal/audit?{query}").text
        assert _OPERATION.findall(page) == operations, query
        (evidence,) = re.findall(r'href="/api/v1(/audit/export\?[^"]*)" download>Save', page)
        lines = owner.ask("GET", evidence.replace("&amp;", "&")).text.splitlines()
        found = [
            json.loads(line)["record"] for line in lines if line.startswith('{"type":"record"')
        ]
        assert [record["operation"] for record in reversed(found)] == operations, query
    for wrong, problem in (
        ("q=adress%3A127.0.0.1", "Did you mean “address:”?"),
        ("q=127.0.0.1+127.0.0.2", "would be a second source address"),
        ("q=operation%3Asing", "operation must be an operation, or one of sign-ins"),
    ):
        page = get_page(owner, f"/portal/audit?{wrong}").text
        assert problem in page.replace("&#34;", '"')
        assert _OPERATION.findall(page) == []
    page = get_page(owner, "/portal/audit").text
    assert 'data-label="From" class="small mono nowrap">127.0.0.1<' in page
    page = get_page(owner, "/portal/audit?principal=nobody%40example.org").text
    assert "no member has this e-mail address" in page
    assert 'name="tenant"' not in page


def test_a_range_of_the_histogram_is_chosen(visit_as: SignedIn, viewer: Caller) -> None:
    """Bars lead to their time, groups to their records, and new records come by themselves."""
    page = visit_as(viewer).open("/portal/audit")
    bar = page.locator("[data-histogram] a").last
    bar.focus()
    page.keyboard.press("Enter")
    page.wait_for_url("**from=*")
    expect(page.get_by_label("From (UTC)")).not_to_have_value("")
    expect(page.get_by_role("table").get_by_role("row").nth(1)).to_contain_text("sign-in")
    page.locator("[data-histogram] a").last.focus()
    page.keyboard.press("Shift+Enter")
    page.keyboard.press("Shift+Enter")
    page.wait_for_load_state()
    page.get_by_role("link", name="operation", exact=True).click()
    row = page.get_by_role("row", name="encrypt 5")
    expect(row).to_be_visible()
    assert_accessible(page)
    row.get_by_role("link").click()
    rows = page.get_by_role("region", name="Records").get_by_role("row")
    expect(rows).to_have_count(6)
    go_to(page, "/portal/audit")
    assert len(page.content()) < 60_000
    page.get_by_label("Show new records").check()
    viewer.refusal("/kms/keys/generate", {"algorithm": "Kyber768"})
    expect(rows.nth(1)).to_contain_text("generate-key")


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("group=outcome", "outcome=success"),
        ("group=key", "keyring=default&amp;algorithm=Kyber768&amp;key_version=1"),
        ("group=address", "source_address=127.0.0.1"),
        ("group=principal&outcome=success", "principal=api-key%3A1"),
        ("q=within%3A24h+encrypt", "q=encrypt+within%3A1h"),
        ("from=2020-01-01T00%3A00&to=2020-01-02T00%3A00", "No record matches"),
        ("operation=sign-ins", ">sign-in<"),
    ],
)
def test_links_narrow_the_log(viewer: Caller, query: str, expected: str) -> None:
    """Groups, ranges and times of the form are links and filters without JavaScript."""
    assert expected in get_page(viewer, f"/portal/audit?{query}").text


def test_an_operator_sees_whose_records_they_are(installation: Installation) -> None:
    """The operator's log names the tenant of each record, and is filtered by that name."""
    tenants = [installation.new_tenant() for _ in range(2)]
    for each in tenants:
        each.post("/kms/keys/generate", {"algorithm": "Kyber768"}, status=201)
    name = installation.operator().get(f"/tenants/{tenants[0].tenant_id}")["name"]
    operator = installation.caller(None)
    operator.post("/auth/operator", {"operator_key": installation.ready["operator_key"]})
    page = get_page(operator, f"/portal/audit?tenant={quote(name)}").text
    named = re.findall('data-label="Tenant"><bdi>([^<]*)', page)
    assert set(named) == {name}
    assert "generate-key" in _OPERATION.findall(page)
    page = get_page(operator, "/portal/audit").text
    assert {name, "the installation"} <= set(re.findall('data-label="Tenant"><bdi>([^<]*)', page))
    assert "no such tenant" in get_page(operator, "/portal/audit?tenant=none").text


def test_page_views_are_left_out_and_that_is_said(viewer: Caller) -> None:
    """Page views are hidden, the page says so, and a link or a filter shows them."""
    viewer.get("/kms/keys")
    listed = 'data-label="Operation">list-keys<'
    page = get_page(viewer, "/portal/audit?outcome=success").text
    assert (listed in page, "Page views are hidden" in page) == (False, True)
    assert "outcome=success" in page.partition('">Show page views')[0].rpartition('href="')[2]
    page = get_page(viewer, "/portal/audit?outcome=success&views=all").text
    assert (listed in page, "Page views are included" in page) == (True, True)
    page = get_page(viewer, "/portal/audit?operation=list-keys").text
    assert (listed in page, "because the filter selects them" in page) == (True, True)


def test_records_are_said_in_words(installation: Installation) -> None:
    """An API key is marked as such.

    An outcome has words beside its code. A person has an address.
    """
    tenant = installation.new_tenant()
    tenant.post(f"/tenants/{tenant.tenant_id}/api-keys", status=201)
    tenant.refusal("/kem/encrypt", {"plaintext": "QUJD", "algorithm": "X-Wing"})
    viewer = installation.person(tenant.tenant_id, "viewer", "ada@example.org")
    page = get_page(viewer, "/portal/audit").text
    assert ">API key 2<" in page
    assert 'title="key-not-found">no such key<' in page
    assert "ada@example.org</bdi>" in page
    found = tenant.get("/audit/records", outcome="key-not-found")["records"][0]["id"]
    assert "(no such key)" in get_page(viewer, f"/portal/audit/{found}").text


def test_the_commands_that_verify_the_log_work(installation: Installation, tmp_path: Path) -> None:
    """The shown commands save the log's keys, export the log and verify it."""
    tenant = installation.new_tenant()
    tenant.post("/kms/keys/generate", {"algorithm": "Kyber768"}, status=201)
    page = get_page(installation.person(tenant.tenant_id), "/portal/audit").text
    shown = next(each for each in re.findall(r"<code[^>]*>([^<]*)", page) if "verify" in each)
    directory = Path(sys.executable).parent
    ended = subprocess.run(
        ["/bin/sh", "-ec", html.unescape(shown)],
        env={
            "PATH": f"{directory}:{os.environ['PATH']}",
            "HOME": str(tmp_path),
            "PQKEEP_URL": installation.base_url,
            "PQKEEP_API_KEY": str(tenant.api_key),
        },
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.endswith("verified\n")


def test_the_browser_verifies_a_record(visit_as: SignedIn, viewer: Caller) -> None:
    """The page computes each hash up to the signed root; markup in a value stays text."""
    found = viewer.get("/audit/records", operation="encapsulate")["records"]
    page = visit_as(viewer, phone=True).open(f"/portal/audit/{found[0]['id']}")
    expect(page.get_by_text("verified: it is in the log")).to_be_visible()
    expect(page.get_by_text(MARKUP)).to_be_visible()
    assert page.title() != "ran"
    named = page.locator("dl").first.locator("dt:visible").all_inner_texts()
    assert named[0] == "Recorded at"
    assert "event id" not in named  # a record of the key service has none
    assert_accessible(page)
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


@pytest.mark.parametrize(
    "name", sampled(["outcome", "principal", "path", "recorded_at", "root"], 2)
)
def test_a_forged_answer_is_not_verified(visit_as: SignedIn, viewer: Caller, name: str) -> None:
    """A changed record, path or root is not called verified."""
    record_id = viewer.get("/audit/records", operation="encrypt")["records"][0]["id"]
    visitor = visit_as(viewer)

    def forge(route: Route) -> None:
        answer = route.fetch()
        body = answer.json()
        data = body["data"]
        if name == "path":
            data["path"][0] = data["checkpoint"]["root"]
        elif name == "root":
            data["checkpoint"]["root"] = data["path"][0]
        else:
            data["record"][name] = "forged"
        route.fulfill(response=answer, body=json.dumps(body))

    visitor.context.route("**/proof", forge)
    page = visitor.open(f"/portal/audit/{record_id}")
    expect(page.get_by_text("not in the log as shown here")).to_be_visible()


def test_another_tenants_record_is_not_there(
    visit_as: SignedIn, installation: Installation, viewer: Caller
) -> None:
    """The page of another tenant's record is the same 404 as of a missing record."""
    record_id = viewer.get("/audit/records", operation="encrypt")["records"][0]["id"]
    stranger = installation.person(installation.new_tenant().tenant_id)
    visitor = visit_as(stranger)
    visitor.expected.append("404")
    page = visitor.open(f"/portal/audit/{record_id}")
    expect(page.get_by_text("There is no such record.")).to_be_visible()
