"""The tests' browser finds each kind of problem on pages that have it."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from tests.fixtures.browser import BOTH, Chromium, Visit, assert_accessible

POLICY = "default-src 'self'; require-trusted-types-for 'script'; trusted-types 'none'"
PAGES = {
    "/good": ("<h1>good</h1>", POLICY),
    "/inline": ("<h1>inline</h1><script>document.title = 'ran'</script>", POLICY),
    "/handler": ("<img src=/none.png onerror=\"document.title = 'ran'\" alt=''>", POLICY),
    "/console": ("<script>console.error('a fault')</script>", ""),
    "/exception": ("<script>throw new Error('a fault')</script>", ""),
    "/elsewhere": ("<img src=http://localhost:9/image.png alt=''>", ""),
    "/sink": ("<script src=/sink.js></script>", POLICY),
    "/sink.js": ("document.body.innerHTML = '<p>text</p>'", POLICY),
    "/unnamed": ("<button></button><p style='color: #bbb; background: #fff'>pale</p>", ""),
}
NOTICED = {
    "/inline": "Content Security Policy",
    "/handler": "Content Security Policy",
    "/console": "on the console: a fault",
    "/exception": "an exception: .*a fault",
    "/elsewhere": "a request to another host: http://localhost:9/image.png",
    "/sink": "TrustedHTML",
}


class Handler(BaseHTTPRequestHandler):
    """Serves the pages."""

    def do_GET(self) -> None:
        found = PAGES.get(self.path)
        self.send_response(200 if found else 404)
        body, policy = found or ("", "")
        script = self.path.endswith(".js")
        self.send_header("Content-Type", "text/javascript" if script else "text/html")
        if policy:
            self.send_header("Content-Security-Policy", policy)
        self.end_headers()
        head = "<!doctype html><html lang=en><title>page</title><main>"
        self.wfile.write((body if script else head + body).encode())

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base's name
        pass


@pytest.fixture(scope="module")
def site() -> Iterator[str]:
    """The pages' address."""
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.mark.parametrize("path", NOTICED)
def test_problems_are_noticed(visit: Visit, site: str, path: str) -> None:
    """An error, an exception, a violation of the policy and a request elsewhere are problems."""
    visitor = visit(site)
    visitor.open(path).wait_for_load_state("networkidle")
    assert visitor.problems
    visitor.expected += [NOTICED[path], "Failed to load resource"]
    assert visitor.problems == []


def test_a_good_page_has_no_problem(visit: Visit, site: str) -> None:
    """A correct page is accessible and without problems, under a strict policy."""
    visitor = visit(site, phone=True)
    page = visitor.open("/good")
    assert_accessible(page)
    assert page.viewport_size == {"width": 390, "height": 844}
    assert visitor.problems == []


def test_findings_of_axe_fail(visit: Visit, site: str) -> None:
    """Axe finds a button without a name, and text without contrast in each scheme."""
    with pytest.raises(AssertionError) as failed:
        assert_accessible(visit(site).open("/unnamed"), BOTH)
    for finding in ("light: button-name", "light: color-contrast", "dark: color-contrast"):
        assert finding in str(failed.value)


def test_a_browser_that_is_stuck_is_replaced(chromium: Chromium, site: str) -> None:
    """A browser that hangs while closing a profile is killed, and the next visit starts another."""
    stuck = chromium.new_context(base_url=site)
    stuck.new_page().goto("/good")
    os.killpg(chromium.group, signal.SIGSTOP)
    assert not chromium.has_closed(stuck, 0.1)
    page = chromium.new_context(base_url=site).new_page()
    page.goto("/good")
    assert page.title() == "page"
    assert chromium.has_closed(page.context)
