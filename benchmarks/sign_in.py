"""Compares how long a refused sign-in takes where somebody has the address and where nobody has.

``python benchmarks/sign_in.py``: about a minute. It reports and judges nothing: how far two medians
may lie apart depends on the machine.
"""

import argparse
import http.client
import json
import secrets
import signal
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median, quantiles
from types import FrameType
from typing import Any, NoReturn
from urllib.parse import urlsplit

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.errors import BenchmarkError
from benchmarks.installation import ANSWER_SECONDS, API, ask, service

PEOPLE = 14
TRIES = 10
"""Of each address: as many as are answered before it is 429; all together fewer than 300."""
PASSWORD = "the horse prefers oats"  # noqa: S105 - everybody's here
WRONG = "the horse is tired of oats"


@dataclass
class Tries:
    """What refused sign-ins of one kind took, in seconds, and what they were told."""

    seconds: list[float] = field(default_factory=list)
    told: set[str] = field(default_factory=set)


def main() -> int:
    """Measure and report. Exit status 1: there is nothing to report."""
    argparse.ArgumentParser(description=__doc__.partition("\n")[0]).parse_args()
    signal.signal(signal.SIGTERM, _end)  # what was started ends too
    known, unknown = Tries(), Tries()
    try:
        with tempfile.TemporaryDirectory() as directory, service(Path(directory)) as (_, ready):
            people = [_join(ready) for _ in range(PEOPLE)]
            strangers = [_address() for _ in range(PEOPLE)]
            for _ in range(TRIES):
                for person, stranger in zip(people, strangers, strict=True):
                    _try(ready["base_url"], person, known)
                    _try(ready["base_url"], stranger, unknown)
    except BenchmarkError as error:
        print(f"benchmark: {error}", file=sys.stderr)
        return 1
    _show(known, unknown)
    return 0


def _end(number: int, _: FrameType | None) -> NoReturn:
    sys.exit(128 + number)


def _address() -> str:
    return f"{secrets.token_hex(8)}@example.com"


def _join(ready: dict[str, str]) -> str:
    """Let somebody in; return their address."""
    email, url = _address(), ready["base_url"] + API
    invited = ask(
        "POST",
        f"{url}/tenants/{ready['tenant_id']}/invitations",
        {"email": email, "role": "viewer"},
        ready["operator_key"],
    )
    fields = {"token": invited["invitation_token"], "password": PASSWORD}
    status, answer, _ = _post(url, "/auth/accept-invitation", fields)
    if status != http.client.CREATED:
        raise BenchmarkError(f"an invitation was refused: {answer}")
    return email


def _try(base_url: str, email: str, tries: Tries) -> None:
    """Sign in with a wrong password."""
    fields = {"email": email, "password": WRONG}
    status, answer, seconds = _post(base_url + API, "/auth/login", fields)
    if status != http.client.UNAUTHORIZED:
        raise BenchmarkError(f"a sign-in was answered with {status}: {answer}")
    tries.seconds.append(seconds)
    tries.told.add(json.dumps(answer["error"]))


def _post(url: str, path: str, fields: dict[str, str]) -> tuple[int, Any, float]:
    """Return status, answer, and the seconds until it was there."""
    _, address, start, _, _ = urlsplit(url)
    connection = http.client.HTTPConnection(address, timeout=ANSWER_SECONDS)
    body = json.dumps(fields)
    try:
        connection.connect()
        began = time.perf_counter()
        connection.request("POST", start + path, body, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        text = answer.read()
        return answer.status, json.loads(text), time.perf_counter() - began
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise BenchmarkError(f"{path} does not answer: {error}") from None
    finally:
        connection.close()


def _show(known: Tries, unknown: Tries) -> None:
    table = Table(box=SIMPLE_HEAD)
    for name in ("refused sign-in, ms", "tries", "p25", "median", "p75"):
        table.add_column(name, justify="left" if name.startswith("refused") else "right")
    for name, tries in (("somebody's address", known), ("nobody's address", unknown)):
        low, _, high = quantiles(tries.seconds, n=4)
        shown = (f"{each * 1000:.2f}" for each in (low, median(tries.seconds), high))
        table.add_row(name, str(len(tries.seconds)), *shown)
    console = Console()
    console.print(table)
    difference = (median(known.seconds) - median(unknown.seconds)) * 1000
    same = "the same" if known.told == unknown.told and len(known.told) == 1 else "NOT the same"
    console.print(f"medians differ by {difference:+.2f} ms; what is told is {same}")


if __name__ == "__main__":
    sys.exit(main())
