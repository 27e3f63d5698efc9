"""``pqkeep login``: keep a service's address and an API key in a profile."""

import sys
from pathlib import Path
from typing import Annotated

import typer

import pqkeep
from pqkeep.cli.command import command
from pqkeep.cli.display import show_facts
from pqkeep.cli.failures import Refusal
from pqkeep.cli.invocation import Invocation
from pqkeep.cli.options import STANDARD
from pqkeep.cli.profile_store import store
from pqkeep.cli.status import who
from pqkeep.profiles import DEFAULT, Profile, environment, profile_file

LONGEST_KEY = 4096


def add_to(app: typer.Typer) -> None:
    """Add the command."""
    command(app, "login")(login)


def login(
    invocation: Invocation,
    *,
    ca_file: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Trust the certificates in this file only.", show_default=False
        ),
    ] = None,
    allow_plain_http: Annotated[
        bool,
        typer.Option(
            "--allow-plain-http", help="Use http:// beyond this machine: anybody can read it."
        ),
    ] = False,
) -> None:
    """Keep an address and an API key in a profile.

    It is written once the service takes them. What is not given is asked for. --api-key-file - reads the API key from standard input.
    """
    name = invocation.profile or environment("PQKEEP_PROFILE") or DEFAULT
    trusted = ca_file or environment("PQKEEP_CA_FILE")
    profile = Profile(
        url=(invocation.url or environment("PQKEEP_URL") or _ask("address", hidden=False)),
        api_key=_api_key(invocation),
        ca_file=None if trusted is None else str(Path(trusted).absolute()),
        compliance_profile=invocation.compliance_profile,
        allow_plain_http=allow_plain_http,
    )
    with pqkeep.Client(profile=profile) as client:
        facts = who(client)
    store(name, profile)
    show_facts(invocation, {"profile": name, "file": str(profile_file())} | facts)


def _api_key(invocation: Invocation) -> str:
    if invocation.api_key_file is None:
        return _ask("API key", hidden=True)
    if str(invocation.api_key_file) != STANDARD:
        return invocation.api_key() or ""
    return sys.stdin.readline(LONGEST_KEY).strip()


def _ask(what: str, *, hidden: bool) -> str:
    if not sys.stdin.isatty():
        raise Refusal(
            f"there is nobody to ask for the {what}", "add --url URL, and --api-key-file FILE"
        )
    answer: str = typer.prompt(f"The service's {what}", hide_input=hidden, err=True)
    return answer.strip()
