"""The documentation's web site: its links, its search, and its pages in a browser.

``make site`` builds the site in its own environment. ``make campaigns`` runs these tests.
"""

from __future__ import annotations

import functools
import http.server
import re
import subprocess
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urljoin, urlsplit

import pytest
from playwright.sync_api import Page, expect
from tests.fixtures.browser import Visit

pytestmark = pytest.mark.campaign

ROOT = Path(__file__).parents[2]
BUILD = ROOT / "docs" / "site" / "build"
HREF = re.compile(r'href="([^"]+)"')
WORDS: Mapping[str, tuple[str, ...]] = {
    "README": ("harvest now decrypt later", "license"),
    "CONTRIBUTING": ("contributing",),
    "SECURITY": ("threat model", "vulnerability"),
    "deploy/README": ("Valkey", "PostgreSQL", "docker"),
    "docs/api": (
        *("API key", "scope", "policy", "rate limit", "quota", "tenant", "idempotency"),
        *(
            "keyring",
            "batch",
            "passkey",
            "approval",
            "MFA",
            "TOTP",
            "step-up",
            "OpenAPI",
            "destroy",
            "429",
        ),
    ),
    "docs/architecture": ("architecture",),
    "docs/audit": ("audit", "Merkle", "evidence", "witness"),
    "docs/cli": ("CLI",),
    "docs/cryptography": ("ML-KEM", "ML-DSA", "X-Wing", "SLH-DSA", "composite", "Kyber", "FIPS"),
    "docs/formats": ("JWS", "JWK", "import key"),
    "docs/first-change": ("first change",),
    "docs/glossary": ("glossary",),
    "docs/hardening": ("hardening", "checklist"),
    "docs/installation": ("install", "Kubernetes", "Helm", "upgrade", "systemd"),
    "docs/local-encryption": ("encrypt files",),
    "docs/migrate": ("AWS KMS", "migrate"),
    "docs/migration": ("CBOM", "campaign", "exception", "inventory", "re-encrypt", "rule", "RSA"),
    "docs/observability": ("metrics", "Prometheus", "Grafana", "tracing"),
    "docs/operations": (
        *("backup", "restore", "SIEM", "syslog", "HSM", "PKCS#11", "root key", "SMTP"),
        "nginx",
    ),
    "docs/performance": ("p99", "latency", "sizing"),
    "docs/portal": ("portal", "dashboard", "notice", "export CSV"),
    "docs/runbooks": ("rotate", "revoke", "disk full", "stolen key", "troubleshooting"),
    "docs/scaling": ("high availability", "failover", "standby", "shard"),
    "docs/sdk": ("Python", "SDK", "CNSA", "retry"),
    "docs/single-sign-on": ("SSO", "OIDC", "SAML"),
    "docs/tls": ("TLS", "certificate", "HTTPS"),
    "docs/transit": (*("Vault", "OpenBao", "Transit", "hvac", "SOPS", "Terraform", "auto-unseal"),),
    "docs/try": ("quickstart", "getting started"),
    "docs/webhooks": ("webhook",),
}
"""The page that must be found first, and the typed words."""


def build(target: Path, *source: Path) -> subprocess.CompletedProcess[str]:
    """Build the site of this checkout, or of other Markdown files."""
    return subprocess.run([BUILD, target, *source], capture_output=True, text=True, check=False)


class Quiet(http.server.SimpleHTTPRequestHandler):
    """Serves a directory without a log."""

    def log_message(self, *_: object) -> None:
        """Write nothing."""


@dataclass(frozen=True)
class Site:
    """The built site and its address."""

    folder: Path
    base_url: str

    def pages(self) -> list[str]:
        """Return the paths of all pages with content."""
        names = (str(file.relative_to(self.folder)) for file in self.folder.rglob("*.html"))
        return sorted({*names} - {"index.html", "search.html"})


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """The site of this checkout, served from its files alone."""
    folder = tmp_path_factory.mktemp("site") / "site"
    built = build(folder)
    assert built.returncode == 0, built.stderr
    handler = functools.partial(Quiet, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield Site(folder, f"http://127.0.0.1:{server.server_port}")
        server.shutdown()
        thread.join()


@pytest.mark.parametrize(
    "link", ["docs/absent.md", "docs/README.md#absent", "#absent", "docs/absent.sql"]
)
def test_a_dead_link_ends_the_build(tmp_path: Path, link: str) -> None:
    """A link to a file or a heading that does not exist fails the build, which names it."""
    source = tmp_path / "source"
    (source / "docs").mkdir(parents=True)
    (source / "docs" / "README.md").write_text("# Map\n\n## All pages\n\n## Here\n\nText\n")
    (source / "README.md").write_text(f"# Title\n\n[good](docs/README.md#here), [bad]({link})\n")
    built = build(tmp_path / "site", source)
    assert built.returncode != 0
    assert "absent" in built.stderr
    assert "here" not in built.stderr


def test_every_page_is_reached_from_the_map(site: Site) -> None:
    """Each page of the documentation is linked from docs/README.md."""
    waiting, seen = ["docs/README.html"], set[str]()
    while waiting:
        path = waiting.pop()
        seen.add(path)
        text = (site.folder / path).read_text()
        content = text.split('id="furo-main-content"', 1)[1].split("</article>", 1)[0]
        for link in HREF.findall(content):
            target = urlsplit(urljoin(f"/{path}", link)).path.lstrip("/")
            if target.endswith(".html") and target not in seen and not urlsplit(link).netloc:
                waiting.append(target)
    assert set(site.pages()) <= seen


def test_links_lead_to_files_of_the_site(site: Site) -> None:
    """Links that Markdown does not check, such as the theme's links, lead to existing files."""
    for path in site.pages():
        for link in HREF.findall((site.folder / path).read_text()):
            parts = urlsplit(link)
            if not parts.scheme and parts.path:
                target = urlsplit(urljoin(f"/{path}", link)).path.lstrip("/")
                assert (site.folder / target).is_file(), (path, link)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_pages_fit_a_phone_and_ask_no_other_host(site: Site, visit: Visit, scheme: str) -> None:
    """Each page is as wide as a phone, without errors or requests to other hosts."""
    visitor = visit(site.base_url, phone=True, color_scheme=scheme)
    page = visitor.open("/")
    page.wait_for_url("**/README.html")
    every_page = site.pages()
    pages = (
        every_page if scheme == "light" else [name for name in every_page if "/adr/" not in name]
    )
    for path in ["search.html?q=rotate", *pages]:
        page.goto(f"/{path}")
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), path
    background = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (background == "rgb(255, 255, 255)") is (scheme == "light")


def first_result(page: Page, words: str) -> str:
    """Type words into the search page; return the first result."""
    page.locator(".pagefind-ui__search-input").fill(words)
    message = page.locator(".pagefind-ui__message")
    expect(message).to_have_text(re.compile(rf"^\d+ results? for {re.escape(words)}$"))
    link = page.locator(".pagefind-ui__result").first.locator("a").first
    expect(link).to_be_visible()
    href = link.get_attribute("href")
    assert href is not None
    return urlsplit(href).path.removeprefix("/").removesuffix(".html")


def test_the_search_names_the_right_page_first(site: Site, visit: Visit) -> None:
    """Typed words lead to the page with the instructions."""
    page = visit(site.base_url).open("/search.html")
    found = {words: first_result(page, words) for group in WORDS.values() for words in group}
    expected = {words: name for name, group in WORDS.items() for words in group}
    assert found == expected


def test_the_search_is_on_every_page(site: Site, visit: Visit) -> None:
    """Each page has the search, and a result leads to the heading with the words."""
    page = visit(site.base_url).open("/docs/tls.html")
    page.get_by_placeholder("Search").fill("an API key is stolen")
    page.keyboard.press("Enter")
    result = page.locator(".pagefind-ui__result").first
    result.get_by_role("link", name="An API key is stolen").click()
    page.wait_for_url("**/docs/runbooks.html#an-api-key-is-stolen")
