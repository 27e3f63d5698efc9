"""The reference in a browser: accessible, with search and examples by keyboard."""

from __future__ import annotations

import re

from playwright.sync_api import Page, expect
from tests.fixtures.browser import BOTH, Visit, assert_accessible
from tests.fixtures.installation import Installation

PATHS = ("/docs", "/docs/access", "/docs/errors", "/docs/encrypt")
"""One example of each kind of page."""
CURL, PYTHON = "pre[data-language=curl]", "pre[data-language=python]"


def search(page: Page, text: str) -> None:
    """Type into the search, with any focus; wait for the result."""
    page.keyboard.press("/")
    page.keyboard.type(text)
    expect(page.get_by_role("status")).not_to_be_empty()


def fits(page: Page) -> bool:
    return bool(page.evaluate("document.documentElement.scrollWidth <= innerWidth"))


def test_pages_are_accessible(visit: Visit, installation: Installation) -> None:
    """Each kind of page is accessible, and as wide as the window."""
    page = visit(installation.base_url).open("/docs")
    for path in PATHS:
        page.goto(path)
        assert fits(page), path
        assert_accessible(page)


def test_pages_fit_a_phone(visit: Visit, installation: Installation) -> None:
    """Each kind of page fits a phone; an operation's page is accessible in light and dark."""
    page = visit(installation.base_url, phone=True).open("/docs")
    for path in PATHS:
        page.goto(path)
        assert fits(page), path
    assert_accessible(page, BOTH)


def test_search_by_keyboard(visit: Visit, installation: Installation) -> None:
    """The key / begins a search, arrows select, Enter opens, Escape ends it."""
    page = visit(installation.base_url).open("/docs")
    search(page, "verify sign")
    assert_accessible(page)
    results = page.locator("#search li a")
    expect(results.first).to_contain_text("verify")
    page.keyboard.press("ArrowDown")
    expect(results.first).to_be_focused()
    page.keyboard.press("ArrowDown")
    expect(results.nth(1)).to_be_focused()
    page.keyboard.press("ArrowUp")
    page.keyboard.press("ArrowUp")
    expect(page.get_by_role("searchbox")).to_be_focused()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Escape")
    expect(results.first).to_be_hidden()
    expect(page.get_by_role("searchbox")).to_be_focused()
    page.get_by_role("searchbox").fill("ERR_KEM_012")
    expect(results.first).to_contain_text("ERR_KEM_012")
    page.keyboard.press("Enter")
    page.wait_for_url(re.compile(r"/docs/errors#error-400-ERR_KEM_012$"))
    page.keyboard.press("/")
    page.get_by_role("searchbox").fill("generate key")
    expect(results.first).to_contain_text("generate_key")
    page.keyboard.press("Enter")
    page.wait_for_url("**/docs/generate_key")


def test_search_that_finds_nothing(visit: Visit, installation: Installation) -> None:
    """A search without results, also for markup, shows a message."""
    page = visit(installation.base_url, phone=True).open("/docs/encrypt")
    search(page, "<img src=x onerror=alert(1)>")
    expect(page.get_by_role("status")).to_have_text("Nothing found")


def test_search_without_an_answer(visit: Visit, installation: Installation) -> None:
    """Without its index the search shows a message, and tries again at the next letter."""
    visitor = visit(installation.base_url)
    visitor.expected += ["Failed to load resource"]
    page = visitor.open("/docs")
    page.route("**/search.json", lambda route: route.abort())
    search(page, "encryp")
    expect(page.get_by_role("status")).to_have_text("The search does not respond. Reload the page.")
    page.unroute("**/search.json")
    page.keyboard.type("t")
    expect(page.locator("#search li a").first).to_contain_text("encrypt")


def test_the_language_is_remembered(visit: Visit, installation: Installation) -> None:
    """Examples show one language. The choice lasts on other pages and in other tabs."""
    visitor = visit(installation.base_url)
    page = visitor.open("/docs/encrypt")
    expect(page.locator(CURL)).to_be_visible()
    expect(page.locator(PYTHON)).to_be_hidden()
    page.get_by_role("button", name="Python").press("Enter")
    for shown in (page, visitor.open("/docs/decrypt")):
        expect(shown.locator(PYTHON)).to_be_visible()
        expect(shown.locator(CURL)).to_be_hidden()
        expect(shown.get_by_role("button", name="Python")).to_have_attribute("aria-pressed", "true")


def test_what_is_shown_is_copied(visit: Visit, installation: Installation) -> None:
    """Copy takes the shown language's example, and confirms it for two seconds."""
    permissions = ["clipboard-read", "clipboard-write"]
    page = visit(installation.base_url, is_fresh=True, permissions=permissions).open(
        "/docs/encrypt"
    )
    page.clock.install(time=0)
    page.clock.pause_at(1)
    copied = page.get_by_role("button", name="Copied")
    for language in ("curl", "Python"):
        page.get_by_role("button", name=language, exact=True).click()
        page.get_by_role("button", name="Copy").first.click()
        expect(copied).to_be_visible()
        shown = page.locator(f"pre[data-language={language.lower()}]")
        assert page.evaluate("navigator.clipboard.readText()") == shown.text_content()
        page.clock.run_for(2000)
        expect(copied).to_be_hidden()


def test_the_overview_names_its_own_address(visit: Visit, installation: Installation) -> None:
    """The environment for the examples has the page's own address."""
    page = visit(installation.base_url).open("/docs")
    expect(page.locator("pre").first).to_contain_text(f"PQKEEP_URL={installation.base_url}\n")


def test_without_scripts(visit: Visit, installation: Installation) -> None:
    """Without JavaScript both languages are shown, and no useless controls."""
    page = visit(installation.base_url, java_script_enabled=False).open("/docs/encrypt")
    expect(page.locator(CURL)).to_be_visible()
    expect(page.locator(PYTHON)).to_be_visible()
    expect(page.get_by_role("searchbox")).to_have_count(0)
    expect(page.get_by_role("button")).to_have_count(0)
    page.get_by_role("link", name="decrypt", exact=False).first.click()
    page.wait_for_url("**/docs/decrypt")


def test_the_content_can_be_skipped_to(visit: Visit, installation: Installation) -> None:
    """The first link that Tab reaches leads to the content."""
    page = visit(installation.base_url).open("/docs/check_out")
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Skip to the content")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.get_by_role("main")).to_be_focused()


def test_the_contents_show_where_one_is(visit: Visit, installation: Installation) -> None:
    """The contents mark the page's own line and scroll to it."""
    page = visit(installation.base_url).open("/docs/check_out")
    expect(page.locator("nav [aria-current=page]")).to_be_in_viewport()
