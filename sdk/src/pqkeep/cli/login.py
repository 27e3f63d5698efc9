"""``pqkeep login``: store a service's address and an API key in a profile."""

import json
import os
import re
import sys
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

import pqkeep
from pqkeep.cli.command import command
from pqkeep.cli.display import show_facts
from pqkeep.cli.failures import Refusal
from pqkeep.cli.invocation import Invocation
from pqkeep.cli.options import STANDARD
from pqkeep.cli.status import who
from pqkeep.new_files import new_file
from pqkeep.profiles import DEFAULT, LARGEST, Profile, environment, profile_file

_BARE = re.compile(r"[A-Za-z0-9_-]+")


def store(name: str, profile: Profile) -> None:
    """Write a profile. Other profiles stay the same; comments are lost. Raises OSError and Refusal."""
    path = profile_file()
    _require_own(path.parent)
    profiles = _stored() | {name: asdict(profile)}
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with new_file(path, replace=True) as file:
        file.write("".join(_lines(profiles)).encode())


def _require_own(folder: Path) -> None:
    """Raise Refusal if a folder belongs, or would belong, to another user than this one or root.

    With sudo, HOME may still be the other user's folder. That user could not use the new files.
    """
    there = next((path for path in (folder, *folder.parents) if path.exists()), None)
    if os.name == "posix" and there is not None and there.stat().st_uid not in {os.geteuid(), 0}:
        raise Refusal(
            f"{there} belongs to another user, so {folder} cannot be made there",
            "set HOME or XDG_CONFIG_HOME to your own folder, as sudo -H does",
        )


def _stored() -> dict[str, dict[str, Any]]:
    path = profile_file()
    try:
        with path.open("rb") as file:
            profiles = tomllib.loads(file.read(LARGEST).decode("utf-8-sig")).get("profiles", {})
    except FileNotFoundError:
        return {}
    except ValueError:  # its message may quote the file
        profiles = None
    if not isinstance(profiles, dict) or not all(isinstance(v, dict) for v in profiles.values()):
        raise Refusal(f"{path} is not a valid file of profiles", "correct it, or move it away")
    return profiles


def _lines(profiles: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    for name, settings in profiles.items():
        yield f"[profiles.{name if _BARE.fullmatch(name) else _quoted(name)}]\n"
        for setting, value in settings.items():
            if isinstance(value, bool):
                yield f"{setting} = {str(value).lower()}\n"
            elif isinstance(value, str):
                yield f"{setting} = {_quoted(value)}\n"
        yield "\n"


def _quoted(text: str) -> str:
    """Return a TOML basic string: JSON's form, except for U+007F."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


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
            metavar="FILE", help="Trust only the certificates in this file.", show_default=False
        ),
    ] = None,
    allow_plain_http: Annotated[
        bool,
        typer.Option(
            "--allow-plain-http",
            help="Allow http:// to other machines. The connection is not encrypted.",
        ),
    ] = False,
) -> None:
    """Store an address and an API key in a profile.

    The profile is written once the service accepts the API key. pqkeep asks for missing values. With
    --api-key-file -, the API key is read from standard input.
    """
    name = invocation.profile or environment("PQKEEP_PROFILE") or DEFAULT
    trusted = ca_file or environment("PQKEEP_CA_FILE")
    profile = Profile(
        url=(
            invocation.url
            or environment("PQKEEP_URL")
            or _ask("address", "add --url URL", is_hidden=False)
        ),
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
    given = invocation.api_key_file
    if given is not None and str(given) != STANDARD:
        return invocation.api_key() or ""
    if given is None or sys.stdin.isatty():
        return _ask(
            "API key",
            "add --api-key-file FILE, or --api-key-file - to read it from standard input",
            is_hidden=True,
        )
    return sys.stdin.readline(LONGEST_KEY).strip()


def _ask(what: str, next_step: str, *, is_hidden: bool) -> str:
    if not sys.stdin.isatty():
        raise Refusal(f"the {what} is missing, and pqkeep cannot ask without a terminal", next_step)
    response: str = typer.prompt(f"The service's {what}", hide_input=is_hidden, err=True)
    return response.strip()
