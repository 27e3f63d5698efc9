"""Single sign-on with oidc-provider, a certified provider, if ``make openid`` installed it."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx2
import pytest
from tests.fixtures import processes
from tests.fixtures.installation import Installation, running
from tests.fixtures.openid_provider import responses
from tests.fixtures.processes import HOST, free_port
from tests.patience import PATIENCE

from pqkeep_server.initialise import Layout
from pqkeep_server.settings_file import edited

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / ".node"
PROGRAM = ROOT / "tests/openid/provider.mjs"
NODE = shutil.which("node")
SECRET = "oidc+s3cret/="  # noqa: S105 - the test's own
NAME = "certified"
CALLBACK = f"/portal/sso/{NAME}/callback"
_ACTION = re.compile(r'action="([^"]+)"')
_HIDDEN = re.compile(r'type="hidden" name="([^"]+)" value="([^"]*)"')
pytestmark = [
    pytest.mark.campaign,
    pytest.mark.skipif(
        NODE is None or not (FOLDER / "node_modules").exists(), reason="make openid installs it"
    ),
]


@dataclass
class Browser:
    """A person at a gateway and at the provider."""

    client: httpx2.Client
    gateway: str
    installation: Installation

    def go(self, path: str, who: str) -> tuple[str, list[str]]:
        """Follow a sign-in to the callback; return it, and the pages of the provider."""
        asked: list[str] = []
        response = self.client.get(path)
        for _ in range(20):
            if not response.is_redirect:
                (action,) = _ACTION.findall(response.text)[:1]
                form = dict(_HIDDEN.findall(response.text))
                asked.append(form.get("prompt", "leaves the other session"))
                form |= {"login": who, "password": "any"}
                response = self.client.post(str(response.url.join(action)), data=form)
                continue
            url = str(response.url.join(response.headers["location"]))
            if url.startswith(self.gateway + CALLBACK):
                return url, asked
            response = self.client.get(url)
        raise AssertionError(response.text)


@contextmanager
def signed_on(tmp_path: Path, **own: object) -> Iterator[Browser]:
    """Run a gateway with the provider, with these settings, and a tenant for "tenant"."""
    port = free_port()
    gateway, issuer = f"http://{HOST}:{port}", f"http://localhost:{free_port()}"
    with running(tmp_path, port=port, settings={}) as first:
        tenant, data = first.new_tenant().tenant_id, first.data
    file = Layout(data).gateway_settings
    secret = file.parent / "client-secret"
    secret.write_text(SECRET)
    secret.chmod(0o600)
    provider = {
        "name": NAME,
        "issuer": issuer,
        "client_id": "pqkeep",
        "client_secret_file": secret.name,
        "scopes": ["openid", "email", "groups"],
        "email_domains": ["example.org"],
        **own,
        **({"tenant": tenant} if "roles" in own else {}),
    }
    file.write_text(edited(file.read_text(), {"single_sign_on": [provider]}))
    output = tmp_path / "provider"
    command: list[str | Path] = [str(NODE), PROGRAM, FOLDER, issuer, gateway + CALLBACK, SECRET]
    with processes.running(command, output) as process:
        processes.wait_until(lambda: responses(issuer), process, output)
        with (
            running(tmp_path, port=port, data=data) as installation,
            httpx2.Client(base_url=gateway, trust_env=False, timeout=PATIENCE) as client,
        ):
            yield Browser(client, gateway, installation)


@pytest.fixture
def browser(tmp_path: Path) -> Iterator[Browser]:
    """A gateway with a tenant that uses the provider, and a browser."""
    with signed_on(tmp_path, roles={"authors": "developer"}, create_members=True) as found:
        yield found


@pytest.fixture
def operators(tmp_path: Path) -> Iterator[Browser]:
    """A gateway with operators who use the provider, and a browser."""
    roles = {"root": "admin", "desk": "tenant-admin", "audit": "read-only"}
    with signed_on(tmp_path, operator_roles=roles) as found:
        yield found


def test_a_certified_provider_signs_somebody_in_and_confirms_them(browser: Browser) -> None:
    """A member gets the group's role; a step-up asks for the password again, and gives one token."""
    client = browser.client
    back, asked = browser.go(f"/portal/sso/{NAME}?next=/portal/keys", "ada")
    assert asked[0] == "login"
    assert client.get(back).headers["location"] == "/portal/keys"
    me = client.get("/api/v1/auth/me").json()["data"]
    assert (me["email"], me["role"]) == ("ada@example.org", "developer")
    assert client.get(back).headers["location"] == "/portal/sign-in?error=expired"

    origin = {"Origin": browser.gateway}
    assert client.post("/api/v1/auth/step-up", json={}, headers=origin).status_code >= 400
    again, asked = browser.go(f"/portal/sso/{NAME}?step_up=1&next=/portal/confirmed", "ada")
    assert "login" in asked
    assert client.get(again).headers["location"] == "/portal/confirmed"
    proven = client.post("/api/v1/auth/step-up", json={}, headers=origin)
    assert proven.json()["data"]["step_up_token"]
    assert client.post("/api/v1/auth/step-up", json={}, headers=origin).status_code >= 400


def test_another_person_does_not_confirm_the_first(browser: Browser) -> None:
    """A step-up accepts only the person of the session."""
    for who in ("eve", "ada"):
        browser.client.cookies.clear()
        back, _ = browser.go(f"/portal/sso/{NAME}", who)
        browser.client.get(back)
    other, _ = browser.go(f"/portal/sso/{NAME}?step_up=1&next=/portal/confirmed", "eve")
    where = browser.client.get(other).headers["location"]
    assert "error=other-person" in where


CREATE = ("POST", "/tenants")
READ = ("GET", "/installation")


def ask(browser: Browser, method: str, path: str, body: object = None) -> int:
    """Return the status of an operator's request."""
    headers = {"Origin": browser.gateway}
    return browser.client.request(method, f"/api/v1{path}", json=body, headers=headers).status_code


@pytest.mark.parametrize(
    ("who", "role", "reads", "creates"),
    [
        ("root-ada", "admin", 200, 201),
        ("desk-ada", "tenant-admin", 403, 201),
        ("audit-ada", "read-only", 200, 403),
    ],
)
def test_operators_have_their_groups_role(
    operators: Browser, who: str, role: str, reads: int, creates: int
) -> None:
    """Each role may do its part, after the certified provider asked for the password again."""
    client = operators.client
    back, asked = operators.go(f"/portal/sso/{NAME}?next=/portal/search", who)
    assert asked[0] == "login"
    assert "/operator/signed-in" in client.get(back).headers["location"]
    me = client.get("/api/v1/auth/operator").json()["data"]
    assert (me["role"], me["email"]) == (role, f"{who}@example.org")
    assert ask(operators, *READ) == reads
    assert ask(operators, *CREATE, {"name": "before"}) == (401 if creates == 201 else 403)
    again, asked = operators.go(f"/portal/sso/{NAME}?step_up=1&next=/portal/confirmed", who)
    assert "login" in asked
    assert client.get(again).headers["location"] == "/portal/confirmed"
    assert ask(operators, *CREATE, {"name": "after"}) == creates
    records = operators.installation.operator().get(
        "/audit/records", principal=f"operator:{NAME}:{who}"
    )
    outcomes = {record["operation"]: record["outcome"] for record in records["records"]}
    assert outcomes["operator-sign-in"] == outcomes["reauthenticate"] == "success"
    assert (outcomes["create-tenant"] == "success") is (creates == 201)


def test_an_operator_without_a_role_or_of_another_name_is_refused(operators: Browser) -> None:
    """A person without an operators' group gets no session, and no other person steps one up."""
    client = operators.client
    back, _ = operators.go(f"/portal/sso/{NAME}", "guest-eve")
    assert "error=no-role" in client.get(back).headers["location"]
    assert ask(operators, "GET", "/auth/operator") == 401
    client.cookies.clear()
    back, _ = operators.go(f"/portal/sso/{NAME}", "root-ada")
    client.get(back)
    other, _ = operators.go(f"/portal/sso/{NAME}?step_up=1&next=/portal/confirmed", "root-eve")
    assert "error=other-person" in client.get(other).headers["location"]
    assert ask(operators, *CREATE, {"name": "after"}) == 401
