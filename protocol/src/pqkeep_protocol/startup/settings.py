"""Settings: one TOML file, read once into a frozen msgspec Struct.

Each process declares its own Struct, with ``forbid_unknown_fields``. Fields of type ``Path`` and
``DatabaseAddress`` are relative to the folder of the settings file. Variables of the environment
replace what is in the file.
"""

import os
import stat
from collections.abc import Callable, Iterator, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Literal, TypeVar, cast
from urllib.parse import parse_qs, urlsplit

import msgspec
from msgspec import Struct, inspect

from pqkeep_protocol.documents import MalformedDocumentError, decode_toml

POSTGRESQL = "postgresql://"
MAX_PORT = 65535
MAX_SETTINGS = 1024 * 1024
"""Bytes of a settings file, and of other files that are read like one."""
_OPTIONS = frozenset({"host", "port", "sslmode", "sslrootcert", "sslcert", "sslkey"})

_TEXTS = (inspect.StrType, inspect.LiteralType, inspect.CustomType, inspect.NoneType)
"""What a variable's text is the value of, as it is. Paths and addresses are custom types."""

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


class NetworkAddress:
    """A host's name or address and a TCP port, host:port; an IPv6 address is in brackets."""

    __slots__ = ("host", "port")

    def __init__(self, text: str) -> None:
        """Read an address. Raises ValueError."""
        host, separator, port = text.rpartition(":")
        is_bracketed = host.startswith("[") and host.endswith("]")
        if not separator or not host or is_bracketed != (":" in host) or not port.isdecimal():
            raise ValueError("expected host:port, with an IPv6 address in brackets")
        if int(port) > MAX_PORT:
            raise ValueError(f"expected a port up to {MAX_PORT}")
        self.host = host[1:-1] if is_bracketed else host
        self.port = int(port)

    def __repr__(self) -> str:
        return f"NetworkAddress({self.host!r}, {self.port})"


def read_settings(
    file: Path,
    form: type[S],
    environment: Mapping[str, str],
    prefix: str,
    *,
    may_be_missing: bool = False,
) -> S:
    """Read a settings file, and the variables of the environment that replace what is in it.

    A variable is the prefix and a setting's name in capitals: a text as it is, anything else as
    TOML. With ``_FILE`` after the name it is the path of a file that holds the value. Raises
    ConfigError, which names the file, or the variable, and the setting.
    """
    settings = {} if may_be_missing and not file.exists() else read_toml(file)
    settings |= dict(_from_environment(environment, prefix, form))
    return converted(str(file), settings, form, file.resolve().parent)


def converted(name: str, settings: Mapping[str, Any], form: type[S], folder: Path) -> S:
    """Check settings that were read. Paths are relative to the folder.

    Raises ConfigError, which says where they are from by this name.
    """
    _require_known(name, settings, form)

    made: dict[type, Callable[[str], Any]] = {
        Path: lambda text: folder / text,
        DatabaseAddress: lambda text: DatabaseAddress(text, folder),
        NetworkAddress: NetworkAddress,
    }

    def convert(kind: type, value: object) -> Any:
        if not isinstance(value, str):
            raise TypeError(f"Expected `str`, got `{type(value).__name__}`")
        return made[kind](value)

    try:
        return msgspec.convert(settings, form, str_keys=True, dec_hook=convert)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{name}: {error}") from None


def open_without_waiting(path: str, _: int) -> int:
    """Open a file to read, as an opener of ``open``: nothing waits for a FIFO's writer."""
    return os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOCTTY | os.O_NONBLOCK)


def read_file(file: Path, what: str = "settings file") -> bytes:
    """Read a file of at most 1 MiB. Raises ConfigError, which says ``what`` the file should be.

    Root reads it too: its owner cannot make root wait, or fill memory.
    """
    try:
        with open(file, "rb", opener=open_without_waiting) as opened:
            if not stat.S_ISREG(os.fstat(opened.fileno()).st_mode):
                raise ConfigError(f"the {what} {file} is not a regular file")
            data = opened.read(MAX_SETTINGS + 1)
    except OSError as error:
        raise ConfigError(f"cannot read the {what} {file}: {error.strerror}") from None
    if len(data) > MAX_SETTINGS:
        raise ConfigError(f"the {what} {file} is longer than {MAX_SETTINGS} bytes")
    return data


def read_text(file: Path, what: str = "settings file") -> str:
    """Read such a file of text. Raises ConfigError."""
    try:
        return read_file(file, what).decode()
    except UnicodeDecodeError as error:
        raise ConfigError(f"{file}: {error}") from None


def read_toml(file: Path) -> dict[str, Any]:
    """Return what a settings file has. Raises ConfigError."""
    text = read_text(file)
    try:
        return decode_toml(text, dict[str, Any])
    except MalformedDocumentError as error:
        raise ConfigError(f"{file}: {error}") from None


def _from_environment(
    environment: Mapping[str, str], prefix: str, form: type[Struct]
) -> Iterator[tuple[str, Any]]:
    """Yield the settings that variables name. Raises ConfigError."""
    fields = {f"{prefix}{name.upper()}": (name, kind) for name, kind in _fields(form).items()}
    found: dict[str, str] = {}
    for variable in sorted(each for each in environment if each.startswith(prefix)):
        text, of = environment[variable], variable
        if variable not in fields:
            of = variable.removesuffix("_FILE")
            if of not in fields:
                raise ConfigError(f"there is no setting {variable}{_suggestion(variable, fields)}")
        name, kind = fields[of]
        if name in found:
            raise ConfigError(f"{found[name]} and {variable} are the same setting")
        found[name] = variable
        if of != variable:
            text = _read_value(variable, Path(text))
        yield name, _value(variable, text, kind)


def _read_value(variable: str, file: Path) -> str:
    try:
        return read_text(file, "file").removesuffix("\n")
    except ConfigError as error:
        raise ConfigError(f"{variable}: {error}") from None


def _value(variable: str, text: str, kind: inspect.Type) -> Any:
    if all(isinstance(each, _TEXTS) for each in _kinds(kind)):
        return text
    if any(isinstance(each, inspect.LiteralType) and text in each.values for each in _kinds(kind)):
        return text
    try:
        (value,) = decode_toml(f"value = {text}", dict[str, Any]).values()
    except ValueError:  # not TOML, or more than one value
        raise ConfigError(f"{variable}: expected a value in TOML") from None
    return value


def _fields(form: type[Struct]) -> dict[str, inspect.Type]:
    kind = cast(inspect.StructType, inspect.type_info(form))
    return {each.encode_name: each.type for each in kind.fields}


def _kinds(kind: inspect.Type) -> tuple[inspect.Type, ...]:
    return kind.types if isinstance(kind, inspect.UnionType) else (kind,)


def _require_known(
    file: str, settings: Mapping[str, Any], form: type[Struct], table: str = ""
) -> None:
    """Raise ConfigError for a name that is no setting, with the one that was meant perhaps."""
    fields = _fields(form)
    for name, value in settings.items():
        if name not in fields:
            suggestion = _suggestion(name, fields)
            raise ConfigError(f"{file}: there is no setting {table}{name}{suggestion}")
        for each in _kinds(fields[name]):
            kind = each.item_type if isinstance(each, inspect.VarTupleType) else each
            if isinstance(kind, inspect.StructType):
                for found in value if isinstance(value, list) else [value]:
                    if isinstance(found, Mapping):
                        _require_known(file, found, kind.cls, f"{name}.")


def _suggestion(name: str, known: Mapping[str, object]) -> str:
    similar = get_close_matches(name, known, n=1)
    return f"; did you mean {similar[0]}?" if similar else ""


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
