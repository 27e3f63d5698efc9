"""Every cookie over TLS is Secure."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from http.cookies import SimpleCookie
from typing import Any

import httpx2
import pytest
from pyotp import TOTP
from tests.fixtures.installation import Installation

from pqkeep_gateway.http.cookies import Cookies

NEW = "the horse is tired of oats"
AGES = {
    "accept-invitation": ("900", "604800"),
    "login": ("900", "604800"),
    "verify": ("900", "604800"),
    "refresh": ("900", "604800"),
    "logout": ("0", "0"),
    "change-password": ("0", "0"),
    "leave": ("0", "0"),
}
"""The lifetimes of the access and the refresh cookie in seconds, by operation."""


class Browser:
    """A person with a cookie jar that behaves as over TLS."""

    def __init__(self, closed: Installation, password: str) -> None:
        self.caller = closed.caller(None)
        self.operator = closed.operator()
        self.password = password
        self.email = f"{uuid.uuid4()}@example.com"
        self.kept: dict[str, str] = {}

    def ask(self, method: str, path: str, body: object = None, **proof: str) -> Any:
        """Send the cookies, and store new ones."""
        headers = {"Cookie": "; ".join(f"{name}={value}" for name, value in self.kept.items())}
        if proof:
            token = self.ask("POST", "/auth/step-up", proof).json()["data"]["step_up_token"]
            headers["X-Step-Up-Token"] = token
        response = self.caller.ask(method, path, body, headers=headers)
        self.kept |= {name: each.value for name, each in _cookies(response).items()}
        return response

    def join(self, tenant_id: str) -> Any:
        """Accept an invitation."""
        fields = {"email": self.email, "role": "owner"}
        made = self.operator.post(f"/tenants/{tenant_id}/invitations", fields, status=201)
        fields = {"token": made["invitation_token"], "password": self.password}
        return self.ask("POST", "/auth/accept-invitation", fields)

    def log_in(self) -> Any:
        """Show the password."""
        fields = {"email": self.email, "password": self.password}
        return self.ask("POST", "/auth/login", fields)

    def walk(self, tenant_id: str) -> Iterator[tuple[str, httpx2.Response]]:
        """Do everything that sets cookies; yield its name and its response."""
        yield "accept-invitation", self.join(tenant_id)
        yield "refresh", self.ask("POST", "/auth/refresh")
        yield "logout", self.ask("POST", "/auth/logout")
        yield "login", self.log_in()
        fields = {"new_password": NEW}
        yield (
            "change-password",
            self.ask("POST", "/auth/change-password", fields, password=self.password),
        )
        self.password = NEW
        self.log_in()
        member = self.ask("GET", "/auth/me").json()["data"]["id"]
        enrolled = self.ask("POST", "/auth/mfa/enroll", password=self.password)
        totp = TOTP(enrolled.json()["data"]["secret"])
        confirmed = self.ask("POST", "/auth/mfa/confirm", {"totp_code": totp.now()})
        challenge = self.log_in().json()["error"]["challenge_token"]
        fields = {
            "challenge_token": challenge,
            "recovery_code": confirmed.json()["data"]["recovery_codes"][0],
        }
        yield "verify", self.ask("POST", "/auth/mfa/verify", fields)
        code = totp.at(int(time.time()) + 30)
        yield "leave", self.ask("DELETE", f"/team/members/{member}", totp_code=code)


def _cookies(response: httpx2.Response) -> SimpleCookie:
    found: SimpleCookie = SimpleCookie()
    for header in response.headers.get_list("set-cookie"):
        found.load(header)
    return found


@pytest.fixture(scope="module")
def responses(closed: Installation, password: str) -> dict[str, httpx2.Response]:
    """The responses with cookies, in an installation for the public."""
    tenant_id = closed.new_tenant().tenant_id
    Browser(closed, password).join(tenant_id)
    return dict(Browser(closed, password).walk(tenant_id))


@pytest.mark.threat("network-observer")
@pytest.mark.parametrize("what", AGES)
def test_cookies_go_over_tls_only(responses: dict[str, httpx2.Response], what: str) -> None:
    """The cookies are Secure, HttpOnly, SameSite=Lax, for one path and this host, with the right lifetime."""
    assert responses[what].is_success, responses[what].text
    shown = {name: dict(each) for name, each in _cookies(responses[what]).items()}
    wanted = {"secure": True, "httponly": True, "samesite": "Lax", "domain": "", "expires": ""}
    access, refresh = AGES[what]
    for name in (Cookies().operator, Cookies().proof):  # taken away: see test_operator_sessions.py
        shown.pop(name, None)
    expected = {
        "service_access_token": {**wanted, "path": "/", "max-age": access},
        "service_refresh_token": {**wanted, "path": "/api/v1/auth/refresh", "max-age": refresh},
        Cookies().binding: {**wanted, "path": "/", "max-age": refresh},
    }
    assert {
        name: {attribute: value for attribute, value in each.items() if attribute in expected[name]}
        for name, each in shown.items()
    } == expected
