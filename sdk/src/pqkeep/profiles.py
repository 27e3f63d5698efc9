"""The profile file: installations by name, each with its address and credential.

    [profiles.default]
    url = 'https://pqkeep.example'
    api_key_file = "/run/secrets/pqkeep"    # or api_key = "pqk_…"
    ca_file = "/etc/pqkeep/ca.pem"          # optional, as is what follows
    compliance_profile = "cnsa-2.0"
    allow_plain_http = false

It is ``pqkeep/config.toml`` in ``$XDG_CONFIG_HOME``, or in ``~/.config``. It belongs to whoever
uses it and is nobody else's to read (mode 0600), or it is refused.
"""

import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, cast

from pqkeep._data import json_object
from pqkeep.errors import ConfigurationError
from pqkeep.private_files import BLANK, open_private

DEFAULT = "default"
"""The profile that is taken where none is named."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """One installation, and who one is there."""

    url: str
    api_key: str | None = field(default=None, repr=False)
    api_key_file: str | None = None
    ca_file: str | None = None
    compliance_profile: str | None = None
    allow_plain_http: bool = False


LARGEST = 1024 * 1024
"""Bytes of the profile file that are read: much more than any has."""
_KINDS = {
    field.name: bool if field.name == "allow_plain_http" else str for field in fields(Profile)
}


def environment(name: str) -> str | None:
    """Return a variable without what is around its value; None where there is nothing."""
    return os.environ.get(name, "").strip(BLANK) or None


def profile_file() -> Path:
    """Return where the profiles are. Raises ConfigurationError where there is no home directory."""
    base = os.environ.get("XDG_CONFIG_HOME") or "~/.config"
    try:
        return Path(base).expanduser() / "pqkeep" / "config.toml"
    except RuntimeError:
        pass
    raise ConfigurationError(
        "there is no home directory for profiles: set HOME or XDG_CONFIG_HOME,"
        " or PQKEEP_URL and PQKEEP_API_KEY"
    )


def read_profile(name: str = DEFAULT) -> Profile:
    """Return a profile. Raises ConfigurationError, also where there is no file or no profile."""
    path = profile_file()
    document = _read(path)
    profiles = json_object(document.get("profiles"))
    if profiles is None or len(document) > 1:
        raise ConfigurationError(f"{path} must have profiles, and nothing else")
    settings = json_object(profiles.get(name))
    if settings is None:
        raise ConfigurationError(f"{path} has no such profile", field="profile")
    if any(type(value) is not _KINDS.get(setting) for setting, value in settings.items()):
        raise ConfigurationError(f"{path} has an unknown setting, or one of another type")
    if "url" not in settings:
        raise ConfigurationError(f"{path} has a profile without url")
    return Profile(**cast("dict[str, Any]", settings))


def _read(path: Path) -> Mapping[str, Any]:
    try:
        with open_private(path) as file:
            return tomllib.loads(file.read(LARGEST).decode("utf-8-sig"))
    except FileNotFoundError:
        refusal = ConfigurationError(f"there is no profile: {path} does not exist")
    except OSError as error:
        refusal = ConfigurationError(f"{path} cannot be read: {error.strerror}")
    except ValueError:  # whose message may quote the file
        refusal = ConfigurationError(f"{path} is not TOML in UTF-8")
    raise refusal
