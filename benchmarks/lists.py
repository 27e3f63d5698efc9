"""Measures the portal's lists, filtered and sorted, beside API load: ``python -m benchmarks.lists DIRECTORY``.

The directory has an installation of ``benchmarks.large``. Prints the milliseconds and bytes of each
page, and the CPU of both processes for it without load. CPU depends least on what else runs.
"""

import argparse
import http.client
import json
import re
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from statistics import median
from urllib.parse import urlsplit

from rich.table import Table

from benchmarks.command import Report, exit_status
from benchmarks.console import results_console
from benchmarks.cpu import children, nanoseconds
from benchmarks.errors import BenchmarkError
from benchmarks.installation import API, ask, service
from benchmarks.large import PASSWORD
from benchmarks.portal import EMAIL, load, request

TIMES = 15
LISTS = (
    "/portal/keys",
    "/portal/keys?q=algorithm:Kyber768+age:%3E1y+used-by:checkout+used:30d",
    "/portal/keys?q=status:active+unused:90d&sort=-created",
    "/portal/api-keys?q=status:active+unused:90d&sort=-created",
    "/portal/api-keys?q=expires:%3C30d+scope:payments.&sort=expires",
    "/portal/team?q=mfa:no+unused:90d&sort=-last-sign-in",
    "/portal/team/invitations?sort=-email",
    "/portal/keyrings?q=payments.",
    "/portal/keyrings?q=unused:90d+label:owner:payments&sort=-last-used",
    "/portal/audit?q=refused",
    "/portal/search?q=checkout",
)


def _cookies(base_url: str) -> str:
    connection = http.client.HTTPConnection(urlsplit(base_url).netloc)
    body = json.dumps({"email": EMAIL, "password": PASSWORD})
    connection.request("POST", f"{API}/auth/login", body, {"Content-Type": "application/json"})
    response = connection.getresponse()
    response.read()
    values = response.headers.get_all("Set-Cookie") or ()
    return "; ".join(value.partition(";")[0] for value in values)


def _pages(base_url: str, path: str, cookies: str) -> list[tuple[Mapping[str, str], int, float]]:
    """Return headers, bytes and seconds of a page that is read TIMES times, and once before."""
    seen = [request(base_url, "GET", path, Cookie=cookies) for _ in range(TIMES + 1)]
    if {status for status, *_ in seen} != {http.client.OK}:
        raise BenchmarkError(f"{path} was not answered with 200")
    return [(dict(headers), len(body), seconds) for _, headers, body, seconds in seen[1:]]


def _cpu(process_id: int) -> float:
    """Return the CPU time of pqkeepd's processes in milliseconds."""
    return sum(map(nanoseconds, children(process_id))) / 1_000_000


def measure(directory: Path) -> Table:
    """Return a table of each list."""
    table = Table("list", "CPU ms alone", "gateway ms, beside 500/s", "whole ms", "kB")
    with service(directory) as (process_id, ready):
        base_url = ready["base_url"]
        cookies = _cookies(base_url)
        with suppress(BenchmarkError):  # an earlier run has generated it
            path = f"{base_url}{API}/kms/keys/generate"
            ask("POST", path, {"algorithm": "Kyber768"}, ready["api_key"])
        alone: dict[str, float] = {}
        for path in LISTS:
            _pages(base_url, path, cookies)
            before = _cpu(process_id)
            _pages(base_url, path, cookies)
            alone[path] = (_cpu(process_id) - before) / (TIMES + 1)
        with load(ready):
            for path in LISTS:
                seen = _pages(base_url, path, cookies)
                took = [
                    float(re.findall(r"dur=([\d.]+)", headers["server-timing"])[0])
                    for headers, *_ in seen
                ]
                whole = median(seconds * 1000 for *_, seconds in seen)
                size = max(size for _, size, _ in seen) / 1000
                figures = (alone[path], median(took), whole, size)
                table.add_row(path, *(f"{figure:.1f}" for figure in figures))
    return table


def main() -> int:
    """Measure and report. Exit status 1: there is nothing to report."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("directory", type=Path, help="an installation of benchmarks.large")
    directory = parser.parse_args().directory

    def work(_: Report) -> None:
        results_console().print(measure(directory))

    return exit_status("lists", work)


if __name__ == "__main__":
    sys.exit(main())
