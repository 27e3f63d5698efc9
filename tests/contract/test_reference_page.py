"""/docs: the complete interface, on pages that need no script and no other host."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from html.parser import HTMLParser
from typing import Any

import httpx2
import pytest
from tests.contract.rows import api_rows
from tests.fixtures.installation import Installation
from tests.patience import PATIENCE

from pqkeep_gateway.api import installation
from pqkeep_gateway.reference.documents import STATIC, documents
from pqkeep_gateway.reference.snippets import example

VOID = {"meta", "link", "input"}
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self';"
    " base-uri 'none'; form-action 'none'; frame-ancestors 'none';"
    " require-trusted-types-for 'script'; trusted-types 'none'"
)


class Page(HTMLParser):
    """The contents of a page."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self.ids: list[str] = []
        self.links: list[str] = []
        self.scripts: list[str] = []
        self.text = ""
        self.text_of_scripts = ""
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
            if tag == "script" and name == "src":
                self.scripts.append(value or "")
        if tag not in VOID:
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if not self._open or self._open.pop() != tag:
            self.misnested.append(tag)

    def handle_data(self, data: str) -> None:
        if self._open and self._open[-1] == "script":
            self.text_of_scripts += data
        self.text += data

    @property
    def words(self) -> str:
        """The text, with single spaces."""
        return " ".join(self.text.split())


@pytest.fixture(scope="module")
def web(installation: Installation) -> Iterator[httpx2.Client]:
    """A browser without a credential."""
    with httpx2.Client(base_url=installation.base_url, trust_env=False, timeout=PATIENCE) as client:
        yield client


@pytest.fixture(scope="module")
def document(web: httpx2.Client) -> Any:
    """The OpenAPI document."""
    return web.get("/api/v1/openapi.json").json()


@pytest.fixture(scope="module")
def pages(web: httpx2.Client, document: Any) -> Mapping[str, Page]:
    """All pages by path: the overview, the topics, and one for each operation."""
    names = [each["operationId"] for each in operations(document)]
    paths = ["/docs", "/docs/access", "/docs/errors", *(f"/docs/{name}" for name in names)]
    assert len(set(paths)) == len(paths)
    responses = {path: web.get(path) for path in paths}
    for path, answer in responses.items():
        assert answer.status_code == 200, path
        assert answer.headers["content-type"] == "text/html; charset=utf-8"
        check_headers(answer)
    return {path: Page(answer.text) for path, answer in responses.items()}


def operations(document: Any) -> Iterator[Any]:
    for methods in document["paths"].values():
        yield from methods.values()


def check_headers(answer: httpx2.Response) -> None:
    assert answer.headers["content-security-policy"] == POLICY
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["referrer-policy"] == "no-referrer"


async def test_a_new_gateway_has_every_document() -> None:
    """On a new gateway, concurrent requests for all documents get responses."""
    nothing: Any = None
    served = documents(api_rows(), (installation.health_endpoint(nothing),))
    statuses: list[int] = []
    whole: list[str] = []

    async def ask(path: str) -> None:
        async def send(message: Any) -> None:
            if "status" in message:
                statuses.append(message["status"])
            elif not message.get("more_body"):
                whole.append(path)

        scope = {"type": "http", "method": "GET", "path": path, "headers": []}
        await served[path](scope, nothing, send)

    await asyncio.gather(*map(ask, served))
    assert statuses == [200] * len(served)
    assert sorted(whole) == sorted(served)


@pytest.mark.parametrize(("name", "kind"), STATIC.items())
def test_files_have_the_pages_headers(web: httpx2.Client, name: str, kind: str) -> None:
    """The pages' files have a policy that allows only this server's files."""
    answer = web.get(f"/docs/{name}")
    assert answer.headers["content-type"] == kind
    check_headers(answer)


def test_scripts_are_files(pages: Mapping[str, Page]) -> None:
    """Pages have no inline script, style or handler: all are files of this server."""
    for page in pages.values():
        assert not page.tags & {"style", "iframe", "object", "embed", "form", "base"}
        assert "style" not in page.attributes
        assert not [name for name in page.attributes if name.startswith("on")]
        assert page.scripts == ["/docs/page.js", "/docs/search.js"]
        assert page.text_of_scripts.strip() == ""


def test_well_formed(pages: Mapping[str, Page]) -> None:
    """Every element is closed properly, and all ids of a page differ."""
    for path, page in pages.items():
        assert page.misnested == [], path
        assert len(page.ids) == len(set(page.ids)), path


def test_links_lead_somewhere(web: httpx2.Client, pages: Mapping[str, Page]) -> None:
    """Every link leads to an existing place, or to something that this server serves."""
    others = set()
    for page in pages.values():
        for link in page.links:
            path, _, fragment = link.partition("#")
            target = page if not path else pages.get(path)
            if target is None:
                others.add(path)
            else:
                assert not fragment or fragment in target.ids, link
    assert all(link.startswith("/") and web.get(link).status_code == 200 for link in others)
    assert len(others) < 10


def test_everything_is_there(document: Any, pages: Mapping[str, Page]) -> None:
    """Each operation has a page with path, fields and errors, and a link on every other page."""
    links = set(pages["/docs/errors"].links)
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            href = f"/docs/{operation['operationId']}"
            page = pages[href]
            assert href in links
            assert f"{method.upper()} {path}" in page.words
            assert operation["summary"] in page.text
            assert path in pages["/docs"].text
            body = operation.get("requestBody", {}).get("content", {}).get("application/json", {})
            for name in body.get("schema", {}).get("properties", {}):
                assert name in page.words.split()
            for status, response in operation["responses"].items():
                if not status.startswith("2"):
                    *_, name = response["$ref"].split("/")
                    shared = document["components"]["responses"][name]
                    for code in shared["content"]["application/json"]["examples"]:
                        assert f"{status} {code}" in page.words
                        assert f"error-{status}-{code}" in pages["/docs/errors"].ids


def test_examples_are_the_snippets(pages: Mapping[str, Page]) -> None:
    """Each page has examples for curl, and for Python if the client has the call."""
    for row in api_rows():
        page, snippets = pages[f"/docs/{row.name}"], example(row)
        assert snippets.curl in page.text
        if snippets.python is None:
            assert "The Python client has no call for this." in page.text
        else:
            assert snippets.python in page.text


def test_access_names_every_operation(document: Any, pages: Mapping[str, Page]) -> None:
    """The access table lists each operation under its permission."""
    for each in operations(document):
        assert each["x-permission"] in pages["/docs/access"].text
        assert f"/docs/{each['operationId']}" in pages["/docs/access"].links


def test_the_search_finds_everything(
    web: httpx2.Client, document: Any, pages: Mapping[str, Page]
) -> None:
    """Each operation and each error is in the search index once, with a working link."""
    found = web.get("/docs/search.json").json()
    assert len({each["href"] for each in found}) == len(found)
    for each in found:
        path, _, fragment = each["href"].partition("#")
        assert not fragment or fragment in pages[path].ids
    titles = {each["title"] for each in found}
    codes = {each.split("-", 2)[2] for each in pages["/docs/errors"].ids if "ERR_" in each}
    assert {each["operationId"] for each in operations(document)} | codes <= titles


def test_the_styles_ask_nobody(web: httpx2.Client) -> None:
    """The style sheets load nothing, and the scripts name no other host."""
    for name in STATIC:
        text = web.get(f"/docs/{name}").text
        assert "url(" not in text
        assert "@import" not in text
        assert "//" not in text.replace("http://www.w3.org/2000/svg", "").replace(" // ", "")
