"""Reading a query where the specification names no codes: every bad value is a 422."""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta

from pqkeep_gateway.api.fields import member
from pqkeep_gateway.http.errors import ApiError, Code
from pqkeep_protocol.algorithms import Algorithm
from pqkeep_protocol.keys import MAX_KEY_VERSION, KeyVersion

MAX_NUMBER = 2**53 - 1
MAX_TEXT = 32

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


class Query:
    """The fields of a query, a path or a body. What is not there is None."""

    def __init__(self, values: Mapping[str, object]) -> None:
        """Read from these values."""
        self._values = values

    def text(self, name: str) -> str | None:
        """Return a short text."""
        value = self._values.get(name)
        if value is None:
            return None
        if not (isinstance(value, str) and 0 < len(value) <= MAX_TEXT):
            raise _bad(name, f"must be 1 to {MAX_TEXT} characters")
        return value

    def choice(self, name: str, choices: tuple[str, ...]) -> str | None:
        """Return one of several texts."""
        value = self._values.get(name)
        if value is not None and value not in choices:
            raise _bad(name, "must be one of " + ", ".join(choices))
        return None if value is None else str(value)

    def number(self, name: str, at_least: int = 0, at_most: int = MAX_NUMBER) -> int | None:
        """Return a whole number, within bounds."""
        value = self._values.get(name)
        if value is None:
            return None
        text = str(value)
        is_number = text.isascii() and text.isdigit() and len(text) <= len(str(MAX_NUMBER))
        if not (is_number and at_least <= int(text) <= at_most):
            raise _bad(name, f"must be an integer from {at_least} to {at_most}")
        return int(text)

    def version(self) -> KeyVersion | None:
        """Return ``key_version``."""
        number = self.number("key_version", 1, MAX_KEY_VERSION)
        return None if number is None else KeyVersion(number)

    def algorithm(self) -> Algorithm | None:
        """Return ``algorithm``."""
        value = self._values.get("algorithm")
        found = member(Algorithm, value)
        if found is None and value is not None:
            raise _bad("algorithm", "must be one of " + ", ".join(Algorithm))
        return found

    def microseconds(self, name: str) -> int | None:
        """Return a time in microseconds since 1970."""
        value = self._values.get(name)
        if value is None:
            return None
        try:
            when = datetime.fromisoformat(str(value))
        except ValueError:
            when = None
        if when is None or when.tzinfo is None or when < _EPOCH:
            raise _bad(name, "must be a time like 2026-01-31T12:00:00Z, from 1970 on")
        return (when - _EPOCH) // _MICROSECOND


def _bad(name: str, problem: str) -> ApiError:
    return ApiError(Code.UNPROCESSABLE, f"{name} {problem}", name)
