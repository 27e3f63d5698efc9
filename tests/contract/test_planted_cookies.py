"""Requests with a cookie that another host of the domain has planted, byte for byte."""

from __future__ import annotations

from collections.abc import Callable

import httpx2
import pytest
from tests.fixtures.caller import API, REQUEST_SECONDS, TLS, Caller, read_envelope
from tests.fixtures.installation import Installation

from pqkeep_gateway.http.cookies import ACCESS, REFRESH, Cookies

NAMES = Cookies(secure=False)
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
    """Send Cookie headers as they are."""
    sent = [("Cookie", each) for each in cookies] + list(headers.items())
    return httpx2.request(
        method,
        f"{installation.base_url}{path}",
        headers=sent,
        trust_env=False,
        verify=TLS,
        timeout=REQUEST_SECONDS,
    )


@pytest.mark.parametrize(
    "name",
    [ACCESS, REFRESH, OPERATOR, NAMES.proof, NAMES.reauthentication, NAMES.single_sign_on],
)
def test_a_cookie_that_is_there_twice_is_refused_everywhere(
    installation: Installation, name: str
) -> None:
    """Whichever of ours it is and whatever is asked, the answer is 401 and deletes the cookie."""
    for method, path in PATHS:
        answer = _ask(installation, method, API + path, f"{name}=a; {name}=b")
        error = read_envelope(answer)["error"]
        assert (answer.status_code, error["error_code"]) == (401, "ERR_AUTH_001")
        assert name in error["message"]
        assert f"{name}=; Path=/; Max-Age=0" in answer.headers.get_list("set-cookie")


def test_neither_of_two_counts(
    installation: Installation,
    new_tenant: Callable[..., Caller],
    new_person: Callable[..., Caller],
) -> None:
    """A person's token beside another person's opens neither account, in any order or header."""
    mine, others = (
        f"{ACCESS}={new_person(new_tenant().tenant_id).client.cookies[ACCESS]}" for _ in range(2)
    )
    for cookies in ((f"{mine}; {others}",), (f"{others}; {mine}",), (mine, others)):
        answer = _ask(installation, "GET", f"{API}/auth/me", *cookies)
        assert answer.status_code in {400, 401}
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
    """An API key is accepted with whatever cookies, which are not read beside it."""
    tenant = new_tenant()
    headers = {"X-API-Key": tenant.api_key}
    twice = f"{ACCESS}=a; {ACCESS}=b"
    assert _ask(installation, "GET", f"{API}/kms/keys", twice, **headers).status_code == 200


def test_pages_say_so_and_delete(installation: Installation) -> None:
    """A page of the portal is 401 and says what to do; the page to sign in works, and deletes too."""
    twice = f"{ACCESS}=a; {ACCESS}=b"
    for path, status in (("/portal/keys", 401), ("/portal/sign-in", 200), ("/portal/none", 404)):
        answer = _ask(installation, "GET", path, twice)
        assert answer.status_code == status
        assert f"{ACCESS}=; Path=/; Max-Age=0" in answer.headers.get_list("set-cookie")
    assert "sent more than once" in _ask(installation, "GET", "/portal/keys", twice).text
    assert "set-cookie" not in _ask(installation, "GET", "/portal/sign-in", f"{ACCESS}=a").headers
