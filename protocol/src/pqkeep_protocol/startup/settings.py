"""Settings: one TOML file, read once into a frozen msgspec Struct.

Each process declares its own Struct, with ``forbid_unknown_fields``. Fields of type ``Path`` and
``DatabaseAddress`` are relative to the folder of the settings file.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, TypeVar
from urllib.parse import parse_qs, urlsplit

import msgspec
from msgspec import Struct

POSTGRESQL = "postgresql://"
_OPTIONS = frozenset({"host", "port", "sslmode", "sslrootcert", "sslcert", "sslkey"})

S = TypeVar("S", bound=Struct)

LogFormat = Literal["auto", "text", "json"]
"""How log lines are written; "auto" is text on a terminal and JSON elsewhere."""


class ConfigError(Exception):
    """The process cannot start as it is set up. The message is for the person who starts it."""


class DatabaseAddress:
    """Where a database is: a SQLite file, or postgresql://user@host:port/name.

    Several hosts may be named, for a server with replicas. The options after a question mark are
    sslmode, sslrootcert, sslcert, sslkey and, for a Unix socket, host. A password has a file of its
    own.
    """

    __slots__ = ("is_on_server", "location")

    def __init__(self, text: str, folder: Path = Path()) -> None:
        """Check an address. Raises ValueError, whose message never repeats the address."""
        self.is_on_server = "://" in text
        """Whether it is a PostgreSQL address, and not a file."""
        if self.is_on_server:
            _check_postgresql(text)
        self.location = text if self.is_on_server else str(folder / text)
        """The PostgreSQL address as it was written, or the path of the SQLite file."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, DatabaseAddress) and self.location == other.location

    def __hash__(self) -> int:
        return hash(self.location)

    def __repr__(self) -> str:
        return f"DatabaseAddress({self.location!r})"


def read_settings(file: Path, form: type[S]) -> S:
    """Read a settings file. Raises ConfigError, which names the file and the setting."""
    folder = file.resolve().parent

    made: dict[type, Callable[[str], Any]] = {
        Path: lambda text: folder / text,
        DatabaseAddress: lambda text: DatabaseAddress(text, folder),
    }

    def convert(kind: type, value: object) -> Any:
        if not isinstance(value, str):
            raise TypeError(f"Expected `str`, got `{type(value).__name__}`")
        return made[kind](value)

    try:
        return msgspec.toml.decode(file.read_bytes(), type=form, dec_hook=convert)
    except OSError as error:
        raise ConfigError(f"cannot read the settings file {file}: {error.strerror}") from None
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file}: {error}") from None


def _check_postgresql(address: str) -> None:
    if not address.startswith(POSTGRESQL):
        raise ValueError(f"expected a file, or an address that begins with {POSTGRESQL}")
    try:
        parts = urlsplit(address)
        options = parse_qs(parts.query, strict_parsing=bool(parts.query))
        user, password, name = parts.username, parts.password, parts.path.removeprefix("/")
    except ValueError:
        raise ValueError("not a well-formed address") from None
    if password is not None or "@" in (user or "") or "password" in options:
        raise ValueError("a password belongs in the database_password_file, not here")
    if not user or not name or "/" in name or parts.fragment:
        raise ValueError(f"expected {POSTGRESQL}user@host:port/name")
    if not options.keys() <= _OPTIONS:
        raise ValueError("the options are " + ", ".join(sorted(_OPTIONS)))
