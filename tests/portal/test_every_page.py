"""Requirements of every page: phone, keyboard, both color schemes, end of a session.

The pages are those of the portal's table; lists and failures are in ``test_states.py``.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest
from playwright.sync_api import Locator, Route, ViewportSize, expect
from playwright.sync_api import Page as Tab
from tests.fixtures.browser import BOTH, IN_FULL, Visit, Visitor, assert_accessible
from tests.fixtures.caller import PASSWORD, Caller
from tests.fixtures.installation import Installation
from tests.portal.conftest import SignedIn
from tests.portal.example import migrate, trust
from tests.portal.visitors import assert_fits, cookies_of
from tests.sampling import sampled

from pqkeep_gateway.access.callers import Credential, Role
from pqkeep_gateway.portal.app import PAGES
from pqkeep_gateway.portal.pages import ROOT, Page

ZOOMED: ViewportSize = {"width": 640, "height": 400}
"""A window of 1,280 by 800 pixels, at a zoom of 200 %."""
LEADS_ELSEWHERE = {"/resume"}
TOKENS = {"/invitation": "pqi_", "/registration": "pqr_", "/reset-password": "pqp_"}
"""Pages that need a token for their full content, and the token's prefix."""
TARGET = 44
"""The smallest size of a touch target in pixels."""
REFUSAL = {"error": {"error_code": "ERR_CONFLICT_001", "message": "somebody was quicker"}}
TYPED = {"email": "somebody@example.com", "date": "2099-01-31", "password": PASSWORD}
_SMALL = """all => all.filter((each) => {
  const box = (each.closest("label") ?? each).getBoundingClientRect();
  const isInText = each.matches(".skip, p a, dd a, li a, td a");
  return box.width && box.height < TARGET - 0.5 && !isInText && each.checkVisibility();
}).map((each) => each.outerHTML.slice(0, 120))""".replace("TARGET", str(TARGET))
_HAS_BUTTONS_IN_SIGHT = """each => [...each.querySelectorAll("form > .buttons")].every((part) =>
  !part.checkVisibility() || part.getBoundingClientRect().bottom <= innerHeight)"""
_COUNT = """all => all.filter((each) =>
  each.checkVisibility() && !each.disabled && !each.closest("dialog") && each.tabIndex >= 0 &&
  each.type !== "hidden" && (each.type !== "radio" || each.checked)).length"""
_REACHABLE = "a[href], button, input, select, textarea, summary, [tabindex='0']"
_STEP = """() => {
  const each = document.activeElement, style = getComputedStyle(each);
  const seen = each.closest("label.file") ?? each;
  const ring = each.type === "date" || each.matches(":focus-visible") && (style.outlineStyle !== "none" ||
    getComputedStyle(seen).outlineStyle !== "none");
  const all = [...document.querySelectorAll(`REACHABLE`)];
  return [all.indexOf(each), ring];
}""".replace("REACHABLE", _REACHABLE)


@dataclass(frozen=True)
class World:
    """A tenant with content on every page, and the operator."""

    owner: Caller
    operator: Caller
    operator_key: str
    record: int
    webhook: str


@pytest.fixture(scope="module")
def world(installation: Installation) -> World:
    """Keys of every status, API keys, people, an invitation, a webhook, a second session."""
    tenant = installation.new_tenant()
    for algorithm in ("Kyber768", "Dilithium3"):
        tenant.post("/kms/keys/generate", {"algorithm": algorithm}, status=201)
    tenant.post("/kms/keys/rotate", {"algorithm": "Kyber768"}, status=201)
    tenant.post("/kem/encrypt", {"plaintext": "QUJD"})
    email = "every-page@example.com"
    owner = installation.person(tenant.tenant_id, email=email)
    installation.person(tenant.tenant_id, "viewer")
    invited = {"email": "invited-every-page@example.com", "role": "viewer"}
    owner.post_proven(f"/tenants/{tenant.tenant_id}/invitations", invited, status=201)
    installation.caller(None).post("/auth/login", {"email": email, "password": PASSWORD})
    operator = installation.caller(None)
    key = installation.ready["operator_key"]
    operator.post("/auth/operator", {"operator_key": key})
    migrate(tenant, owner, "default")
    trust(owner)
    hook = {"name": "on-call", "url": "https://hooks.example.com/"}
    webhook = owner.post_proven("/webhooks", hook, status=201)["id"]
    record = owner.get("/audit/records", operation="encrypt")["records"][0]["id"]
    return World(owner, operator, key, record, webhook)


@pytest.fixture
def visits(
    installation: Installation, world: World, visit: Visit, visit_as: SignedIn
) -> Callable[..., Iterator[tuple[Visitor, Tab, Page]]]:
    """Open all pages of a visitor, one after the other."""

    def begin(
        who: Credential | Role, sixth: int | None = None, **options: bool
    ) -> Iterator[tuple[Visitor, Tab, Page]]:
        callers = {Role.OWNER: world.owner, Credential.OPERATOR: world.operator}
        visitor = (
            visit_as(callers[who], **options)
            if who in callers
            else visit(installation.base_url, **options)
        )
        tab = visitor.context.new_page()
        pages = [each for each in PAGES if each.path not in LEADS_ELSEWHERE and _whose(each) is who]
        for page in pages if sixth is None else pages[sixth::SIXTHS]:
            visitor.context.clear_cookies()
            if who in callers:
                visitor.context.add_cookies(cookies_of(callers[who]))
            tab.goto("about:blank")
            tab.goto(_url(page, world))
            expect(tab.locator("body.no-script")).to_have_count(0)
            yield visitor, tab, page

    return begin


def _whose(page: Page) -> Credential | Role:
    if page.is_public:
        return Credential.NONE
    return Credential.OPERATOR if page.is_operators else Role.OWNER


def _url(page: Page, world: World) -> str:
    id_ = world.owner.tenant_id if page.is_operators else str(world.record)
    values = {"algorithm": "Kyber768", "version": "1", "id": id_, "webhook": world.webhook}
    values["name"] = "default"
    path = re.sub(r"{(\w+)}", lambda found: values[found[1]], page.path)
    token = f"#{TOKENS[page.path]}{'0' * 40}" if page.path in TOKENS else ""
    return f"{ROOT}{path}{token}"


everybody = pytest.mark.parametrize("who", [Credential.NONE, Credential.OPERATOR, Role.OWNER])
SIXTHS = 6
sixths = pytest.mark.parametrize("sixth", sampled(range(SIXTHS), SIXTHS))
"""Of a visitor's pages, ``make test`` tests the first sixth."""
Visits = Callable[..., Iterator[tuple[Visitor, Tab, Page]]]


@pytest.mark.timeout(600)
@everybody
@sixths
def test_pages_fit_on_a_phone_and_everybody_can_use_them(
    visits: Visits, who: Credential | Role, sixth: int
) -> None:
    """No page is wider than 390 pixels or has small touch targets, and axe has no findings."""
    for _, tab, page in visits(who, sixth, phone=True):
        assert_fits(tab)
        small = tab.locator("a[href], button, input, select, summary").evaluate_all(_SMALL)
        assert small == [], page.path
        assert_accessible(tab, BOTH)


@pytest.mark.campaign
@pytest.mark.timeout(1200)
@everybody
def test_everybody_can_use_each_page_on_a_desktop(visits: Visits, who: Credential | Role) -> None:
    """Wide tables with columns do not overflow, and axe has no findings, light and dark."""
    for _, tab, _ in visits(who):
        assert_fits(tab)
        assert_accessible(tab, IN_FULL)


@pytest.mark.campaign
@pytest.mark.timeout(1200)
@everybody
def test_everybody_can_use_each_page_at_twice_the_size(
    visits: Visits, who: Credential | Role
) -> None:
    """At a zoom of 200 % and with text of twice the size, pages fit, and axe has no findings."""
    for _, tab, _ in visits(who):
        tab.set_viewport_size(ZOOMED)
        assert_fits(tab)
        assert_accessible(tab, IN_FULL)
        tab.evaluate("document.documentElement.style.fontSize = '200%'")
        assert_fits(tab)
        assert_accessible(tab, IN_FULL)


@pytest.mark.campaign
@pytest.mark.timeout(1200)
def test_everybody_can_use_pages_with_nothing_in_them(
    installation: Installation, visit_as: SignedIn
) -> None:
    """The pages of a new tenant, and an unknown page, are accessible."""
    visitor = visit_as(installation.person(installation.new_tenant().tenant_id), phone=True)
    visitor.expected.append("404")
    tab = visitor.context.new_page()
    paths = [each.path for each in PAGES if "{" not in each.path and _whose(each) is Role.OWNER]
    for path in (*paths, "/no/such/page"):
        tab.goto(ROOT + path)
        assert_fits(tab)
        assert_accessible(tab, IN_FULL)


@pytest.mark.campaign
@pytest.mark.timeout(1200)
@everybody
def test_dialogs_fit_and_everybody_can_use_them(visits: Visits, who: Credential | Role) -> None:
    """Each dialog of each page fits a phone, in light and dark; a form's buttons are visible."""
    for _, tab, page in visits(who, phone=True):
        for name in tab.locator("dialog").evaluate_all("all => all.map((each) => each.id)"):
            dialog = tab.locator(f"dialog[id='{name}']")
            dialog.evaluate("each => each.showModal()")
            assert_fits(tab)
            assert dialog.evaluate(_HAS_BUTTONS_IN_SIGHT), f"{page.path}: {name}"
            small = dialog.locator("a, button, input, select, summary").evaluate_all(_SMALL)
            assert small == [], f"{page.path}: {name}"
            assert_accessible(tab, IN_FULL)
            tab.keyboard.press("Escape")
            expect(dialog).to_be_hidden()


@pytest.mark.timeout(600)
@everybody
@sixths
def test_the_keyboard_reaches_everything(
    visits: Visits, who: Credential | Role, sixth: int
) -> None:
    """Tab reaches all controls, in order and visibly; a closed dialog returns the focus."""
    for _, tab, page in visits(who, sixth):
        count: int = tab.locator(_REACHABLE).evaluate_all(_COUNT)
        reached: list[int] = []
        while len(reached) < count:
            tab.keyboard.press("Tab")
            index, has_ring = tab.evaluate(_STEP)
            if index < 0 or index in reached[-1:]:
                continue  # past the end, or at another part of a day
            assert index not in reached, f"{page.path}: {len(reached)} of {count} were reached"
            assert has_ring, tab.evaluate("document.activeElement.outerHTML")
            reached.append(index)
        turns = sum(after < before for before, after in itertools.pairwise(reached))
        assert turns <= 1, page.path  # some pages begin at their first field
        opener = tab.locator("main [data-open]:visible")
        if opener.count():
            opener.first.focus()
            tab.keyboard.press("Enter")
            expect(tab.locator("dialog[open]")).to_have_count(1)
            tab.keyboard.press("Escape")
            expect(tab.locator("dialog[open]")).to_have_count(0)
            expect(opener.first).to_be_focused()
        _assert_bar(tab)


def _assert_bar(tab: Tab) -> None:
    """Check that leaving a page shows a bar, and returning to it removes the bar."""
    bar = tab.locator("html.is-loading .loading")
    tab.evaluate("dispatchEvent(new Event('beforeunload'))")
    expect(bar).to_have_count(1)
    assert bar.evaluate("each => getComputedStyle(each).backgroundColor") != "rgba(0, 0, 0, 0)"
    tab.evaluate("dispatchEvent(new Event('pageshow'))")
    expect(bar).to_have_count(0)


def _fill(form: Locator) -> dict[str, str]:
    """Fill every field of a form; return the values."""
    for field in form.locator("input, textarea").all():
        kind = field.get_attribute("type") or "text"
        if kind in {"hidden", "file", "checkbox", "radio"} or not field.is_editable():
            continue
        wanted = field.get_attribute("data-equals") or TYPED.get(kind)
        if wanted is None:
            is_number = field.get_attribute("inputmode") == "numeric"
            is_label = field.get_attribute("data-type") == "labels"
            typed = "123456" if is_number else "team: typed" if is_label else "typed"
            wanted = field.input_value() or typed
        if field.is_visible():
            field.fill(wanted)
    return _typed_in(form)


def _typed_in(form: Locator) -> dict[str, str]:
    found: dict[str, str] = form.locator("input:not([type=hidden]), textarea, select").evaluate_all(
        "all => Object.fromEntries(all.map((each) => [each.id || each.name, each.value]))"
    )
    return found


def _fullest(tab: Tab) -> Locator | None:
    """Open a page's form with the most fields and return it, or None."""
    forms = tab.locator("form[data-operation]")
    fields = forms.evaluate_all("""all => all.map((each) =>
      each.closest("dialog") || each.checkVisibility()
        ? 1 + each.querySelectorAll("input:not([type=hidden]), textarea, select").length : 0)""")
    if not any(fields):
        return None
    form = forms.nth(fields.index(max(fields)))
    form.evaluate("each => each.closest('dialog')?.showModal()")
    return form


@pytest.mark.timeout(600)
@everybody
@sixths
def test_nothing_that_was_typed_is_lost(
    visits: Visits, world: World, who: Credential | Role, sixth: int
) -> None:
    """After a session's end a sign-in over the form sends it; a refusal keeps the values."""
    for visitor, tab, page in visits(who, sixth):
        visitor.expected += ["401", "409"]
        form = _fullest(tab)
        if form is not None:
            _send_without_session(visitor, tab, page, form, world)
            tab.unroute_all()


def _send_without_session(
    visitor: Visitor, tab: Tab, page: Page, form: Locator, world: World
) -> None:
    typed = _fill(form)
    method = form.get_attribute("data-method")
    held: list[Route] = []

    def hold(route: Route) -> None:
        if route.request.method != method:
            route.fallback()
        elif page.is_public or "x-api-key" in route.request.headers or visitor.context.cookies():
            held.append(route)
        else:
            route.continue_()

    path = re.sub(r"{\w+}", "*", form.get_attribute("data-path") or "")  # a variable: a typed name
    tab.route(f"**{path}*", hold)
    visitor.context.clear_cookies()
    button = form.locator("button:not([type=button])")
    button.focus()
    tab.keyboard.press("Enter")
    if page.is_operators:
        tab.locator("#step-up input[type=password]").fill(world.operator_key)
        tab.locator("#step-up").get_by_role("button", name="Confirm").click()
    elif not page.is_public:
        tab.locator("#sign-in-password").fill(PASSWORD)
        tab.keyboard.press("Enter")
    while not held:
        tab.wait_for_timeout(20)
    expect(button).to_have_attribute("aria-busy", "true")
    assert _typed_in(form) == typed, page.path
    held[0].fulfill(status=409, json=REFUSAL)
    expect(form.locator(".form-error")).to_have_text("somebody was quicker")
    expect(button).not_to_have_attribute("aria-busy", "true")
    assert _typed_in(form) == typed, page.path
