"""Requests with a cookie planted by another host of the domain, byte for byte."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Self

import httpx2
import pytest
from tests.fixtures.caller import API, PASSWORD, TLS, Caller, read_envelope
from tests.fixtures.installation import Installation
from tests.patience import PATIENCE

from pqkeep_gateway.http.cookies import ACCESS, REFRESH, Cookies

NAMES = Cookies(secure=False)
"""Their names on loopback have no prefix, so any host of the domain could set them."""
SECURE = Cookies()
OPERATOR = NAMES.operator
PATHS = (
    ("GET", "/auth/me"),
    ("GET", "/billing/plans"),
    ("POST", "/auth/login"),
    ("POST", "/auth/refresh"),
    ("POST", "/auth/step-up"),
    ("POST", "/auth/logout"),
    ("GET", "/tenants"),
)


def _ask(
    installation: Installation, method: str, path: str, *cookies: str, **headers: str
) -> httpx2.Response:
    """Send Cookie headers unchanged."""
    sent = [("Cookie", each) for each in cookies] + list(headers.items())
    return httpx2.request(
        method,
        f"{installation.base_url}{path}",
        headers=sent,
        trust_env=False,
        verify=TLS,
        timeout=PATIENCE,
    )


@pytest.mark.parametrize(
    "name",
    [ACCESS, REFRESH, OPERATOR, NAMES.proof, NAMES.reauthentication, NAMES.single_sign_on],
)
def test_a_cookie_that_is_there_twice_is_refused_everywhere(
    installation: Installation, name: str
) -> None:
    """A repeated cookie is refused with 401 in every request, and deleted."""
    for method, path in PATHS:
        response = _ask(installation, method, API + path, f"{name}=a; {name}=b")
        error = read_envelope(response)["error"]
        assert (response.status_code, error["error_code"]) == (401, "ERR_AUTH_001")
        assert name in error["message"]
        assert f"{name}=; Path=/; Max-Age=0" in response.headers.get_list("set-cookie")


def test_neither_of_two_counts(
    installation: Installation,
    new_tenant: Callable[..., Caller],
    new_person: Callable[..., Caller],
) -> None:
    """If a request has two people's tokens, it opens no account, in any order or header."""
    mine, others = (
        f"{ACCESS}={new_person(new_tenant().tenant_id).client.cookies[ACCESS]}" for _ in range(2)
    )
    for cookies in ((f"{mine}; {others}",), (f"{others}; {mine}",), (mine, others)):
        response = _ask(installation, "GET", f"{API}/auth/me", *cookies)
        assert response.status_code in {400, 401}
    for alone in (
        f"{mine}; a=b",
        f"a=b;{mine}",
        f"{mine}; {ACCESS.upper()}=x",
        f"{mine}; ={others}",
    ):
        assert _ask(installation, "GET", f"{API}/auth/me", alone).status_code == 200


def test_a_program_does_not_depend_on_cookies(
    installation: Installation, new_tenant: Callable[..., Caller]
) -> None:
    """An API key is accepted beside any cookies, which are ignored."""
    tenant = new_tenant()
    headers = {"X-API-Key": tenant.api_key}
    twice = f"{ACCESS}=a; {ACCESS}=b"
    assert _ask(installation, "GET", f"{API}/kms/keys", twice, **headers).status_code == 200


def test_pages_say_so_and_delete(installation: Installation) -> None:
    """A portal page is 401 with advice; the sign-in page works and deletes the cookies too."""
    twice = f"{ACCESS}=a; {ACCESS}=b"
    for path, status in (("/portal/keys", 401), ("/portal/sign-in", 200), ("/portal/none", 404)):
        response = _ask(installation, "GET", path, twice)
        assert response.status_code == status
        assert f"{ACCESS}=; Path=/; Max-Age=0" in response.headers.get_list("set-cookie")
    assert "sent more than once" in _ask(installation, "GET", "/portal/keys", twice).text
    assert "set-cookie" not in _ask(installation, "GET", "/portal/sign-in", f"{ACCESS}=a").headers


BROWSER = {"Sec-Fetch-Site": "same-origin"}
"""The headers that a browser adds to every HTTPS request."""


class Kept(dict[str, str]):
    """The cookies in the browser of a person who signed in over TLS."""

    @classmethod
    def of(cls, person: Caller) -> Self:
        """Take a person's cookies."""
        return cls({each.name: each.value or "" for each in person.client.cookies.jar})

    def header(self, *names: str) -> str:
        """Return the header with some of the cookies, or all."""
        return "; ".join(f"{name}={self[name]}" for name in names or self)


def _browse(closed: Installation, method: str, path: str, cookies: str) -> httpx2.Response:
    """Send a Cookie header like a browser."""
    return _ask(closed, method, path, cookies, **BROWSER)


@pytest.fixture
def two(closed: Installation) -> tuple[Kept, Kept, str]:
    """Return the cookies of a person and of an attacker, and the person's address."""
    email = f"{uuid.uuid4()}@example.com"
    person = closed.person(closed.new_tenant().tenant_id, email=email)
    attacker = closed.person(closed.new_tenant().tenant_id)
    return Kept.of(person), Kept.of(attacker), email


def _email(response: httpx2.Response) -> str | None:
    """Return the signed-in person's address. None after a 401."""
    body = read_envelope(response)
    if response.status_code == 401:
        assert body["error"]["error_code"] == "ERR_AUTH_001"
        return None
    email: str = body["data"]["email"]
    return email


@pytest.mark.threat("sibling-host")
def test_a_planted_session_signs_nobody_in(
    closed: Installation, two: tuple[Kept, Kept, str]
) -> None:
    """Tokens without a session of this host are not accepted, once or twice."""
    mine, others, email = two
    tokens = others.header(ACCESS, REFRESH)
    binding = f"{NAMES.binding}={others[SECURE.binding]}"
    for planted in (tokens, f"{tokens}; {tokens}", f"{tokens}; {binding}"):
        me = _browse(closed, "GET", f"{API}/auth/me", planted)
        assert _email(me) is None
        deleted = f"{ACCESS}=; Path=/; Max-Age=0; Secure" in me.headers.get_list("set-cookie")
        assert deleted == (planted.count(ACCESS) > 1)
        assert _email(_browse(closed, "POST", f"{API}/auth/refresh", planted)) is None
        page = _browse(closed, "GET", "/portal/keys", planted)
        assert (page.status_code, page.headers["location"].partition("?")[0]) == (
            303,
            "/portal/resume",
        )
        credentials = {"email": email, "password": PASSWORD}
        signed_in = closed.caller(None).ask(
            "POST", "/auth/login", credentials, headers={"Cookie": planted, **BROWSER}
        )
        assert signed_in.status_code == 200
    assert _email(_browse(closed, "GET", f"{API}/auth/me", mine.header())) == email


@pytest.mark.threat("sibling-host")
def test_a_planted_session_takes_no_other_s_place(
    closed: Installation, two: tuple[Kept, Kept, str]
) -> None:
    """Planted cookies beside a person's session do not change the person."""
    mine, others, email = two
    planted = others.header(ACCESS, REFRESH)
    operator = closed.operator().ask(
        "POST", "/auth/operator", {"operator_key": closed.ready["operator_key"]}
    )
    token = operator.cookies[SECURE.operator]
    unprefixed = "; ".join(
        (
            f"{NAMES.operator}={token}",
            f"{NAMES.binding}={others[SECURE.binding]}",
            f"{NAMES.proof}=pqd_x",
        )
    )
    for sent in (
        f"{planted}; {mine.header()}",
        f"{mine.header()}; {planted}; {planted}",
        f"{unprefixed}; {mine.header()}; {unprefixed}",
        f"{planted}; {mine.header()}; {ACCESS}=; {REFRESH}=",
        f"{mine.header(ACCESS, SECURE.binding)}; {planted}; {planted}",
    ):
        assert _email(_browse(closed, "GET", f"{API}/auth/me", sent)) == email
    without = others.header(ACCESS, REFRESH) + "; " + mine.header(SECURE.binding)
    assert _email(_browse(closed, "GET", f"{API}/auth/me", without)) is None
    assert _email(_browse(closed, "GET", f"{API}/auth/me", unprefixed)) is None


@pytest.mark.threat("sibling-host")
def test_a_planted_refresh_token_is_not_exchanged(
    closed: Installation, two: tuple[Kept, Kept, str]
) -> None:
    """Beside planted tokens, the person's own one is exchanged. A planted one alone does nothing."""
    mine, others, email = two
    alone = f"{mine.header(SECURE.binding)}; {others.header(REFRESH)}"
    assert _email(_browse(closed, "POST", f"{API}/auth/refresh", alone)) is None
    refreshed = _browse(
        closed, "POST", f"{API}/auth/refresh", f"{others.header(REFRESH)}; {mine.header()}"
    )
    assert refreshed.status_code == 200
    now = Kept(refreshed.cookies.items())
    assert _email(_browse(closed, "GET", f"{API}/auth/me", now.header())) == email
    crossed = f"{now.header(ACCESS)}; {mine.header(SECURE.binding)}"
    assert _email(_browse(closed, "GET", f"{API}/auth/me", crossed)) is None
    assert _browse(closed, "GET", f"{API}/auth/me", others.header()).status_code == 200


@pytest.mark.threat("sibling-host")
def test_a_planted_proof_proves_nothing(closed: Installation, two: tuple[Kept, Kept, str]) -> None:
    """An attacker's proof is not accepted, under either cookie name."""
    mine, others, _ = two
    generated = {"algorithm": "Kyber768"}
    asked = {"headers": {"Cookie": mine.header()}}
    assert closed.caller(None).ask("POST", "/kms/keys/generate", generated, **asked).is_success
    proved = closed.caller(None).ask(
        "POST",
        "/auth/step-up",
        {"password": PASSWORD, "for_session": True},
        headers={"Cookie": others.header()},
    )
    proof = proved.cookies[SECURE.proof]
    for name in (NAMES.proof, SECURE.proof):
        response = closed.caller(None).ask(
            "POST",
            "/kms/keys/rotate",
            generated,
            headers={"Cookie": f"{mine.header()}; {name}={proof}"},
        )
        assert read_envelope(response)["error"]["error_code"] == "ERR_MFA_013"


def test_a_program_needs_the_two_cookies_only(
    closed: Installation, two: tuple[Kept, Kept, str]
) -> None:
    """The access and refresh token of the specification work over TLS too."""
    mine, _, email = two
    assert _email(_ask(closed, "GET", f"{API}/auth/me", mine.header(ACCESS))) == email
    refreshed = _ask(closed, "POST", f"{API}/auth/refresh", mine.header(REFRESH))
    assert refreshed.status_code == 200
    assert _email(_ask(closed, "GET", f"{API}/auth/me", mine.header(ACCESS))) is None
