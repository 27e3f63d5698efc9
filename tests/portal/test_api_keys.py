"""The page of API keys: created, rotated, revoked."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from http import HTTPStatus
from threading import Event
from time import monotonic, sleep

import pytest
from playwright.sync_api import expect
from tests.fixtures.browser import assert_accessible, go_to
from tests.fixtures.caller import Caller
from tests.fixtures.installation import Installation
from tests.patience import PATIENCE
from tests.portal.conftest import SignedIn
from tests.portal.visitors import (
    MARKUP,
    allowed,
    assert_fits,
    assert_headings_in_order,
    get_page,
    keep_api_key,
    operations_on,
    prove,
)

from pqkeep_gateway.access.callers import Role
from pqkeep_gateway.access.scopes import Group
from pqkeep_gateway.api.api_key_fields import ScopeData
from pqkeep_gateway.api.api_keys import ApiKeyData
from pqkeep_gateway.http.text import timestamp
from pqkeep_gateway.portal.lists import ROWS
from pqkeep_gateway.portal.rendering import span
from pqkeep_gateway.portal.views.api_keys import GROUPS, seconds_left, sentences
from pqkeep_gateway.storage.api_keys import ApiKeyStatus
from pqkeep_protocol.algorithms import Algorithm

OPERATIONS = {"create_api_key", "rotate_api_key", "revoke_api_key"}
PATH = "/portal/api-keys"


def test_an_api_key_is_created_rotated_and_revoked(
    installation: Installation, visit_as: SignedIn
) -> None:
    """Each new API key is shown once and works.

    An old one counts down, and a revoked one is refused.
    """
    tenant = installation.operator().post("/tenants", {"name": "no API keys"}, status=201)
    owner = installation.person(tenant["id"])
    visitor = visit_as(owner, is_fresh=True, asks_proof=True)
    page = visitor.open(PATH)
    expect(page.get_by_text("No API keys yet")).to_be_visible()
    page.get_by_role("button", name="Create an API key").first.focus()
    page.keyboard.press("Enter")
    page.locator("#create").get_by_role("button", name="Create").focus()
    page.keyboard.press("Enter")
    prove(page)
    expect(page.locator("#made")).to_be_visible()
    first = page.locator('[data-made="key"] code').inner_text()
    lines = page.locator('[data-made="environment"] code').inner_text()
    assert lines == f"export PQKEEP_URL={installation.base_url}\nexport PQKEEP_API_KEY={first}"
    assert_accessible(page)
    assert installation.caller(first).get("/kms/keys")["total"] == 0
    keep_api_key(page)
    expect(page.get_by_role("row", name=f"…{first[-4:]}")).to_contain_text("active")
    assert first not in page.content()

    page.clock.install()
    page.goto(f"{PATH}/1")
    page.get_by_label("Seconds until the old one stops working").fill("30")
    page.keyboard.press("Enter")
    prove(page)
    expect(page.locator("#made")).to_be_visible()
    second = page.locator('[data-made="key"] code').inner_text()
    keep_api_key(page)
    old = page.get_by_role("region", name="Details")
    expect(old).to_contain_text("ends in")
    page.clock.fast_forward(31_000)
    expect(old).to_contain_text("revoked")

    page.goto(f"{PATH}/2")
    page.get_by_role("button", name="Revoke").first.click()
    dialog = page.locator("#revoke")
    expect(dialog).to_contain_text("are refused from their next request on")
    confirm = dialog.get_by_label(f"Type {second[-4:]} to confirm")
    confirm.fill(first[-4:])
    page.keyboard.press("Enter")
    expect(dialog).to_contain_text("This must be exactly")
    confirm.fill(second[-4:])
    page.keyboard.press("Enter")  # the last proof covers it
    expect(page.get_by_role("region", name="Details")).to_contain_text("revoked")
    refused = installation.caller(second).ask("GET", "/kms/keys")
    assert refused.status_code == HTTPStatus.UNAUTHORIZED


def test_an_api_key_may_do_what_was_chosen(installation: Installation, visit_as: SignedIn) -> None:
    """The API stores the chosen name, operations, keyrings, algorithms, last day and networks."""
    tenant = installation.new_tenant()
    owner = installation.person(tenant.tenant_id)
    page = visit_as(owner, phone=True, asks_proof=True).open(PATH)
    page.get_by_role("button", name="Create an API key").click()
    dialog = page.locator("#create")
    dialog.get_by_label("Name").fill("ci-verifier")
    dialog.get_by_label("Use keys").uncheck()
    dialog.get_by_role("button", name="Create").click()
    expect(dialog.locator("[data-problem=scopes]")).to_contain_text(
        "Choose at least one permission"
    )
    dialog.get_by_label("Verify only").check()
    dialog.get_by_label("Administer").check()
    dialog.get_by_label("Only in these keyrings").fill("payments.*, default")
    dialog.get_by_text("Only with some algorithms").click()
    dialog.get_by_label("Dilithium3").check()
    dialog.get_by_label("Last day (UTC)").fill("2099-12-31")
    dialog.get_by_label("Only from these networks").fill("127.0.0.0/8 2001:db8::/32")
    assert_fits(page)
    assert_accessible(page)
    dialog.get_by_text("The same from a program").click()
    expect(dialog.locator("[data-follows-scopes]")).to_contain_text(
        '"operations": ["verify-only", "administer"]'
    )
    dialog.get_by_role("button", name="Create").click()
    prove(page)
    expect(page.locator("#made")).to_be_visible()
    made = page.locator('[data-made="key"] code').inner_text()
    keep_api_key(page)
    row = page.get_by_role("row", name="ci-verifier")
    expect(row).to_contain_text(
        "verify only, in payments.* and default, with Dilithium3; administer from 127.0.0.0/8"
    )
    expect(row).to_contain_text("in 73 years")
    kept = owner.get(f"/tenants/{tenant.tenant_id}/api-keys", details=True)["api_keys"][-1]
    limits = {"keyrings": ["payments.*", "default"], "algorithms": ["Dilithium3"]}
    assert kept["scopes"] == [
        {"operations": ["verify-only"], **limits},
        {"operations": ["administer"]},
    ]
    assert kept["expires_at"].startswith("2099-12-31T23:59:59")
    assert kept["allowed_addresses"] == ["127.0.0.0/8", "2001:db8::/32"]
    assert installation.caller(made).refusal("/kem/encrypt", {"plaintext": "QUJD"})[0] == 403


def test_an_api_key_is_rotated_with_other_limits(
    installation: Installation, visit_as: SignedIn
) -> None:
    """An unchanged limit stays. A chosen one replaces the old one, on a page of its own."""
    tenant = installation.new_tenant()
    owner = installation.person(tenant.tenant_id)
    path = f"/tenants/{tenant.tenant_id}/api-keys"
    limits = {"scopes": [{"operations": ["use"], "keyrings": ["cards"]}], "name": "worker"}
    tenant.post("/kms/keyrings", {"name": "cards"}, status=201)
    owner.post_proven(path, limits, status=201)
    page = visit_as(owner, phone=True, asks_proof=True).open(PATH)
    page.get_by_role("row", name="worker").get_by_role("link").click()
    expect(page.get_by_role("heading", name="worker")).to_be_visible()
    expect(page.locator("[name=group][value=use]")).to_be_disabled()
    page.get_by_label("Last day (UTC)").fill("2099-12-31")
    page.get_by_role("button", name="Rotate").click()
    prove(page)
    keep_api_key(page)
    go_to(page, f"{PATH}/3")
    expect(page.locator("dl")).to_contain_text("2099-12-31 23:59 UTC")
    page.get_by_label("As now").uncheck()
    page.get_by_role("button", name="Rotate").click()
    expect(page.locator("[data-problem=scopes]")).to_contain_text("Choose at least one permission")
    page.get_by_label("Verify only").check()
    page.get_by_label("Only from these networks").fill("127.0.0.0/8")
    assert_fits(page)
    assert_accessible(page)
    page.get_by_role("button", name="Rotate").click()
    prove(page)
    keep_api_key(page)
    kept = owner.get(path, details=True)["api_keys"]
    assert [each["name"] for each in kept[1:]] == ["worker"] * 3
    assert [each["scopes"] for each in kept[1:]] == [
        limits["scopes"],
        limits["scopes"],
        [{"operations": ["verify-only"]}],
    ]
    assert kept[3]["expires_at"].startswith("2099-12-31T23:59:59")
    assert kept[3]["allowed_addresses"] == ["127.0.0.0/8"]
    for missing in ("99", "x", "0"):
        assert get_page(owner, f"{PATH}/{missing}").status_code == HTTPStatus.NOT_FOUND


def test_everything_is_chosen_deliberately(installation: Installation, visit_as: SignedIn) -> None:
    """The default is using keys; an API key without scopes needs an explicit choice."""
    tenant = installation.new_tenant()
    owner = installation.person(tenant.tenant_id)
    page = visit_as(owner, asks_proof=True).open(PATH)
    for choice in ("", "Everything"):
        page.get_by_role("button", name="Create an API key").click()
        if choice:
            page.locator("#create").get_by_label(choice).check()
            expect(page.locator("#create").get_by_label("Use keys")).to_be_disabled()
        page.locator("#create").get_by_role("button", name="Create").click()
        prove(page)
        keep_api_key(page)
    kept = owner.get(f"/tenants/{tenant.tenant_id}/api-keys", details=True)["api_keys"]
    assert [each["scopes"] for each in kept[1:]] == [[{"operations": ["use"]}], None]


def test_what_a_key_may_do_is_said() -> None:
    """Every group of scopes has its own words.

    Scopes are shown as sentences; no scopes means everything.
    """
    assert GROUPS.keys() == set(Group)
    scopes = (
        ScopeData(operations=("use", "manage-keys"), keyrings=("payments.*",)),
        ScopeData(operations=("*", "use"), algorithms=(Algorithm.ML_DSA_65,)),
        ScopeData(),
    )
    assert sentences(scopes) == (
        "use keys and manage keys, in payments.*",
        "everything, with Dilithium3",
        "everything",
    )
    assert sentences(None) == ("everything",)


def test_an_overlap_that_is_too_long_is_said_at_its_field(
    installation: Installation, visit_as: SignedIn
) -> None:
    """The service's message is at the field, and the typed values stay."""
    tenant = installation.new_tenant()
    visitor = visit_as(installation.person(tenant.tenant_id))
    visitor.expected.append("400")
    page = visitor.open(f"{PATH}/1")
    overlap = page.get_by_label("Seconds until the old one stops working")
    expect(page.locator("#rotate-overlap-hint")).to_contain_text("30 (30 s), the maximum")
    overlap.fill("86400")
    page.keyboard.press("Enter")
    expect(page.locator("#rotate-overlap-problem")).to_contain_text(
        "overlap_seconds must be at most"
    )
    expect(overlap).to_have_value("86400")


@pytest.mark.parametrize("role", Role)
def test_a_role_sees_the_forms_that_it_may_send(installation: Installation, role: Role) -> None:
    """The page has exactly the forms that the access table allows."""
    tenant = installation.new_tenant()
    person = installation.person(tenant.tenant_id, role)
    pages = get_page(person, PATH), get_page(person, f"{PATH}/1")
    assert {page.status_code for page in pages} == {HTTPStatus.OK}
    assert set().union(*(operations_on(page.text) for page in pages)) == allowed(role, OPERATIONS)


def test_filter_and_markup(installation: Installation) -> None:
    """A filter without matches shows a message, and its markup is shown as text."""
    tenant = installation.new_tenant()
    owner = installation.person(tenant.tenant_id)
    empty = get_page(owner, f"{PATH}?q=status:revoked").text
    assert "No API key matches" in empty
    assert_headings_in_order(empty)
    for markup in MARKUP:
        assert markup not in get_page(owner, f"{PATH}?q={markup}").text
        assert markup not in get_page(owner, f"{PATH}?sort={markup}&from={markup}").text


def test_a_long_list_has_pages(installation: Installation) -> None:
    """The newest are first, the position is shown, and links lead both ways."""
    tenant = installation.new_tenant()
    for _ in range(ROWS):
        tenant.post(f"/tenants/{tenant.tenant_id}/api-keys", status=201)
    owner = installation.person(tenant.tenant_id)
    first = get_page(owner, PATH).text
    assert f"1 to {ROWS} of {ROWS + 1} API keys" in first
    assert f">version {ROWS + 1}<" in first
    rest = get_page(owner, f"{PATH}?from={ROWS + 1}").text
    assert rest.count('data-label="API key"') == 1
    assert ">version 1<" in rest
    assert 'rel="prev"' in rest
    assert get_page(owner, f"{PATH}?format=csv").text.count("\n") == ROWS + 2


def test_an_expired_api_key_offers_no_rotation(installation: Installation) -> None:
    """An expired API key cannot be rotated, but revoked."""
    tenant = installation.new_tenant()
    expires_at = timestamp(datetime.now(UTC) + timedelta(seconds=1))
    tenant.post(f"/tenants/{tenant.tenant_id}/api-keys", {"expires_at": expires_at}, status=201)
    owner = installation.person(tenant.tenant_id)
    text = ""
    while ">expired<" not in text:
        text = get_page(owner, f"{PATH}/2").text
    assert 'data-operation="rotate_api_key"' not in text
    assert 'id="revoke"' in text
    assert 'data-operation="rotate_api_key"' in get_page(owner, f"{PATH}/1").text


def test_an_overlap_ends() -> None:
    """The remaining seconds are whole and never negative."""
    now = datetime(2026, 1, 31, tzinfo=UTC)
    key = ApiKeyData(
        key_last4="Xb2c",
        version=1,
        status=ApiKeyStatus.REVOKED,
        created_at=timestamp(now),
        revoked_at=timestamp(now),
        overlap_ends_at=timestamp(now + timedelta(seconds=20)),
    )
    assert seconds_left(key, now) == 20
    assert [span(each) for each in (45, 60, 3599, 3600, 7500)] == [
        *("45 s", "1 min", "59 min", "1 h", "2 h 5 min")
    ]
    assert seconds_left(key, now + timedelta(seconds=21)) == 0


@pytest.fixture
def flood() -> Iterator[Callable[[Caller], Counter[int]]]:
    """Send requests without a pause until the test ends; return the responses."""
    over = Event()
    with ThreadPoolExecutor() as threads:

        def ask(leaked: Caller, responses: Counter[int]) -> None:
            while not over.is_set():
                responses[leaked.ask("GET", "/kms/keys").status_code] += 1

        def begin(leaked: Caller) -> Counter[int]:
            responses: Counter[int] = Counter()
            for _ in range(4):
                threads.submit(ask, leaked, responses)
            return responses

        try:
            yield begin
        finally:
            over.set()


def wait_for(responses: Counter[int], status: HTTPStatus, number: int) -> None:
    """Wait for this number of responses with a status."""
    deadline = monotonic() + PATIENCE
    while responses[status] < number:
        assert monotonic() < deadline, responses
        sleep(0.05)


@pytest.mark.threat("stolen-api-key")
def test_a_leaked_api_key_is_revoked_while_it_floods(
    installation: Installation,
    visit_as: SignedIn,
    flood: Callable[[Caller], Counter[int]],
) -> None:
    """With a used-up rate limit, the owner can still open the pages and revoke the API key."""
    tenant = installation.new_tenant("free")
    owner = installation.person(tenant.tenant_id)
    path = f"/tenants/{tenant.tenant_id}/api-keys"
    made = installation.operator().post(path, {"name": "ci"}, status=201)
    leaked = installation.caller(made["api_key"], tenant.tenant_id)
    responses = flood(leaked)
    wait_for(responses, HTTPStatus.TOO_MANY_REQUESTS, 100)
    page = visit_as(owner, asks_proof=True).open("/portal")
    used_up = page.get_by_text("The rate limit is used up")
    while not used_up.count():  # the notice is opened beside the requests, within seconds
        page.wait_for_timeout(1000)
        page.reload()
    expect(used_up).to_contain_text(f"API key {made['version']} (ci)")
    go_to(page, PATH)
    expect(page.get_by_text("The rate limit is used up")).to_contain_text("“ci”")
    go_to(page, f"{PATH}/{made['version']}")
    page.get_by_role("button", name="Revoke").first.click()
    dialog = page.locator("#revoke")
    dialog.get_by_label("to confirm").fill(made["api_key"][-4:])
    page.keyboard.press("Enter")
    prove(page)
    expect(page.get_by_role("region", name="Details")).to_contain_text("revoked")
    wait_for(responses, HTTPStatus.UNAUTHORIZED, 1)
    assert set(responses) == {
        HTTPStatus.OK,
        HTTPStatus.TOO_MANY_REQUESTS,
        HTTPStatus.UNAUTHORIZED,
    }


def test_a_misspelt_keyring_is_refused_at_its_field(
    installation: Installation, visit_as: SignedIn
) -> None:
    """Keyrings are proposed. A missing one is refused until a box confirms that it may be missing."""
    tenant = installation.new_tenant()
    for name in ("payments", "releases"):
        tenant.post("/kms/keyrings", {"name": name}, status=201)
    owner = installation.person(tenant.tenant_id)
    visitor = visit_as(owner, asks_proof=True)
    visitor.expected.append("400")
    page = visitor.open(PATH)
    page.get_by_role("button", name="Create an API key").click()
    dialog = page.locator("#create")
    keyrings = dialog.get_by_label("Only in these keyrings")
    keyrings.press_sequentially("releases pay")
    expect(dialog.get_by_role("option", name="payments")).to_be_visible()
    keyrings.press("ArrowDown")
    keyrings.press("Enter")
    expect(keyrings).to_have_value("releases payments ")
    keyrings.fill("paymets")
    dialog.get_by_label("Name").focus()
    dialog.get_by_role("button", name="Create").click()
    prove(page)
    expect(dialog).to_contain_text("scopes name a keyring that does not exist (paymets)")
    dialog.get_by_label("Allow keyrings that do not exist yet").check()
    dialog.get_by_role("button", name="Create").click()
    prove(page)
    keep_api_key(page)
    kept = owner.get(f"/tenants/{tenant.tenant_id}/api-keys", details=True)["api_keys"][-1]
    assert kept["scopes"] == [{"operations": ["use"], "keyrings": ["paymets"]}]
