"""The gateway's settings: one TOML file, read once into a frozen value.

Unknown names are errors, and nothing secret is in the file itself: the pepper is a file of its
own, and of the operator's credential only a digest is known.
"""

from pathlib import Path
from typing import Annotated, Literal

import msgspec
from msgspec import Meta, Struct

DIGEST_HEX = Annotated[str, Meta(pattern="^[0-9a-f]{64}$")]


class ConfigError(Exception):
    """The process cannot start as it is set up. The message is for the person who starts it."""


class Config(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Paths are relative to the settings file."""

    key_service_socket: str
    """The Unix socket of the key service."""
    database: str
    """The SQLite file of tenants and API keys."""
    pepper_file: str
    """32 random bytes that API-key digests depend on, readable by this process's user only."""
    operator_digest: DIGEST_HEX
    """HMAC-SHA-256 of the operator's credential under the pepper, in hexadecimal."""
    signup: Literal["operator", "open"] = "operator"
    """Who may create tenants: the operator only, or anyone (rate-limited by address)."""
    api_key_overlap_seconds: Annotated[int, Meta(ge=0, le=86_400)] = 30
    """How long a rotated API key is still accepted."""
    plans_file: str | None = None
    """What differs from the built-in plans; see plans.toml."""
    policy_directory: str | None = None
    """Cedar policies (*.cedar) that hold beside the built-in ones."""
    rate_windows: str | None = None
    """A Redis or Valkey server for the rate limits' windows, redis://… or unix://…; needed where
    several gateways share a database. Without it they are in this process's memory."""
    rate_windows_password_file: str | None = None
    """The server's password, in a file that only this process's user can read."""
    host: str = "127.0.0.1"
    port: Annotated[int, Meta(ge=0, le=65535)] = 8080


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
        key_service_socket=str(here / config.key_service_socket),
        database=str(here / config.database),
        pepper_file=str(here / config.pepper_file),
        plans_file=_beside(here, config.plans_file),
        policy_directory=_beside(here, config.policy_directory),
        rate_windows_password_file=_beside(here, config.rate_windows_password_file),
    )


def _beside(here: Path, named: str | None) -> str | None:
    return None if named is None else str(here / named)


def read_private(path: Path) -> bytes:
    """Return what is in a file that nobody else can read. Raises ConfigError."""
    try:
        mode = path.stat().st_mode
        data = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from None
    if mode & 0o077:
        raise ConfigError(f"{path} can be read by others; its mode must be 0400")
    return data
