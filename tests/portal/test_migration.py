"""The page of migration: algorithms in use, rules, campaigns and downloads."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from http import HTTPStatus
from io import BytesIO
from pathlib import Path
from zipfile import ZipFile

import httpx2
import pytest
from msgspec import structs
from playwright.sync_api import expect
from tests.fixtures.caller import TLS, Caller
from tests.fixtures.installation import Installation
from tests.patience import PATIENCE
from tests.portal.conftest import SignedIn
from tests.portal.example import CAMPAIGN, migrate
from tests.portal.visitors import MARKUP, allowed, get_page, operations_on, prove

from pqkeep.audit import verify_report
from pqkeep_gateway.access.callers import Role
from pqkeep_gateway.api.rules import EXAMPLE
from pqkeep_gateway.http.text import timestamp
from pqkeep_gateway.portal.views.migration import state_of

PATH = "/portal/migration"
NOW = datetime(2026, 1, 31, 12, tzinfo=UTC)
DAY = timedelta(days=1)


@pytest.fixture(scope="module")
def tenant(installation: Installation) -> Caller:
    """A tenant with rules, a campaign and a canary, and markup in their texts."""
    made = installation.new_tenant()
    made.post("/kms/keys/generate", {"algorithm": "Kyber768"}, status=201)
    migrate(made, installation.person(made.tenant_id), "default")
    source = {"keyring": "default", "algorithm": "X-Wing"}
    plan = {"description": MARKUP[0], "sources": [source], "target": source}
    assert made.ask("PUT", "/campaigns/hostile", plan).is_success
    scan = {"place": MARKUP[1], "sha256": "5f" * 32, "scanned_at": "2026-01-31T12:00:00Z"}
    made.post("/campaigns/hostile/scans", {**scan, "counts": []}, status=201)
    return made


def _counted(viewer: Caller) -> str:
    """Return the page after the uses were counted, which a checkpoint does."""
    size = viewer.get("/audit/records", order="desc", limit=1)["records"][0]["id"]
    while viewer.get("/inventory")["as_of"]["size"] < size:
        pass
    return get_page(viewer, PATH).text


def test_the_page_shows_keys_rules_and_campaigns(
    installation: Installation, tenant: Caller
) -> None:
    """A viewer sees the tenant's uses, rules and campaigns. Another tenant sees none of them."""
    viewer = installation.person(tenant.tenant_id, Role.VIEWER)
    text = _counted(viewer)
    assert 'href="/portal/keys?q=algorithm%3AKyber768"' in text
    kyber = text.partition("algorithm%3AKyber768")[2].partition("</tr>")[0]
    assert 'class="number">13</td>' in kyber  # 12 encryptions and a re-encryption
    assert "cnsa-2.0.kem warns" in kyber
    assert "It would have refused 13 uses by 1 principal." in text
    assert "1 re-encryption" in text
    assert "17 ciphertexts in 1 place" in text
    assert "the sources are disabled until" in text
    assert f"Refused by the canary of {CAMPAIGN}" in text
    assert not any(markup in text for markup in MARKUP)
    stranger = installation.person(installation.new_tenant().tenant_id)
    page = get_page(stranger, PATH).text
    for words in ("algorithm%3AKyber768", 'id="rule-', 'id="campaign-', "sources are disabled"):
        assert (words in text, words in page) == (True, False), words


@pytest.mark.parametrize("role", Role)
def test_a_role_sees_the_forms_that_it_may_send(
    installation: Installation, tenant: Caller, role: Role
) -> None:
    """The page has exactly the forms that the access table allows."""
    page = get_page(installation.person(tenant.tenant_id, role), PATH)
    assert page.status_code == HTTPStatus.OK
    forms = {"put_rules", "begin_canary", "end_canary"}
    assert operations_on(page.text) & forms == allowed(role, forms)


def test_what_a_rule_would_refuse_is_shown_without_javascript(
    installation: Installation, tenant: Caller
) -> None:
    """The form is a GET. A profile and an algorithm have a result, and unknown values have one too."""
    viewer = installation.person(tenant.tenant_id, Role.VIEWER)
    for choice in ("cnsa-2.0", "Kyber768"):
        page = get_page(viewer, f"{PATH}?end={choice}").text
        assert page.count("It would have refused 13 uses by 1 principal.") == 2, choice
    page = get_page(viewer, f"{PATH}?end=HMAC-SHA-512").text
    assert page.count("It would have refused nothing.") > 1
    for choice in ("RSA-2048", MARKUP[1], "Kyber768,X-Wing"):
        shown = get_page(viewer, f"{PATH}?end={choice}&rules=x&campaigns=9999")
        assert shown.status_code == HTTPStatus.OK
        assert MARKUP[1] not in shown.text


def test_a_rule_is_made_and_only_becomes_stricter(
    visit_as: SignedIn, new_tenant: Callable[..., Caller], new_person: Callable[..., Caller]
) -> None:
    """The form is checked before a proof is asked for, and a weaker rule is refused."""
    owner = new_person(new_tenant().tenant_id)
    visitor = visit_as(owner, asks_proof=True)
    visitor.expected += ["400", "403"]
    page = visitor.open(PATH)
    page.get_by_role("button", name="Make a rule").click()
    form = page.locator("#new-rule")
    form.get_by_label("Name").fill("no-kyber")
    form.get_by_role("button", name="Make it").click()
    expect(form.locator("[data-problem=algorithms]")).to_be_visible()
    form.get_by_role("checkbox", name="Kyber768").check()
    form.get_by_label("To use instead").select_option("ML-DSA-87")
    form.get_by_role("button", name="Make it").click()
    expect(form.locator("[data-problem=successor]")).to_be_visible()
    expect(page.locator("#step-up")).not_to_be_visible()
    form.get_by_label("To use instead").select_option("ML-KEM-1024")
    form.get_by_label("Only in these keyrings").fill("payments.*\ncards")
    form.get_by_label("Deny from").fill("2099-01-31")
    form.get_by_label("API keys that are only warned").fill("1: 2099-03-31\n9: 2099-03-31")
    form.get_by_role("button", name="Make it").click()
    prove(page)
    expect(page.get_by_role("heading", name="no-kyber")).to_be_visible()
    (made,) = owner.get("/rules/algorithms")["rules"]
    assert made["keyrings"] == ["payments.*", "cards"]
    assert made["deny_from"] == "2099-01-31T00:00:00.000Z"
    until = "2099-03-31T23:59:59.000Z"
    assert made["exceptions"] == [{"api_key": 1, "until": until}, {"api_key": 9, "until": until}]
    expect(page.locator("main")).to_contain_text(re.compile(r"API key 1 \(….{4}\) until"))
    expect(page.locator("main")).to_contain_text("API key 9, which does not exist, until")

    page.get_by_role("button", name="Make no-kyber stricter").click()
    form = page.locator("dialog[id='change-no-kyber']")
    form.get_by_label("Deny from").fill("2099-02-28")
    form.get_by_role("button", name="Change it").click()
    prove(page)
    expect(form.locator(".form-error")).to_contain_text("operator")
    form.get_by_label("Deny from").fill("2098-12-31")
    form.get_by_role("button", name="Change it").click()
    prove(page)
    expect(page.locator("section[aria-labelledby='rule-no-kyber']")).to_contain_text("2098-12-31")
    (changed,) = owner.get("/rules/algorithms")["rules"]
    assert changed == made | {"deny_from": "2098-12-31T00:00:00.000Z"}


def test_a_canary_ends_and_begins_and_the_bill_of_materials_is_saved(
    installation: Installation, visit_as: SignedIn, tenant: Caller, tmp_path: Path
) -> None:
    """The sources are enabled and disabled by the forms; the file is a CycloneDX document."""
    owner = installation.person(tenant.tenant_id)
    page = visit_as(owner, asks_proof=True).open(PATH)
    end = page.get_by_role("button", name=f"End the canary of {CAMPAIGN}")
    begin = page.get_by_role("button", name=f"Begin a canary of {CAMPAIGN}")
    end.click()
    page.get_by_role("dialog").get_by_role("button", name="End it").click()
    expect(begin).to_be_visible()
    begin.click()
    last_day = f"{datetime.now(UTC) + 7 * DAY:%Y-%m-%d}"
    page.get_by_role("dialog").get_by_label("Last day").fill(last_day)
    page.get_by_role("dialog").get_by_role("button", name="Disable").click()
    prove(page)
    expect(end).to_be_visible()
    canary = owner.get(f"/campaigns/{CAMPAIGN}")["canary"]
    assert (canary["state"], canary["until"]) == ("running", f"{last_day}T23:59:59.000Z")
    with page.expect_download() as saving:
        page.get_by_role("button", name="Download as CycloneDX 1.7").click()
    saving.value.save_as(tmp_path / "cbom.json")
    document = json.loads((tmp_path / "cbom.json").read_text())
    assert (document["bomFormat"], document["specVersion"]) == ("CycloneDX", "1.7")


def _without(archive: bytes, made: Path, edits: dict[str, tuple[bytes, bytes]]) -> Path:
    """Write a download again with edited files, as a forger would."""
    with ZipFile(BytesIO(archive)) as old, ZipFile(made, "w") as new:
        files = {name: old.read(name) for name in old.namelist()}
        for name, (said, instead) in edits.items():
            assert said in files[name], name
            files[name] = files[name].replace(said, instead, 1)
        manifest = json.loads(files["manifest.json"])
        manifest["files"] = {name: sha256(files[name]).hexdigest() for name in manifest["files"]}
        files["manifest.json"] = json.dumps(manifest).encode()
        for name, content in files.items():
            new.writestr(name, content)
    return made


@pytest.mark.threat("edited-report")
def test_the_report_is_downloaded_and_verifies(
    installation: Installation, visit_as: SignedIn, tenant: Caller, tmp_path: Path
) -> None:
    """The form saves a file that verifies offline. An edited or a cut one names the file."""
    viewer = installation.person(tenant.tenant_id, Role.VIEWER)
    _counted(viewer)
    page = visit_as(viewer).open(PATH)
    page.get_by_label("Count moves").fill("2026-01-01")
    with page.expect_download() as saving:
        page.get_by_role("button", name="Download the report").click()
    saved = tmp_path / saving.value.suggested_filename
    saving.value.save_as(saved)
    report = verify_report(saved)
    assert report.is_verified, report.findings
    assert report.counts is not None
    assert [row["count"] for row in report.counts["moved"]] == [1]
    assert report.portions[0].file == f"{saved}/audit.jsonl"
    archive = saved.read_bytes()
    edits = {
        "inventory.json": (b'"uses":13', b'"uses":12'),
        "campaigns.json": (b'"quiet_days":', b'"quiet_days":1'),
        "audit.jsonl": (b'"operation":"encrypt"', b'"operation":"decrypt"'),
    }
    edited = verify_report(_without(archive, tmp_path / "edited.zip", edits))
    named = {Path(finding.file).name for finding in edited.findings}
    assert named == set(edits), edited.findings
    for length in (len(archive) // 2, len(archive) - 1):
        saved.write_bytes(archive[:length])
        (finding,) = verify_report(saved).findings
        assert (finding.kind, finding.file) == ("truncated", str(saved))


def test_who_may_download_a_report(installation: Installation, tenant: Caller) -> None:
    """Another tenant has its own report; a wrong day is named; other sites cannot ask for one."""
    stranger = installation.person(installation.new_tenant().tenant_id)
    query = f"{PATH}?format=zip&since=2026-01-01"
    own = get_page(stranger, query)
    assert own.headers["content-type"] == "application/zip"
    with ZipFile(BytesIO(own.content)) as files:
        content = b"".join(map(files.read, files.namelist()))
    assert tenant.tenant_id.encode() not in content
    assert CAMPAIGN.encode() not in content
    for wrong in ("", "&since=", "&since=yesterday", "&since=2026-02-30"):
        page = get_page(stranger, f"{PATH}?format=zip{wrong}")
        assert page.status_code == HTTPStatus.BAD_REQUEST
        assert "Write the day as 2026-01-31." in page.text
    url = f"{stranger.client.base_url}".rstrip("/") + query
    cookies = {cookie.name: cookie.value or "" for cookie in stranger.client.cookies.jar}
    with httpx2.Client(cookies=cookies, verify=TLS, timeout=PATIENCE) as client:
        assert client.head(url).headers["content-type"] == "application/zip"
        elsewhere = client.get(url, headers={"Sec-Fetch-Site": "cross-site"})
        assert elsewhere.status_code == HTTPStatus.FORBIDDEN
        with client.stream("GET", url) as running:
            assert running.status_code == HTTPStatus.OK
        assert client.get(url).status_code == HTTPStatus.OK
    nobody = httpx2.get(url, verify=TLS, timeout=PATIENCE)
    assert (nobody.status_code, nobody.content) == (HTTPStatus.SEE_OTHER, b"")


@pytest.mark.parametrize(
    ("warn", "deny", "state"),
    [
        (None, None, ""),
        (DAY, None, "announced"),
        (-DAY, DAY, "warns"),
        (-DAY, -DAY / 2, "denies"),
        (None, -DAY, "denies"),
        (None, timedelta(0), "denies"),
    ],
)
def test_a_rule_has_the_state_of_its_dates(
    warn: timedelta | None, deny: timedelta | None, state: str
) -> None:
    """The strictest date in the past counts."""
    warn_from, deny_from = (
        None if ahead is None else timestamp(NOW + ahead) for ahead in (warn, deny)
    )
    rule = structs.replace(EXAMPLE, warn_from=warn_from, deny_from=deny_from)
    assert state_of(rule, NOW) == state
