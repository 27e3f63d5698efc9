"""The fields of requests. Each description validates a value and documents it.

A null field counts as missing, in validation and in the schema.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from difflib import get_close_matches
from enum import StrEnum, auto
from typing import Any, Generic, TypeVar, cast
from uuid import UUID

import pybase64

from pqkeep_gateway.http.errors import Code
from pqkeep_gateway.http.text import ANY_BASE64, base64, base64_size, integer_in
from pqkeep_protocol.documents import is_printable

T = TypeVar("T")
B = TypeVar("B", bytes, bytearray)
E = TypeVar("E", bound=StrEnum)

Schema = Mapping[str, object]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
MAX_NAME_SHOWN = 64
"""Characters of an unknown field's name that an error shows."""


class Problem(StrEnum):
    """The problems that a value can have."""

    MISSING = auto()
    MALFORMED = auto()
    TOO_LARGE = auto()
    WRONG_SIZE = auto()
    NOT_FOUND = auto()
    """Well formed, but no object can have this name."""
    UNKNOWN = auto()
    """The operation has no such field."""


class FieldError(Exception):
    """A field has an invalid value. The message never repeats the value."""

    def __init__(self, field: str, problem: Problem, message: str) -> None:
        super().__init__(message)
        self.field = field
        self.problem = problem
        self.message = message


class InvalidValueError(Exception):
    """A value is invalid: the problem, and the end of a sentence that begins with the field's name.

    With NOT_FOUND it is the complete message, equal to the one for a well-formed but missing name.
    """

    def __init__(self, message: str, problem: Problem = Problem.MALFORMED) -> None:
        super().__init__(message)
        self.message = message
        self.problem = problem


@dataclass(frozen=True, slots=True)
class FieldCodes:
    """The error codes of an operation's fields."""

    malformed: Code
    """Also for a missing value, and for every problem without its own code."""
    unknown: Code
    by_problem: Mapping[Problem, Code]
    by_field: Mapping[tuple[str, Problem], Code]

    def code(self, field: str, problem: Problem) -> Code:
        """Return the code for a problem of a field."""
        if problem is Problem.UNKNOWN:
            return self.unknown
        own = self.by_field.get((field, problem))
        return own or self.by_problem.get(problem, self.malformed)


def _unchanged(text: str) -> object:
    return text


@dataclass(frozen=True, slots=True, kw_only=True)
class Field(Generic[T]):
    """One field of a body, a query or a path."""

    name: str
    description: str
    schema: Schema
    example: object
    parse: Callable[[Any], T]
    """Converts a JSON value other than null to the handler's type. Raises InvalidValueError."""
    from_text: Callable[[str], object] = _unchanged
    """Converts the text in a query or a path to its JSON value."""
    required: bool = True
    default: T | None = None
    problems: frozenset[Problem] = frozenset({Problem.MALFORMED})
    """The possible problems besides MISSING."""
    made_by: str = ""
    """The operation with the real value in its response; the example here is shortened."""
    replaced_by: str = ""
    """The field that can replace this one, if there is one. Both together are refused."""

    def read(self, values: Mapping[str, object]) -> T:
        """Return the field's value. Raises FieldError."""
        value = values.get(self.name)
        is_replaced = bool(self.replaced_by) and values.get(self.replaced_by) is not None
        if value is None:
            if self.required and not is_replaced:
                raise FieldError(self.name, Problem.MISSING, f"{self.name} is required")
            return cast("T", self.default)
        if is_replaced:
            message = f"{self.name} and {self.replaced_by} cannot be sent together"
            raise FieldError(self.name, Problem.MALFORMED, message)
        try:
            return self.parse(value)
        except InvalidValueError as invalid:
            is_missing_thing = invalid.problem is Problem.NOT_FOUND
            message = invalid.message if is_missing_thing else f"{self.name} {invalid.message}"
            raise FieldError(self.name, invalid.problem, message) from None

    @property
    def is_base64(self) -> bool:
        """Whether its values are binary."""
        return self.schema.get("contentEncoding") == "base64"

    @property
    def is_nested(self) -> bool:
        """Whether its values are arrays or objects. Elements of other fields are not parsed."""
        return bool({"array", "object"}.intersection(_types(self.schema)))

    def optional(self) -> "Field[T | None]":
        """Return the same field, but optional."""
        return cast("Field[T | None]", replace(self, required=False))

    def unless(self, other: "Field[Any]") -> "Field[T | None]":
        """Return the same field, but replaceable by another field; its value is then None."""
        return cast("Field[T | None]", replace(self, replaced_by=other.name))

    def or_default(self, default: T) -> "Field[T]":
        """Return the field as an optional one with a default value."""
        schema = {**self.schema, "default": default}
        return replace(self, required=False, default=default, schema=schema)

    def described(self, description: str) -> "Field[T]":
        """Return the field with another description."""
        return replace(self, description=description)


def _types(schema: Schema) -> Sequence[str]:
    """Return the types in a schema: one or several."""
    types = cast("str | Sequence[str]", schema.get("type", ()))
    return (types,) if isinstance(types, str) else types


def unknown_field(names: Iterable[str], known: Iterable[str]) -> FieldError:
    """Return the error for unknown fields. It names the first one if that can be a name."""
    message = f"unknown field; the fields are: {', '.join(known) or 'none'}"
    return FieldError(_shown(min(names)), Problem.UNKNOWN, message)


def sent_twice(name: str, where: str = "") -> FieldError:
    """Return the error for a duplicate name, in one place or in two."""
    shown = _shown(name)
    message = f"{shown or 'a name'} occurs twice{where}"
    return FieldError(shown, Problem.UNKNOWN, message)


def _shown(name: str) -> str:
    """Return a sent name if it is safe to show in an error, else a replacement."""
    return name if name.isidentifier() and len(name) <= MAX_NAME_SHOWN else ""


def kind_of(value: object) -> str:
    """Return the kind of a JSON value in words, without its content."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true or false"
    if isinstance(value, float):
        return "a number with a fraction or an exponent"
    kinds = {str: "a text", int: "a number", list: "an array", dict: "an object"}
    return kinds.get(type(value), "")


def _instead(value: object) -> str:
    """Return the end of a sentence about the wrong type. In a URL every value is a text."""
    kind = kind_of(value)
    return f", not {kind}" if kind else ""


class _TextInUrl(str):
    """A text in a query or a path where a number or a boolean is expected."""

    __slots__ = ()


def object_schema(fields: Sequence[Field[Any]]) -> dict[str, Any]:
    """Return the JSON schema of an object with exactly these fields."""
    names = [field.name for field in fields if field.required and not field.replaced_by]
    return {
        "type": "object",
        "properties": {field.name: _property(field) for field in fields},
        **({"required": names} if names else {}),
        **_alternatives(fields),
        "additionalProperties": False,
    }


def _alternatives(fields: Iterable[Field[Any]]) -> dict[str, Any]:
    """Return the alternatives in an object's schema for fields that replace others."""
    replaced: dict[str, list[str]] = {}
    for field in fields:
        if field.required and field.replaced_by:
            replaced.setdefault(field.replaced_by, []).append(field.name)
    if not replaced:
        return {}
    return {
        "anyOf": [
            alternative
            for instead, names in replaced.items()
            for alternative in ({"required": names}, {"required": [instead]})
        ]
    }


def _property(field: Field[Any]) -> dict[str, Any]:
    """Return a field's schema; an optional field may be null."""
    made_by = f" Returned by `{field.made_by}`." if field.made_by else ""
    described = {"description": field.description + made_by}
    if field.required:
        return {**field.schema, **described}
    schema = dict(field.schema)
    default = {"default": schema.pop("default")} if "default" in schema else {}
    return {"anyOf": [schema, {"type": "null"}], **default, **described}


def decode_base64(value: object) -> bytes:
    """Return the bytes of canonical base64. Raises InvalidValueError with a hint."""
    return _decode(value, pybase64.b64decode)


def decode_base64_into_buffer(value: object) -> bytearray:
    """Return the bytes of canonical base64 in a buffer that can be overwritten.

    Raises InvalidValueError.
    """
    return _decode(value, pybase64.b64decode_as_bytearray)


def _decode(value: object, decode: Callable[..., B]) -> B:
    """Decode canonical base64: the standard alphabet, with padding, and zero in unused bits."""
    if not isinstance(value, str):
        raise InvalidValueError(f"must be base64{_instead(value)}")
    try:
        data = decode(value, validate=True)
    except ValueError:
        raise InvalidValueError(_no_base64(value)) from None
    last = data[len(data) - len(data) % 3 :]
    if last and not value.endswith(base64(last)):
        raise InvalidValueError(
            "must be canonical base64: unused bits of its last character are not zero"
        )
    return data


def _no_base64(text: str) -> str:
    """Return the error for a text that is not base64, with a hint about its format."""
    forms = {
        "it is a data: URL: send what follows the comma": text.startswith("data:"),
        "it is PEM": "-----BEGIN" in text,
        "it begins with a byte-order mark": text.startswith("\N{ZERO WIDTH NO-BREAK SPACE}"),
        "it is JSON": text.startswith(("{", "[")),
        "it is in quotation marks": text.startswith(('"', "'")),
        "it is a JWS": _IS_JWS(text) is not None,
        IT_IS_HEXADECIMAL: _is_hexadecimal(text.strip().removeprefix("0x").replace(":", "")),
    }
    form = next((form for form, is_it in forms.items() if is_it), "")
    if form:
        return f"must be base64; {form}"
    if any(space in text for space in " \n\r\t"):
        return "must be base64 without white space and line breaks"
    if "-" in text or "_" in text:
        return "must be base64; it is base64url: use the standard alphabet (+ and /) with padding"
    is_short = len(text) % 4 and text.isascii() and text.replace("+", "").replace("/", "").isalnum()
    end = (
        ": its length must be a multiple of 4" if is_short else ", in the alphabet A-Z a-z 0-9 + /"
    )
    return f"must be base64 with padding{end}"


def text_form_of(value: object) -> str:
    """Return a hint if a value is probably hexadecimal, or text in base64; empty if not."""
    if not isinstance(value, str):
        return ""
    if is_hexadecimal(value):
        return f"{IT_IS_HEXADECIMAL}, send base64"
    try:
        text = pybase64.b64decode(value, validate=True).decode()
    except ValueError:
        return ""
    forms = {
        "it is base64 of PEM": "-----BEGIN" in text,
        "it is base64 of JSON": text.startswith("{"),
        "it is base64 of base64: encode it once": _IS_BASE64(text) is not None,
    }
    return next((form for form, is_it in forms.items() if is_it), "")


_IS_JWS = re.compile(r"[\w-]+\.[\w-]*\.[\w-]+", re.ASCII).fullmatch
_IS_BASE64 = re.compile(r"[A-Za-z0-9+/]{16,}={0,2}\s*").fullmatch
"""Texts of this length are probably base64 in base64."""
IT_IS_HEXADECIMAL = "it is hexadecimal"
_LIKELY_HEXADECIMAL = 16
"""Digits of a text that is probably hexadecimal, although it can be base64."""


def is_hexadecimal(value: object) -> bool:
    """Return whether a value is probably hexadecimal, even if it can be base64."""
    return isinstance(value, str) and len(value) >= _LIKELY_HEXADECIMAL and _is_hexadecimal(value)


def _is_hexadecimal(text: str) -> bool:
    return len(text) % 2 == 0 and bool(text) and not text.strip(_HEXADECIMAL)


_HEXADECIMAL = "0123456789abcdefABCDEF"


def base64_field(
    name: str, description: str, example: str, *, at_most: int, made_by: str = ""
) -> Field[bytes]:
    """Return a field of binary data with at most ``at_most`` bytes."""

    def parse(value: object) -> bytes:
        data = decode_base64(value)
        if len(data) > at_most:
            raise InvalidValueError(f"exceeds {at_most} bytes", Problem.TOO_LARGE)
        return data

    return Field(
        name=name,
        description=description,
        schema={
            "type": "string",
            "contentEncoding": "base64",
            "pattern": ANY_BASE64,
            "maxLength": base64_size(at_most),
        },
        example=example,
        parse=parse,
        problems=frozenset({Problem.MALFORMED, Problem.TOO_LARGE}),
        made_by=made_by,
    )


def text_field(
    name: str,
    description: str,
    example: str,
    *,
    at_most: int,
    at_least: int = 1,
    pattern: str | None = None,
    is_valid: Callable[[str], bool] | None = is_printable,
    must: str = "",
) -> Field[str]:
    """Return a field of at_least to at_most characters, printable ones by default.

    ``is_valid`` is None for texts that are hashed and not stored: these may have any characters.
    """
    characters = "printable characters" if is_valid is is_printable else "characters"
    message = must or f"must be a text of {at_least} to {at_most} {characters}"

    def parse(value: object) -> str:
        if not isinstance(value, str):
            raise InvalidValueError(message + _instead(value))
        if not at_least <= len(value) <= at_most:
            raise InvalidValueError(message)
        if is_valid is not None and not is_valid(value):
            raise InvalidValueError(message)
        return value

    schema: dict[str, object] = {"type": "string", "minLength": at_least, "maxLength": at_most}
    if pattern is not None:
        schema["pattern"] = pattern
    return Field(name=name, description=description, schema=schema, example=example, parse=parse)


def hint(value: object, texts: Sequence[str]) -> str:
    """Return a suggestion among several texts; empty if none is similar."""
    if not isinstance(value, str) or len(value) > MAX_NAME_SHOWN:
        return ""
    by_folded = {text.casefold(): text for text in texts}
    close = get_close_matches(value.casefold(), by_folded, n=1, cutoff=0.75)
    return f"; did you mean {by_folded[close[0]]}?" if close else ""


def choice_field(
    name: str,
    description: str,
    choices: Sequence[E],
    example: E,
    aliases: Mapping[str, E] | None = None,
) -> Field[E]:
    """Return a field of one of several texts, or an alias of one."""
    others = {text: alias for text, alias in (aliases or {}).items() if alias in choices}
    members: dict[object, E] = {choice.value: choice for choice in choices}
    members.update(others.items())
    message = "must be one of " + ", ".join(choices)

    def parse(value: object) -> E:
        found = members.get(value) if isinstance(value, str) else None
        if found is None:
            raise InvalidValueError(message + hint(value, [*choices, *others]))
        return found

    schema = {"type": "string", "enum": [*choices, *others]}
    return Field(name=name, description=description, schema=schema, example=example, parse=parse)


def several_field(
    name: str,
    description: str,
    choices: Sequence[E],
    example: E,
    aliases: Mapping[str, E] | None = None,
) -> Field[tuple[E, ...]]:
    """Return a field of some of several texts, separated by commas. Left out: all, as ``()``."""
    one = choice_field(name, description, choices, example, aliases)
    most = len(choices)

    def parse(value: object) -> tuple[E, ...]:
        parts = value.split(",", most) if isinstance(value, str) else [value]
        if len(parts) > most:
            raise InvalidValueError(f"must have at most {most} values")
        return tuple(dict.fromkeys(map(one.parse, parts)))

    return Field(
        name=name,
        description=f"{description}, separated by commas: {', '.join(choices)}.",
        schema={"type": "string", "minLength": 1},
        example=example.value,
        parse=parse,
        required=False,
        default=(),
    )


def integer_field(
    name: str,
    description: str,
    example: int,
    *,
    at_least: int,
    at_most: int,
    must: str = "",
    too_large: str = "",
    not_found: str = "",
) -> Field[int]:
    """Return a field of an integer.

    ``too_large``: the message for a number beyond the limit, with 404. ``not_found``: the message
    for every invalid value, with 404.
    """
    message = not_found or must or f"must be an integer from {at_least} to {at_most}"
    otherwise = Problem.NOT_FOUND if not_found else Problem.MALFORMED
    beyond = Problem.NOT_FOUND if not_found or too_large else Problem.MALFORMED

    def parse(value: object) -> int:
        if type(value) is not int:
            kind = "" if not_found else _instead(value)
            raise InvalidValueError(message + kind, otherwise)
        if value < at_least:
            raise InvalidValueError(message, otherwise)
        if value > at_most:
            raise InvalidValueError(too_large or message, beyond)
        return value

    return Field(
        name=name,
        description=description,
        schema={"type": "integer", "minimum": at_least, "maximum": at_most},
        example=example,
        parse=parse,
        from_text=_integer_in,
        problems=frozenset({otherwise, beyond}),
    )


def boolean_field(name: str, description: str, *, example: bool) -> Field[bool]:
    """Return a field of true or false."""

    def parse(value: object) -> bool:
        if not isinstance(value, bool):
            raise InvalidValueError(f"must be true or false{_instead(value)}")
        return value

    return Field(
        name=name,
        description=description,
        schema={"type": "boolean"},
        example=example,
        parse=parse,
        from_text=_boolean_in,
    )


def time_field(name: str, description: str, example: str) -> Field[int]:
    """Return a field of a time, as microseconds since 1970."""

    def parse(value: object) -> int:
        try:
            when = datetime.fromisoformat(str(value))
        except ValueError:
            when = None
        if when is None or when.tzinfo is None or when < _EPOCH:
            raise InvalidValueError("must be a time like 2026-01-31T12:00:00Z, from 1970 on")
        return (when - _EPOCH) // _MICROSECOND

    schema = {"type": "string", "format": "date-time"}
    return Field(name=name, description=description, schema=schema, example=example, parse=parse)


def uuid_field(name: str, description: str, example: str, *, not_found: str = "") -> Field[UUID]:
    """Return a field of a UUID. ``not_found``: the message for any other value, with 404."""
    message = not_found or "must be a UUID"
    problem = Problem.NOT_FOUND if not_found else Problem.MALFORMED

    def parse(value: object) -> UUID:
        try:
            return UUID(str(value))
        except ValueError:
            raise InvalidValueError(message, problem) from None

    return Field(
        name=name,
        description=description,
        schema={"type": "string", "format": "uuid"},
        example=example,
        parse=parse,
        problems=frozenset({problem}),
    )


def _integer_in(text: str) -> object:
    """Return the number in decimal digits; any other text unchanged."""
    return integer_in(text) if text.isascii() and text.isdigit() else _TextInUrl(text)


def _boolean_in(text: str) -> object:
    """Return the value of ``true`` and ``false``; any other text unchanged."""
    return {"true": True, "false": False}.get(text, _TextInUrl(text))


MAX_LISTED = 10_000
"""Entries of any list in one response."""
LIST_LIMIT = integer_field(
    "limit",
    f"The most entries to return. Left out: all, up to {MAX_LISTED}.",
    100,
    at_least=1,
    at_most=MAX_LISTED,
).or_default(MAX_LISTED)

OFFSET = integer_field(
    "offset", "The number of entries before the page.", 50, at_least=0, at_most=1_000_000
).or_default(0)


def sort_field(columns: Sequence[str], default: str) -> Field[str]:
    """Return a field of a list's order: a column's name, with a leading ``-`` to reverse it."""
    values = [f"{sign}{column}" for column in columns for sign in ("", "-")]

    def parse(value: object) -> str:
        if value not in values:
            raise InvalidValueError(f"must be one of {', '.join(columns)}, or one of them after -")
        return str(value)

    field = Field(
        name="sort",
        description="The order. A leading `-` reverses it. Entries without a value come last.",
        schema={"type": "string", "enum": values},
        example=default,
        parse=parse,
    )
    return field.or_default(default)


DETAILS = boolean_field(
    "details", 'Whether to include the fields marked "With details".', example=False
).or_default(default=False)
"""For fields that a client of the bare specification does not expect."""
