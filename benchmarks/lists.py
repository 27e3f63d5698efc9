"""Measures the portal's lists, filtered and sorted, beside API load: ``python -m benchmarks.lists DIRECTORY``.

The directory has an installation of ``benchmarks.large``. Prints the medians of the rounds: the CPU
of both processes for a page without load, and its milliseconds beside the load. Pages are asked for
as a browser asks, so they are sent compressed.
"""

import argparse
import gzip
import http.client
import json
import os
import re
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from urllib.parse import quote, urlsplit

from rich.table import Table

from benchmarks.command import Report, exit_status
from benchmarks.console import results_console
from benchmarks.cpu import nanoseconds
from benchmarks.errors import BenchmarkError
from benchmarks.installation import API, ask, parts_of, service
from benchmarks.large import PASSWORD
from benchmarks.portal import EMAIL, load, request

TIMES = 40
ROUNDS = 3
SESSION_SECONDS = 300
OPERATORS = "/portal/operator/"
LISTS = (
    ("/portal/keys", "algorithm:Kyber768 age:>1y used-by:checkout used:30d", "-last-used"),
    ("/portal/keys", "status:active unused:90d", "-uses"),
    ("/portal/keyrings", "unused:90d label:owner:payments", "-last-used"),
    ("/portal/keyrings", "payments.", "rotation"),
    ("/portal/api-keys", "status:active unused:90d", "-created"),
    ("/portal/api-keys", "expires:<30d scope:payments.", "expires"),
    ("/portal/team", "mfa:no unused:90d", "-last-sign-in"),
    ("/portal/team/invitations", "role:viewer", "-email"),
    ("/portal/audit", "refused", ""),
    ("/portal/audit", "operation:encrypt within:7d", ""),
    ("/portal/operator/tenants", "status:active age:>1y", "-name"),
)
"""The path, a filter and a sort. Records have one order."""
SEARCH = "/portal/search?q=checkout"


@dataclass
class Seen:
    """One page in all rounds. Times are in milliseconds."""

    gateway: list[float] = field(default_factory=list)
    key_service: list[float] = field(default_factory=list)
    rendered: list[float] = field(default_factory=list)
    whole: list[float] = field(default_factory=list)
    sent: int = 0
    """The most bytes of a response's body."""
    html: int = 0
    """These without compression."""


def pages() -> Iterator[str]:
    """Yield the address of each list: whole, filtered, sorted, and both."""
    seen: set[str] = set()
    for path, typed, sort in LISTS:
        filtered = f"q={quote(typed, safe=':')}"
        queries = ["", filtered, *([f"sort={sort}", f"{filtered}&sort={sort}"] if sort else [])]
        addresses = [f"{path}?{query}".rstrip("?") for query in queries]
        yield from (address for address in addresses if address not in seen)
        seen.update(addresses)
    yield SEARCH


def _cookies(base_url: str, path: str, body: Mapping[str, str]) -> str:
    connection = http.client.HTTPConnection(urlsplit(base_url).netloc)
    headers = {"Content-Type": "application/json"}
    connection.request("POST", f"{API}/auth/{path}", json.dumps(body), headers)
    response = connection.getresponse()
    response.read()
    values = response.headers.get_all("Set-Cookie") or ()
    return "; ".join(value.partition(";")[0] for value in values)


def _read(base_url: str, path: str, cookies: str, times: int) -> list[tuple[float, float, bytes]]:
    """Return the gateway's milliseconds, the caller's, and the bytes of a page, each time."""
    seen = []
    browser = {"Cookie": cookies, "Accept_Encoding": "gzip", "Sec_Fetch_Site": "same-origin"}
    for _ in range(times):
        status, headers, body, seconds = request(base_url, "GET", path, **browser)
        if status != http.client.OK:
            raise BenchmarkError(f"{path} was answered with {status}")
        took = re.findall(r"dur=([\d.]+)", dict(headers)["server-timing"])
        seen.append((float(took[0]), seconds * 1000, body))
    return seen


def measure(directory: Path, times: int, rounds: int, report: Report) -> Mapping[str, Seen]:
    """Return the measurements of each page."""
    seen = {path: Seen() for path in pages()}
    with service(directory) as (process_id, ready):
        base_url, parts = ready["base_url"], parts_of(process_id)
        sessions: dict[str, tuple[float, str]] = {}
        with suppress(BenchmarkError):  # an earlier run has generated it
            path = f"{base_url}{API}/kms/keys/generate"
            ask("POST", path, {"algorithm": "Kyber768"}, ready["api_key"])

        def session(path: str) -> str:
            """Return the cookies of a session that lasts longer than some reading of pages."""
            kind = "operator" if path.startswith(OPERATORS) else "login"
            began, cookies = sessions.get(kind, (0.0, ""))
            if not cookies or time.monotonic() - began > SESSION_SECONDS:
                own = {"email": EMAIL, "password": PASSWORD}
                body = own if kind == "login" else {"operator_key": ready["operator_key"]}
                cookies = _cookies(base_url, kind, body)
                sessions[kind] = time.monotonic(), cookies
            return cookies

        def read(path: str, times: int) -> list[tuple[float, float, bytes]]:
            return _read(base_url, path, session(path), times)

        for _ in range(rounds):
            for path, page in seen.items():
                read(path, 3)  # the first reading after others is slower
                before = [nanoseconds(part) for part in parts]
                read(path, times)
                used = [nanoseconds(part) - was for part, was in zip(parts, before, strict=True)]
                gateway, key_service = (part / 1_000_000 / times for part in used)
                page.gateway.append(gateway)
                page.key_service.append(key_service)
            began = time.monotonic()
            with load(ready) as counted:
                for path, page in seen.items():
                    took = read(path, times)
                    page.rendered.append(median(rendered for rendered, *_ in took))
                    page.whole.append(median(whole for _, whole, _ in took))
                    largest = max((body for *_, body in took), key=len)
                    page.sent = max(page.sent, len(largest))
                    page.html = max(page.html, len(gzip.decompress(largest)))
            rate = counted[0] / (time.monotonic() - began)
            report(f"{rate:.0f} requests/s beside it, load average {os.getloadavg()[0]:.1f}")
    return seen


def _table(seen: Mapping[str, Seen]) -> Table:
    table = Table(
        "page", "CPU gateway", "CPU key service", "rendered", "whole", "kB sent", "kB HTML"
    )
    for path, page in seen.items():
        of_rounds = (page.gateway, page.key_service, page.rendered, page.whole)
        figures = (*map(median, of_rounds), page.sent / 1000, page.html / 1000)
        table.add_row(path, *(f"{figure:.1f}" for figure in figures))
    table.caption = "milliseconds; CPU without load, times beside it"
    return table


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and report. Exit status 1: there is nothing to report."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("directory", type=Path, help="an installation of benchmarks.large")
    parser.add_argument("--times", type=int, default=TIMES, help="requests of a page in a round")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    chosen = parser.parse_args(arguments)

    def work(report: Report) -> None:
        results_console().print(
            _table(measure(chosen.directory, chosen.times, chosen.rounds, report))
        )

    return exit_status("lists", work)


if __name__ == "__main__":
    sys.exit(main())
