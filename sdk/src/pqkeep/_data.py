"""Reading the fields of an answer. One that is missing or malformed is a MalformedResponseError."""

import base64
import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TypeVar, cast

from pqkeep.algorithms import PARAMETERS, canonical
from pqkeep.errors import MalformedResponseError

T = TypeVar("T")


def json_object(value: object) -> dict[str, object] | None:
    """Return a value of JSON if it is an object."""
    return cast("dict[str, object]", value) if isinstance(value, dict) else None


def strict_json(text: str | bytes | bytearray) -> object:
    """Return the value of a text that is JSON. Raises ValueError, for a name that is there twice too."""
    try:
        return cast("object", json.loads(text, object_pairs_hook=_object))
    except RecursionError:
        pass
    raise ValueError("nested too deeply")


def _object(pairs: Sequence[tuple[str, object]]) -> dict[str, object]:
    values = dict(pairs)
    if len(values) != len(pairs):
        raise ValueError("a name is there twice")
    return values


class Data:
    """The ``data`` of an answer. Its repr shows nothing of it: there may be secrets inside."""

    __slots__ = ("_request_id", "_values")

    def __init__(self, values: Mapping[str, object], request_id: str | None) -> None:
        """Take the JSON object and the request that it answers."""
        self._values = values
        self._request_id = request_id

    @property
    def request_id(self) -> str | None:
        """The request that is answered."""
        return self._request_id

    def has(self, name: str) -> bool:
        """Return whether a field is there, and not null."""
        return self._values.get(name) is not None

    def names(self) -> tuple[str, ...]:
        """Return the names of the fields."""
        return tuple(self._values)

    def differs(self, name: str, value: object) -> bool:
        """Return whether a field is there, and another than a value; an algorithm has two names."""
        answered = self._values.get(name)
        if name == "algorithm" and isinstance(answered, str) and isinstance(value, str):
            return canonical(answered) != canonical(value)
        return answered is not None and answered != value

    def binary(self, name: str, *sizes: int) -> bytes:
        """Return a field that is base64, of one of these sizes in bytes, or of any."""
        value = self._decoded(name, self._values.get(name))
        if sizes and len(value) not in sizes:
            raise self._malformed(name)
        return value

    def kem_ciphertext(self) -> bytes:
        """Return the field ``kem_ciphertext``, of the size that the field ``algorithm`` says."""
        known = PARAMETERS.get(self.text("algorithm"))
        size = None if known is None else known.ciphertext
        return self.binary("kem_ciphertext", *(() if size is None else (size,)))

    def binaries(self, name: str) -> tuple[bytes, ...]:
        """Return a field that is a list of base64."""
        return tuple(self._decoded(name, member) for member in self._members(name))

    def text(self, name: str) -> str:
        """Return a field that is a string."""
        return self._read(name, str)

    def text_or_none(self, name: str) -> str | None:
        """Return a field that is a string, if it is there."""
        return self.text(name) if self.has(name) else None

    def integer(self, name: str) -> int:
        """Return a field that is an integer."""
        return self._read(name, int)

    def integer_or_none(self, name: str) -> int | None:
        """Return a field that is an integer, if it is there."""
        return self.integer(name) if self.has(name) else None

    def place_or_none(self, name: str) -> int | str | None:
        """Return where a list goes on, an integer or a string, if it does."""
        if not self.has(name):
            return None
        try:
            return self.integer(name)
        except MalformedResponseError:
            return self.text(name)

    def flag(self, name: str) -> bool:
        """Return a field that is true or false, and nothing that merely counts as such."""
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
        """Return a field that is a time, if it is there."""
        return self.time(name) if self.has(name) else None

    def integers(self, name: str) -> dict[str, int]:
        """Return a field that is an object of integers."""
        members = self.nested(name)
        return {name: members.integer(name) for name in members.names()}

    def texts(self, name: str) -> dict[str, str]:
        """Return a field that is an object of strings."""
        members = self.nested(name)
        return {name: members.text(name) for name in members.names()}

    def text_objects(self, name: str) -> tuple[dict[str, str], ...]:
        """Return a field that is a list of objects of strings."""
        return tuple(
            {name: members.text(name) for name in members.names()} for members in self.objects(name)
        )

    def texts_or_none(self, name: str) -> tuple[str, ...] | None:
        """Return a field that is a list of strings, if it is there."""
        if not self.has(name):
            return None
        members = self._members(name)
        if not all(isinstance(member, str) for member in members):
            raise self._malformed(name)
        return tuple(cast("list[str]", members))

    def json_or_none(self, name: str) -> Mapping[str, object] | None:
        """Return a field that is an object, as it is, if it is there."""
        if not self.has(name):
            return None
        values = json_object(self._values.get(name))
        if values is None:
            raise self._malformed(name)
        return values

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
        if base64.b64encode(decoded).decode("ascii") != text:  # other bits at the end than zero
            raise self._malformed(name)
        return decoded

    def _read(self, name: str, kind: type[T]) -> T:
        value = self._values.get(name)
        if isinstance(value, kind) and type(value) is kind:  # True is an int, but no number
            return value
        raise self._malformed(name)

    def _malformed(self, name: str) -> MalformedResponseError:
        return MalformedResponseError(
            "the answer lacks a field, or it is malformed", field=name, request_id=self._request_id
        )


def encoded(data: bytes) -> str:
    """Return bytes as the service reads them."""
    return base64.b64encode(data).decode("ascii")


def encoded_or_none(data: bytes | None) -> str | None:
    """Return bytes as the service reads them; None leaves them out."""
    return None if data is None else encoded(data)


def encoded_key(public_key: bytes | str) -> str:
    """Return a public key as the service reads it: PEM as it is, bytes as base64."""
    return public_key if isinstance(public_key, str) else encoded(public_key)


def encoded_key_or_none(public_key: bytes | str | None) -> str | None:
    """Return a public key as the service reads it; None leaves it out."""
    return None if public_key is None else encoded_key(public_key)
