"""People over HTTP: signing in, visible data, and refusals."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from http.cookies import SimpleCookie
from typing import Any

import httpx2
import pytest
from tests.fixtures.caller import TLS, Caller
from tests.fixtures.installation import Installation
from tests.patience import PATIENCE

Refused = Callable[[httpx2.Response], tuple[int, str, str | None]]

UNAUTHORIZED = (401, "ERR_AUTH_001", None)
FORBIDDEN = (403, "ERR_FORBIDDEN_001", None)
OPERATOR = "service_operator_token"
ACCESS = "service_access_token"
REFRESH = "service_refresh_token"
NEW = "the horse is tired of oats"


def _email() -> str:
    return f"{uuid.uuid4()}@example.com"


def _cookies(response: httpx2.Response) -> SimpleCookie:
    found: SimpleCookie = SimpleCookie()
    for header in response.headers.get_list("set-cookie"):
        found.load(header)
    return found


def _sign_in(caller: Caller, email: str, password: str) -> httpx2.Response:
    return caller.ask("POST", "/auth/login", {"email": email, "password": password})


@pytest.fixture
def owner(new_tenant: Callable[..., Caller], new_person: Callable[..., Caller]) -> Caller:
    """The owner of a new tenant."""
    return new_person(new_tenant().tenant_id)


@pytest.fixture
def stranger(installation: Installation) -> Caller:
    """A client without a credential, with its own cookies."""
    return installation.caller(None)


def test_cookies_are_for_this_host_and_no_script(
    owner: Caller, stranger: Caller, password: str
) -> None:
    """Both cookies are HttpOnly, SameSite=Lax and host-only, for 15 minutes and 7 days."""
    cookies = _cookies(_sign_in(stranger, owner.get("/auth/me")["email"], password))
    shown = {
        name: (each["path"], each["max-age"], each["httponly"], each["samesite"], each["domain"])
        for name, each in cookies.items()
    }
    assert shown == {
        OPERATOR: ("/", "0", True, "Strict", ""),
        ACCESS: ("/", "900", True, "Lax", ""),
        REFRESH: ("/api/v1/auth/refresh", "604800", True, "Lax", ""),
    }


@pytest.mark.parametrize(
    "bad_password",
    ["eleven char", "x" * 1025, "passwordpassword", "P@ssw0rd2024!", "aaaaaaaaaaaaaaaa", 7, None],
)
def test_refused_passwords(
    operator: Caller, new_tenant: Callable[..., Caller], stranger: Caller, bad_password: object
) -> None:
    """A password that is too short, too long, very common or not text is 422."""
    path = f"/tenants/{new_tenant().tenant_id}/invitations"
    made = operator.post(path, {"email": _email(), "role": "viewer"}, status=201)
    fields = {"token": made["invitation_token"], "password": bad_password}
    refusal = stranger.refusal("/auth/accept-invitation", fields)
    assert refusal == (422, "ERR_INVALID_001", "password")


def test_who_is_unknown_hears_the_same(
    owner: Caller, stranger: Caller, password: str, refused: Refused
) -> None:
    """A wrong password and an unknown address get the same 401 and message."""
    email = owner.get("/auth/me")["email"]
    responses = [_sign_in(stranger, email, NEW), _sign_in(stranger, _email(), password)]
    assert [refused(each) for each in responses] == [UNAUTHORIZED] * 2
    first, second = (each.json()["error"] for each in responses)
    assert first == second


def test_an_address_in_capitals_is_the_same(owner: Caller, stranger: Caller, password: str) -> None:
    """Capitals in the address do not matter for signing in."""
    user = owner.get("/auth/me")
    assert _sign_in(stranger, user["email"].upper(), password).status_code == 200
    assert stranger.get("/auth/me") == user


def test_an_invitation_is_good_once(
    operator: Caller, new_tenant: Callable[..., Caller], stranger: Caller, password: str
) -> None:
    """A second acceptance of an invitation is 401."""
    path = f"/tenants/{new_tenant().tenant_id}/invitations"
    made = operator.post(path, {"email": _email(), "role": "viewer"}, status=201)
    fields = {"token": made["invitation_token"], "password": password}
    stranger.post("/auth/accept-invitation", fields, status=201)
    refusal = stranger.refusal("/auth/accept-invitation", fields)
    assert refusal == (401, "ERR_AUTH_001", "token")


def test_refreshing_hands_out_new_tokens(owner: Caller, refused: Refused) -> None:
    """After a refresh the new access token is accepted, and the old one is not."""
    old = owner.client.cookies[ACCESS]
    owner.post("/auth/refresh")
    assert owner.client.cookies[ACCESS] != old
    owner.get("/auth/me")
    answer = httpx2.get(
        f"{owner.client.base_url}/api/v1/auth/me",
        headers={"Cookie": f"{ACCESS}={old}"},
        trust_env=False,
        verify=TLS,
        timeout=PATIENCE,
    )
    assert refused(answer) == UNAUTHORIZED


def test_a_copied_refresh_token_ends_the_session(
    owner: Caller, stranger: Caller, refused: Refused
) -> None:
    """A refresh token that was already exchanged is refused, and ends the session for both users."""
    copied = {"Cookie": f"{REFRESH}={owner.client.cookies[REFRESH]}", "User-Agent": "thief"}
    owner.post("/auth/refresh")
    assert refused(stranger.ask("POST", "/auth/refresh", headers=copied)) == UNAUTHORIZED
    assert refused(owner.ask("GET", "/auth/me")) == UNAUTHORIZED
    assert refused(owner.ask("POST", "/auth/refresh")) == UNAUTHORIZED


def test_two_tabs_refresh_at_once(owner: Caller, stranger: Caller) -> None:
    """A client that sends a refresh token twice at once gets the same valid cookies."""
    sent = {"Cookie": f"{REFRESH}={owner.client.cookies[REFRESH]}"}
    owner.post("/auth/refresh")
    assert stranger.ask("POST", "/auth/refresh", headers=sent).status_code == 200
    for name in (ACCESS, REFRESH):
        assert stranger.client.cookies[name] == owner.client.cookies[name]
    owner.post("/auth/refresh")
    owner.get("/auth/me")


def test_signing_out_ends_the_session(owner: Caller, refused: Refused) -> None:
    """Signing out deletes the cookies and ends their tokens."""
    access = owner.client.cookies[ACCESS]
    owner.post("/auth/logout")
    assert not owner.client.cookies
    shown = {"Cookie": f"{ACCESS}={access}"}
    assert refused(owner.ask("GET", "/auth/me", headers=shown)) == UNAUTHORIZED


def test_one_of_two_sessions_can_be_ended(
    owner: Caller, stranger: Caller, password: str, refused: Refused
) -> None:
    """Both sessions are listed, and the current one is marked. It can end the other session."""
    _sign_in(stranger, owner.get("/auth/me")["email"], password)
    listed = owner.get("/auth/sessions")
    assert listed["total"] == 2
    (other,) = (each["id"] for each in listed["sessions"] if not each["current"])
    assert owner.ask("DELETE", f"/auth/sessions/{other}").status_code == 200
    assert refused(stranger.ask("GET", "/auth/me")) == UNAUTHORIZED
    owner.get("/auth/me")


def test_details_say_which_client_began_a_session(
    owner: Caller, stranger: Caller, password: str
) -> None:
    """With details each session has its client in plain words, for any header."""
    email = owner.get("/auth/me")["email"]
    fields = {"email": email, "password": password}
    firefox = "Mozilla/5.0 (X11; Linux x86_64; rv:128.0) Gecko/20100101 Firefox/128.0"
    for user_agent in (firefox, "<script>alert(1)</script>", "x" * 2000, ""):
        headers = {"User-Agent": user_agent}
        assert stranger.ask("POST", "/auth/login", fields, headers=headers).status_code == 200
    stranger.client.headers["User-Agent"] = "another"
    stranger.post("/auth/refresh")  # the client at the sign-in is what is shown
    shown = stranger.get("/auth/sessions", details="true")["sessions"]
    mine = owner.client.headers["User-Agent"].partition("/")[0]
    assert [each.pop("client") for each in shown] == [
        None,
        "x" * 64,
        None,
        "Firefox on Linux",
        mine,
    ]
    assert stranger.get("/auth/sessions")["sessions"] == shown


def test_another_s_session_is_not_found(
    owner: Caller, new_person: Callable[..., Caller], refused: Refused
) -> None:
    """Another person's session is 404, also in the same tenant, and continues."""
    other = new_person(owner.tenant_id)
    (session,) = other.get("/auth/sessions")["sessions"]
    answer = owner.ask("DELETE", f"/auth/sessions/{session['id']}")
    assert refused(answer) == (404, "ERR_NOT_FOUND_001", "id")
    other.get("/auth/me")


@pytest.mark.parametrize(
    "headers",
    [
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
        {"Origin": "https://elsewhere.example"},
        {"Origin": "null"},
        {"Origin": "http://127.0.0.1:1"},
    ],
)
def test_other_sites_change_nothing(
    owner: Caller, refused: Refused, headers: dict[str, str]
) -> None:
    """A request from another site with the cookies is 403 and does nothing."""
    assert refused(owner.ask("POST", "/auth/logout", headers=headers)) == FORBIDDEN
    assert owner.ask("GET", "/auth/me").status_code == 200


@pytest.mark.parametrize("path", ["/auth/me", "/kms/keys/import-key?algorithm=Kyber768"])
@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_links_of_other_sites_are_not_followed(
    owner: Caller, refused: Refused, path: str, site: str
) -> None:
    """A link from another site does not use anything up."""
    assert refused(owner.ask("GET", path, headers={"Sec-Fetch-Site": site})) == FORBIDDEN
    assert owner.ask("GET", "/billing/plans", headers={"Sec-Fetch-Site": site}).status_code == 200


@pytest.mark.parametrize("site", ["same-origin", "none"])
def test_our_own_pages_may(owner: Caller, site: str) -> None:
    """A request from our own page succeeds."""
    assert owner.ask("POST", "/auth/logout", headers={"Sec-Fetch-Site": site}).status_code == 200


def test_other_sites_sign_nobody_in(stranger: Caller, refused: Refused) -> None:
    """Another site's page cannot sign a browser in."""
    fields = {"email": _email(), "password": NEW}
    headers = {"Sec-Fetch-Site": "cross-site"}
    assert refused(stranger.ask("POST", "/auth/login", fields, headers=headers)) == FORBIDDEN


def test_an_api_key_outweighs_a_cookie(
    owner: Caller, new_tenant: Callable[..., Caller], refused: Refused
) -> None:
    """With both, only the API key counts: a valid one acts, an invalid one is 401."""
    other = new_tenant()
    headers = {"X-API-Key": other.api_key}
    (listed,) = owner.ask("GET", "/tenants", headers=headers).json()["data"]["tenants"]
    assert listed["id"] == other.tenant_id
    assert refused(owner.ask("GET", "/auth/me", headers={"X-API-Key": "no"})) == UNAUTHORIZED


def test_no_api_key_is_a_person(new_tenant: Callable[..., Caller], refused: Refused) -> None:
    """Operations for people are 403 for a program."""
    assert refused(new_tenant().ask("GET", "/auth/me")) == FORBIDDEN


def test_a_suspended_tenant_s_people_are_let_in_nowhere(
    owner: Caller, operator: Caller, refused: Refused
) -> None:
    """Every request in a session of a suspended tenant is 403."""
    operator.ask("PATCH", f"/tenants/{owner.tenant_id}", {"status": "suspended"})
    assert refused(owner.ask("GET", "/auth/me")) == FORBIDDEN


def test_tries_are_counted(owner: Caller, stranger: Caller, password: str) -> None:
    """The eleventh try at an account within 15 minutes is 429, even with the right password."""
    email = owner.get("/auth/me")["email"]
    assert {_sign_in(stranger, email, NEW).status_code for _ in range(10)} == {401}
    answer = _sign_in(stranger, email, password)
    assert answer.status_code == 429
    assert 0 < int(answer.headers["retry-after"]) <= 900


def test_an_archived_key_is_gone(owner: Caller, refused: Refused) -> None:
    """In a session a retired key can be archived, and an active one cannot."""
    fields: dict[str, Any] = {"algorithm": "Kyber768", "key_version": 1}
    owner.post("/kms/keys/generate", {"algorithm": "Kyber768"}, status=201)
    refused_active = owner.ask_proven("POST", "/kms/keys/archive", fields)
    assert refused(refused_active)[:2] == (400, "ERR_INVALID_001")
    owner.post("/kms/keys/retire", fields)
    assert owner.post_proven("/kms/keys/archive", fields)["status"] == "archived"
    assert owner.get("/kms/keys/1", algorithm="Kyber768")["status"] == "archived"


def test_an_archived_key_can_be_kept(owner: Caller, refused: Refused) -> None:
    """A scheduled archive has its time, the key refuses use, and a cancellation restores it."""
    fields: dict[str, Any] = {"algorithm": "Kyber768", "key_version": 1}
    owner.post("/kms/keys/generate", {"algorithm": "Kyber768"}, status=201)
    blob = owner.post("/kem/encrypt", {"plaintext": "QUJD"})["ciphertext"]
    retired = owner.post("/kms/keys/retire", fields)
    assert "archive_at" not in retired
    for days in (-1, 31, 7.5, "7"):
        answer = owner.ask_proven("POST", "/kms/keys/archive", fields | {"delay_days": days})
        assert refused(answer) == (400, "ERR_INVALID_001", "delay_days")
    scheduled = owner.post_proven("/kms/keys/archive", fields | {"delay_days": 7})
    assert scheduled == retired | {"archive_at": scheduled["archive_at"]}
    assert owner.get("/kms/keys/1", algorithm="Kyber768") == scheduled
    decrypt = {"ciphertext": blob, "key_version": 1}
    answer = owner.ask("POST", "/kem/decrypt", decrypt)
    assert refused(answer)[:2] == (404, "ERR_NOT_FOUND_001")
    assert owner.post("/kms/keys/archive/cancel", fields) == retired
    assert owner.post("/kem/decrypt", decrypt)["plaintext"] == "QUJD"
    assert owner.post_proven("/kms/keys/archive", fields)["status"] == "archived"
    answer = owner.ask("POST", "/kms/keys/archive/cancel", fields)
    assert refused(answer)[:2] == (400, "ERR_INVALID_001")


def test_what_people_do_is_in_the_log(
    owner: Caller, stranger: Caller, operator: Caller, password: str
) -> None:
    """Joining, signing in, failing to, and signing out are recorded with the person."""
    user = owner.get("/auth/me")
    _sign_in(stranger, user["email"], NEW)
    _sign_in(stranger, user["email"], password)
    stranger.post("/auth/logout")
    records = owner.get("/audit/records", limit=500)["records"]
    mine = [each["operation"] for each in records if each["principal"] == f"user:{user['id']}"]
    assert mine == ["accept-invitation", "sign-in", "sign-in-failed", "sign-in", "sign-out"]
