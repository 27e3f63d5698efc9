"""A hostile host of the portal's domain sets cookies in a person's browser."""

from __future__ import annotations

import re
import ssl
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Page, expect
from tests.fixtures.browser import DOMAIN, Visit, Visitor
from tests.fixtures.caller import PASSWORD, Caller
from tests.fixtures.certificate import Certificate
from tests.fixtures.installation import Installation
from tests.portal.conftest import HAS_SIGNED_IN
from tests.portal.visitors import cookies_of

from pqkeep_gateway.http.cookies import ACCESS, REFRESH, Cookies

SECURE = Cookies()
HERE = f"keep.{DOMAIN}"
SIBLING = f"sibling.{DOMAIN}"


@dataclass
class Sibling:
    """Another host of the domain, with the cookies of its page."""

    scheme: str
    port: int = 0
    cookies: list[str] = field(default_factory=list)

    def plant(self, page: Page) -> None:
        """Make the person's browser open its page."""
        page.goto(f"{self.scheme}://{SIBLING}:{self.port}/")


@contextmanager
def _sibling(tls: ssl.SSLContext | None = None) -> Iterator[Sibling]:
    """Run a server that sets the test's cookies."""
    planting = Sibling("http" if tls is None else "https")

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            for each in planting.cookies:
                self.send_header("Set-Cookie", each)
            self.send_header("Content-Type", "text/html")
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    if tls is not None:
        server.socket = tls.wrap_socket(server.socket, server_side=True)
    planting.port = server.server_port
    Thread(target=server.serve_forever, daemon=True).start()
    yield planting
    server.shutdown()
    server.server_close()


@pytest.fixture
def sibling() -> Iterator[Sibling]:
    """Another host of the domain, over HTTP."""
    with _sibling() as planting:
        yield planting


@pytest.fixture
def secure_sibling(certificate: Certificate) -> Iterator[Sibling]:
    """Another host of the domain, over HTTPS."""
    with _sibling(certificate.context) as planting:
        yield planting


@pytest.fixture
def secured(visit: Visit, secured_gateway: str) -> Visitor:
    """A visitor who reaches the portal over HTTPS, as a host of a domain."""
    port = urlsplit(secured_gateway).port
    visitor = visit(f"https://{HERE}:{port}", ignore_https_errors=True)
    visitor.expected += [f"another host: https://{SIBLING}", "401", "404"]
    return visitor


@pytest.fixture
def begin(visit: Visit, installation: Installation) -> Callable[[Caller], Visitor]:
    """Begin a person's visit, with the portal as a host of a domain."""
    port = urlsplit(installation.base_url).port

    def as_person(person: Caller) -> Visitor:
        visitor = visit(f"http://{HERE}:{port}", init_script=HAS_SIGNED_IN)
        visitor.context.add_cookies(cookies_of(person, HERE))
        visitor.expected += [
            f"another host: http://{SIBLING}",
            "401",
            "404",
            "Cross-Origin-Opener-Policy",
        ]
        return visitor

    return as_person


def _everywhere(name: str, value: str) -> list[str]:
    """Return cookies for the parent domain: one for each path, and one without a name."""
    paths = ("/", "/portal", "/api", "/api/v1/auth", "/api/v1/auth/refresh")
    planted = [f"{name}={value}; Domain={DOMAIN}; Path={path}" for path in paths]
    return [*planted, f"={name}={value}; Domain={DOMAIN}; Path=/"]


def _sign_in(page: Page, email: str) -> None:
    """Sign in with the password, on the sign-in page."""
    page.locator("#sign-in-email").fill(email)
    page.locator("#sign-in-password").fill(PASSWORD)
    page.get_by_role("button", name="Sign in", exact=True).click()


def _assert_is(page: Page, email: str) -> None:
    """Check the page's person, and the account of its modules' requests."""
    expect(page.locator(".who")).to_have_text(email)
    me = page.evaluate("fetch('/api/v1/auth/me').then((answer) => answer.json())")
    assert me.get("data", {}).get("email") == email


@pytest.mark.threat("sibling-host")
def test_planted_cookies_swap_no_account_and_lock_nobody_out(
    begin: Callable[[Caller], Visitor],
    sibling: Sibling,
    new_tenant: Callable[..., Caller],
    new_person: Callable[..., Caller],
) -> None:
    """The person is told, and continues after one sign-in: two responses delete the cookies."""
    person, attacker = (new_person(new_tenant().tenant_id) for _ in range(2))
    email = person.get("/auth/me")["email"]
    for name in (ACCESS, REFRESH):
        sibling.cookies += _everywhere(name, attacker.client.cookies.get(name) or "")
    page = begin(person).open("/portal")
    expect(page.locator(".who")).to_have_text(email)
    sibling.plant(page)
    page.goto("/portal")
    expect(page.locator("main")).to_contain_text(f"the cookie {ACCESS}")
    expect(page.locator("main")).to_contain_text("sent more than once")
    page.goto("/portal")
    _sign_in(page, email)
    _assert_is(page, email)


@pytest.mark.threat("sibling-host")
def test_over_https_planted_cookies_change_nothing(
    secured: Visitor,
    secure_sibling: Sibling,
    new_tenant: Callable[..., Caller],
    new_person: Callable[..., Caller],
) -> None:
    """A visitor without a session stays anonymous, can sign in, and keeps that session."""
    person, attacker = (new_person(new_tenant().tenant_id) for _ in range(2))
    email = person.get("/auth/me")["email"]
    for name in (ACCESS, REFRESH):
        secure_sibling.cookies += _everywhere(name, attacker.client.cookies.get(name) or "")
    for name in (SECURE.binding, SECURE.proof, SECURE.operator):
        secure_sibling.cookies += _everywhere(name, "planted")
    page = secured.open("/portal/sign-in")
    secure_sibling.plant(page)
    page.goto("/portal")
    expect(page).to_have_url(re.compile("/portal/sign-in"))
    _sign_in(page, email)
    _assert_is(page, email)
    secure_sibling.plant(page)
    page.goto("/portal")
    _assert_is(page, email)
    refreshed = page.evaluate(
        "fetch('/api/v1/auth/refresh', {method: 'POST'}).then((a) => a.status)"
    )
    assert refreshed == HTTPStatus.OK
    page.goto("/portal/keys")
    _assert_is(page, email)


@pytest.mark.threat("sibling-host")
def test_a_planted_operators_cookie_does_not_hide_a_person(
    begin: Callable[[Caller], Visitor],
    sibling: Sibling,
    new_tenant: Callable[..., Caller],
    new_person: Callable[..., Caller],
) -> None:
    """An unknown operator's cookie does not change the person's session."""
    person = new_person(new_tenant().tenant_id)
    name = Cookies(secure=False).operator
    sibling.cookies = [f"{name}=pqb_{'0' * 49}; Domain={DOMAIN}; Path=/"]
    page = begin(person).open("/portal")
    sibling.plant(page)
    page.goto("/portal")
    expect(page.locator(".who")).to_have_text(person.get("/auth/me")["email"])
