"""The fields of requests, as lenient as Vault's: the command line sends all values as texts."""

import re
from collections.abc import Callable
from typing import Any, TypeVar

from pqkeep_gateway.http.field import Field, InvalidValueError, decode_base64
from pqkeep_gateway.http.text import base64_size
from pqkeep_protocol.keys import MAX_KEY_VERSION, MAX_KEYRING_NAME

T = TypeVar("T")

DAY_SECONDS = 86_400
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": DAY_SECONDS}
_TRUE = frozenset({"1", "t", "true"})
_FALSE = frozenset({"", "0", "f", "false"})
_is_name = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*").fullmatch
_is_number = re.compile(r"-?[0-9]{1,18}").fullmatch
_duration = re.compile(r"([0-9]{1,12})([smhd]?)")
_is_duration = re.compile(r"([0-9]{1,12}[smhd])+|[0-9]{1,12}").fullmatch


def _field(
    name: str, schema: dict[str, object], parse: Callable[[Any], T], example: object = None
) -> Field[T]:
    return Field(name=name, description="", schema=schema, example=example, parse=parse)


def _name(value: object) -> str:
    if not (isinstance(value, str) and len(value) <= MAX_KEYRING_NAME and _is_name(value)):
        raise InvalidValueError(
            f"must be 1 to {MAX_KEYRING_NAME} of A-Z, a-z, 0-9, '_', '.' and '-', the first a"
            " letter, a digit or '_'"
        )
    return value


def _text(value: object) -> str:
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise InvalidValueError("must be a text")
    return str(value)


def _integer(value: object) -> int:
    if isinstance(value, str) and _is_number(value):
        return int(value)
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidValueError("must be a whole number")
    return value


def _boolean(value: object) -> bool:
    text = str(value).lower() if isinstance(value, bool | int | str) else ""
    if not isinstance(value, bool | int | str) or text not in _TRUE | _FALSE:
        raise InvalidValueError("must be true or false")
    return text in _TRUE


def _seconds(value: object) -> int:
    text = str(value) if isinstance(value, int | str) and not isinstance(value, bool) else ""
    if not _is_duration(text):
        raise InvalidValueError("must be a duration: seconds, or a text such as 720h or 30d")
    parts = _duration.findall(text)
    return sum(int(number) * _UNITS[unit or "s"] for number, unit in parts)


def _version(value: object) -> int:
    number = _integer(value)
    if not 0 <= number <= MAX_KEY_VERSION:
        raise InvalidValueError("must be the number of a key version")
    return number


def text(name: str, *, at_most: int = 1024) -> Field[str | None]:
    """Return a field of text, which can be long."""
    return _field(name, {"type": "string", "maxLength": at_most}, _text).optional()


def integer(name: str) -> Field[int | None]:
    """Return a field of a whole number, or its digits."""
    return _field(name, {"type": "integer"}, _integer).optional()


def boolean(name: str) -> Field[bool | None]:
    """Return a field of a truth value, or its name."""
    return _field(name, {"type": "boolean"}, _boolean).optional()


def duration(name: str) -> Field[int | None]:
    """Return a field of seconds, or of a text with a unit."""
    return _field(name, {"type": "string"}, _seconds).optional()


def version(name: str) -> Field[int | None]:
    """Return a field of a key version; 0 stands for the latest or the lowest."""
    return _field(name, {"type": "integer"}, _version).optional()


def binary(name: str, *, at_most: int) -> Field[str | None]:
    """Return a field of base64, which the API decodes."""
    schema = {"type": "string", "contentEncoding": "base64", "maxLength": base64_size(at_most)}
    return _field(name, schema, _text).optional()


def decoded(name: str, *, at_most: int) -> Field[bytes | None]:
    """Return a field of base64, as bytes."""
    schema = {"type": "string", "contentEncoding": "base64", "maxLength": base64_size(at_most)}
    return _field(name, schema, decode_base64).optional()


NAME = _field("name", {"type": "string"}, _name, "orders")
"""The key in a path: a keyring."""
