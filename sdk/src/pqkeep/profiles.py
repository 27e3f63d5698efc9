"""The profile file: named installations with their addresses and credentials.

    [profiles.default]
    url = 'https://pqkeep.example'
    api_key_file = "/run/secrets/pqkeep"    # or api_key = "pqk_…"
    ca_file = "/etc/pqkeep/ca.pem"          # optional, as is what follows
    compliance_profile = "cnsa-2.0"
    allow_plain_http = false

The file is ``pqkeep/config.toml`` in ``$XDG_CONFIG_HOME`` or ``~/.config``. It must belong to the
user and have mode 0600.
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
"""The default profile's name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """An installation and a credential for it."""

    url: str
    api_key: str | None = field(default=None, repr=False)
    api_key_file: str | None = None
    ca_file: str | None = None
    compliance_profile: str | None = None
    allow_plain_http: bool = False


LARGEST = 1024 * 1024
"""The most bytes of a profile file. Real ones are much smaller."""
_KINDS = {
    field.name: bool if field.name == "allow_plain_http" else str for field in fields(Profile)
}


def environment(name: str) -> str | None:
    """Return the trimmed value of a variable, or None if it is empty."""
    return os.environ.get(name, "").strip(BLANK) or None


def profile_file() -> Path:
    """Return the path of the profile file. Raises ConfigurationError without a home directory."""
    base = os.environ.get("XDG_CONFIG_HOME") or "~/.config"
    try:
        return Path(base).expanduser() / "pqkeep" / "config.toml"
    except RuntimeError:
        pass
    raise ConfigurationError(
        "the home directory for profiles is unknown: set HOME or XDG_CONFIG_HOME,"
        " or PQKEEP_URL and PQKEEP_API_KEY"
    )


def read_profile(name: str = DEFAULT) -> Profile:
    """Return a profile. Raises ConfigurationError, also if the file or the profile is missing."""
    path = profile_file()
    document = _read(path)
    profiles = json_object(document.get("profiles"))
    if profiles is None or len(document) > 1:
        raise ConfigurationError(f"{path} must have only profiles")
    settings = json_object(profiles.get(name))
    if settings is None:
        raise ConfigurationError(f"{path} does not have this profile", field="profile")
    if any(type(value) is not _KINDS.get(setting) for setting, value in settings.items()):
        raise ConfigurationError(f"{path} has an unknown setting, or a setting of the wrong type")
    if "url" not in settings:
        raise ConfigurationError(f"{path} has a profile without url")
    return Profile(**cast("dict[str, Any]", settings))


def _read(path: Path) -> Mapping[str, Any]:
    try:
        with open_private(path) as file:
            return tomllib.loads(file.read(LARGEST).decode("utf-8-sig"))
    except FileNotFoundError:
        refusal = ConfigurationError(f"the profile file {path} does not exist: run pqkeep login")
    except OSError as error:
        refusal = ConfigurationError(f"{path} cannot be read: {error.strerror}")
    except ValueError:  # its message may quote the file
        refusal = ConfigurationError(f"{path} is not TOML in UTF-8")
    raise refusal
