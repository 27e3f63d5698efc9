"""Single sign-on over HTTP, with a foreign provider and with hostile ones."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import httpx2
import pytest
from playwright.sync_api import expect
from tests.fixtures.browser import Visit
from tests.fixtures.installation import Installation, running
from tests.fixtures.openid_provider import (
    MockProvider,
    SettableProvider,
    running_mock,
    send,
    settable_provider,
)
from tests.patience import PATIENCE

from pqkeep_gateway.http.cookies import ACCESS, Cookies
from pqkeep_server.initialise import Layout
from pqkeep_server.settings_file import edited

MARKUP = "<script>alert(1)</script>"
SECRET = "s+cret/with:all"  # noqa: S105 - the test's own


@dataclass
class SsoInstallation:
    """An installation with two providers, of two tenants."""

    installation: Installation
    mock: MockProvider
    settable: SettableProvider
    tenants: tuple[str, str]

    def browser(self) -> httpx2.Client:
        """Return a client that keeps cookies and follows no redirect."""
        client = httpx2.Client(
            base_url=self.installation.base_url, trust_env=False, timeout=PATIENCE
        )
        return self.installation.clients.enter_context(client)


@pytest.fixture(scope="module")
def sso(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SsoInstallation]:
    """Started twice: the provider's settings need the tenant's id from the first start."""
    folder = tmp_path_factory.mktemp("sso")
    with ExitStack() as stack:
        mock = stack.enter_context(running_mock(folder))
        settable = stack.enter_context(settable_provider())
        with running(folder, settings={}) as first:
            tenants = first.new_tenant().tenant_id, first.new_tenant().tenant_id
            data = first.data
        configure(data, mock, settable, tenants)
        started = stack.enter_context(running(folder, data=data))
        yield SsoInstallation(started, mock, settable, tenants)


def configure(
    data: Path, mock: MockProvider, settable: SettableProvider, tenants: tuple[str, str]
) -> None:
    """Write the settings of both providers."""
    file = Layout(data).gateway_settings
    secret = file.parent / "client-secret"
    secret.write_text(SECRET + "\n")
    secret.chmod(0o600)
    common: dict[str, object] = {
        "client_id": "pqkeep",
        "client_secret_file": secret.name,
        "roles": {"keys": "admin", "staff": "viewer"},
        "create_members": True,
        "email_domains": ["example.com"],
    }
    providers: list[dict[str, object]] = [
        {"name": "mock", "label": "Mock & Co", "tenant": tenants[0], "issuer": mock.issuer},
        {
            "name": "settable",
            "tenant": tenants[1],
            "issuer": settable.issuer,
            "local_passwords": False,
        },
    ]
    settings = {"single_sign_on": [{**each, **common} for each in providers]}
    file.write_text(edited(file.read_text(), settings))


def begun(client: httpx2.Client, name: str, query: str = "") -> str:
    """Begin a sign-in; return the provider's page."""
    response = client.get(f"/portal/sso/{name}{query}")
    assert response.status_code == 302
    assert response.headers["cache-control"] == "no-store"
    return response.headers["location"]


def refusal(response: httpx2.Response) -> str:
    """Return the reason for the sign-in page. Check that no session began."""
    assert response.status_code == 302
    path, _, reason = response.headers["location"].partition("?error=")
    assert path == "/portal/sign-in"
    assert "service_access_token" not in response.cookies
    return reason


def finished(client: httpx2.Client, url: str) -> httpx2.Response:
    """Return from a provider."""
    return client.get(url)


def settled(sso: SsoInstallation, client: httpx2.Client, **claims: object) -> httpx2.Response:
    """Sign in at the provider with chosen claims."""
    sso.settable.claims = {
        "sub": "ada",
        "email": "ada@example.com",
        "email_verified": True,
        "groups": ["keys"],
        **claims,
    }
    return finished(client, sso.settable.sign_in(begun(client, "settable")))


def test_a_person_signs_in_by_a_provider(sso: SsoInstallation) -> None:
    """A person signs in through the provider, with the role of the groups."""
    claims = {"email": "grace@example.com", "email_verified": True, "groups": ["staff", "keys"]}
    sso.mock.add("grace", **claims, name=MARKUP)
    client = sso.browser()
    url = begun(client, "mock", "?next=/portal/keys%3Fstatus%3Dretired")
    back = sso.mock.sign_in(url, "grace")
    assert back.startswith(f"{sso.installation.base_url}/portal/sso/mock/callback?")
    response = finished(client, back)
    assert response.headers["location"] == "/portal/keys?status=retired"
    assert response.headers["referrer-policy"] == "no-referrer"
    assert response.headers["set-cookie"].count("; HttpOnly; SameSite=Lax") >= 3
    assert "pqkeep_sso" not in client.cookies
    me = client.get("/api/v1/auth/me").json()["data"]
    assert (me["email"], me["role"], me["tenant_id"]) == (
        "grace@example.com",
        "admin",
        sso.tenants[0],
    )
    methods = client.get("/api/v1/auth/step-up-methods").json()["data"]
    assert methods == {"methods": ["single-sign-on"], "provider": "mock"}


def test_a_browser_comes_back_signed_in(sso: SsoInstallation, visit: Visit) -> None:
    """A real browser has the session at once after the redirect from the provider's site."""
    claims = {"email": "joan@example.com", "email_verified": True, "groups": ["staff"]}
    sso.mock.add("joan", **claims)
    visitor = visit(sso.installation.base_url)
    visitor.expected.append("")  # the provider's page is another host's
    page = visitor.open("/portal/sso/mock?next=/portal/security")
    page.locator("input[name=sub]").fill("joan")
    page.get_by_role("button", name="Authorize", exact=True).click()
    page.wait_for_url("**/portal/security")
    expect(page.get_by_role("heading", name="Security", exact=True)).to_be_visible()


@pytest.mark.threat("forged-callback")
def test_a_callback_is_good_once(sso: SsoInstallation) -> None:
    """A replayed callback with the browser's old cookie does not sign in."""
    sso.mock.add("once", email="once@example.com", email_verified=True, groups=["staff"])
    client = sso.browser()
    back = sso.mock.sign_in(begun(client, "mock"), "once")
    cookie = client.cookies["pqkeep_sso"]
    assert finished(client, back).headers["location"] == "/portal"
    assert refusal(finished(client, back)) == "expired"
    thief = sso.browser()
    thief.cookies.set("pqkeep_sso", cookie)
    assert refusal(finished(thief, back)) == "provider"


@pytest.mark.threat("forged-callback")
def test_a_callback_belongs_to_its_browser(sso: SsoInstallation) -> None:
    """Another browser's callback does not sign in."""
    sso.mock.add("eve", email="eve@example.com", email_verified=True, groups=["staff"])
    back = sso.mock.sign_in(begun(sso.browser(), "mock"), "eve")
    victim = sso.browser()
    assert refusal(finished(victim, back)) == "expired"
    begun(victim, "mock")
    assert refusal(finished(victim, back)) == "expired"


@pytest.mark.threat("forged-callback")
def test_a_callback_belongs_to_its_provider(sso: SsoInstallation) -> None:
    """A sign-in that began at one provider cannot finish at another provider's address."""
    client = sso.browser()
    back = sso.settable.sign_in(begun(client, "settable"))
    assert refusal(finished(client, back.replace("/sso/settable/", "/sso/mock/"))) == "expired"


@pytest.mark.parametrize(
    ("claims", "reason"),
    [
        ({"iss": "https://login.example.org"}, "provider"),
        ({"aud": "another"}, "provider"),
        ({"nonce": "another"}, "provider"),
        ({"exp": 1}, "provider"),
        ({"email_verified": False}, "email"),
        ({"email": f"{MARKUP}@example.com"}, "email"),
        ({"email": "ada@example.net"}, "email"),
        ({"groups": [MARKUP]}, "no-role"),
        ({"sub": MARKUP * 20}, "provider"),
    ],
)
def test_another_token_signs_nobody_in(
    sso: SsoInstallation, claims: dict[str, object], reason: str
) -> None:
    """A token for another client, without a verified address or without a role, has its refusal code."""
    assert refusal(settled(sso, sso.browser(), **claims)) == reason


def test_an_address_of_another_tenant_is_refused(sso: SsoInstallation) -> None:
    """A provider cannot sign in a person of another tenant."""
    email = "elsewhere@example.com"
    sso.installation.person(sso.tenants[0], email=email)
    assert refusal(settled(sso, sso.browser(), sub="elsewhere", email=email)) == "no-member"


def test_the_client_proves_itself_and_the_code_is_its_own(sso: SsoInstallation) -> None:
    """The secret is sent by Basic in RFC 6749's encoding, with the code's verifier."""
    client = sso.browser()
    url = begun(client, "settable")
    finished(client, sso.settable.sign_in(url))
    headers, form = sso.settable.token_requests[-1]
    assert (
        httpx2.BasicAuth("pqkeep", "s%2Bcret%2Fwith%3Aall")._auth_header
        == (headers["Authorization"])
    )
    assert len(form["code_verifier"][0]) == 43
    assert form["redirect_uri"] == parse_qs(urlsplit(url).query)["redirect_uri"]
    assert "client_secret" not in form


@pytest.mark.threat("hostile-identity-provider")
@pytest.mark.parametrize("kind", ["huge", "redirect", "no-json", "error", "broken"])
def test_a_hostile_token_endpoint_signs_nobody_in(sso: SsoInstallation, kind: str) -> None:
    """Responses that are too large, redirect or lack tokens are refused, and reading stops."""
    followed: list[str] = []

    def respond(handler: BaseHTTPRequestHandler) -> None:
        followed.append(handler.path)
        if kind == "huge":
            send(handler, {**sso.settable.tokens(), "padding": "x" * 65_536})
        elif kind == "redirect":
            handler.send_response(307)
            handler.send_header("Location", f"{sso.settable.issuer}/elsewhere")
            handler.send_header("Content-Length", "0")
            handler.end_headers()
        elif kind == "no-json":
            send(handler, [MARKUP])
        elif kind == "error":
            send(handler, {"error": "invalid_grant"}, 400)
        else:
            send(handler, {"id_token": "a.b.c"})

    sso.settable.response = respond
    try:
        assert refusal(settled(sso, sso.browser())) == "provider"
    finally:
        sso.settable.response = None
    assert followed == ["/token"]


@pytest.mark.threat("forged-callback")
@pytest.mark.parametrize(
    "path",
    [
        "https://example.org/",
        "//example.org",
        "/portal//example.org",
        "/portal/../healthz",
        "/portal/%2e%2e/healthz",
        "/portal\\example.org",
        "/portalx",
        "/portal/\r\nSet-Cookie: a=b",
        "/portal/sso/settable",
        "/portal/sso",
        "javascript:alert(1)",
        "/portal/" + "x" * 600,
    ],
)
def test_next_leads_nowhere_else(sso: SsoInstallation, path: str) -> None:
    """After signing in a browser goes to the portal, never to another host or a sign-in."""
    client = sso.browser()
    url = str(httpx2.URL("/portal/sso/settable", params={"next": path}))
    response = client.get(url)
    sso.settable.claims = {
        "sub": "ada",
        "email": "ada@example.com",
        "email_verified": True,
        "groups": ["keys"],
    }
    back = finished(client, sso.settable.sign_in(response.headers["location"]))
    assert back.headers["location"] == "/portal"


def test_a_session_steps_up_by_its_provider(sso: SsoInstallation) -> None:
    """After the round trip one step-up token works for one action, without a password."""
    client = sso.browser()
    assert settled(sso, client).headers["location"] == "/portal"
    refused = client.post("/api/v1/auth/step-up", json={})
    assert (refused.status_code, refused.json()["error"]["field"]) == (422, "password")
    url = begun(client, "settable", "?step_up=1&next=/portal/keys")
    assert parse_qs(urlsplit(url).query)["prompt"] == ["login"]
    assert finished(client, sso.settable.sign_in(url)).headers["location"] == "/portal/keys"
    token = client.post("/api/v1/auth/step-up", json={}).json()["data"]["step_up_token"]
    assert client.post("/api/v1/auth/step-up", json={}).status_code == 422
    enrolled = client.post("/api/v1/auth/mfa/enroll", headers={"X-Step-Up-Token": token})
    assert enrolled.status_code == 200


@pytest.mark.threat("stolen-access-cookie")
def test_a_stolen_session_has_no_step_up_of_its_person(sso: SsoInstallation) -> None:
    """A copy of the access token does not get the step-up that the callback gave the browser."""
    person, thief = sso.browser(), sso.browser()
    settled(sso, person)
    thief.cookies.set(ACCESS, person.cookies[ACCESS])
    begun_by_thief = begun(thief, "settable", "?step_up=1")
    back = finished(person, sso.settable.sign_in(begun(person, "settable", "?step_up=1")))
    (cookie,) = [
        each
        for each in back.headers.get_list("set-cookie")
        if each.startswith(Cookies(secure=False).reauthentication)
    ]
    assert {"HttpOnly", "SameSite=Strict", "Path=/", "Max-Age=300"} <= set(cookie.split("; "))
    for token in ("", "pqg_" + "0" * 49):
        thief.cookies.set(Cookies(secure=False).reauthentication, token)
        assert thief.post("/api/v1/auth/step-up", json={}).status_code == 422
    assert refusal(finished(person, sso.settable.sign_in(begun_by_thief))) == "expired"
    given = person.post("/api/v1/auth/step-up", json={"for_session": True})
    assert given.status_code == 200
    assert Cookies(secure=False).reauthentication not in person.cookies
    assert person.post("/api/v1/auth/step-up", json={}).status_code == 422


def test_a_step_up_needs_a_session_and_a_provider_that_asked_again(sso: SsoInstallation) -> None:
    """Without a session no step-up begins; with an old auth_time none is given."""
    client = sso.browser()
    assert refusal(client.get("/portal/sso/mock?step_up=1")) == "signed-out"
    sso.mock.add("again", email="again@example.com", email_verified=True, groups=["staff"])
    finished(client, sso.mock.sign_in(begun(client, "mock"), "again"))
    back = sso.mock.sign_in(begun(client, "mock", "?step_up=1"), "again")
    assert finished(client, back).headers["location"] == "/portal"
    assert client.post("/api/v1/auth/step-up", json={}).status_code == 200
    other = sso.browser()
    settled(sso, other)
    url = begun(other, "settable", "?step_up=1")
    sso.settable.claims["auth_time"] = 1
    assert refusal(finished(other, sso.settable.sign_in(url))) == "not-again"
    assert other.post("/api/v1/auth/step-up", json={}).status_code == 422


def test_only_labelled_providers_are_listed(sso: SsoInstallation) -> None:
    """The names of providers with a label are public, and nothing else."""
    listed = sso.browser().get("/api/v1/auth/providers").json()["data"]
    provider = {"name": "mock", "label": "Mock & Co", "for_operators": False}
    assert listed == {"providers": [provider], "total": 1}


def test_what_the_person_denies_is_cancelled(sso: SsoInstallation) -> None:
    """A provider's error with the right state is shown; a repeated parameter is refused."""
    client = sso.browser()
    state = parse_qs(urlsplit(begun(client, "mock")).query)["state"][0]
    url = f"/portal/sso/mock/callback?state={state}&error=access_denied&error_description={MARKUP}"
    assert refusal(client.get(url)) == "cancelled"
    assert refusal(client.get("/portal/sso/mock/callback?state=a&state=b")) == "provider"


def test_people_without_passwords_have_none(sso: SsoInstallation) -> None:
    """With local_passwords = false, an invitation cannot be accepted with a password."""
    invited = sso.installation.operator().post(
        f"/tenants/{sso.tenants[1]}/invitations",
        {"email": "new@example.com", "role": "viewer"},
        status=201,
    )
    fields = {"token": invited["invitation_token"], "password": "the horse prefers oats"}
    response = sso.browser().post("/api/v1/auth/accept-invitation", json=fields)
    assert (response.status_code, response.json()["error"]["error_code"]) == (
        403,
        "ERR_FORBIDDEN_001",
    )


def test_no_secret_and_no_claim_is_logged(sso: SsoInstallation) -> None:
    """The log has no client secret and no text from the provider."""
    settled(sso, sso.browser(), sub=MARKUP * 20)
    output = sso.installation.output
    assert "a provider of single sign-on gave an invalid answer" in output
    for text in (SECRET, "script", "ada@example.com", "a-code"):
        assert text not in output
