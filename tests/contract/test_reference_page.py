"""/docs: the whole interface, on a page that runs nothing and asks nobody else."""

from __future__ import annotations

from collections.abc import Iterator
from html.parser import HTMLParser

import httpx2
import pytest
from tests.fixtures.installation import Installation

VOID = {"meta", "link"}
STYLE = "/docs/style.css"
POLICY = (
    "default-src 'none'; style-src 'self'; img-src 'self'; base-uri 'none'; form-action 'none';"
    " frame-ancestors 'none'"
)


class Page(HTMLParser):
    """What is on a page."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self.ids: list[str] = []
        self.links: list[str] = []
        self.text = ""
        self.misnested: list[str] = []
        self._open: list[str] = []
        self.feed(html)
        self.close()
        self.misnested += self._open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        for name, value in attrs:
            self.attributes.add(name)
            if name == "id":
                self.ids.append(value or "")
            if name in {"href", "src", "action"}:
                self.links.append(value or "")
        if tag not in VOID:
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if not self._open or self._open.pop() != tag:
            self.misnested.append(tag)

    def handle_data(self, data: str) -> None:
        self.text += data


@pytest.fixture(scope="module")
def web(installation: Installation) -> Iterator[httpx2.Client]:
    """A browser without a credential."""
    with httpx2.Client(base_url=installation.base_url, trust_env=False) as client:
        yield client


@pytest.fixture(scope="module")
def page(web: httpx2.Client) -> Page:
    """The page."""
    return Page(web.get("/docs").text)


@pytest.mark.parametrize(
    ("path", "kind"), [("/docs", "text/html; charset=utf-8"), (STYLE, "text/css; charset=utf-8")]
)
def test_headers(web: httpx2.Client, path: str, kind: str) -> None:
    """The page and its style come with a policy that allows nothing but that style."""
    headers = web.get(path).headers
    assert headers["content-type"] == kind
    assert headers["content-security-policy"] == POLICY
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] == "no-referrer"


def test_nothing_runs(page: Page) -> None:
    """There is no script, no style in the page, and no handler."""
    assert not page.tags & {"script", "style", "iframe", "object", "embed", "form", "base"}
    assert "style" not in page.attributes
    assert not [name for name in page.attributes if name.startswith("on")]


def test_well_formed(page: Page) -> None:
    """Every element is closed where it must be, and no two have the same id."""
    assert page.misnested == []
    assert len(page.ids) == len(set(page.ids))


def test_links_lead_somewhere(web: httpx2.Client, page: Page) -> None:
    """Every link is to an anchor that is there, or to something that this server serves."""
    assert len(page.links) > 100
    for link in set(page.links):
        if link.startswith("#"):
            assert link[1:] in page.ids
        else:
            assert link.startswith("/")
            assert web.get(link).status_code == 200


def test_everything_is_there(web: httpx2.Client, page: Page) -> None:
    """Each operation has its anchor, path and fields on the page, and each error its line."""
    document = web.get("/api/v1/openapi.json").json()
    for path, methods in document["paths"].items():
        assert path in page.text
        for operation in methods.values():
            assert operation["operationId"] in page.ids
            assert operation["summary"] in page.text
            for status, response in operation["responses"].items():
                if not status.startswith("2"):
                    examples = response["content"]["application/json"]["examples"]
                    assert {f"error-{status}-{code}" for code in examples} <= set(page.ids)


def test_the_style_asks_nobody(web: httpx2.Client) -> None:
    """The style sheet loads nothing."""
    style = web.get(STYLE).text
    assert "url(" not in style
    assert "@import" not in style
