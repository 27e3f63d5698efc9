"""Writes profiles, in the format that pqkeep.profiles reads."""

import json
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Any

from pqkeep.cli.failures import Refusal
from pqkeep.new_files import new_file
from pqkeep.profiles import Profile, profile_file

_BARE = re.compile(r"[A-Za-z0-9_-]+")


def store(name: str, profile: Profile) -> None:
    """Write a profile; the others stay, comments do not. Raises OSError and Refusal."""
    path = profile_file()
    profiles = _stored() | {name: asdict(profile)}
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with new_file(path, replace=True) as file:
        file.write("".join(_lines(profiles)).encode())


def _stored() -> dict[str, dict[str, Any]]:
    path = profile_file()
    try:
        profiles = tomllib.loads(path.read_text("utf-8")).get("profiles", {})
    except FileNotFoundError:
        return {}
    except ValueError:  # whose message may quote the file
        profiles = None
    if not isinstance(profiles, dict) or not all(isinstance(v, dict) for v in profiles.values()):
        raise Refusal(f"{path} is not as profiles are", "mend it, or move it away")
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
    """Return a basic string, which TOML has from JSON, but for U+007F."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
