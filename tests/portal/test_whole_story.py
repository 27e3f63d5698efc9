"""The portal's complete story: from signing up to a colleague with read access."""

from __future__ import annotations

import sqlite3
import time
import uuid
from base64 import b64encode
from contextlib import closing
from http import HTTPStatus
from urllib.parse import urlsplit

import psycopg
import pytest
from playwright.sync_api import Page, expect
from pyotp import TOTP
from tests.fixtures.browser import Visit, go_to
from tests.fixtures.caller import API, PASSWORD, Caller, client_of
from tests.fixtures.certificate import Certificate
from tests.fixtures.installation import Installation
from tests.patience import PATIENCE
from tests.portal.visitors import allowed, keep_api_key, operations_on, prove

from pqkeep_gateway import config as gateway_config
from pqkeep_gateway.access.callers import Role
from pqkeep_gateway.http.cookies import ACCESS, REFRESH
from pqkeep_server.initialise import Layout

KEYRING = "payments.cards"
CHOSEN = "another horse prefers hay"
RECORDED = (
    *("schedule-archive", "retire-key", "decrypt", "rotate-key", "encrypt", "generate-key"),
    *("create-api-key", "enable-mfa", "sign-up"),
)
PLAINTEXT = b64encode(b"written before the rotation").decode()


class Authenticator:
    """A person's authenticator app."""

    def __init__(self, installation: Installation, secret: str) -> None:
        self._database = gateway_config.read(Layout(installation.data).gateway_settings).database
        self._totp = TOTP(secret)

    def code(self) -> str:
        """Return a code that the service has not seen.

        Each code is accepted once. Instead of waiting half a minute for the next one, the test
        makes the service forget the last.
        """
        forget = "UPDATE users SET last_totp_step = 0 WHERE last_totp_step > 0"
        location = self._database.location
        if self._database.is_on_server:
            with psycopg.connect(location) as server:
                server.execute(forget)
        else:
            with closing(sqlite3.connect(location, timeout=PATIENCE)) as accounts, accounts:
                accounts.execute(forget)
        return self._totp.at(int(time.time()))


def _confirm(page: Page, app: Authenticator) -> None:
    """Answer a step-up by a code."""
    page.locator("#step-up input[name=totp_code]").fill(app.code())
    page.locator("#step-up").get_by_role("button", name="Confirm").click()


def _choose_password(page: Page, button: str) -> None:
    page.get_by_label("Password", exact=True).fill(PASSWORD)
    page.get_by_label("The same password again").fill(PASSWORD)
    page.get_by_role("button", name=button).click()
    page.wait_for_url("**/portal")


def _sign_in(page: Page, email: str, password: str) -> None:
    page.get_by_label("E-mail address").fill(email)
    page.get_by_label("Password").fill(password)
    page.get_by_role("button", name="Sign in").click()


def _sign_in_by_app(page: Page, app: Authenticator, email: str, password: str) -> None:
    _sign_in(page, email, password)
    page.locator("#sign-in-totp").fill(app.code())
    page.get_by_role("button", name="Continue").click()
    page.wait_for_url("**/portal")


def _enroll(page: Page, installation: Installation) -> Authenticator:
    """Set up an authenticator app."""
    page.get_by_role("link", name="Security").click()
    page.get_by_role("link", name="Set it up").click()
    page.get_by_role("button", name="Show the code to scan").click()
    prove(page)
    secret = page.locator("[data-result=secret]")
    expect(secret).not_to_be_empty()
    app = Authenticator(installation, secret.inner_text())
    page.get_by_label("Six digits").fill(app.code())
    page.get_by_role("button", name="Confirm").click()
    page.get_by_label("I have saved them").check()
    page.get_by_role("button", name="Done").click()
    expect(page.get_by_role("button", name="Switch it off")).to_be_visible()
    return app


def _path(link: str) -> str:
    """Return the path of a message's link, which is the same at each address of a service."""
    parts = urlsplit(link)
    return f"{parts.path}#{parts.fragment}"


def _sign_up(page: Page, installation: Installation, email: str, name: str) -> None:
    """Follow the message's link to a page that takes a name and a password."""
    page.get_by_label("E-mail address").fill(email)
    page.get_by_role("button", name="Send the link").click()
    expect(page.get_by_role("heading", name="Check your mailbox")).to_be_visible()
    go_to(page, _path(installation.mailbox.link(email, "registration")))
    page.get_by_label("Name of the organization").fill(name)
    _choose_password(page, "Create the organization")
    expect(page.locator(".where")).to_contain_text(name)


def _make_keyring(page: Page) -> None:
    """Create a keyring for one purpose, and a key in it."""
    page.get_by_role("link", name="Keyrings", exact=True).first.click()
    page.get_by_role("button", name="Create a keyring").click()
    page.get_by_label("Name", exact=False).first.fill(KEYRING)
    for each in ("sign", "verify"):
        page.locator("#create").get_by_label(each, exact=True).uncheck()
    page.locator("#create").get_by_role("button", name="Create").click()
    page.get_by_role("link", name=KEYRING).click()
    page.get_by_role("main").get_by_role("link", name="Keys", exact=True).click()
    _generate(page)


def _make_api_key(page: Page, app: Authenticator, group: str = "", keyring: str = "") -> str:
    """Create an API key, which is shown once, optionally for one group of operations."""
    page.get_by_role("link", name="API keys").click()
    page.get_by_role("button", name="Create an API key").first.click()
    if group:
        page.get_by_label("Use keys").uncheck()
        page.get_by_label(group).check()
        page.get_by_label("Only in these keyrings").fill(keyring)
    page.locator("#create").get_by_role("button", name="Create").click()
    _confirm(page, app)
    expect(page.locator("#made")).to_be_visible()
    made = page.locator('[data-made="key"] code').inner_text()
    keep_api_key(page)
    expect(page.get_by_role("row", name=f"…{made[-4:]}")).to_be_visible()
    assert made not in page.content()
    return made


def _generate(page: Page) -> None:
    page.get_by_role("button", name="Generate a key").first.click()
    page.get_by_role("button", name="Generate", exact=True).click()
    expect(page.get_by_role("row", name="Kyber768 v1")).to_contain_text("active")


def _begin_rotation(page: Page) -> None:
    page.get_by_role("link", name="Kyber768 v1").click()
    page.get_by_role("button", name="Rotate", exact=True).click()
    page.locator("#rotate-Kyber768").get_by_role("button", name="Rotate", exact=True).click()


def _retire_and_archive(page: Page, app: Authenticator) -> None:
    """Retire the new version, and archive the old one."""
    go_to(page, "/portal/keys/Kyber768/2")
    page.get_by_role("button", name="Retire", exact=True).click()
    page.get_by_label("Type Kyber768 v2 to confirm").fill("Kyber768 v2")
    page.keyboard.press("Enter")
    expect(page.locator("dl").first).to_contain_text("retired")
    go_to(page, "/portal/keys/Kyber768/1")
    page.get_by_role("button", name="Schedule destruction", exact=True).click()
    expect(page.locator("#archive")).to_contain_text("It was used 2 times")
    page.get_by_label("Type Kyber768 v1 to confirm").fill("Kyber768 v1")
    page.keyboard.press("Enter")
    _confirm(page, app)
    expect(page.get_by_role("note")).to_contain_text("Its private key is destroyed in 7 days")


def _audit(page: Page, installation: Installation, email: str) -> None:
    """The log has all of it, and the browser verifies a record."""
    page.get_by_role("link", name="Audit log", exact=True).click()
    records = page.get_by_role("table").first
    for operation in RECORDED:
        expect(records.get_by_role("cell", name=operation, exact=True).first).to_be_visible()
    row = records.get_by_role("row", name="schedule-archive").filter(has_text=email)
    row.get_by_role("link").click()
    verified = page.get_by_text("verified: it is in the log")
    missing = page.get_by_text("No checkpoint covers this record yet")
    expect(verified.or_(missing)).to_be_visible()
    if missing.is_visible():
        installation.operator().post("/audit/checkpoints", status=201)
        page.get_by_role("button", name="Check again").click()
    expect(verified).to_be_visible()


def _change_password(page: Page, app: Authenticator) -> None:
    page.get_by_role("link", name="Security").click()
    page.get_by_role("button", name="Change the password").click()
    page.locator("#change-password [name=new_password]").fill(CHOSEN)
    page.locator("#change-password [name=again]").fill(CHOSEN)
    page.get_by_role("button", name="Change it").click()
    _confirm(page, app)
    page.wait_for_url("**/portal/sign-in")


def _invite(page: Page, app: Authenticator, email: str) -> None:
    page.get_by_role("link", name="Team").click()
    page.get_by_role("button", name="Invite a member").click()
    page.locator("#invite-email").fill(email)
    page.get_by_role("dialog").get_by_label("Role").select_option("viewer")
    page.get_by_role("button", name="Invite", exact=True).click()
    _confirm(page, app)
    expect(page.get_by_role("cell", name=f"Select {email}")).to_be_visible()


def _look_around(page: Page) -> None:
    """A viewer's pages have no form for a forbidden operation."""
    links = page.locator("nav[aria-label=Portal] a")
    paths = links.evaluate_all("all => all.map((each) => each.getAttribute('href'))")
    assert "/portal/keys" in paths
    assert "/portal/team" not in paths
    for path in (*paths, "/portal/keys/Kyber768/2"):
        response = go_to(page, path)
        assert response is not None
        assert response.status == HTTPStatus.OK
        found = operations_on(response.text())
        assert found == allowed(Role.VIEWER, found)


@pytest.fixture
def address(request: pytest.FixtureRequest, installation: Installation) -> str:
    """The service's address for people and programs: loopback HTTP, or HTTPS."""
    if request.param == "http":
        return installation.base_url
    return str(request.getfixturevalue("secured_gateway"))


@pytest.mark.parametrize(
    ("installation", "address"),
    [
        ("sqlite", "http"),
        pytest.param("sqlite", "https", marks=pytest.mark.campaign),
        pytest.param("postgresql", "http", marks=pytest.mark.campaign),
    ],
    indirect=True,
)
def test_the_whole_story(
    visit: Visit, installation: Installation, address: str, certificate: Certificate
) -> None:
    """All tasks of people with their keys from the first day on, in order."""
    email, invited = (f"{uuid.uuid4()}@example.com" for _ in range(2))
    name = f"story {uuid.uuid4()}"
    options = {"ignore_https_errors": True} if address.startswith("https:") else {}
    owner, elsewhere, viewer = (visit(address, **options) for _ in range(3))
    owner.expected += ["404", "401"]  # before a checkpoint; the second factor
    elsewhere.expected.append("401")
    page = owner.open("/portal/sign-up")
    _sign_up(page, installation, email, name)
    app = _enroll(page, installation)

    def program_with(api_key: str) -> Caller:
        client = client_of(address, api_key, certificate.client())
        return Caller(installation.clients.enter_context(client))

    program = program_with(_make_api_key(page, app))

    page.get_by_role("link", name="Keys", exact=True).click()
    _generate(page)
    encrypted = program.post("/kem/encrypt", {"plaintext": PLAINTEXT})
    _begin_rotation(page)  # the proof for the API key covers it
    expect(page.locator("dl").first).to_contain_text("retired")
    fields = {"ciphertext": encrypted["ciphertext"], "key_version": 1}
    assert program.post("/kem/decrypt", fields)["plaintext"] == PLAINTEXT
    _retire_and_archive(page, app)
    assert program.refusal("/kem/decrypt", fields)[0] == HTTPStatus.NOT_FOUND
    _audit(page, installation, email)

    _make_keyring(page)
    writer = program_with(_make_api_key(page, app, "Encrypt only", KEYRING))
    written = writer.post("/kem/encrypt", {"plaintext": PLAINTEXT, "keyring": KEYRING})
    reads = {"ciphertext": written["ciphertext"], "key_version": 1, "keyring": KEYRING}
    assert program.post("/kem/decrypt", reads)["plaintext"] == PLAINTEXT
    assert writer.refusal("/kem/decrypt", reads)[0] == HTTPStatus.FORBIDDEN
    assert writer.refusal("/kem/encrypt", {"plaintext": PLAINTEXT})[0] == HTTPStatus.FORBIDDEN

    other = elsewhere.open("/portal/sign-in")
    _sign_in_by_app(other, app, email, PASSWORD)
    _change_password(page, app)
    other.get_by_role("link", name="Team").click()
    other.wait_for_url("**/portal/sign-in?next=*")

    _sign_in_by_app(page, app, email, CHOSEN)
    _invite(page, app, invited)
    page = viewer.open(_path(installation.mailbox.link(invited, "invitation")))
    _choose_password(page, "Join")
    expect(page.locator(".where")).to_contain_text(name)
    _look_around(page)


@pytest.mark.campaign
def test_the_story_begins_over_https(
    visit: Visit, installation: Installation, secured_gateway: str
) -> None:
    """With secure cookies: keys, a keyring, a trial, an API key, a step-up, and a sign-out."""
    email = f"{uuid.uuid4()}@example.com"
    installation.person(installation.new_tenant().tenant_id, email=email)
    visitor = visit(secured_gateway, ignore_https_errors=True, asks_proof=True)
    page = visitor.open("/portal/keys")
    page.wait_for_url("**/portal/sign-in?next=%2Fportal%2Fkeys")
    _sign_in(page, email, PASSWORD)
    page.wait_for_url("**/portal/keys")
    cookies = {each["name"]: each for each in visitor.context.cookies()}
    assert cookies[ACCESS]["secure"]
    assert cookies[REFRESH]["secure"]
    assert cookies[REFRESH]["path"] == f"{API}/auth/refresh"
    _generate(page)
    _begin_rotation(page)
    prove(page)
    expect(page.locator("dl").first).to_contain_text("retired")
    _make_keyring(page)
    page.get_by_role("link", name="Try it").click()
    page.locator("#encrypt-plaintext").fill("over https")
    page.get_by_role("button", name="Encrypt", exact=True).click()
    page.get_by_role("button", name="Decrypt it").click()
    page.get_by_role("button", name="Decrypt", exact=True).click()
    expect(page.locator("[data-result-of=decrypt] code")).to_have_text("over https")
    page.get_by_role("link", name="API keys").click()
    page.get_by_role("button", name="Create an API key").first.click()
    page.locator("#create").get_by_role("button", name="Create").click()
    prove(page)
    expect(page.locator("#made")).to_be_visible()
    lines = page.locator('[data-made="environment"] code').inner_text()
    assert lines.startswith(f"export PQKEEP_URL={secured_gateway}\n")
    keep_api_key(page)
    page.get_by_role("link", name="Audit log", exact=True).click()
    page.get_by_role("row", name="create-api-key").get_by_role("link").last.click()
    expect(page.get_by_text("verified: it is in the log")).to_be_visible()
    visitor.context.clear_cookies(name=ACCESS)
    page.get_by_role("link", name="Keys", exact=True).click()
    page.wait_for_url("**/portal/keys")
    page.get_by_role("button", name="Sign out").click()
    page.wait_for_url("**/portal/sign-in")
    assert visitor.context.cookies() == []
