"""An operator's session in a browser has the operator's read permissions, and changes nothing."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping
from http.cookies import SimpleCookie
from typing import Any

import httpx2
import pytest
from tests.contract.rows import api_rows
from tests.fixtures.caller import API, PASSWORD, TLS, Caller, read_envelope
from tests.fixtures.installation import Installation
from tests.patience import PATIENCE

from pqkeep_gateway.access.callers import GRANTS, Credential, Permission
from pqkeep_gateway.http.cookies import ACCESS, REFRESH, Cookies
from pqkeep_gateway.http.endpoint import Endpoint

ROWS = [row for row in api_rows(open_signup=False) if row.permission is not Permission.PUBLIC]
UNAUTHORIZED = (401, "ERR_AUTH_001")
CREDENTIAL_REQUIRED = (401, "ERR_MFA_013")
DENIED = (403, "ERR_FORBIDDEN_001")
COUNT = "/tenants"
OPERATOR = Cookies().operator


@pytest.fixture
def browser(closed: Installation) -> Caller:
    """A browser with the operator's session."""
    return _signed_in(closed)


@pytest.fixture
def thief(closed: Installation) -> Iterator[httpx2.Client]:
    """A client that sends given cookies and keeps none."""
    with httpx2.Client(
        base_url=closed.base_url + API, trust_env=False, verify=TLS, timeout=PATIENCE
    ) as client:
        yield client


def _signed_in(where: Installation) -> Caller:
    caller = where.caller(None)
    response = caller.ask("POST", "/auth/operator", {"operator_key": where.ready["operator_key"]})
    assert response.json()["data"] == {
        "name": None,
        "role": "admin",
        "expires_in": 8 * 3600,
    }
    caller.client.cookies.clear()  # they are Secure, and sent here as if it were over TLS
    (cookie,) = [each for each in _cookies(response).values() if each.value]
    caller.client.headers["Cookie"] = f"{cookie.key}={cookie.value}"
    return caller


def _cookies(response: httpx2.Response) -> SimpleCookie:
    found: SimpleCookie = SimpleCookie()
    for header in response.headers.get_list("set-cookie"):
        found.load(header)
    return found


def _refusal(response: httpx2.Response) -> tuple[int, str]:
    return response.status_code, read_envelope(response)["error"]["error_code"]


def _request(row: Endpoint, tenant_id: str) -> tuple[str, str, Any]:
    """Return a request for a row, valid for an authorized caller."""
    values: dict[str, Any] = {each.name: each.example for each in row.fields}
    values |= {"tenant_id": tenant_id, "id": uuid.uuid4(), "version": 1, "key_version": 1}
    body = {each.name: values[each.name] for each in row.other_fields if each.name in values}
    return row.method, row.path.format(**values), body if row.takes_body else None


def test_the_cookie_is_for_this_host_and_no_script(closed: Installation) -> None:
    """The cookie is HttpOnly, SameSite=Strict, Secure and host-only; a person's cookies are deleted."""
    sent = {"operator_key": closed.ready["operator_key"]}
    cookies = _cookies(closed.caller(None).ask("POST", "/auth/operator", sent))
    attributes = ("path", "max-age", "httponly", "samesite", "secure", "domain")
    assert {name: tuple(each[key] for key in attributes) for name, each in cookies.items()} == {
        OPERATOR: ("/", "28800", True, "Strict", True, ""),
        ACCESS: ("/", "0", True, "Lax", True, ""),
        REFRESH: ("/api/v1/auth/refresh", "0", True, "Lax", True, ""),
        Cookies().binding: ("/", "0", True, "Lax", True, ""),
        Cookies().proof: ("/", "0", True, "Strict", True, ""),
    }
    assert OPERATOR.startswith("__Host-")
    assert {each.value for name, each in cookies.items() if name != OPERATOR} == {""}


def test_a_person_who_signs_in_takes_the_operators_cookie_away(closed: Installation) -> None:
    """A person's sign-in deletes the operator's cookie: a browser has one session only."""
    person = closed.person(closed.new_tenant().tenant_id)
    email = closed.operator().get("/team/members", tenant_id=person.tenant_id)["members"][0]
    fields = {"email": email["email"], "password": PASSWORD}
    shown = _cookies(closed.caller(None).ask("POST", "/auth/login", fields))[OPERATOR]
    assert (shown.value, shown["max-age"], shown["path"]) == ("", "0", "/")


@pytest.mark.threat("stolen-operator-cookie")
@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_a_session_reads_and_nothing_else(
    closed: Installation, signed_in: Caller, tenant: Caller, row: Endpoint
) -> None:
    """A forbidden operation is 403 for the operator's session; a permitted change is 401."""
    response = signed_in.ask(*_request(row, tenant.tenant_id))
    if Credential.OPERATOR not in GRANTS[row.permission]:
        assert _refusal(response) == DENIED
    elif row.method != "GET":
        assert _refusal(response) == CREDENTIAL_REQUIRED
    else:
        assert response.status_code not in (401, 403)


@pytest.fixture(scope="module")
def signed_in(closed: Installation) -> Caller:
    """A browser with the operator's session, for the whole module."""
    return _signed_in(closed)


@pytest.fixture(scope="module")
def tenant(closed: Installation) -> Caller:
    """Somebody's tenant."""
    return closed.new_tenant()


@pytest.mark.threat("stolen-operator-cookie")
def test_a_change_needs_the_credential_with_it(closed: Installation, browser: Caller) -> None:
    """The cookie alone changes nothing; the credential beside it makes exactly one change."""
    name = f"tenant {uuid.uuid4()}"
    refused = browser.ask("POST", "/tenants", {"name": name})
    assert _refusal(refused) == CREDENTIAL_REQUIRED
    assert "X-API-Key" in refused.json()["error"]["message"]
    assert name not in str(browser.get("/tenants"))
    credential = {"X-API-Key": closed.ready["operator_key"]}
    assert browser.ask("POST", "/tenants", {"name": name}, headers=credential).status_code == 201
    assert _refusal(browser.ask("POST", "/tenants", {"name": name + "!"})) == CREDENTIAL_REQUIRED


def test_an_operator_is_no_sign_up(installation: Installation) -> None:
    """With open sign-up, an operator's session is not treated as anonymous."""
    browser = _signed_in(installation)
    name = f"tenant {uuid.uuid4()}"
    for fields in ({"name": name}, {"name": name, "plan": "starter"}):
        assert _refusal(browser.ask("POST", "/tenants", fields)) == CREDENTIAL_REQUIRED
    assert name not in str(browser.get("/tenants"))


@pytest.mark.parametrize(
    "proof", [{"X-Step-Up-Token": "pqu_" + "0" * 49}, {"X-HTTP-Method-Override": "GET"}]
)
def test_nothing_else_makes_a_change_of_it(browser: Caller, proof: Mapping[str, str]) -> None:
    """No other header lets the session change something."""
    response = browser.ask("POST", "/tenants", {"name": "another"}, headers=dict(proof))
    assert _refusal(response) == CREDENTIAL_REQUIRED


@pytest.mark.threat("stolen-operator-cookie")
def test_signing_out_ends_the_session(browser: Caller, thief: httpx2.Client) -> None:
    """Signing out deletes the cookie, and a copy of the cookie is useless.

    Signing out again is allowed.
    """
    stolen = browser.client.headers["Cookie"]
    for _ in range(2):
        response = browser.ask("POST", "/auth/operator/logout")
        assert response.json()["data"] == {"signed_out": True}
        cookie = _cookies(response)[OPERATOR]
        assert (cookie.value, cookie["max-age"], cookie["samesite"]) == ("", "0", "Strict")
    assert _refusal(thief.get(COUNT, headers={"Cookie": stolen})) == UNAUTHORIZED


def test_a_planted_cookie_is_not_adopted(closed: Installation, thief: httpx2.Client) -> None:
    """A token from before the sign-in opens nothing afterwards."""
    planted = {"Cookie": f"{OPERATOR}={'pqb_' + '0' * 49}"}
    fields = {"operator_key": closed.ready["operator_key"]}
    response = thief.post("/auth/operator", json=fields, headers=planted)
    assert response.status_code == 200
    assert _cookies(response)[OPERATOR].value not in planted["Cookie"]
    assert _refusal(thief.get(COUNT, headers=planted)) == UNAUTHORIZED


@pytest.mark.threat("stolen-operator-cookie")
def test_cookies_are_not_exchangeable(
    closed: Installation, browser: Caller, thief: httpx2.Client
) -> None:
    """A person's token, a swapped cookie or the credential in the operator's cookie open nothing."""
    person = closed.caller(None)
    invited = closed.operator().post(
        f"/tenants/{closed.new_tenant().tenant_id}/invitations",
        {"email": f"{uuid.uuid4()}@example.com", "role": "owner"},
        status=201,
    )
    fields = {"token": invited["invitation_token"], "password": PASSWORD}
    mine = _cookies(person.ask("POST", "/auth/accept-invitation", fields))
    operators = browser.client.headers["Cookie"].partition("=")[2]
    for name, token in (
        (OPERATOR, mine[ACCESS].value),
        (OPERATOR, mine[REFRESH].value),
        (OPERATOR, closed.ready["operator_key"]),
        (ACCESS, operators),
        (ACCESS, closed.ready["operator_key"]),
    ):
        for path in ("/tenants", "/auth/me"):
            response = thief.get(path, headers={"Cookie": f"{name}={token}"})
            assert _refusal(response) == UNAUTHORIZED, (name, path)
    shown = {"Cookie": f"{REFRESH}={operators}"}
    assert _refusal(thief.post("/auth/refresh", headers=shown)) == UNAUTHORIZED


def test_with_both_cookies_it_is_the_operators(
    closed: Installation, browser: Caller, thief: httpx2.Client
) -> None:
    """A request with both cookies belongs to the operator, everywhere."""
    operators = browser.client.headers["Cookie"]
    both = {"Cookie": f"{ACCESS}={'pqa_' + '0' * 49}; {operators}"}
    assert thief.get("/operators", headers=both).status_code == 200
    assert _refusal(thief.get("/auth/me", headers=both)) == DENIED


@pytest.mark.parametrize("token", ["pqb_" + "0" * 49, "x", ""])
def test_an_unknown_operators_token_does_not_hide_a_person(
    closed: Installation, thief: httpx2.Client, token: str
) -> None:
    """A planted operator's cookie does not change a person's session, or make changes as operator."""
    person = closed.person(closed.new_tenant().tenant_id)
    both = {"Cookie": f"{person.session_cookies}; {OPERATOR}={token}"}
    me = thief.get("/auth/me", headers=both)
    assert me.json()["data"]["tenant_id"] == person.tenant_id
    assert thief.post("/auth/logout", headers=both).status_code == 200
    assert _refusal(thief.get("/auth/me", headers=both)) == UNAUTHORIZED


@pytest.mark.parametrize("path", ["/auth/operator", "/auth/operator/logout", "/tenants"])
def test_another_sites_page_asks_in_vain(browser: Caller, path: str) -> None:
    """A page of another site cannot sign an operator in or out, or send any request."""
    for headers in ({"Sec-Fetch-Site": "cross-site"}, {"Origin": "https://example.org"}):
        response = browser.ask("POST", path, {"operator_key": "pqo_"}, headers=headers)
        assert _refusal(response) == DENIED
    assert browser.get("/operators")["total"] == 0


@pytest.mark.parametrize("key", ["pqo_" + "0" * 49, "nobody's", "ä" * 128])
def test_an_unknown_credential_is_refused(closed: Installation, key: str) -> None:
    """An unknown credential is 401 and sets no cookie."""
    response = closed.caller(None).ask("POST", "/auth/operator", {"operator_key": key})
    assert _refusal(response) == UNAUTHORIZED
    assert "set-cookie" not in response.headers


def test_a_tenants_api_key_is_not_an_operators(closed: Installation, tenant: Caller) -> None:
    """A tenant's API key cannot begin an operator's session, alone or beside one."""
    fields = {"operator_key": tenant.api_key}
    for caller in (closed.caller(None), tenant):
        assert _refusal(caller.ask("POST", "/auth/operator", fields)) == UNAUTHORIZED


def test_both_ends_are_recorded(closed: Installation, browser: Caller) -> None:
    """Sign-in and sign-out are recorded with the operator, for the installation."""
    browser.post("/auth/operator/logout")
    for operation in ("operator-sign-in", "operator-sign-out"):
        found = closed.operator().get("/audit/records", operation=operation, limit=1)["records"]
        assert [each["principal"] for each in found] == ["operator"]
