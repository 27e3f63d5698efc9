"""The cost of many keyrings of a tenant: created, listed, used, restarted and backed up.

Run as ``python -m benchmarks.keyrings [--keyrings 100000]``; prints a table. A new installation, in
SQLite, gets keyrings through the API up to this number. At each number in ``COUNTS``, one caller
measures ``TIMES`` times, and the median counts. 100,000 is the limit of a tenant. Keyrings have names with a prefix of 100 members,
``team-00042.``.
"""

import argparse
import http.client
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median
from typing import Any
from urllib.parse import urlsplit

from rich.table import Table

from benchmarks.command import Report, exit_status, within
from benchmarks.console import results_console
from benchmarks.errors import BenchmarkError
from benchmarks.installation import API, RATE, RESPONSE_SECONDS, ask, service

COUNTS = (1_000, 10_000, 100_000)
TIMES = 50
WRITERS = 16
PASSWORD = "the horse prefers oats"  # noqa: S105 - of the test account
KYBER = {"algorithm": "Kyber768"}


class Connection:
    """One kept connection with an API key, or with a person's cookies."""

    def __init__(self, base_url: str, headers: dict[str, str]) -> None:
        self._connection = http.client.HTTPConnection(
            urlsplit(base_url).netloc, timeout=10 * RESPONSE_SECONDS
        )
        self._headers = {"Content-Type": "application/json", **headers}

    def send(self, method: str, path: str, body: object = None) -> bytes:
        """Return the body of a response that must succeed. Raises BenchmarkError."""
        text = None if body is None else json.dumps(body)
        self._connection.request(method, path, text, self._headers)
        response = self._connection.getresponse()
        content = response.read()
        if response.status >= http.client.MULTIPLE_CHOICES:  # a redirect is to the sign-in
            raise BenchmarkError(f"{method} {path}: {response.status} {content[:300]!r}")
        return content

    def ask(self, method: str, path: str, body: object = None) -> dict[str, Any]:
        """Return the data of a request of the API."""
        data: dict[str, Any] = json.loads(self.send(method, API + path, body))["data"]
        return data


def name_of(number: int) -> str:
    """Return a keyring's name. 100 keyrings have the same prefix."""
    return f"team-{number // 100:05}.k{number % 100:02}"


def _milliseconds(work: Callable[[int], object], times: int = TIMES) -> float:
    """Return the median milliseconds of some work."""
    took: list[float] = []
    for number in range(times):
        began = time.perf_counter()
        work(number)
        took.append((time.perf_counter() - began) * 1000)
    return median(took)


def _fill(ready: dict[str, Any], first: int, last: int) -> None:
    """Create keyrings, every tenth with a key."""

    def create(writer: int) -> None:
        caller = Connection(ready["base_url"], {"X-API-Key": ready["api_key"]})
        for number in range(first + writer, last, WRITERS):
            caller.ask("POST", "/kms/keyrings", {"name": name_of(number)})
            if number % 10 == 0:
                body = {**KYBER, "keyring": name_of(number)}
                caller.ask("POST", "/kms/keys/generate", body)

    with ThreadPoolExecutor(WRITERS) as writers:
        list(writers.map(create, range(WRITERS)))


def _cookies(ready: dict[str, Any], count: int) -> str:
    """Sign a new viewer in; return the Cookie header. A session ends while keyrings are made."""
    path = f"{ready['base_url']}{API}/tenants/{ready['tenant_id']}/invitations"
    fields: dict[str, object] = {"email": f"viewer-{count}@example.com", "role": "viewer"}
    token = ask("POST", path, fields, ready["operator_key"])["invitation_token"]
    connection = http.client.HTTPConnection(urlsplit(ready["base_url"]).netloc)
    accepted = json.dumps({"token": token, "password": PASSWORD})
    path, headers = f"{API}/auth/accept-invitation", {"Content-Type": "application/json"}
    connection.request("POST", path, accepted, headers)
    response = connection.getresponse()
    response.read()
    values = response.headers.get_all("Set-Cookie") or ()
    return "; ".join(value.partition(";")[0] for value in values)


def _measured(caller: Connection, person: Connection, count: int) -> dict[str, float]:
    """Return the milliseconds of each operation.

    The last TIMES of ``count`` keyrings are made here.
    """
    prefix = name_of(count // 2).partition(".")[0]
    keyrings = [name_of(number) for number in range(0, min(count, 10 * TIMES), 10)]

    def encrypt(number: int) -> object:
        body = {**KYBER, "keyring": keyrings[number % len(keyrings)], "plaintext": "QUJD"}
        return caller.ask("POST", "/kem/encrypt", body)

    def create(number: int) -> object:
        return caller.ask("POST", "/kms/keyrings", {"name": f"new-{count}-{number}"})

    def find(_: int) -> object:
        return caller.ask("GET", f"/kms/keyrings?prefix={prefix}.&limit=100")

    return {
        "create": _milliseconds(create),
        "get": _milliseconds(lambda _: caller.ask("GET", f"/kms/keyrings/{keyrings[0]}")),
        "list 100 by prefix": _milliseconds(find),
        "list the first 100": _milliseconds(
            lambda _: caller.ask("GET", "/kms/keyrings?limit=100"), 10
        ),
        "keys of all keyrings, 100": _milliseconds(
            lambda _: caller.ask("GET", "/kms/keys?all_keyrings=true&limit=100"), 10
        ),
        "encrypt": _milliseconds(encrypt),
        "portal page of keyrings": _milliseconds(
            lambda _: person.send("GET", "/portal/keyrings"), 10
        ),
        "portal page, by prefix": _milliseconds(
            lambda _: person.send("GET", f"/portal/keyrings?prefix={prefix}."), 10
        ),
    }


def _backup_milliseconds(directory: Path, count: int) -> float:
    """Return the milliseconds of a backup."""
    pqkeepd = str(Path(sys.executable).with_name("pqkeepd"))
    private, public = directory / "recovery.key", directory / "recovery.pub"
    if not private.exists():
        halves = ("--private", str(private), "--public", str(public))
        subprocess.run([pqkeepd, "recovery-key", "create", *halves], check=True)
    began = time.perf_counter()
    subprocess.run(
        [
            *(pqkeepd, "backup", "--data", str(directory / "data")),
            *("--recovery-key", str(public), "--to", str(directory / f"backup-{count}")),
        ],
        check=True,
        capture_output=True,
    )
    return (time.perf_counter() - began) * 1000


def measure(directory: Path, counts: Sequence[int], report: Report) -> dict[int, dict[str, float]]:
    """Return milliseconds by number of keyrings and operation."""
    found: dict[int, dict[str, float]] = {}
    made = 0
    for count in counts:
        with service(directory) as (_, ready):
            path = f"{ready['base_url']}{API}/tenants/{ready['tenant_id']}"
            ask("PATCH", path, {"requests_per_minute": RATE}, ready["operator_key"])
            caller = Connection(ready["base_url"], {"X-API-Key": ready["api_key"]})
            others = 1 + TIMES * (len(found) + 1)  # the default one, and those of the measurements
            began = time.perf_counter()
            _fill(ready, made, count - others)
            added = count - others - made
            report(f"{count:,} keyrings: {added / (time.perf_counter() - began):,.0f} a second")
            made = count - others
            person = Connection(ready["base_url"], {"Cookie": _cookies(ready, count)})
            found[count] = _measured(caller, person, count)
            found[count]["backup"] = _backup_milliseconds(directory, count)
        began = time.perf_counter()
        with service(directory) as (_, ready):
            caller = Connection(ready["base_url"], {"X-API-Key": ready["api_key"]})
            body = {**KYBER, "keyring": name_of(0), "plaintext": "QUJD"}
            caller.ask("POST", "/kem/encrypt", body)
            found[count]["restart, first encryption"] = (time.perf_counter() - began) * 1000
    return found


def main() -> int:
    """Measure and report. Exit status 1: there is nothing to report."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument(
        "--keyrings", type=lambda text: within(text, COUNTS[-1]), default=COUNTS[-1]
    )
    most = parser.parse_args().keyrings

    def work(report: Report) -> None:
        counts = [count for count in COUNTS if count <= most]
        with tempfile.TemporaryDirectory(dir=Path.cwd()) as directory:
            found = measure(Path(directory), counts, report)
        table = Table("milliseconds, median", *(f"{count:,} keyrings" for count in counts))
        for name in found[counts[0]]:
            table.add_row(name, *(f"{found[count][name]:,.1f}" for count in counts))
        results_console().print(table)

    return exit_status("keyrings", work)


if __name__ == "__main__":
    sys.exit(main())
