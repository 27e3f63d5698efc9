"""Pages over HTTP: permissions and headers."""

from __future__ import annotations

from collections.abc import Callable
from http import HTTPStatus

import httpx2
import pytest
from tests.fixtures.installation import Installation
from tests.patience import PATIENCE
from tests.portal.visitors import get_page

from pqkeep_gateway.http.cookies import ACCESS


def _get(installation: Installation, path: str, **cookies: str) -> httpx2.Response:
    return httpx2.get(installation.base_url + path, cookies=cookies, timeout=PATIENCE)


def test_a_page_without_a_session_leads_to_the_entrance_and_back(
    installation: Installation,
) -> None:
    """A visitor without a session is sent to /portal/resume, with the page to return to."""
    response = _get(installation, "/portal")
    assert response.status_code == HTTPStatus.SEE_OTHER
    assert response.headers["Location"] == "/portal/resume?next=%2Fportal"


def test_an_unknown_page_is_404_in_html(installation: Installation) -> None:
    """An unknown path under /portal gets a page that says so."""
    response = _get(installation, "/portal/no/such/page")
    assert response.status_code == HTTPStatus.NOT_FOUND
    assert "There is no such page." in response.text


def test_an_unknown_page_is_within_the_frame_of_whoever_has_signed_in(
    installation: Installation,
) -> None:
    """On an unknown page a signed-in person keeps the navigation, without a marked entry."""
    tenant = installation.new_tenant()
    operator = installation.caller(None)
    operator.post("/auth/operator", {"operator_key": installation.ready["operator_key"]})
    for visitor, link in (
        (installation.person(tenant.tenant_id), "/portal/keys"),
        (operator, "/portal/operator/tenants"),
    ):
        response = get_page(visitor, "/portal/no/such/page")
        assert response.status_code == HTTPStatus.NOT_FOUND
        assert "There is no such page." in response.text
        assert f'href="{link}"' in response.text
        assert "aria-current" not in response.text


@pytest.mark.parametrize("path", ["/portal/sign-in", "/portal", "/portal/unknown"])
def test_every_page_forbids_what_pages_do_not_need(installation: Installation, path: str) -> None:
    """The policy forbids inline code, other origins, frames and caching."""
    headers = _get(installation, path).headers
    policy = headers["Content-Security-Policy"]
    assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self'")
    assert "unsafe" not in policy
    assert "frame-ancestors 'none'" in policy
    assert "trusted-types 'none'" in policy
    assert headers["Cache-Control"] == "no-store"


def test_markup_in_a_path_or_query_comes_back_escaped_or_not_at_all(
    installation: Installation,
) -> None:
    """No part of a request's path, query or cookie runs in its response."""
    markup = "<script>alert(1)</script>"
    for path in (f"/portal/{markup}", f"/portal/sign-in?next={markup}"):
        response = _get(installation, path, **{ACCESS: "%3Cscript%3E"})
        assert markup not in response.text


def test_pages_have_an_address_of_their_own(start: Callable[..., Installation]) -> None:
    """With portal_url, pages at the API's address redirect there, also for signing in."""
    installation = start(
        settings={"public_url": "https://api.example.org", "portal_url": "https://keep.example.org"}
    )
    response = httpx2.get(
        installation.base_url + "/portal/keys?status=active",
        headers={"Host": "api.example.org"},
        timeout=PATIENCE,
    )
    assert response.status_code == HTTPStatus.TEMPORARY_REDIRECT
    assert response.headers["Location"] == "https://keep.example.org/portal/keys?status=active"
    here = httpx2.get(
        installation.base_url + "/portal/sign-in",
        headers={"Host": "keep.example.org"},
        timeout=PATIENCE,
    )
    assert here.status_code == HTTPStatus.OK
    for origin, refused in (("https://keep.example.org", False), ("https://example.net", True)):
        response = httpx2.post(
            installation.base_url + "/api/v1/auth/login",
            headers={"Origin": origin},
            json={},
            timeout=PATIENCE,
        )
        assert (response.status_code == HTTPStatus.FORBIDDEN) is refused
