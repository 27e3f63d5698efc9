"""Operators sign in by a foreign provider, over HTTP and in a browser: roles, changes, records."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import httpx2
import pytest
from playwright.sync_api import expect
from tests.contract.rows import api_rows
from tests.fixtures.browser import Visit
from tests.fixtures.caller import API
from tests.fixtures.installation import Installation, running
from tests.fixtures.openid_provider import (
    MockProvider,
    SettableProvider,
    running_mock,
    settable_provider,
)
from tests.patience import PATIENCE

from pqkeep_gateway.access.callers import (
    GRANTS,
    OPERATOR_CALLERS,
    OPERATORS,
    OperatorRole,
    Permission,
)
from pqkeep_gateway.http.cookies import ACCESS
from pqkeep_gateway.http.endpoint import Endpoint

GROUPS = {"root": "admin", "desk": "tenant-admin", "audit": "read-only"}
GROUP_OF = {OperatorRole(role): group for group, role in GROUPS.items()}
ROWS = [row for row in api_rows(open_signup=False) if row.permission is not Permission.PUBLIC]
OF_A_RECORD = {"prove_audit_record", "get_audit_tlog_proof"}
OF_THE_WHOLE_LOG = OF_A_RECORD | {
    *("list_audit_records", "count_audit_records", "export_audit_log", "list_notices"),
}
"""Reads of tenant data that need a tenant's name, without which they show the installation."""
SESSION = "service_operator_token"
PROOF = "pqkeep_reauthentication"
DENIED, AGAIN = (403, "ERR_FORBIDDEN_001"), (401, "ERR_MFA_013")


class Browser(httpx2.Client):
    """A browser that keeps cookies and follows no redirect."""

    def ask(self, method: str, path: str, body: object = None) -> httpx2.Response:
        """Return the API's response."""
        return self.request(method, API + path, json=body)

    def data(self, method: str, path: str, body: object = None) -> Any:
        """Return the data of the API's successful response."""
        response = self.ask(method, path, body)
        assert response.is_success, response.text
        return response.json()["data"]


@dataclass
class Operators:
    """An installation with two providers of operators."""

    installation: Installation
    mock: MockProvider
    settable: SettableProvider

    def browser(self) -> Browser:
        """Return a browser without a session."""
        base_url = self.installation.base_url
        client = Browser(base_url=base_url, trust_env=False, timeout=PATIENCE)
        return self.installation.clients.enter_context(client)

    def sign_in(self, browser: Browser, subject: str, query: str = "") -> httpx2.Response:
        """Sign in at the foreign provider; return the callback's response."""
        begun = browser.get(f"/portal/sso/corp{query}")
        assert begun.status_code == 302, begun.text
        return browser.get(self.mock.sign_in(begun.headers["location"], subject))

    def session(self, role: OperatorRole) -> Browser:
        """Return a browser with a session of this role."""
        subject = f"{role}-{uuid.uuid4().hex[:8]}"
        email = f"{subject}@example.com"
        groups = ["staff", GROUP_OF[role]]
        self.mock.add(subject, email=email, email_verified=True, groups=groups)
        browser = self.browser()
        assert "signed-in" in self.sign_in(browser, subject).headers["location"]
        return browser

    def settled(self, browser: Browser, query: str = "", /, **claims: object) -> httpx2.Response:
        """Sign in at the provider with chosen claims."""
        self.settable.claims = {"sub": "grace", "groups": ["desk"], **claims}
        begun = browser.get(f"/portal/sso/own{query}")
        return browser.get(self.settable.sign_in(begun.headers["location"]))


@pytest.fixture(scope="module")
def operators(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Operators]:
    """An installation with settings that give three groups an operator role."""
    folder = tmp_path_factory.mktemp("operators")
    with ExitStack() as stack:
        mock = stack.enter_context(running_mock(folder))
        settable = stack.enter_context(settable_provider())
        secret = folder / "client-secret"
        secret.write_text("s+cret/with:all")
        secret.chmod(0o600)
        common: dict[str, object] = {
            "client_id": "pqkeep",
            "client_secret_file": str(secret),
            "operator_roles": GROUPS,
        }
        providers = [
            {"name": "corp", "label": "Corp & Co", "issuer": mock.issuer, **common},
            {"name": "own", "issuer": settable.issuer, **common},
        ]
        started = stack.enter_context(running(folder, settings={"single_sign_on": providers}))
        yield Operators(started, mock, settable)


@pytest.fixture(scope="module")
def tenant_id(operators: Operators) -> str:
    """Somebody's tenant."""
    return operators.installation.new_tenant().tenant_id


def _refusal(response: httpx2.Response) -> tuple[int, str]:
    error = response.json()["error"] or {"error_code": ""}
    return response.status_code, error["error_code"]


def _request(row: Endpoint, tenant_id: str) -> tuple[str, str, Any]:
    """Return a request for a row, valid for an authorized caller."""
    values: dict[str, Any] = {field.name: field.example for field in row.fields}
    identifier = 1 if row.name in OF_A_RECORD else uuid.uuid4()
    values |= {"tenant_id": tenant_id, "id": identifier, "session": identifier}
    values |= {"version": 1, "key_version": 1}
    body = {field.name: values[field.name] for field in row.other_fields if field.name in values}
    return row.method, row.path.format(**values), body if row.takes_body else None


@pytest.mark.threat("operator-sign-on")
@pytest.mark.parametrize("role", OperatorRole)
def test_each_role_may_do_what_the_access_table_says(
    operators: Operators, tenant_id: str, role: OperatorRole
) -> None:
    """By role and operation: 403 without the permission, a new sign-in for a change, else served."""
    browser = operators.session(role)
    wrong = {}
    for row in ROWS:
        if not (GRANTS[row.permission] & OPERATORS or role is OperatorRole.TENANT_ADMIN):
            continue  # no operator may call it: one role is enough
        response = browser.ask(*_request(row, tenant_id))
        if OPERATOR_CALLERS[role] not in GRANTS[row.permission]:
            is_right = _refusal(response) == DENIED
        elif row.method != "GET":
            is_right = _refusal(response) == AGAIN
        elif role is OperatorRole.TENANT_ADMIN and row.name in OF_THE_WHOLE_LOG:
            is_right = _refusal(response) == DENIED
        else:
            is_right = response.status_code not in (401, 403)
        if not is_right:
            wrong[row.name] = (response.status_code, response.text[:200])
    assert wrong == {}


def test_actions_are_recorded_under_the_person(operators: Operators) -> None:
    """A tenant admin makes a tenant; sign-in, new sign-in and change have issuer, subject, role."""
    browser = operators.browser()
    response = operators.settled(browser, email="grace@example.com", email_verified=True)
    assert response.headers["location"] == "/portal/operator/signed-in?next=%2Fportal"
    me = browser.data("GET", "/auth/operator")
    assert me == {
        "name": None,
        "role": "tenant-admin",
        "principal": "operator:own:grace/tenant-admin",
        "provider": "own",
        "email": "grace@example.com",
    }
    name = f"tenant {uuid.uuid4()}"
    assert _refusal(browser.ask("POST", "/tenants", {"name": name})) == AGAIN
    again = operators.settled(browser, "?step_up=1&next=/portal/confirmed")
    assert again.headers["location"] == "/portal/confirmed"
    made = browser.data("POST", "/tenants", {"name": name})
    shown = operators.installation.operator().get("/audit/records", principal="operator:own:grace")[
        "records"
    ]
    recorded = {record["operation"]: record for record in shown}
    assert {record["principal"] for record in shown} == {me["principal"]}
    assert recorded["operator-sign-in"]["policy"] == "provider-own grace@example.com"
    assert recorded["reauthenticate"]["policy"] == "provider-own"
    assert recorded["create-tenant"]["tenant_id"] == made["id"]
    assert recorded["create-tenant"]["outcome"] == "success"


@pytest.mark.threat("stolen-operator-cookie")
def test_a_stolen_cookie_changes_nothing(operators: Operators, tenant_id: str) -> None:
    """Without the right proof cookie, the session's cookie can only read, until sign-out."""
    browser = operators.browser()
    operators.settled(browser)
    operators.settled(browser, "?step_up=1")
    stolen, thief = browser.cookies[SESSION], operators.browser()
    thief.headers["Cookie"] = f"{SESSION}={stolen}"
    assert thief.data("GET", "/tenants")["total"] > 0
    change = ("PATCH", f"/tenants/{tenant_id}", {"requests_per_minute": 7})
    assert _refusal(thief.ask(*change)) == AGAIN
    thief.headers["Cookie"] = f"{SESSION}={stolen}; {PROOF}={'pqg_' + '0' * 49}"
    assert _refusal(thief.ask(*change)) == AGAIN
    assert browser.ask(*change).status_code == 200
    assert _refusal(browser.ask("DELETE", f"/tenants/{tenant_id}")) == AGAIN
    browser.data("POST", "/auth/operator/logout")
    assert thief.ask("GET", "/tenants").status_code == 401


@pytest.mark.threat("operator-sign-on")
def test_each_owner_needs_a_new_sign_in(operators: Operators, tenant_id: str) -> None:
    """After another change, members' invitations are covered, and owners' invitations are not."""
    browser = operators.browser()
    operators.settled(browser)
    operators.settled(browser, "?step_up=1")
    path = f"/tenants/{tenant_id}/invitations"

    def invite(role: str) -> httpx2.Response:
        return browser.ask("POST", path, {"email": f"{uuid.uuid4()}@example.com", "role": role})

    assert invite("owner").status_code == 201
    assert invite("admin").status_code == 201
    assert _refusal(invite("owner")) == AGAIN
    operators.settled(browser, "?step_up=1")
    assert invite("owner").status_code == 201


def test_an_admin_lists_and_ends_sessions(operators: Operators) -> None:
    """The list has the person and the calling session; an ended one is refused, and a reader ends none."""
    ended, admin = operators.session(OperatorRole.READ_ONLY), operators.browser()
    operators.settled(admin, groups=["root"], sub="linus")
    reader = ended.data("GET", "/auth/operator")["principal"]
    sessions = admin.data("GET", "/operators/sessions")["sessions"]
    (own,) = (session for session in sessions if session["current"])
    assert own["principal"] == "operator:own:linus/admin"
    (theirs,) = (session for session in sessions if session["principal"] == reader)
    assert (theirs["role"], theirs["source_address"]) == ("read-only", "127.0.0.1")
    end = ("DELETE", f"/operators/sessions/{theirs['id']}")
    assert _refusal(ended.ask(*end)) == DENIED
    assert _refusal(admin.ask(*end)) == AGAIN
    operators.settled(admin, "?step_up=1", groups=["root"], sub="linus")
    assert admin.data(*end) == {"signed_out": True}
    assert ended.ask("GET", "/auth/operator").status_code == 401
    assert admin.ask(*end).status_code == 404


def test_the_session_is_for_operators_only(operators: Operators) -> None:
    """Tenants' endpoints and pages refuse it, and no session of a person begins."""
    browser = operators.session(OperatorRole.ADMIN)
    assert ACCESS not in browser.cookies
    for method, path in (("GET", "/auth/me"), ("GET", "/kms/keys"), ("POST", "/kem/encrypt")):
        assert _refusal(browser.ask(method, path, {} if method == "POST" else None)) == DENIED
    assert browser.get("/portal/keys").status_code == 403


def test_a_person_without_a_role_is_told_what_is_missing(operators: Operators) -> None:
    """The sign-in page says whether groups or a role are missing; no session begins."""
    reasons = {"none": ([], "sent no groups"), "case": (["Root", "ROOT"], "operator_roles")}
    for subject, (groups, said) in reasons.items():
        operators.mock.add(subject, email=f"{subject}@example.com", groups=groups)
        browser = operators.browser()
        response = operators.sign_in(browser, subject)
        assert SESSION not in browser.cookies
        page = browser.get(response.headers["location"])
        assert said in page.text


@pytest.mark.threat("operator-sign-on")
def test_other_sites_begin_and_replay_nothing(operators: Operators) -> None:
    """A cross-site beginning is refused, and a callback in another browser or twice."""
    url = "/portal/sso/corp"
    browser, thief = operators.browser(), operators.browser()
    for site in ("cross-site", "same-site"):
        refused = browser.get(url, headers={"Sec-Fetch-Site": site})
        assert refused.headers["location"].endswith("/operator/sign-in?error=from-elsewhere")
    operators.mock.add("eve", email="eve@example.com", groups=["root"])
    back = operators.mock.sign_in(browser.get(url).headers["location"], "eve")
    assert thief.get(back).headers["location"].endswith("sign-in?error=expired")
    assert "signed-in" in browser.get(back).headers["location"]
    assert browser.get(back).headers["location"].endswith("sign-in?error=expired")
    assert SESSION not in thief.cookies


LIES: Mapping[str, tuple[dict[str, object], str]] = {
    "groups as an object": ({"groups": {"root": True}}, "no-groups"),
    "groups within groups": ({"groups": [["root"]]}, "no-groups"),
    "a group as a number": ({"groups": [0, None, True]}, "no-groups"),
    "a group with a space": ({"groups": ["root ", " root", "root\x00", "ROOT"]}, "no-role"),
    "many groups": ({"groups": [f"group-{number}" for number in range(1000)]}, "no-role"),
    "no text as subject": ({"sub": 7}, "provider"),
    "a subject with a line end": ({"sub": "grace\noperator:root"}, "provider"),
    "a long subject": ({"sub": "x" * 256}, "provider"),
    "another audience": ({"aud": ["pqkeep", "other"], "groups": ["root"]}, "provider"),
    "another nonce": ({"nonce": "other", "groups": ["root"]}, "provider"),
    "an old token": ({"exp": 1, "groups": ["root"]}, "provider"),
    "another issuer": ({"iss": "https://evil.example", "groups": ["root"]}, "provider"),
}
"""Claims of a provider that lies, and the reason of the refusal."""


@pytest.mark.threat("hostile-identity-provider")
@pytest.mark.parametrize("lie", LIES)
def test_a_provider_that_lies_signs_no_operator_in(operators: Operators, lie: str) -> None:
    """A claim of another type, group, person or client begins no session."""
    claims, reason = LIES[lie]
    browser = operators.browser()
    response = operators.settled(browser, **claims)
    assert response.headers["location"].endswith(f"/operator/sign-in?error={reason}")
    assert SESSION not in browser.cookies
    assert "Traceback" not in operators.installation.output


@pytest.mark.parametrize("next_page", ["//evil.example", "https://evil.example", "/portal/../x"])
def test_the_next_page_is_of_the_portal(operators: Operators, next_page: str) -> None:
    """The page after the sign-in leads to no other site."""
    params = {"next": next_page}
    page = operators.browser().get("/portal/operator/signed-in", params=params)
    assert 'content="0; url=/portal"' in page.text


@pytest.mark.parametrize("role", OperatorRole)
def test_pages_show_the_role_and_no_control_that_it_lacks(
    operators: Operators, tenant_id: str, role: OperatorRole
) -> None:
    """Each role's pages name person and role, and have forms only for what the role may do."""
    browser = operators.session(role)
    rows: Mapping[str, Endpoint] = {row.name: row for row in ROWS}
    may_create = role is not OperatorRole.READ_ONLY
    for path in ("/operator/tenants", f"/operator/tenants/{tenant_id}", "/operator", "/search"):
        page = browser.get("/portal" + path, follow_redirects=True)
        assert page.status_code == 200, page.text
        assert "@example.com</bdi>" in page.text
        assert f"<span>{role}</span>" in page.text
        forms = [part.split('"')[0] for part in page.text.split('data-operation="')[1:]]
        caller = OPERATOR_CALLERS[role]
        assert all(caller in GRANTS[rows[name].permission] for name in forms), forms
        if path.startswith("/operator/tenants"):
            assert bool(forms) is may_create


@pytest.mark.parametrize("script", ["on", "off"])
def test_an_operator_signs_in_in_a_browser(operators: Operators, visit: Visit, script: str) -> None:
    """The button leads to the provider and back to the page, with and without JavaScript."""
    operators.mock.add("joan", email="joan@example.com", email_verified=True, groups=["root"])
    visitor = visit(operators.installation.base_url, java_script_enabled=script == "on")
    visitor.expected.append("")  # the provider's page is another host's
    page = visitor.open("/portal/operator/tenants")
    page.get_by_role("link", name="Sign in with Corp & Co").click()
    page.locator("input[name=sub]").fill("joan")
    page.get_by_role("button", name="Authorize", exact=True).click()
    page.wait_for_url("**/portal/operator/tenants")
    expect(page.get_by_text("joan@example.com")).to_be_visible()
    if script == "off":
        return
    page.get_by_role("button", name="Create a tenant").first.click()
    name = f"tenant {uuid.uuid4()}"
    page.get_by_label("Name", exact=True).fill(name)
    page.get_by_role("button", name="Create", exact=True).click()
    again = page.get_by_role("link", name="Open the sign-in")
    expect(again).to_be_visible()
