"""Checks a settings file without starting its process."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from msgspec import Struct

from pqkeep_gateway import config as gateway_config
from pqkeep_keyservice import config as key_service_config
from pqkeep_protocol.startup.settings import ConfigError


class Role(NamedTuple):
    """One of the two kinds of settings."""

    name: str
    form: type[Struct]
    read: Callable[[Path], Any]


ROLES = (
    Role("gateway", gateway_config.Config, gateway_config.read),
    Role("key service", key_service_config.Config, key_service_config.read),
)


def check_settings(file: Path) -> str:
    """Return whose settings a file has. Raises ConfigError for what that process would refuse."""
    role = _role_of(file)
    settings = role.read(file)
    if isinstance(settings, gateway_config.Config):
        gateway_config.check_address(settings, settings.host)
    return role.name


def _role_of(file: Path) -> Role:
    """Return the role that knows most of the names in a file."""
    try:
        names = msgspec.toml.decode(file.read_bytes(), type=Mapping[str, Any]).keys()
    except OSError as error:
        raise ConfigError(f"cannot read the settings file {file}: {error.strerror}") from None
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file}: {error}") from None
    known = [len(names & set(role.form.__struct_fields__)) for role in ROLES]
    if known[0] == known[1]:
        raise ConfigError(f"{file}: these are neither the gateway's settings nor the key service's")
    return ROLES[known.index(max(known))]
