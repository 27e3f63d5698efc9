"""Measures the portal's lists, filtered and sorted, beside API load: ``python -m benchmarks.lists DIRECTORY``.

The directory has an installation of ``benchmarks.large``. Prints milliseconds and bytes of each page.
"""

import argparse
import http.client
import json
import re
import sys
from contextlib import suppress
from pathlib import Path
from statistics import median
from urllib.parse import urlsplit

from rich.table import Table

from benchmarks.command import Report, exit_status
from benchmarks.console import results_console
from benchmarks.errors import BenchmarkError
from benchmarks.installation import API, ask, service
from benchmarks.large import PASSWORD
from benchmarks.portal import EMAIL, load, request

TIMES = 15
LISTS = (
    "/portal/keys?q=algorithm:Kyber768+age:%3E1y+used-by:checkout+used:30d",
    "/portal/keys?q=status:active+unused:90d&sort=-created",
    "/portal/api-keys?q=status:active+unused:90d&sort=-created",
    "/portal/api-keys?q=expires:%3C30d+scope:payments.&sort=expires",
    "/portal/team?q=mfa:no+unused:90d&sort=-last-sign-in",
    "/portal/keyrings?prefix=payments.",
    "/portal/audit?outcome=refused",
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


def measure(directory: Path) -> Table:
    """Return a table of each list."""
    table = Table("list, beside 500 requests/s", "gateway ms", "whole ms", "kB")
    with service(directory) as (_, ready):
        cookies = _cookies(ready["base_url"])
        with suppress(BenchmarkError):  # an earlier run has generated it
            path = f"{ready['base_url']}{API}/kms/keys/generate"
            ask("POST", path, {"algorithm": "Kyber768"}, ready["api_key"])
        with load(ready):
            for path in LISTS:
                seen = [
                    request(ready["base_url"], "GET", path, Cookie=cookies) for _ in range(TIMES)
                ]
                if {status for status, *_ in seen} != {http.client.OK}:
                    raise BenchmarkError(f"{path} was not answered with 200")
                took = [
                    float(re.findall(r"dur=([\d.]+)", dict(headers)["server-timing"])[0])
                    for _, headers, _, _ in seen[1:]
                ]
                whole = median(seconds * 1000 for *_, seconds in seen[1:])
                size = max(len(body) for _, _, body, _ in seen) / 1000
                table.add_row(path, f"{median(took):.1f}", f"{whole:.1f}", f"{size:.1f}")
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
