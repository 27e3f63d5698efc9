"""``make screenshots``: every page of the portal, on a desktop and a phone, light and dark.

The light ones also in German, and with each dialog that the head of a page opens. ``--only`` takes
the pages with a text in their name. With ``--images``, the pictures of the documentation are made
anew, and no others.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import tempfile
from pathlib import Path

from playwright.sync_api import Browser, Page, sync_playwright
from tests.fixtures.browser import ARGUMENTS, CHROMIUM, DESKTOP, PHONE
from tests.fixtures.caller import Caller
from tests.fixtures.installation import Installation, running
from tests.portal.example import SETTINGS, make
from tests.portal.visitors import cookies_of

from pqkeep_gateway.access.callers import Permission
from pqkeep_gateway.portal.app import PAGES
from pqkeep_gateway.portal.pages import ROOT

SIZES = {"desktop": DESKTOP, "phone": PHONE}
LOOKS = (
    *itertools.product(SIZES, ("light", "dark"), ("en",)),
    *itertools.product(SIZES, ("light",), ("de",)),
)
"""Size, scheme and language of the pictures."""
LEFT_OUT = {"/resume"}
"""Pages that redirect at once."""
BY_LINK = {"/invitation", "/registration", "/reset-password"}
TOKEN = "#" + "x" * 43
"""The token in a message's link, without which these pages show no form."""


ILLUSTRATIONS = (
    ("portal-overview", "", "light", "desktop", 820),
    ("portal-keys", "/keys", "light", "desktop", 870),
    ("portal-keys-dark", "/keys", "dark", "desktop", 1200),
    ("portal-audit", "/audit", "light", "desktop", 1200),
    ("portal-security", "/security", "light", "phone", 705),
)
"""The documentation's pictures: name, path, scheme, size and height."""
IMAGES = Path(__file__).parents[2] / "docs" / "images"


def paths(owner: Caller) -> dict[str, str]:
    """Return the values of the variables in the rows' paths."""
    newest = owner.get("/audit/records", order="desc", operation="encrypt", limit=1)["records"][0]
    return {
        "{algorithm}": "Kyber768",
        "{version}": "3",
        "{id}": str(newest["id"]),
        "{name}": owner.get("/kms/keyrings")["keyrings"][0]["name"],
        "{webhook}": owner.get("/webhooks")["webhooks"][0]["id"],
    }


def photograph(browser: Browser, installation: Installation, folder: Path, only: str = "") -> int:
    """Write the pictures of all pages with a text in their name; return the number of pages."""
    people = make(installation)
    values = paths(people.owner)
    views: list[tuple[str, str, Caller | None]] = [("overview-empty", ROOT, people.newcomer)]
    for page in PAGES:
        if page.path in LEFT_OUT:
            continue
        is_operators = page.path.startswith("/operator")
        path = page.path.replace("{id}", people.owner.tenant_id) if is_operators else page.path
        for name, value in values.items():
            path = path.replace(name, value)
        if page.permission is Permission.PUBLIC:
            person = None
        elif is_operators:
            person = people.operator
        else:
            person = people.owner
        name = page.path.strip("/").replace("/", "-").replace("{", "").replace("}", "")
        path += TOKEN if path in BY_LINK else ""
        views.append((name or "overview", ROOT + path, person))
    views = [view for view in views if only in view[0]]
    for size, scheme, language in LOOKS:
        for name, path, person in views:
            tab = _open(browser, installation, person, path, size, scheme, language)
            look = f"{size}-{scheme}" if language == "en" else f"{size}-{language}"
            # The navigation is as high as the window, so the window has to be as high as the page.
            height = tab.evaluate("document.documentElement.scrollHeight")
            least = SIZES[size]["height"]
            tab.set_viewport_size({**SIZES[size], "height": max(height, least)})
            tab.screenshot(path=folder / f"{name}-{look}.png", full_page=True)
            if scheme == "light":
                tab.set_viewport_size(SIZES[size])
                _photograph_dialogs(tab, folder, f"{name}-{look}")
            tab.context.close()
    return len(views)


def _photograph_dialogs(tab: Page, folder: Path, name: str) -> None:
    """Photograph each dialog that a button in the page's head opens."""
    for button in tab.locator(".page-head [data-open]").all():
        button.click()
        dialog = tab.locator("dialog[open]")
        dialog.wait_for()
        tab.screenshot(path=folder / f"{name}-{dialog.get_attribute('id')}.png")
        tab.keyboard.press("Escape")
        dialog.wait_for(state="hidden")


def illustrate(browser: Browser, installation: Installation) -> int:
    """Write the pictures of the documentation; return their number."""
    owner = make(installation).owner
    for name, path, scheme, size, height in ILLUSTRATIONS:
        tab = _open(browser, installation, owner, ROOT + path, size, scheme)
        tab.set_viewport_size({**SIZES[size], "height": height})
        tab.screenshot(path=IMAGES / f"{name}.png")
        tab.context.close()
    return len(ILLUSTRATIONS)


def _open(
    browser: Browser,
    installation: Installation,
    person: Caller | None,
    path: str,
    size: str,
    scheme: str,
    language: str = "en",
) -> Page:
    """Open a page as a person, in a size, a scheme and a language."""
    context = browser.new_context(
        base_url=installation.base_url,
        viewport=SIZES[size],
        color_scheme="light" if scheme == "light" else "dark",
        has_touch=size == "phone",
        locale=language,
    )
    if person is not None:
        context.add_cookies(cookies_of(person))
    tab = context.new_page()
    response = tab.goto(path, wait_until="networkidle")
    if response is None or not response.ok:
        print(f"{path}: {response.status if response else 'no answer'}", file=sys.stderr)
    return tab


def main() -> int:
    """Run an installation, and photograph it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--to", type=Path, default=Path("screenshots"), help="the folder")
    parser.add_argument("--images", action="store_true", help="only those of the documentation")
    parser.add_argument("--only", default="", help="only pages with this text in their name")
    arguments = parser.parse_args()
    folder = IMAGES if arguments.images else arguments.to
    folder.mkdir(parents=True, exist_ok=True)
    if not CHROMIUM.exists():
        print(
            f"{CHROMIUM} is not installed: apt-get install chromium-headless-shell", file=sys.stderr
        )
        return 1
    with (
        tempfile.TemporaryDirectory() as directory,
        running(Path(directory), settings=SETTINGS, is_forked=False) as installation,
        sync_playwright() as playwright,
    ):
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        pages = (
            illustrate(browser, installation)
            if arguments.images
            else photograph(browser, installation, folder, arguments.only)
        )
        browser.close()
    print(f"{pages} pages in {folder}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
