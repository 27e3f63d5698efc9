"""The key service's settings: one TOML file, read once into a frozen value.

Unknown names are errors, and nothing secret is in the file itself.
"""

from pathlib import Path
from typing import Annotated, Literal
from urllib.parse import parse_qs, urlsplit

import msgspec
from msgspec import Meta, Struct

POSTGRESQL = "postgresql://"
_OPTIONS = frozenset({"host", "port", "sslmode", "sslrootcert", "sslcert", "sslkey"})


class ConfigError(Exception):
    """The process cannot start as it is set up. The message is for the person who starts it."""


class Config(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Paths are relative to the settings file."""

    socket: str
    """The Unix socket to serve on. It is made with mode 0600."""
    database: str
    """Of keys and audit records: a SQLite file, or postgresql://user@host:port/name.

    Several hosts may be named, for a server that moves, and after a question mark sslmode,
    sslrootcert, sslcert, sslkey and, for a Unix socket, host.
    """
    database_password_file: str | None = None
    """A PostgreSQL password file as libpq has it, that only this process's user can read."""
    root_key_file: str | None = None
    """32 random bytes, in a file that only this process's user can read: root key 1."""
    root_keys: dict[Annotated[int, Meta(ge=1, le=255)], str] = {}
    """Such files by the ids of the root keys, in place of root_key_file. The newest seals."""
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
    if (config.root_key_file is None) == (not config.root_keys):
        raise ConfigError(f"{path}: expected either root_key_file or root_keys")
    root_keys = config.root_keys or {1: config.root_key_file or ""}
    here = path.resolve().parent
    return msgspec.structs.replace(
        config,
        socket=str(here / config.socket),
        database=_database(config.database, here),
        database_password_file=_beside(here, config.database_password_file),
        root_key_file=None,
        root_keys={each: str(here / file) for each, file in root_keys.items()},
        openssl_library=_library(config.openssl_library, here),
    )


def _database(named: str, here: Path) -> str:
    """Return a PostgreSQL address as it is, or where a file is. Never repeats a bad address."""
    if "://" not in named:
        return str(here / named)
    if not named.startswith(POSTGRESQL):
        raise ConfigError(f"database: neither a file nor an address that begins with {POSTGRESQL}")
    try:
        parts = urlsplit(named)
        options = parse_qs(parts.query, strict_parsing=bool(parts.query))
        user, password, name = parts.username, parts.password, parts.path.removeprefix("/")
    except ValueError:
        raise ConfigError("database: not a well-formed address") from None
    if password is not None or "@" in (user or "") or "password" in options:
        raise ConfigError("database: a password belongs in the database_password_file, not here")
    if not user or not name or "/" in name or parts.fragment:
        raise ConfigError(f"database: expected {POSTGRESQL}user@host:port/name")
    if not options.keys() <= _OPTIONS:
        raise ConfigError("database: the options are " + ", ".join(sorted(_OPTIONS)))
    return named


def _beside(here: Path, named: str | None) -> str | None:
    return None if named is None else str(here / named)


def _library(named: str | None, here: Path) -> str | None:
    return str(here / named) if named is not None and "/" in named else named
