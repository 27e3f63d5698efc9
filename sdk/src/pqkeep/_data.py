"""Reading the fields of an answer. One that is missing or malformed is an InternalError."""

import base64
from collections.abc import Mapping
from datetime import datetime
from typing import TypeVar

from pqkeep.errors import InternalError

T = TypeVar("T")


class Data:
    """The ``data`` of an answer. Its repr shows nothing of it: there may be secrets inside."""

    __slots__ = ("_request_id", "_values")

    def __init__(self, values: Mapping[str, object], request_id: str | None) -> None:
        """Take the JSON object and the request that it answers."""
        self._values = values
        self._request_id = request_id

    def binary(self, name: str) -> bytes:
        """Return a field that is base64."""
        try:
            return base64.b64decode(self.text(name), validate=True)
        except ValueError:
            raise self._malformed(name) from None

    def text(self, name: str) -> str:
        """Return a field that is a string."""
        return self._read(name, str)

    def integer(self, name: str) -> int:
        """Return a field that is an integer."""
        return self._read(name, int)

    def flag(self, name: str) -> bool:
        """Return a field that is true or false, and nothing that merely counts as such."""
        return self._read(name, bool)

    def time(self, name: str) -> datetime:
        """Return a field that is an ISO 8601 time."""
        try:
            return datetime.fromisoformat(self.text(name))
        except ValueError:
            raise self._malformed(name) from None

    def objects(self, name: str) -> "tuple[Data, ...]":
        """Return a field that is a list of objects."""
        members: list[object] = self._read(name, list)
        objects = tuple(Data(m, self._request_id) for m in members if isinstance(m, dict))
        if len(objects) != len(members):
            raise self._malformed(name)
        return objects

    def _read(self, name: str, kind: type[T]) -> T:
        value = self._values.get(name)
        if isinstance(value, kind) and type(value) is kind:  # True is an int, but no number
            return value
        raise self._malformed(name)

    def _malformed(self, name: str) -> InternalError:
        return InternalError(
            "the answer lacks a field, or it is malformed", field=name, request_id=self._request_id
        )
