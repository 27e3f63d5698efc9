"""Settings: one TOML file, read once into a frozen msgspec Struct.

Each process declares its own Struct, with ``forbid_unknown_fields``. Fields of type ``Path`` and
``DatabaseAddress`` are relative to the folder of the settings file. Environment variables override
the file.
"""

import os
import re
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
"""The largest settings file, in bytes. Similar files have the same limit."""
_OPTIONS = frozenset({"host", "port", "sslmode", "sslrootcert", "sslcert", "sslkey"})

_TEXTS = (inspect.StrType, inspect.LiteralType, inspect.CustomType, inspect.NoneType)
"""The types for which a variable's text is the value. Paths and addresses are custom types."""

S = TypeVar("S", bound=Struct)

LogFormat = Literal["auto", "text", "json"]
"""The format of log lines. "auto" is text on a terminal and JSON elsewhere."""


class ConfigError(Exception):
    """The process cannot start with its configuration. The message is for the operator."""


class DatabaseAddress:
    """The location of a database: a SQLite file, or postgresql://user@host:port/name.

    A server with replicas can have several hosts. The options after a question mark are sslmode,
    sslrootcert, sslcert, sslkey and, for a Unix socket, host. A password is never part of the
    address: it has its own file.
    """

    __slots__ = ("is_on_server", "location")

    def __init__(self, text: str, folder: Path = Path()) -> None:
        """Check an address. Raises ValueError. Its message never repeats the address."""
        self.is_on_server = "://" in text
        """Whether the location is a PostgreSQL address, not a file."""
        if self.is_on_server:
            _check_postgresql(text)
        self.location = text if self.is_on_server else str(folder / text)
        """The PostgreSQL address as written, or the path of the SQLite file."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, DatabaseAddress) and self.location == other.location

    def __hash__(self) -> int:
        return hash(self.location)

    def __repr__(self) -> str:
        return f"DatabaseAddress({self.location!r})"


class NetworkAddress:
    """A host (name or address) and a TCP port as host:port. An IPv6 address is in brackets."""

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
    """Read a settings file and the environment variables that override it.

    A variable's name is the prefix and the setting's name in capitals. For a text setting its text
    is used unchanged. For other settings its text is read as TOML. With ``_FILE`` after the name,
    the variable is the path of a file with the value. Raises ConfigError, which names the file or
    variable and the setting.
    """
    settings = {} if may_be_missing and not file.exists() else read_toml(file)
    settings |= dict(_from_environment(environment, prefix, form))
    return converted(str(file), settings, form, file.resolve().parent)


def converted(name: str, settings: Mapping[str, Any], form: type[S], folder: Path) -> S:
    """Return checked settings. Paths in them are relative to the folder.

    Raises ConfigError. ``name`` is the source that its message names.
    """
    _require_known(name, settings, form)

    constructors: dict[type, Callable[[str], Any]] = {
        Path: lambda text: folder / text,
        DatabaseAddress: lambda text: DatabaseAddress(text, folder),
        NetworkAddress: NetworkAddress,
    }

    def convert(kind: type, value: object) -> Any:
        if not isinstance(value, str):
            raise TypeError(f"Expected `str`, got `{type(value).__name__}`")
        return constructors[kind](value)

    try:
        return msgspec.convert(settings, form, str_keys=True, dec_hook=convert)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{name}: {error}{_allowed(str(error), form)}") from None


def open_without_waiting(path: str, _: int) -> int:
    """Open a file for reading, as an opener of ``open``, without waiting for a FIFO's writer."""
    return os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOCTTY | os.O_NONBLOCK)


def read_file(file: Path, what: str = "settings file") -> bytes:
    """Return the content of a file of at most 1 MiB. Raises ConfigError.

    The message says ``what`` the file should be. Root reads such files too: their owner must not be
    able to make root wait or fill its memory.
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
    """Return the text of a file of at most 1 MiB. Raises ConfigError."""
    try:
        return read_file(file, what).decode()
    except UnicodeDecodeError as error:
        raise ConfigError(f"{file}: {error}") from None


def read_toml(file: Path) -> dict[str, Any]:
    """Return the content of a settings file. Raises ConfigError."""
    text = read_text(file)
    try:
        return decode_toml(text, dict[str, Any])
    except MalformedDocumentError as error:
        raise ConfigError(f"{file}: {error}") from None


def _from_environment(
    environment: Mapping[str, str], prefix: str, form: type[Struct]
) -> Iterator[tuple[str, Any]]:
    """Yield names and values of settings from variables. Raises ConfigError."""
    fields = {f"{prefix}{name.upper()}": (name, kind) for name, kind in _fields(form).items()}
    variable_of: dict[str, str] = {}
    for variable in sorted(name for name in environment if name.startswith(prefix)):
        text, field = environment[variable], variable
        if variable not in fields:
            field = variable.removesuffix("_FILE")
            if field not in fields:
                raise ConfigError(f"there is no setting {variable}{_suggestion(variable, fields)}")
        name, kind = fields[field]
        if name in variable_of:
            raise ConfigError(
                f"{variable_of[name]} and {variable} set the same setting: remove one of them"
            )
        variable_of[name] = variable
        if field != variable:
            text = _read_value(variable, Path(text))
        yield name, _value(variable, text, kind)


def _read_value(variable: str, file: Path) -> str:
    try:
        return read_text(file, "file").removesuffix("\n")
    except ConfigError as error:
        raise ConfigError(f"{variable}: {error}") from None


def _value(variable: str, text: str, kind: inspect.Type) -> Any:
    if all(isinstance(option, _TEXTS) for option in _kinds(kind)):
        return text
    if any(
        isinstance(option, inspect.LiteralType) and text in option.values for option in _kinds(kind)
    ):
        return text
    try:
        (value,) = decode_toml(f"value = {text}", dict[str, Any]).values()
    except ValueError:  # not TOML, or more than one value
        raise ConfigError(f"{variable}: expected one value in TOML") from None
    return value


def _fields(form: type[Struct]) -> dict[str, inspect.Type]:
    kind = cast(inspect.StructType, inspect.type_info(form))
    return {field.encode_name: field.type for field in kind.fields}


def _kinds(kind: inspect.Type) -> tuple[inspect.Type, ...]:
    return kind.types if isinstance(kind, inspect.UnionType) else (kind,)


def _require_known(
    file: str, settings: Mapping[str, Any], form: type[Struct], table: str = ""
) -> None:
    """Raise ConfigError for an unknown setting, with a similar name as a suggestion."""
    fields = _fields(form)
    for name, value in settings.items():
        if name not in fields:
            suggestion = _suggestion(name, fields)
            raise ConfigError(f"{file}: there is no setting {table}{name}{suggestion}")
        for option in _kinds(fields[name]):
            kind = option.item_type if isinstance(option, inspect.VarTupleType) else option
            if isinstance(kind, inspect.StructType):
                for item in value if isinstance(value, list) else [value]:
                    if isinstance(item, Mapping):
                        _require_known(file, item, kind.cls, f"{name}.")


def _allowed(problem: str, form: type[Struct]) -> str:
    """Return the allowed values of an enumerated setting, which msgspec's message does not have."""
    _, found, path = problem.removesuffix("`").partition(" - at `$")
    if not found or not problem.startswith("Invalid enum value"):
        return ""
    kinds: tuple[inspect.Type, ...] = (inspect.type_info(form),)
    for name in re.findall(r"\.(\w+)|\[[^]]*]", path):
        kinds = tuple(inner for kind in kinds for inner in _inside(kind, name))
    values = [str(value) for kind in kinds for value in _values(kind)]
    return f": the values are {', '.join(values)}" if values else ""


def _inside(kind: inspect.Type, name: str) -> tuple[inspect.Type, ...]:
    """Return the types of a field, or without a name of an item."""
    if isinstance(kind, inspect.StructType):
        fields = (field.type for field in kind.fields if field.encode_name == name)
        return tuple(option for field in fields for option in _kinds(field))
    if isinstance(kind, inspect.DictType):
        return _kinds(kind.value_type)
    return _kinds(kind.item_type) if isinstance(kind, inspect.VarTupleType) else ()


def _values(kind: inspect.Type) -> tuple[object, ...]:
    if isinstance(kind, inspect.LiteralType):
        return kind.values
    return tuple(kind.cls) if isinstance(kind, inspect.EnumType) else ()


def _suggestion(name: str, known: Mapping[str, object]) -> str:
    similar = get_close_matches(name, known, n=1)
    return f"; did you mean {similar[0]}?" if similar else ""


def _check_postgresql(address: str) -> None:
    if not address.startswith(POSTGRESQL):
        raise ValueError(f"expected a file path, or an address that begins with {POSTGRESQL}")
    try:
        parts = urlsplit(address)
        options = parse_qs(parts.query, strict_parsing=bool(parts.query))
        user, password, name = parts.username, parts.password, parts.path.removeprefix("/")
    except ValueError:
        raise ValueError("the address is malformed") from None
    if password is not None or "@" in (user or "") or "password" in options:
        raise ValueError("put the password into the database_password_file, not here")
    if not user or not name or "/" in name or parts.fragment:
        raise ValueError(f"expected {POSTGRESQL}user@host:port/name")
    if not options.keys() <= _OPTIONS:
        raise ValueError("unknown option: the options are " + ", ".join(sorted(_OPTIONS)))
