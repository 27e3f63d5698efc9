"""Attacks on the portal: by values, links, other pages, a stolen cookie, and size."""

from __future__ import annotations

import json
import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from urllib.parse import quote, urlsplit

import httpx2
import pytest
from playwright.sync_api import Page, Route, expect
from tests.connections.conftest import Client
from tests.contract.rows import api_rows
from tests.contract.test_stolen_cookie import ALLOWED
from tests.fixtures.browser import go_to
from tests.fixtures.caller import API, PASSWORD, TLS, Caller
from tests.fixtures.installation import Installation
from tests.patience import PATIENCE
from tests.portal.conftest import SignedIn
from tests.portal.visitors import get_page
from tests.sampling import step

from pqkeep_gateway.http.cookies import ACCESS, Cookies
from pqkeep_server.initialise import Layout

SCRIPT = "<script>window.ran=1</script>"
IMAGE = "\"'><img src=x onerror=window.ran=1>"
LINK = "javascript:window.ran=1"
ANY = SCRIPT + IMAGE + LINK + "{{7*7}}${7*7}"
LOCAL_PART = "'-{{7*7}}-`${x}`-"
"""The part of it that an e-mail address may have."""
PAGES = {
    "": ("period",),
    "/keyrings": ("q", "sort", "from"),
    "/keyrings/hostile": (),
    "/keys": ("keyring", "algorithm", "status", "after"),
    "/keys/Kyber768/1": ("keyring", "operation", "after"),
    "/api-keys": ("status", "after"),
    "/try": ("do", "keyring"),
    "/audit": (
        "operation",
        "keyring",
        "outcome",
        "principal",
        "key_version",
        "before",
        "from",
        "to",
    ),
    "/audit/1": (),
    "/team": ("name", "after"),
    "/team/invitations": ("q", "sort", "from"),
    "/security": ("after",),
    "/workloads": ("issuer", "role"),
}
PUBLIC = {"/sign-in": ("next", "error"), "/resume": ("next",), "/confirmed": (), "/sign-up": ()}
"""Pages, with the query fields that they read."""
VALUES = (
    *("%00", "%ff", "%", "-1", "0", "1e5", "%D9%A3", "%0d%0aX:%20y", "&&&;=", "%F0%9F%98%80"),
    *("%E2%80%AE%E2%80%8B", "2147483648", "999999999999999", "9999999999999999", "x" * 2000),
)
ANSWERED = {
    HTTPStatus.OK,
    HTTPStatus.BAD_REQUEST,
    HTTPStatus.NOT_FOUND,
    HTTPStatus.UNPROCESSABLE_ENTITY,
}
ELSEWHERE = [
    "https://example.org/portal",
    "//example.org/portal",
    "///example.org/portal",
    "/\\example.org/portal",
    "\\\\example.org\\portal",
    "/\t/example.org/portal",
    "\t//example.org/portal",
    "/\n/example.org/portal",
    "/portal/..//example.org",
    "/portal/../..//example.org/portal",
    "/portal/%2e%2e//example.org",
    "/portal/.%2E/\\example.org",
    "/portal/\\..\\..\\example.org",
    "/portal@example.org",
    "/portal.example.org",
    "//127.0.0.1@example.org/portal",
    "//example.org:80\\@127.0.0.1/portal",
    "javascript:window.ran=1",
    "java\nscript:window.ran=1",
    "data:text/html,<script>window.ran=1</script>",
    "/api/v1/auth/logout",
    "//[",
    "\u202e/portal",
    "http:example.org/portal",
]
"""Addresses that ``next`` must not lead to."""
HOSTILE = b"""<!doctype html><title>hostile</title><iframe src="TARGET/portal"></iframe>
<form id=text method=post enctype="text/plain" action="TARGET/api/v1/kms/keys/generate">
<input name='{"algorithm":"Kyber768","x":"' value='"}'></form>
<form id=logout method=post action="TARGET/api/v1/auth/logout"></form>
<form id=page method=post action="TARGET/portal/keys"><input name=algorithm value=Kyber768></form>"""


@dataclass(frozen=True)
class World:
    """A tenant with hostile values, its owner, and the owner's address."""

    installation: Installation
    tenant: Caller
    owner: Caller
    email: str


@pytest.fixture(scope="module")
def world(installation: Installation) -> World:
    """Markup in every value that a caller chooses and a page shows."""
    made = installation.operator().post(
        "/tenants", {"name": ANY, "plan": "enterprise_plus"}, status=201
    )
    credential = installation.operator().post(f"/tenants/{made['id']}/api-keys", status=201)
    tenant = installation.caller(credential["api_key"], made["id"])
    tenant.post("/kms/keys/generate", {"algorithm": "Kyber768"}, status=201)
    tenant.client.headers["X-Request-ID"] = SCRIPT + IMAGE
    tenant.post("/kem/encrypt", {"plaintext": "QUJD"})
    tenant.refusal("/kem/encrypt", {"plaintext": "QUJD", ANY: ANY})
    email = f"{LOCAL_PART}@example.com"
    owner = installation.person(made["id"], email=email)
    installation.person(made["id"], "viewer", "another" + email)
    owner.post_proven(
        f"/tenants/{made['id']}/invitations",
        {"email": "invited" + email, "role": "viewer"},
        status=201,
    )
    workloads = f"/tenants/{made['id']}/workloads"
    trusted = {"url": "https://issuer.example.com", "audience": ANY, "algorithms": ["RS256"]}
    owner.ask_proven("PUT", f"{workloads}/issuers/ci", trusted).raise_for_status()
    role = {"issuer": "ci", "claims": {ANY: ANY}, "scopes": [{"operations": ["use"]}]}
    owner.ask_proven("PUT", f"{workloads}/roles/ci", role).raise_for_status()
    for agent in (SCRIPT, f"Mozilla/5.0 {IMAGE} Firefox/1 Linux", LINK):
        again = installation.caller(None)
        again.client.headers["User-Agent"] = agent
        again.post("/auth/login", {"email": email, "password": PASSWORD})
    return World(installation, tenant, owner, email)


def _with_cookie(world: World, **headers: str) -> httpx2.Client:
    """Return a client with only the owner's access cookie."""
    cookie = f"{ACCESS}={world.owner.client.cookies[ACCESS]}"
    return httpx2.Client(
        base_url=world.installation.base_url,
        headers={"Cookie": cookie, **headers},
        verify=TLS,
        timeout=PATIENCE,
    )


def _assert_nothing_ran(page: Page) -> None:
    """Check that no value became an element, an attribute or code."""
    assert page.evaluate("window.ran") is None
    assert (
        page.locator("img[src=x], script:not([src]), [onerror], [href^='javascript:']").count() == 0
    )


@pytest.mark.threat("hostile-page")
def test_stored_values_are_text_even_without_a_policy(world: World, visit_as: SignedIn) -> None:
    """Even without the browser's policy, no stored value runs on any page."""
    visitor = visit_as(world.owner, bypass_csp=True)
    page = visitor.open("/portal/security")
    expect(page.get_by_role("heading", name=f"Leave {ANY}")).to_be_visible()
    encrypted = world.owner.get("/audit/records", operation="encrypt")["records"][-1]["id"]
    filled = "/workloads?issuer=ci&role=ci"
    for path in (
        *("", "/keys/Kyber768/1", "/api-keys", "/audit", f"/audit/{encrypted}", "/team"),
        filled,
    ):
        go_to(page, f"/portal{path}")
        assert ANY in page.locator(".where").inner_text()
        assert world.email in page.locator("span.who").first.inner_text()
        _assert_nothing_ran(page)
        assert "49" not in page.locator(".where").inner_text()


def test_an_operator_is_shown_text(world: World) -> None:
    """Tenants' names are escaped on the operator's pages too."""
    installation = world.installation
    operator = installation.caller(None)
    fields = {"operator_key": installation.operator().api_key}
    operator.post("/auth/operator", fields)
    for path in ("", "/tenants?name=window.ran", f"/tenants/{world.tenant.tenant_id}"):
        page = get_page(operator, f"/portal/operator{path}")
        assert page.status_code == HTTPStatus.OK
        assert "<script>window" not in page.text
        assert "<img src=x" not in page.text
    assert "&lt;script&gt;window" in page.text


def test_fields_hide_nothing_that_forms_are_asked_for(world: World, visit_as: SignedIn) -> None:
    """No field name or id hides a property that the modules use."""
    page = visit_as(world.owner).open("/portal/team")
    for path in (
        *("/team", "/security", "/keys/Kyber768/1", "/api-keys", "/workloads", "/try"),
        "/sign-in",
    ):
        go_to(page, f"/portal{path}")
        names = page.evaluate(
            "[...document.forms].flatMap((form) => [...form.elements])"
            ".flatMap((each) => [each.name, each.id]).filter((name) => name)"
            ".filter((name) => name in HTMLFormElement.prototype || name in document)"
        )
        assert set(names) <= {"name", "role"}  # which no module asks a form for


def test_what_an_answer_says_is_text(world: World, visit_as: SignedIn) -> None:
    """Markup in a response is shown as text, and its field name selects nothing."""
    fields = ["__proto__", "constructor", '"], *, [a="', "algorithm"]
    visitor = visit_as(world.owner, bypass_csp=True)
    visitor.expected.append("422")
    page = visitor.open("/portal/keys/Kyber768/1")

    def respond(route: Route) -> None:
        error = {"error_code": ANY, "message": f"{fields[0]} {ANY}", "field": fields[0]}
        route.fulfill(status=422, json={"error": error, "__proto__": {"ran": 1}})

    page.route("**/kms/keys/retire", respond)
    page.get_by_role("button", name="Retire", exact=True).click()
    page.get_by_label("Type Kyber768 v1 to confirm").fill("Kyber768 v1")
    while fields:
        page.keyboard.press("Enter")
        expect(page.locator("#retire .form-error")).to_have_text(f"{fields[0]} {ANY}")
        _assert_nothing_ran(page)
        fields.pop(0)
    assert page.evaluate("({}).ran") is None


def test_queries_and_paths_are_text_even_without_a_policy(world: World, visit_as: SignedIn) -> None:
    """Even without the policy, nothing from an address runs on its page."""
    visitor = visit_as(world.owner, bypass_csp=True)
    visitor.expected.append("404|422|400")
    page = visitor.open("/portal/try")
    for path, names in (*PAGES.items(), *PUBLIC.items()):
        if names and path != "/resume":  # which would take the session of the other tests
            query = "&".join(f"{name}={quote(ANY)}" for name in names)
            go_to(page, f"/portal{path}?{query}")
            _assert_nothing_ran(page)
    go_to(page, f"/portal/{quote(ANY, safe='')}/{quote(IMAGE)}")
    _assert_nothing_ran(page)


def test_no_query_or_path_makes_a_page_fail(world: World) -> None:
    """Each page accepts any value in its path and query without a fault.

    Usually each page has a value in one of five fields, and one page in five has a value at all.
    """
    pages = (*PAGES.items(), *PUBLIC.items())
    with _with_cookie(world) as client:
        for place, value in enumerate(VALUES):
            for path, names in pages[place % step(5) :: step(5)]:
                query = "&".join(f"{name}={value}" for name in names)
                assert client.get(f"/portal{path}?{query}").status_code in ANSWERED, (path, value)
            for path in ("/keys/{}/1", "/keys/Kyber768/{}", "/audit/{}", "/{}", "/sso/{}"):
                response = client.get("/portal" + path.format(value))
                assert response.status_code == HTTPStatus.NOT_FOUND, (path, value)


@pytest.mark.threat("hostile-page")
def test_no_next_leads_out_of_the_portal(installation: Installation, visit_as: SignedIn) -> None:
    """The entrance accepts only pages of the portal, in any spelling."""
    person = installation.person(installation.new_tenant().tenant_id, "viewer")
    visitor = visit_as(person)
    page = visitor.open("/portal/sign-in")
    module = page.locator("script[src*=sign-in-page]").get_attribute("src") or ""
    found = page.evaluate(
        """async ([module, all]) => {
            const { nextPage } = await import(module);
            return all.map((next) => {
                history.replaceState(null, "", `?next=${encodeURIComponent(next)}`);
                return nextPage();
            });
        }""",
        [module.replace("sign-in-page", "next-page"), [*ELSEWHERE, "/portal/keys?status=active"]],
    )
    assert found.pop() == "/portal/keys?status=active"
    for wanted, path in zip(ELSEWHERE, found, strict=True):
        assert re.fullmatch(r"/portal(/.*)?", path), wanted
        assert ".." not in path
    go_to(page, "/portal/resume?next=//example.org/portal")
    page.wait_for_url(re.compile(r"^http://127\.0\.0\.1:\d+/portal$"))


def test_a_redirect_is_short_and_stays(installation: Installation) -> None:
    """For any requested path, the redirect leads to this service's entrance."""
    address = urlsplit(installation.base_url)
    paths = ("/portal//example.org", "//example.org/portal", "/portal/keys?" + "a=b&" * 3000)
    for path in (
        *paths,
        "/\\example.org/portal",
        "/portal/%0d%0aLocation:%20x",
        "/portal/audit/%2F",
    ):
        with Client(address.port or 0) as client:
            response = client.ask(f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        assert response.status < HTTPStatus.INTERNAL_SERVER_ERROR
        location = response.headers.get("location", "/portal/")
        assert location.startswith("/portal/")
        assert len(location) < 4096


@pytest.fixture(scope="module")
def hostile_origin(installation: Installation) -> Iterator[str]:
    """A page at another port of the same host: browsers send it the same cookies."""
    content = HOSTILE.replace(b"TARGET", installation.base_url.encode())

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(HTTPStatus.OK)
            self.send_header("Content-Type", "text/html")
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}/"
        server.shutdown()


@pytest.mark.threat("hostile-page")
def test_another_page_frames_reads_and_changes_nothing(
    installation: Installation, visit_as: SignedIn, hostile_origin: str
) -> None:
    """A page of the same site with the owner's cookies gets no frame, response or change."""
    tenant = installation.new_tenant()
    owner = installation.person(tenant.tenant_id)
    visitor = visit_as(owner)
    visitor.expected += ["a request to another host", "on the console"]
    page = visitor.context.new_page()
    go_to(page, hostile_origin)
    assert [each.url for each in page.frames[1:]] == ["chrome-error://chromewebdata/"]
    got = page.evaluate(
        """async (target) => {
            const body = JSON.stringify({ algorithm: "Kyber768" });
            const ask = (path, options) =>
                fetch(target + path, { credentials: "include", ...options })
                    .then((answer) => answer.type, () => "refused");
            const path = "/api/v1/kms/keys/generate";
            const json = { "Content-Type": "application/json" };
            const key = { "X-API-Key": "x" };
            return {
                plain: await ask(path, { method: "POST", mode: "no-cors", body }),
                json: await ask(path, { method: "POST", headers: json, body }),
                beacon: navigator.sendBeacon(target + path, body),
                logout: await ask("/api/v1/auth/logout", { method: "POST", mode: "no-cors" }),
                refresh: await ask("/api/v1/auth/refresh", { method: "POST", mode: "no-cors" }),
                read: await ask("/api/v1/auth/me", {}),
                page: await ask("/portal/team", {}),
                embedded: await ask("/portal/team", { mode: "no-cors" }),
                header: await ask("/api/v1/auth/me", { headers: key }),
            };
        }""",
        installation.base_url,
    )
    assert [name for name, how in got.items() if how not in ("refused", "opaque", True)] == []
    assert {got[each] for each in ("json", "read", "page", "embedded", "header")} == {"refused"}
    for form in ("text", "logout", "page"):
        go_to(page, hostile_origin)
        with page.expect_navigation() as arrived:
            page.evaluate("(id) => document.getElementById(id).submit()", form)
        assert arrived.value is not None
        assert arrived.value.status in (HTTPStatus.FORBIDDEN, HTTPStatus.METHOD_NOT_ALLOWED)
    for path in ("/auth/logout", "/kms/keys/generate?algorithm=Kyber768", "/auth/refresh"):
        arrived_at = go_to(page, installation.base_url + API + path)
        assert arrived_at is not None
        assert arrived_at.status == HTTPStatus.METHOD_NOT_ALLOWED
    assert tenant.get("/kms/keys")["total"] == 0
    go_to(page, installation.base_url + "/portal/team")
    expect(page.locator(".who")).to_be_visible()


def test_nothing_of_a_page_is_left_after_signing_out(
    installation: Installation, visit_as: SignedIn
) -> None:
    """After signing out the back button leads to the entrance, not to earlier content."""
    person = installation.person(installation.new_tenant().tenant_id)
    visitor = visit_as(person)
    visitor.expected.append("401")
    page = visitor.open("/portal/team")
    go_to(page, "/portal/security")
    page.get_by_role("button", name="Sign out").click()
    page.wait_for_url("**/portal/sign-in")
    for _ in range(2):
        page.go_back(wait_until="commit")
        page.wait_for_url("**/portal/sign-in?next=*")
        assert page.locator(".who").count() == 0
    assert page.evaluate("sessionStorage.length") == 0


def test_a_stolen_access_cookie_grants_and_destroys_nothing(world: World) -> None:
    """On its pages, only the listed forms work without a step-up."""
    found: dict[str, bool] = {}
    with _with_cookie(world) as thief:
        for path in PAGES:
            for form in re.findall(
                r"<form [^>]*data-operation[^>]*>", thief.get(f"/portal{path}").text
            ):
                _, _, rest = form.partition('data-operation="')
                name = rest.partition('"')[0]
                row = next(each for each in api_rows() if each.name == name)
                found[name] = row.needs_step_up or row.step_up_for is not None
        refused = thief.post(API + "/auth/refresh")
    uses = {"encrypt", "decrypt"}
    assert {name for name, needs in found.items() if not needs} <= ALLOWED.keys() | uses
    assert {
        "create_api_key",
        "rotate_key",
        "change_password",
        "invite",
        "change_role",
    } <= found.keys()
    assert refused.status_code == HTTPStatus.UNAUTHORIZED


def test_a_page_is_for_sessions(world: World) -> None:
    """An API key or the operator's credential opens no page, and is ignored beside a session."""
    operator_key = world.installation.operator().api_key
    for credential in (world.tenant.api_key, operator_key, "nonsense"):
        with _with_cookie(world, **{"X-API-Key": credential}) as program:
            assert world.email.split("@")[1] in program.get("/portal/team").text
            for cookie in ("", f"{Cookies().operator}={operator_key}"):
                program.headers["Cookie"] = cookie
                responses = {program.get("/portal" + path).status_code for path in PAGES}
                assert responses == {HTTPStatus.SEE_OTHER}


def test_pages_are_read_only(world: World) -> None:
    """Pages accept only GET and HEAD; other requests are refused without reading them."""
    with _with_cookie(world) as client:
        for path in ("/keys", "/sign-in", "/no/such/page"):
            assert client.head("/portal" + path).content == b""
            for method in ("POST", "PUT", "PATCH", "DELETE", "OPTIONS"):
                response = client.request(method, "/portal" + path, content=b"x" * 1000)
                assert response.status_code == HTTPStatus.METHOD_NOT_ALLOWED
                assert json.loads(response.content)["error"]["error_code"]


MANY = 2_000
SMALL = 300_000
"""The largest bytes of a page."""


def _copies(installation: Installation, table: str, where: str, **values: str) -> None:
    """Copy one row of the accounts database many times, with different values in some columns."""
    path = Layout(installation.data).gateway_settings.parent / "accounts.sqlite3"
    with closing(sqlite3.connect(path, timeout=PATIENCE)) as accounts, accounts:
        names = [row[1] for row in accounts.execute(f"PRAGMA table_info({table})")]
        chosen = ", ".join(values.get(name, name) for name in names)
        accounts.execute(
            f"WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {MANY})"  # noqa: S608
            f" INSERT INTO {table} SELECT {chosen} FROM n,"
            f" (SELECT * FROM {table} WHERE {where} LIMIT 1)"
        )


def test_a_page_of_thousands_is_small(installation: Installation) -> None:
    """Members, invitations, sessions and API keys come in pages, with links to the next."""
    tenant = installation.new_tenant()
    owner = installation.person(tenant.tenant_id)
    owner.post_proven(
        f"/tenants/{tenant.tenant_id}/invitations",
        {"email": f"i-{tenant.tenant_id}@example.com", "role": "viewer"},
        status=201,
    )
    me = owner.get("/auth/me")["id"].replace("-", "")
    own = f"tenant_id = '{tenant.tenant_id.replace('-', '')}'"
    new = {"id": "lower(hex(randomblob(16)))"}
    digests = dict.fromkeys(("digest", "access_digest", "refresh_digest"), "randomblob(32)")
    _copies(installation, "sessions", f"user_id = '{me}'", **new, **digests)
    _copies(installation, "users", own, **new, email="i || email", email_key="i || email_key")
    mails = {"email": "i || email", "email_key": "i || email_key"}
    _copies(installation, "invitations", own, **new, **digests, **mails)
    _copies(installation, "api_keys", own, **digests, version="version + i")
    for path, ways in (
        ("/team", ("?from=",)),
        ("/team/invitations", ("?from=",)),
        ("/security", ("?after=",)),
        ("/api-keys", ("?from=",)),
        ("/audit", ()),
        ("", ()),
    ):
        page = get_page(owner, f"/portal{path}")
        assert page.status_code == HTTPStatus.OK
        assert len(page.content) < SMALL, path
        assert all(f'href="{way}' in page.text for way in ways), path
    past = get_page(owner, f"/portal/team?from={10 * MANY}").text
    assert "The list has only" in past


def test_only_its_own_site_gets_a_compressed_page(installation: Installation) -> None:
    """The size of a page that another site opened does not tell which text it repeats."""
    owner = installation.person(installation.new_tenant().tenant_id)
    texts = set()
    for site in ("same-origin", "none", "same-site", "cross-site", ""):
        headers = {"Accept-Encoding": "gzip"} | ({"Sec-Fetch-Site": site} if site else {})
        page = get_page(owner, "/portal/search?q=fortune", headers)
        is_compressed = page.headers.get("content-encoding") == "gzip"
        assert is_compressed is (site in {"same-origin", "none"})
        size = int(page.headers["content-length"])
        assert size < len(page.content) / 2 if is_compressed else size == len(page.content)
        texts.add(page.text)
    assert len(texts) == 1
