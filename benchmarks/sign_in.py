"""Compares the time of a refused sign-in for addresses with and without an account.

``python benchmarks/sign_in.py`` takes about a minute. It only reports, because the difference of
two medians depends on the machine.
"""

import argparse
import http.client
import json
import secrets
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median, quantiles
from typing import Any
from urllib.parse import urlsplit

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.command import Report, exit_status
from benchmarks.errors import BenchmarkError
from benchmarks.installation import API, RESPONSE_SECONDS, ask, service

ADDRESSES = 14
TRIES = 10
"""Tries for each address, up to the rate limit; fewer than 300 in all."""
PASSWORD = "the horse prefers oats"  # noqa: S105 - of all test accounts
WRONG = "the horse is tired of oats"


@dataclass
class Tries:
    """The times in seconds of refused sign-ins of one kind, and their distinct responses."""

    seconds: list[float] = field(default_factory=list)
    responses: set[str] = field(default_factory=set)


def main() -> int:
    """Measure and report. Exit status 1: there is nothing to report."""
    argparse.ArgumentParser(description=__doc__.partition("\n")[0]).parse_args()

    def work(report: Report) -> None:
        known, unknown = Tries(), Tries()
        with tempfile.TemporaryDirectory() as directory, service(Path(directory)) as (_, ready):
            accounts = [_join(ready) for _ in range(ADDRESSES)]
            others = [_address() for _ in range(ADDRESSES)]
            for _ in range(TRIES):
                for account, other in zip(accounts, others, strict=True):
                    _try(ready["base_url"], account, known)
                    _try(ready["base_url"], other, unknown)
        _show(known, unknown)

    return exit_status("benchmark", work)


def _address() -> str:
    return f"{secrets.token_hex(8)}@example.com"


def _join(ready: dict[str, str]) -> str:
    """Create an account; return its address."""
    email, url = _address(), ready["base_url"] + API
    invited = ask(
        "POST",
        f"{url}/tenants/{ready['tenant_id']}/invitations",
        {"email": email, "role": "viewer"},
        ready["operator_key"],
    )
    fields = {"token": invited["invitation_token"], "password": PASSWORD}
    status, response, _ = _post(url, "/auth/accept-invitation", fields)
    if status != http.client.CREATED:
        raise BenchmarkError(f"an invitation was refused: {response}")
    return email


def _try(base_url: str, email: str, tries: Tries) -> None:
    """Sign in with a wrong password."""
    fields = {"email": email, "password": WRONG}
    status, response, seconds = _post(base_url + API, "/auth/login", fields)
    if status != http.client.UNAUTHORIZED:
        raise BenchmarkError(f"a sign-in was answered with {status}: {response}")
    tries.seconds.append(seconds)
    tries.responses.add(json.dumps(response["error"]))


def _post(url: str, path: str, fields: dict[str, str]) -> tuple[int, Any, float]:
    """Return status, response, and the seconds until it was received."""
    _, address, start, _, _ = urlsplit(url)
    connection = http.client.HTTPConnection(address, timeout=RESPONSE_SECONDS)
    body = json.dumps(fields)
    try:
        connection.connect()
        began = time.perf_counter()
        connection.request("POST", start + path, body, {"Content-Type": "application/json"})
        response = connection.getresponse()
        text = response.read()
        return response.status, json.loads(text), time.perf_counter() - began
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise BenchmarkError(f"{path} does not answer: {error}") from None
    finally:
        connection.close()


def _show(known: Tries, unknown: Tries) -> None:
    table = Table(box=SIMPLE_HEAD)
    for name in ("refused sign-in, ms", "tries", "p25", "median", "p75"):
        table.add_column(name, justify="left" if name.startswith("refused") else "right")
    for name, tries in (("with an account", known), ("without", unknown)):
        low, _, high = quantiles(tries.seconds, n=4)
        shown = (f"{each * 1000:.2f}" for each in (low, median(tries.seconds), high))
        table.add_row(name, str(len(tries.seconds)), *shown)
    console = Console()
    console.print(table)
    difference = (median(known.seconds) - median(unknown.seconds)) * 1000
    same = (
        "the same"
        if known.responses == unknown.responses and len(known.responses) == 1
        else "NOT the same"
    )
    console.print(f"medians differ by {difference:+.2f} ms; the answer is {same}")


if __name__ == "__main__":
    sys.exit(main())
