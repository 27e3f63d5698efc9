"""Changes single settings in a TOML file and leaves the rest as somebody wrote it.

Only settings that stand on one line before the file's first table can be changed. What comes out
is read again: a file that would not say what is meant is refused.
"""

import json
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

Value = str | dict[int, str]


class SettingsFileError(Exception):
    """The file cannot be read, or not be changed here."""


def read(path: Path) -> dict[str, Any]:
    """Return what a settings file says. Raises SettingsFileError."""
    try:
        return tomllib.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise SettingsFileError(f"cannot read the settings file {path}: {error}") from None


def path_in(path: Path, name: str) -> Path:
    """Return where a file is that a settings file names. Raises SettingsFileError."""
    try:
        return path.resolve().parent / str(read(path)[name])
    except KeyError:
        raise SettingsFileError(f"{path} does not say where the {name} is") from None


def changed(text: str, settings: Mapping[str, Value | None]) -> str:
    """Return the file's text with other settings; None removes one. Raises SettingsFileError."""
    lines = text.splitlines(keepends=True)
    for name, value in settings.items():
        line = [] if value is None else [f"{name} = {toml(value)}\n"]
        places = [at for at, each in enumerate(lines) if re.match(rf"\s*{name}\s*=", each)]
        at = places[0] if places else 0
        lines[at : at + len(places[:1])] = line
    new = "".join(lines)
    try:
        wanted = tomllib.loads(text) | {name: _plain(each) for name, each in settings.items()}
        said = tomllib.loads(new)
    except tomllib.TOMLDecodeError:
        said, wanted = {}, {"": ""}
    if said != {name: value for name, value in wanted.items() if value is not None}:
        names = ", ".join(settings)
        raise SettingsFileError(f"cannot change {names}: put each on a line of its own, at the top")
    return new


def root_key_settings(named: Mapping[int, str]) -> dict[str, Value | None]:
    """Return the key service's settings for root keys by id."""
    if tuple(named) == (1,):
        return {"root_key_file": named[1], "root_keys": None}
    return {"root_key_file": None, "root_keys": dict(named)}


def toml(value: object) -> str:
    """Return a text, a number, a flag or a table of such as TOML, on one line."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key} = {toml(each)}" for key, each in value.items()) + "}"
    return json.dumps(value, ensure_ascii=False)


def _plain(value: Value | None) -> object:
    return {str(key): each for key, each in value.items()} if isinstance(value, dict) else value
