"""The key service's settings: one TOML file, read once into a frozen value.

Unknown names are errors, and nothing secret is in the file itself.
"""

from pathlib import Path
from typing import Literal

import msgspec
from msgspec import Struct


class ConfigError(Exception):
    """The process cannot start as it is set up. The message is for the person who starts it."""


class Config(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Paths are relative to the settings file."""

    socket: str
    """The Unix socket to serve on. It is made with mode 0600."""
    database: str
    """The SQLite file of keys and audit records."""
    root_key_file: str
    """32 random bytes, in a file that only this process's user can read."""
    slh_dsa: Literal["pqcrypto", "openssl"] = "pqcrypto"
    """Whose SLH-DSA is used: the pqcrypto package's, or a system's OpenSSL >= 3.5."""
    openssl_library: str | None = None
    """That OpenSSL's libcrypto, where it is not the system's own: a name, or a path."""


def read(path: Path) -> Config:
    """Read the settings file. Raises ConfigError."""
    try:
        config = msgspec.toml.decode(path.read_bytes(), type=Config)
    except OSError as error:
        raise ConfigError(f"cannot read the settings file {path}: {error.strerror}") from None
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: {error}") from None
    here = path.resolve().parent
    return msgspec.structs.replace(
        config,
        socket=str(here / config.socket),
        database=str(here / config.database),
        root_key_file=str(here / config.root_key_file),
        openssl_library=_library(config.openssl_library, here),
    )


def _library(named: str | None, here: Path) -> str | None:
    return str(here / named) if named is not None and "/" in named else named
