"""A hostile host of the portal's domain plants cookies in a person's browser."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Page, expect
from tests.fixtures.browser import DOMAIN, Visit, Visitor
from tests.fixtures.caller import PASSWORD, Caller
from tests.fixtures.installation import Installation
from tests.portal.conftest import HAS_SIGNED_IN
from tests.portal.visitors import cookies_of

from pqkeep_gateway.http.cookies import ACCESS, REFRESH, Cookies

HERE = f"keep.{DOMAIN}"
SIBLING = f"sibling.{DOMAIN}"
ATTEMPTS = 20
"""Each response deletes the cookies of its own path."""


@dataclass
class Sibling:
    """Another host of the domain, and the cookies that its page sets."""

    port: int
    cookies: list[str] = field(default_factory=list)

    def plant(self, page: Page) -> None:
        """Have the person's browser open its page."""
        page.goto(f"http://{SIBLING}:{self.port}/")


@pytest.fixture
def sibling() -> Iterator[Sibling]:
    """A server that sets whatever cookies a test wants."""
    planting = Sibling(0)

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
    planting.port = server.server_port
    Thread(target=server.serve_forever, daemon=True).start()
    yield planting
    server.shutdown()
    server.server_close()


@pytest.fixture
def begin(visit: Visit, installation: Installation) -> Callable[[Caller], Visitor]:
    """Begin a visit of somebody, who reaches the portal as a host of a domain."""
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
    """Return a cookie for the domain, by paths that come before and after ours, and without a name."""
    paths = ("/", "/portal", "/api", "/api/v1/auth", "/api/v1/auth/refresh")
    planted = [f"{name}={value}; Domain={DOMAIN}; Path={path}" for path in paths]
    return [*planted, f"={name}={value}; Domain={DOMAIN}; Path=/"]


def _is_back(page: Page, email: str) -> bool:
    """Open the portal, and sign in where it asks for that; return whether the page is somebody's."""
    page.goto("/portal")
    page.wait_for_load_state("networkidle")
    if page.locator(".who").count():
        expect(page.locator(".who")).to_have_text(email)
        me = page.evaluate("fetch('/api/v1/auth/me').then((answer) => answer.json())")
        return bool(me.get("data", {}).get("email") == email)
    if page.locator("#sign-in-email").count():
        page.locator("#sign-in-email").fill(email)
        page.locator("#sign-in-password").fill(PASSWORD)
        page.get_by_role("button", name="Sign in", exact=True).click()
        expect(
            page.locator(".form-error:not(:empty), .who, .empty[role=alert]").first
        ).to_be_visible()
    return False


def test_planted_cookies_swap_no_account_and_lock_nobody_out(
    begin: Callable[[Caller], Visitor],
    sibling: Sibling,
    new_tenant: Callable[..., Caller],
    new_person: Callable[..., Caller],
) -> None:
    """The person is told, the planted cookies are deleted, and they work on after signing in again."""
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
    assert any(_is_back(page, email) for _ in range(ATTEMPTS))


def test_a_planted_operators_cookie_does_not_hide_a_person(
    begin: Callable[[Caller], Visitor],
    sibling: Sibling,
    new_tenant: Callable[..., Caller],
    new_person: Callable[..., Caller],
) -> None:
    """An operator's cookie that nobody knows leaves the person who they are."""
    person = new_person(new_tenant().tenant_id)
    name = Cookies(secure=False).operator
    sibling.cookies = [f"{name}=pqb_{'0' * 49}; Domain={DOMAIN}; Path=/"]
    page = begin(person).open("/portal")
    sibling.plant(page)
    page.goto("/portal")
    expect(page.locator(".who")).to_have_text(person.get("/auth/me")["email"])
