"""Reads the fields of a response. Raises MalformedResponseError for a missing or malformed field."""

import base64
import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TypeVar, cast

from pqkeep.algorithms import PARAMETERS, canonical
from pqkeep.errors import MalformedResponseError

T = TypeVar("T")


def json_object(value: object) -> dict[str, object] | None:
    """Return a JSON value if it is an object, else None."""
    return cast("dict[str, object]", value) if isinstance(value, dict) else None


def strict_json(text: str | bytes | bytearray) -> object:
    """Return the value of a JSON text in UTF-8. Raises ValueError, for example for a repeated name."""
    try:
        decoded = text if isinstance(text, str) else text.decode()
        return cast(
            "object", json.loads(decoded, object_pairs_hook=_object, parse_constant=_not_json)
        )
    except RecursionError:
        pass
    raise ValueError("nested too deeply")


def _not_json(text: str) -> object:
    raise ValueError(f"{text} is not JSON")  # Python's own reader accepts NaN and Infinity


def _object(pairs: Sequence[tuple[str, object]]) -> dict[str, object]:
    values = dict(pairs)
    if len(values) != len(pairs):
        raise ValueError("a name occurs twice")
    return values


class Data:
    """The ``data`` of a response. Its repr hides the values, which may be secrets."""

    __slots__ = ("_request_id", "_values")

    def __init__(self, values: Mapping[str, object], request_id: str | None) -> None:
        """Take the JSON object and the request id."""
        self._values = values
        self._request_id = request_id

    @property
    def request_id(self) -> str | None:
        """The id of the request."""
        return self._request_id

    def has(self, name: str) -> bool:
        """Return True if a field exists and is not null."""
        return self._values.get(name) is not None

    def names(self) -> tuple[str, ...]:
        """Return the names of the fields."""
        return tuple(self._values)

    def differs(self, name: str, value: object) -> bool:
        """Return True if a field exists and differs from a value. Both names of an algorithm are equal."""
        answered = self._values.get(name)
        if name == "algorithm" and isinstance(answered, str) and isinstance(value, str):
            return canonical(answered) != canonical(value)
        return answered is not None and answered != value

    def binary(self, name: str, *sizes: int) -> bytes:
        """Return the bytes of a base64 field. They must have one of these sizes, if any are given."""
        value = self._decoded(name, self._values.get(name))
        if sizes and len(value) not in sizes:
            raise self._malformed(name)
        return value

    def kem_ciphertext(self) -> bytes:
        """Return the field ``kem_ciphertext``, with the size of the field ``algorithm``."""
        known = PARAMETERS.get(self.text("algorithm"))
        size = None if known is None else known.ciphertext
        return self.binary("kem_ciphertext", *(() if size is None else (size,)))

    def binaries(self, name: str) -> tuple[bytes, ...]:
        """Return the bytes of a field that is a list of base64 texts."""
        return tuple(self._decoded(name, member) for member in self._members(name))

    def text(self, name: str) -> str:
        """Return a field that is a string."""
        return self._read(name, str)

    def text_or_none(self, name: str) -> str | None:
        """Return a field that is a string, or None."""
        return self.text(name) if self.has(name) else None

    def integer(self, name: str) -> int:
        """Return a field that is an integer."""
        return self._read(name, int)

    def integer_or_none(self, name: str) -> int | None:
        """Return a field that is an integer, or None."""
        return self.integer(name) if self.has(name) else None

    def place_or_none(self, name: str) -> int | str | None:
        """Return the position of the next page, an integer or a string, or None."""
        if not self.has(name):
            return None
        try:
            return self.integer(name)
        except MalformedResponseError:
            return self.text(name)

    def flag(self, name: str) -> bool:
        """Return a field that is exactly true or false."""
        return self._read(name, bool)

    def time(self, name: str) -> datetime:
        """Return a field that is an ISO 8601 time with its offset from UTC."""
        try:
            time = datetime.fromisoformat(self.text(name))
        except ValueError:
            raise self._malformed(name) from None
        if time.tzinfo is None:
            raise self._malformed(name)
        return time

    def time_or_none(self, name: str) -> datetime | None:
        """Return a field that is a time, or None."""
        return self.time(name) if self.has(name) else None

    def integers(self, name: str) -> dict[str, int]:
        """Return a field that is an object of integers."""
        members = self.nested(name)
        return {name: members.integer(name) for name in members.names()}

    def texts(self, name: str) -> dict[str, str]:
        """Return a field that is an object of strings."""
        members = self.nested(name)
        return {name: members.text(name) for name in members.names()}

    def versions_or_none(self, name: str) -> tuple[int, ...] | None:
        """Return a field that is a list of integers, or None."""
        if not self.has(name):
            return None
        members = self._members(name)
        if not all(type(member) is int for member in members):
            raise self._malformed(name)
        return tuple(cast("list[int]", members))

    def text_objects(self, name: str) -> tuple[dict[str, str], ...]:
        """Return a field that is a list of objects of strings."""
        return tuple(
            {name: members.text(name) for name in members.names()} for members in self.objects(name)
        )

    def texts_or_none(self, name: str) -> tuple[str, ...] | None:
        """Return a field that is a list of strings, or None."""
        if not self.has(name):
            return None
        members = self._members(name)
        if not all(isinstance(member, str) for member in members):
            raise self._malformed(name)
        return tuple(cast("list[str]", members))

    def json_or_none(self, name: str) -> Mapping[str, object] | None:
        """Return a field that is an object, unchanged, or None."""
        if not self.has(name):
            return None
        values = json_object(self._values.get(name))
        if values is None:
            raise self._malformed(name)
        return values

    def unchanged(self) -> Mapping[str, object]:
        """Return all fields unchanged."""
        return self._values

    def nested(self, name: str) -> "Data":
        """Return a field that is an object."""
        return self._object(name, self._values.get(name))

    def objects(self, name: str) -> "tuple[Data, ...]":
        """Return a field that is a list of objects."""
        return tuple(self._object(name, member) for member in self._members(name))

    def _members(self, name: str) -> list[object]:
        return cast("list[object]", self._read(name, list))

    def _object(self, name: str, value: object) -> "Data":
        values = json_object(value)
        if values is None:
            raise self._malformed(name)
        return Data(values, self._request_id)

    def _decoded(self, name: str, text: object) -> bytes:
        if not isinstance(text, str):
            raise self._malformed(name)
        try:
            decoded = base64.b64decode(text, validate=True)
        except ValueError:
            raise self._malformed(name) from None
        if (
            base64.b64encode(decoded).decode("ascii") != text
        ):  # the unused bits at the end are not zero
            raise self._malformed(name)
        return decoded

    def _read(self, name: str, kind: type[T]) -> T:
        value = self._values.get(name)
        if (
            isinstance(value, kind) and type(value) is kind
        ):  # True is an int in Python, but not a number
            return value
        raise self._malformed(name)

    def _malformed(self, name: str) -> MalformedResponseError:
        return MalformedResponseError(
            "a field of the response is missing or malformed",
            field=name,
            request_id=self._request_id,
        )


def encoded(data: bytes) -> str:
    """Return bytes as base64 text."""
    return base64.b64encode(data).decode("ascii")


def encoded_or_none(data: bytes | None) -> str | None:
    """Return bytes as base64 text, or None for None."""
    return None if data is None else encoded(data)


def encoded_key(public_key: bytes | str) -> str:
    """Return a public key in the API's form: PEM unchanged, bytes as base64."""
    return public_key if isinstance(public_key, str) else encoded(public_key)


def encoded_key_or_none(public_key: bytes | str | None) -> str | None:
    """Return a public key in the API's form, or None for None."""
    return None if public_key is None else encoded_key(public_key)
