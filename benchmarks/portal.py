"""Measures the portal: page times beside API load, and the bytes and display of a browser.

``python benchmarks/portal.py`` takes about a minute and needs Debian's Chromium. It only reports,
because page times depend on the machine.
"""

import argparse
import http.client
import multiprocessing
import os
import re
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.queues import SimpleQueue
from multiprocessing.synchronize import Event
from pathlib import Path
from statistics import median, quantiles
from typing import Any
from urllib.parse import urlsplit

from playwright.sync_api import Browser, BrowserContext, Page, sync_playwright
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.command import Report, exit_status
from benchmarks.errors import BenchmarkError
from benchmarks.installation import API, RATE, RESPONSE_SECONDS, ask, service

CHROMIUM = "/usr/bin/chromium"
REQUESTS_PER_SECOND = 500
CONNECTIONS = 16
TIMES = 15
"""Requests for each page. The first one is not measured."""
EMAIL = "owner@localhost"
PASSWORD = "the horse prefers oats"  # noqa: S105 - of the test account
PATHS = (
    "/portal",
    "/portal?period=30d",
    "/portal/keys",
    "/portal/keys/Kyber768/1",
    "/portal/keys/import",
    "/portal/keyrings",
    "/portal/api-keys",
    "/portal/api-keys/1",
    "/portal/try",
    "/portal/audit",
    "/portal/audit/20",
    "/portal/team",
    "/portal/security",
    "/portal/billing",
    "/portal/sign-in",
)
SLOW = {
    "offline": False,
    "latency": 150,
    "downloadThroughput": 1.6 * 1024 * 1024 / 8,
    "uploadThroughput": 750 * 1024 / 8,
}
"""Lighthouse's slow 4G, formerly "Fast 3G": milliseconds, and bytes per second."""
OBSERVE = """
window.seen = {shift: 0, paint: 0, largest: 0};
new PerformanceObserver(list => list.getEntries().forEach(each => {
  if (!each.hadRecentInput) seen.shift += each.value;
})).observe({type: "layout-shift", buffered: true});
new PerformanceObserver(list => list.getEntries().forEach(each => {
  if (each.name === "first-contentful-paint") seen.paint = each.startTime;
})).observe({type: "paint", buffered: true});
new PerformanceObserver(list => list.getEntries().forEach(each => {
  seen.largest = each.startTime;
})).observe({type: "largest-contentful-paint", buffered: true});
"""
SMALL_TARGETS = """() => [...document.querySelectorAll(
  "button, .button, input, select, summary, nav a")].filter(each => {
  const box = each.getBoundingClientRect();
  return box.width && box.height && each.checkVisibility() && each.type !== "checkbox"
    && each.type !== "radio" && (box.height < 43.5 || box.width < 24);
}).length"""
BASICS = """() => [
  ["doctype", document.doctype?.name === "html" && document.compatMode === "CSS1Compat"],
  ["charset", document.characterSet === "UTF-8"],
  ["viewport", !!document.querySelector("meta[name=viewport][content*='width=device-width']")],
  ["description", !!document.querySelector("meta[name=description]")?.content],
  ["title", !!document.title], ["language", !!document.documentElement.lang],
  ["secure context", isSecureContext],
  ["images have sizes", [...document.images].every(each => each.width && each.height)],
].filter(([, holds]) => !holds).map(([name]) => name)"""


def main() -> int:
    """Measure and report. Exit status 1: there is nothing to report."""
    argparse.ArgumentParser(description=__doc__.partition("\n")[0]).parse_args()
    return exit_status("benchmark", _measure)


def _measure(report: Report) -> None:
    if not Path(CHROMIUM).exists():
        raise BenchmarkError(f"{CHROMIUM} is not installed")
    with tempfile.TemporaryDirectory() as directory, service(Path(directory)) as (_, ready):
        cookies = _prepare(ready)
        paths = _existing(ready["base_url"], cookies)
        _report_times("alone", _times(ready["base_url"], paths, cookies), 0)
        with load(ready) as counted:
            began = time.monotonic()
            times = _times(ready["base_url"], paths, cookies)
            seconds = time.monotonic() - began
        _report_times("beside load", times, counted[0] / seconds)
        _report_assets(ready["base_url"])
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(
                executable_path=CHROMIUM, args=["--no-sandbox", "--disable-dev-shm-usage"]
            )
            _report_browser(browser, ready["base_url"], paths, cookies)
            browser.close()


def _prepare(ready: dict[str, str]) -> str:
    """Fill the demo tenant; return its owner's cookies in a browser's form."""
    base_url = ready["base_url"] + API
    tenant = f"{base_url}/tenants/{ready['tenant_id']}"
    ask("PATCH", tenant, {"requests_per_minute": RATE}, ready["operator_key"])
    for algorithm in ("Kyber768", "X-Wing", "Dilithium3"):
        ask("POST", f"{base_url}/kms/keys/generate", {"algorithm": algorithm}, ready["api_key"])
    for _ in range(10):
        ask("POST", f"{base_url}/kms/keys/rotate", {"algorithm": "Kyber768"}, ready["api_key"])
    for _ in range(100):
        ask("POST", f"{base_url}/kem/encrypt", {"plaintext": "QUJD"}, ready["api_key"])
    fields = f'{{"token":"{ready["owner_invitation"]}","password":"{PASSWORD}"}}'
    status, headers, body, _ = request(
        ready["base_url"], "POST", f"{API}/auth/accept-invitation", fields
    )
    if status != http.client.CREATED:
        raise BenchmarkError(f"the owner's invitation was refused: {body!r}")
    return "; ".join(
        value.partition(";")[0] for name, value in headers if name.lower() == "set-cookie"
    )


def request(
    base_url: str, method: str, path: str, body: str | None = None, **headers: str
) -> tuple[int, list[tuple[str, str]], bytes, float]:
    """Return status, headers, body, and the seconds until the end of the response."""
    connection = http.client.HTTPConnection(urlsplit(base_url).netloc, timeout=RESPONSE_SECONDS)
    sent = {name.replace("_", "-"): value for name, value in headers.items()}
    if body is not None:
        sent["Content-Type"] = "application/json"
    try:
        connection.connect()
        began = time.perf_counter()
        connection.request(method, path, body, sent)
        response = connection.getresponse()
        content = response.read()
        return response.status, response.getheaders(), content, time.perf_counter() - began
    except (OSError, http.client.HTTPException) as error:
        raise BenchmarkError(f"{path} does not answer: {error}") from None
    finally:
        connection.close()


def _existing(base_url: str, cookies: str) -> tuple[str, ...]:
    """Return the existing pages of this installation. One request for each also warms it."""
    found = tuple(
        path
        for path in PATHS
        if request(base_url, "GET", path, Cookie=cookies)[0] == http.client.OK
    )
    if not found:
        raise BenchmarkError("no page is answered with 200")
    return found


Times = dict[str, list[tuple[float, float]]]
"""For each page: the gateway's own milliseconds, and the milliseconds until the response is
complete."""


def _times(base_url: str, paths: tuple[str, ...], cookies: str) -> Times:
    times: Times = {path: [] for path in paths}
    for _ in range(TIMES):
        for path in paths:
            status, headers, _, seconds = request(base_url, "GET", path, Cookie=cookies)
            found = re.search(r"dur=([\d.]+)", dict(headers).get("server-timing", ""))
            if status != http.client.OK or found is None:
                raise BenchmarkError(f"{path} was answered with {status}")
            times[path].append((float(found[1]), seconds * 1000))
    return times


@contextmanager
def load(ready: dict[str, str]) -> Iterator[list[int]]:
    """Encrypt at a fixed rate for a block; then the list has the number of successes."""
    context = multiprocessing.get_context("spawn")  # a process of its own: it shares no lock
    done, counts, counted = context.Event(), context.SimpleQueue(), [0]
    arguments = (urlsplit(ready["base_url"]).netloc, ready["api_key"], done, counts)
    process = context.Process(target=_encrypt, args=arguments, daemon=True)
    process.start()
    counts.get()
    try:
        yield counted
    finally:
        done.set()
        counted[0] = counts.get()
        process.join()
    if not counted[0]:
        raise BenchmarkError("the load was refused")


def _encrypt(address: str, api_key: str, done: Event, counts: "SimpleQueue[int]") -> None:
    """Send requests at planned times until told to end.

    Report the number of successes, 0 after a failure.
    """
    headers = {"X-API-Key": api_key, "Content-Type": "application/json"}
    statuses: list[int] = []

    def run(number: int) -> None:
        connection = http.client.HTTPConnection(address, timeout=RESPONSE_SECONDS)
        due = time.monotonic() + number / REQUESTS_PER_SECOND
        while not done.is_set():
            time.sleep(max(0.0, due - time.monotonic()))
            due += CONNECTIONS / REQUESTS_PER_SECOND
            connection.request("POST", f"{API}/kem/encrypt", '{"plaintext":"QUJD"}', headers)
            response = connection.getresponse()
            response.read()
            statuses.append(response.status)
        connection.close()

    threads = [threading.Thread(target=run, args=(n,)) for n in range(CONNECTIONS)]
    for each in threads:
        each.start()
    counts.put(0)
    for each in threads:
        each.join()
    counts.put(len(statuses) if set(statuses) == {http.client.OK} else 0)


def _report_times(title: str, times: Times, rate: float) -> None:
    load = f"load {os.getloadavg()[0]:.1f}"
    beside = f", {rate:.0f} requests/s of API load" if rate else ""
    rows = []
    for path, each in times.items():
        server, whole = zip(*each, strict=True)
        p90 = quantiles(whole, n=10)[8]
        rows.append((path, f"{median(server):.1f}", f"{median(whole):.1f}", f"{p90:.1f}"))
    _show((f"ms, {title} ({load}{beside})", "gateway", "whole", "p90"), rows)


def _report_assets(base_url: str) -> None:
    """Report the headers of static files."""
    _, _, body, _ = request(base_url, "GET", "/portal/sign-in")
    names = sorted(set(re.findall(r'(?:src|href)="(/portal/static/[^"]+)"', body.decode())))
    rows = []
    for name in names:
        _, headers, sent, _ = request(base_url, "GET", name, Accept_Encoding="gzip")
        given = {key.lower(): value for key, value in headers}
        rows.append(
            (
                name.rsplit("/", 1)[1],
                str(len(sent)),
                given.get("content-encoding", "none"),
                given.get("cache-control", "none"),
            )
        )
    _show(("file of the sign-in page", "bytes", "encoding", "cache"), rows)


def _report_browser(browser: Browser, base_url: str, paths: tuple[str, ...], cookies: str) -> None:
    rows = []
    context = _context(browser, base_url, cookies)
    for number, path in enumerate((paths[0], paths[2]), 1):
        page = context.new_page()
        sizes: list[float] = []
        protocol = context.new_cdp_session(page)
        protocol.send("Network.enable")
        protocol.on(
            "Network.loadingFinished",
            lambda each, sizes=sizes: sizes.append(each["encodedDataLength"]),
        )
        page.goto(path, wait_until="networkidle")
        sent = [each for each in sizes if each]  # what comes from the cache has no size
        rows.append((f"{number}. {path}", str(len(sent)), f"{sum(sent) / 1000:.1f}"))
        page.close()
    context.close()
    _show(("in a browser", "requests", "kB"), rows)
    _show(
        ("slow connection, phone", "FCP ms", "LCP ms", "shift", "small targets", "problems"),
        [_audit(browser, base_url, path, cookies) for path in paths],
    )


def _audit(browser: Browser, base_url: str, path: str, cookies: str) -> tuple[str, ...]:
    """Open a page like Lighthouse: a phone, an empty cache, a slow connection."""
    context = _context(browser, base_url, cookies, phone=True)
    page: Page = context.new_page()
    problems: list[str] = []
    page.on("console", lambda each: problems.append("console") if each.type == "error" else None)
    page.on("pageerror", lambda _: problems.append("exception"))
    page.on("requestfailed", lambda _: problems.append("request"))
    protocol = context.new_cdp_session(page)
    protocol.send("Network.enable")
    protocol.send("Network.emulateNetworkConditions", SLOW)
    page.add_init_script(OBSERVE)
    page.goto(path, wait_until="networkidle")
    seen = page.evaluate("window.seen")
    small = page.evaluate(SMALL_TARGETS)
    problems += page.evaluate(BASICS)
    context.close()
    return (
        path,
        f"{seen['paint']:.0f}",
        f"{seen['largest']:.0f}",
        f"{seen['shift']:.3f}",
        str(small),
        ", ".join(problems) or "none",
    )


def _context(
    browser: Browser, base_url: str, cookies: str, *, phone: bool = False
) -> BrowserContext:
    options: dict[str, Any] = {}
    if phone:
        options = {"viewport": {"width": 390, "height": 844}, "has_touch": True, "is_mobile": True}
    context = browser.new_context(base_url=base_url, **options)
    context.add_cookies(
        [
            {"name": name, "value": value, "url": base_url}
            for name, _, value in (each.partition("=") for each in cookies.split("; "))
        ]
    )
    return context


def _show(names: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> None:
    table = Table(box=SIMPLE_HEAD)
    for number, name in enumerate(names):
        table.add_column(name, justify="right" if number else "left")
    for row in rows:
        table.add_row(*row)
    console = Console(width=max(100, Console().width))
    console.print(table)


if __name__ == "__main__":
    sys.exit(main())
