"""Forms before their page's modules have run: no typed value gets into an address."""

from __future__ import annotations

import re
from collections.abc import Iterator
from html.parser import HTMLParser
from http import HTTPStatus
from pathlib import Path
from urllib.parse import urlsplit

import httpx2
import pytest
from playwright.sync_api import Page as Tab
from playwright.sync_api import Request, Route, expect
from tests.fixtures.browser import Visit, Visitor
from tests.fixtures.caller import PASSWORD, Caller
from tests.fixtures.installation import Installation, running
from tests.patience import PATIENCE
from tests.portal.example import trust
from tests.portal.visitors import cookies_of, get_page
from tests.sampling import sampled, step

from pqkeep_gateway.portal.app import PAGES
from pqkeep_gateway.portal.pages import ROOT
from pqkeep_gateway.portal.views.entering import DEMO, NEEDS_JAVASCRIPT

LANGUAGE = f"{ROOT}/language/"
WITH_FIELDS = 'form[method=post]:not([action*="/language/"])'
ACTION = ROOT + NEEDS_JAVASCRIPT.path
SECRET = "s3cret-that-nobody-may-see"  # noqa: S105 - what the tests type
SECRET_FIELDS = re.compile(r"password|code|secret|token|(operator|api)_key|credential|proof|email")
HASH = "#" + "x" * 43
LEADS_ELSEWHERE = {"/resume"}
LINKED = {"/invitation": HASH, "/registration": HASH, "/reset-password": HASH}


class Forms(HTMLParser):
    """A page's forms: their attributes, field names and buttons."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.forms: list[dict[str, str | None]] = []
        self.fields: list[list[str]] = []
        self.buttons: list[list[dict[str, str | None]]] = []
        self._is_in_form = False
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note a form, a field or a button."""
        found = dict(attrs)
        if tag == "form":
            self.forms.append(found)
            self.fields.append([])
            self.buttons.append([])
            self._is_in_form = True
        elif self._is_in_form and tag in {"input", "select", "textarea"}:
            self.fields[-1] += [found.get("name") or "", found.get("type") or ""]
            if found.get("type") in {"submit", "image"}:
                self.buttons[-1].append(found)
        elif self._is_in_form and tag == "button" and found.get("type") != "button":
            self.buttons[-1].append(found)
        assert "formaction" not in found
        assert "formmethod" not in found

    def handle_endtag(self, tag: str) -> None:
        """Note the end of a form."""
        if tag == "form":
            self._is_in_form = False


@pytest.fixture(scope="module")
def installation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    """An installation with an access log."""
    with running(tmp_path_factory.mktemp("logged"), settings={"access_log": True}) as started:
        yield started


@pytest.fixture(scope="module")
def people(installation: Installation) -> dict[str, Caller]:
    """A person at a second factor, an owner, an operator, and an anonymous visitor."""
    tenant = installation.new_tenant()
    for algorithm in ("Kyber768", "Dilithium3"):
        tenant.post("/kms/keys/generate", {"algorithm": algorithm}, status=201)
    tenant.post("/kms/keys/rotate", {"algorithm": "Kyber768"}, status=201)
    owner = installation.person(tenant.tenant_id, email="forms@example.com")
    installation.person(tenant.tenant_id, "viewer")
    invited = {"email": "invited-forms@example.com", "role": "viewer"}
    owner.post_proven(f"/tenants/{tenant.tenant_id}/invitations", invited, status=201)
    hook = {"name": "on-call", "url": "https://hooks.example.com/"}
    owner.post_proven("/webhooks", hook, status=201)
    trust(owner)
    owner.post("/auth/login", {"email": "forms@example.com", "password": PASSWORD})
    operator = installation.caller(None, tenant.tenant_id)
    operator.post("/auth/operator", {"operator_key": installation.ready["operator_key"]})
    return {"owner": owner, "operator": operator, "": installation.caller(None, tenant.tenant_id)}


def _paths(who: str, caller: Caller) -> list[str]:
    found = []
    for page in (*PAGES, DEMO):
        whose = "" if page.is_public else "operator" if page.is_operators else "owner"
        if whose == who and page.path not in LEADS_ELSEWHERE:
            values = {"algorithm": "Kyber768", "version": "1", "name": "default"}
            values["id"] = caller.tenant_id if page.is_operators else "1"
            if "{webhook}" in page.path:
                values["webhook"] = caller.get("/webhooks")["webhooks"][0]["id"]
            path = re.sub(r"{(\w+)}", lambda name: values[name[1]], page.path)  # noqa: B023
            found.append(ROOT + path + LINKED.get(page.path, ""))
    return found


@pytest.mark.threat("page-addresses")
@pytest.mark.parametrize("who", ["", "owner", "operator"])
def test_every_form_is_a_post_or_a_filter(people: dict[str, Caller], who: str) -> None:
    """Only filters put fields into the address. No button works before its module is loaded."""
    seen = 0
    for path in _paths(who, people[who]):
        response = get_page(people[who], path.partition("#")[0])
        assert response.status_code in {HTTPStatus.OK, HTTPStatus.NOT_FOUND}, path
        page = Forms(response.text)
        for form, fields, buttons in zip(page.forms, page.fields, page.buttons, strict=True):
            if form.get("method") == "get":
                assert {"filters", "list-search"} & set(str(form["class"]).split()), (path, form)
                assert not [each for each in fields if SECRET_FIELDS.search(each)], (path, form)
                continue
            seen += 1
            assert form.get("method") == "post", (path, form)
            if str(form.get("action")).startswith(LANGUAGE) and not fields:
                continue  # it has no fields, and works without modules
            assert form.get("action") == ACTION, (path, form)
            assert buttons or not fields, (path, form)
            assert all("disabled" in each for each in buttons), (path, form)
    assert seen


@pytest.mark.parametrize("path", ["/docs", "/docs/login", "/docs/create_api_key"])
def test_the_reference_has_no_forms(installation: Installation, path: str) -> None:
    """The reference's pages have no field that could be sent."""
    response = httpx2.get(installation.base_url + path, timeout=PATIENCE)
    assert response.is_success
    assert not Forms(response.text).forms


@pytest.mark.threat("page-addresses")
@pytest.mark.parametrize("who", ["", "owner", "operator"])
def test_without_javascript_no_secret_gets_into_an_address(
    visit: Visit, installation: Installation, people: dict[str, Caller], who: str
) -> None:
    """A form's button is disabled. If it is sent anyway, a page says what is missing."""
    visitor = visit(installation.base_url, java_script_enabled=False)
    visitor.expected.append("404")
    asked = _requests(visitor)
    tab = visitor.context.new_page()
    sent = 0
    for path in _paths(who, people[who])[:: step(3)]:
        if who:
            visitor.context.add_cookies(cookies_of(people[who]))
        tab.goto(path)
        count = tab.locator(WITH_FIELDS).count()
        if count:
            tab.evaluate(f"document.querySelectorAll(`{WITH_FIELDS}`).forEach({_FILL})")
            tab.keyboard.press("Enter")
            assert urlsplit(tab.url).path == path.partition("#")[0]
        for number in range(min(count, 1 if who else 4)):
            tab.goto(path)
            tab.evaluate(f"({_FILL})(document.querySelectorAll(`{WITH_FIELDS}`)[{number}])")
            form = tab.locator(WITH_FIELDS).nth(number)
            with tab.expect_navigation():
                form.evaluate("each => HTMLFormElement.prototype.submit.call(each)")
            _assert_says_so(tab, installation)
            sent += 1
    assert sent
    _assert_nowhere(asked, installation)


_FILL = f"""(form) => {{
  for (const each of form.querySelectorAll("input, textarea"))
    if (each.type !== "file" && each.type !== "checkbox" && each.type !== "radio") {{
      if (each.type === "date") each.value = "2099-01-31";
      else each.value = "{SECRET}";
    }}
}}"""


def _requests(visitor: Visitor) -> list[Request]:
    asked: list[Request] = []
    visitor.context.on("request", lambda request: asked.append(request))  # noqa: PLW0108 - no built-in
    return asked


def _assert_says_so(tab: Tab, installation: Installation) -> None:
    assert tab.url == installation.base_url + ACTION
    assert tab.locator("h1").inner_text() == "This form needs JavaScript"
    assert SECRET not in tab.content()


def _assert_nowhere(asked: list[Request], installation: Installation) -> None:
    """Check that typed values are in no address, referrer or log line."""
    assert any(each.method == "POST" and SECRET in (each.post_data or "") for each in asked)
    for each in asked:
        assert SECRET not in each.url
        assert SECRET not in each.headers.get("referer", "")
    assert '"method": "POST"' in installation.output
    for file in (installation.output_file, *Path(installation.data).rglob("*.log")):
        assert SECRET not in file.read_text()


SLOW = (
    "operator-sign-in.js",
    "sign-in-page.js",
    "sign-in.js",
    "fields.js",
    "forms.js",
    "portal.js",
)


@pytest.mark.threat("page-addresses")
@pytest.mark.usefixtures("people")
@pytest.mark.parametrize("slow", sampled(SLOW, 3))
def test_on_a_slow_network_a_form_waits_for_its_module(
    visit: Visit, installation: Installation, slow: str
) -> None:
    """Until a module has loaded nothing is sent; then the form works with the typed values."""
    is_operator = slow == "operator-sign-in.js"
    visitor = visit(installation.base_url, is_fresh=True)
    asked, held = _requests(visitor), list[Route]()
    tab = visitor.context.new_page()
    tab.route(re.compile(f"/{slow}$"), lambda route: held.append(route))  # noqa: PLW0108 - no built-in
    path = f"{ROOT}/operator/sign-in" if is_operator else f"{ROOT}/sign-in"
    tab.goto(path, wait_until="commit")
    secret = tab.get_by_label("Operator credential" if is_operator else "Password")
    value = installation.ready["operator_key"] if is_operator else PASSWORD
    if not is_operator:
        tab.get_by_label("E-mail address").fill("forms@example.com")
    secret.fill(value)
    button = tab.get_by_role("button", name="Sign in")
    expect(button).to_be_disabled()
    secret.press("Enter")
    expect(tab.get_by_text("This page is still loading.")).to_be_visible()
    assert tab.url == installation.base_url + path
    while not held:
        tab.wait_for_timeout(20)
    for route in held:
        route.continue_()
    tab.unroute_all()
    expect(button).to_be_enabled()
    expect(tab.get_by_text("This page is still loading.")).to_be_hidden()
    expect(secret).to_have_value(value)
    secret.press("Enter")
    expect(tab.get_by_role("button", name="Sign out")).to_be_visible()
    for each in asked:
        assert value not in each.url
        assert value not in each.headers.get("referer", "")
    lines = [each for each in installation.output.splitlines() if each.startswith("{")]
    assert value not in "".join(lines)


def test_a_module_that_never_comes_leaves_the_form_disabled(
    visit: Visit, installation: Installation, people: dict[str, Caller]
) -> None:
    """Without the module that reads its scopes, no unrestricted API key can be created."""
    visitor = visit(installation.base_url, is_fresh=True)
    visitor.expected.append("ERR_FAILED")
    visitor.context.add_cookies(cookies_of(people["owner"]))
    tab = visitor.context.new_page()
    tab.route(re.compile(r"/api-keys\.js$"), lambda route: route.abort())
    tab.goto(f"{ROOT}/api-keys")
    expect(tab.get_by_text("A part of this page could not be loaded.")).to_be_visible()
    tab.get_by_role("button", name="Create an API key").click()
    expect(tab.get_by_role("button", name="Create", exact=True)).to_be_disabled()


FORM = {"Content-Type": "application/x-www-form-urlencoded"}


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, HTTPStatus.SEE_OTHER),
        ({"Sec-Fetch-Site": "same-origin"}, HTTPStatus.SEE_OTHER),
        ({"Sec-Fetch-Site": "cross-site"}, HTTPStatus.FORBIDDEN),
        ({"Sec-Fetch-Site": "same-site"}, HTTPStatus.FORBIDDEN),
        ({"Origin": "https://example.org"}, HTTPStatus.FORBIDDEN),
    ],
)
def test_a_form_of_another_site_is_refused(
    installation: Installation, headers: dict[str, str], status: int
) -> None:
    """The address accepts forms of its own pages only. No response quotes a form's values."""
    response = httpx2.post(
        installation.base_url + ACTION,
        content=f"password={SECRET}",
        headers={**FORM, **headers},
        timeout=PATIENCE,
    )
    assert response.status_code == status
    assert response.headers["Cache-Control"] == "no-store"
    assert SECRET not in response.text
    assert SECRET not in str(response.headers)
    assert "Set-Cookie" not in response.headers


def test_a_large_form_is_not_kept(installation: Installation) -> None:
    """A form of 16 MiB gets the response of a small one: its body is not kept in memory."""
    response = httpx2.post(
        installation.base_url + ACTION,
        content=b"password=" + b"x" * (16 << 20),
        headers=FORM,
        timeout=PATIENCE,
    )
    assert response.status_code == HTTPStatus.SEE_OTHER


def test_other_pages_take_no_forms(installation: Installation) -> None:
    """A POST to any other page is 405 with the allowed methods."""
    for path in ("/portal/sign-in", "/portal", "/portal/none"):
        response = httpx2.post(installation.base_url + path, content="a=b", headers=FORM)
        assert (response.status_code, response.headers["Allow"]) == (405, "GET, HEAD")
    response = httpx2.put(installation.base_url + ACTION, content="a=b", headers=FORM)
    assert (response.status_code, response.headers["Allow"]) == (405, "GET, HEAD, POST")
