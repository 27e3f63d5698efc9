"""Strict JSON: duplicate names, fractions and exponents are refused.

With a lenient parser, two readers of a record with a duplicate name see two records.
"""

import json
from collections.abc import Sequence
from typing import Any


class MalformedError(ValueError):
    """A line is invalid. The message says why, and does not quote the line."""


class NoJsonError(MalformedError):
    """It is not JSON."""


def parse(text: bytes) -> object:
    """Return the value that a text is. Raises MalformedError."""
    try:
        value: object = _DECODER.decode(text.decode())
    except UnicodeDecodeError:
        raise NoJsonError("it is not UTF-8") from None
    except json.JSONDecodeError as error:
        raise NoJsonError(f"it is not JSON, at character {error.pos + 1}") from None
    except RecursionError:
        raise MalformedError("it is nested too deeply") from None
    except MalformedError:
        raise
    except ValueError:  # more digits than Python converts
        raise MalformedError("a number is too large") from None
    return value


def canonical(value: object) -> bytes:
    """Return the text of a value by RFC 8785, for ASCII names and integers.

    Raises MalformedError for text that UTF-8 cannot hold, and for a value that is nested too deeply.
    """
    try:
        return _ENCODER.encode(value).encode()
    except UnicodeEncodeError:
        raise MalformedError("it holds half a surrogate pair") from None
    except RecursionError:
        raise MalformedError("it is nested too deeply") from None


def _object(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) != len(pairs):
        raise MalformedError("it has a name twice")
    return values


def _no_integer(text: str) -> object:
    raise MalformedError("it has a number that is not written as an integer")


_DECODER = json.JSONDecoder(
    object_pairs_hook=_object, parse_float=_no_integer, parse_constant=_no_integer
)
_ENCODER = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), sort_keys=True)
