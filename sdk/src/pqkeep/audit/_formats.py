"""The formats of records, by number: the field names and the valid values of each format.

A record is a JSON object. Its leaf in the tree is the hash of its RFC 8785 text. The fields
``format``, ``id``, ``number``, ``tenant_id`` and ``recorded_at`` mean the same in all formats. A
format never changes after a service has written it: a new field makes a new format.

JSON is parsed strictly. With a lenient parser, two readers could read a duplicate field name
differently.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any


class MalformedError(ValueError):
    """A line is invalid. The message says why, and does not quote the line."""


class NoJsonError(MalformedError):
    """It is not JSON."""


def parse(text: bytes) -> object:
    """Return the value of a JSON text. Raises MalformedError."""
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
    """Return the RFC 8785 text of a value, for ASCII names and integers.

    Raises MalformedError for text that UTF-8 cannot encode, and for values that are nested too
    deeply.
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


Format = Mapping[str, Callable[[Any], bool]]
Formats = Mapping[int, Format]

MOST = 2**63 - 1
"""The largest integer in a record or a statement."""


def time_matcher(fraction: str) -> Callable[[str], bool]:
    """Return a test for times in UTC with this form of fractional seconds."""
    has_form = re.compile(rf"\d{{4}}-\d\d-\d\dT\d\d:\d\d:\d\d{fraction}Z", re.ASCII).fullmatch

    def matches(text: str) -> bool:
        try:
            return has_form(text) is not None and bool(datetime.fromisoformat(text))
        except ValueError:
            return False

    return matches


matches_time = time_matcher(r"\.\d{6}")
matches_uuid = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}").fullmatch
_matches_fingerprint = re.compile(r"[0-9a-f]{64}").fullmatch
_matches_nonce = re.compile(r"[0-9a-f]{32}").fullmatch


def is_positive(value: Any) -> bool:
    """Return True for an integer of at least 1."""
    return type(value) is int and 1 <= value <= MOST


def _is_text(value: Any) -> bool:
    return type(value) is str


def _is_uuid(value: Any) -> bool:
    return type(value) is str and matches_uuid(value) is not None


def _is_time(value: Any) -> bool:
    return type(value) is str and matches_time(value)


def _is_nonce(value: Any) -> bool:
    return type(value) is str and _matches_nonce(value) is not None


def _is_fingerprint(value: Any) -> bool:
    return type(value) is str and _matches_fingerprint(value) is not None


def _or_null(is_right: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: value is None or is_right(value)


FORMAT_1: Format = {
    "algorithm": _or_null(_is_text),
    "campaign": _or_null(_is_text),
    "event_id": _or_null(_is_uuid),
    "format": is_positive,
    "happened_at": _or_null(_is_time),
    "id": is_positive,
    "key_version": _or_null(is_positive),
    "keyring": _or_null(_is_text),
    "keyring_revision": _or_null(is_positive),
    "nonce": _is_nonce,
    "number": is_positive,
    "operation": _is_text,
    "outcome": _is_text,
    "policy": _is_text,
    "principal": _is_text,
    "public_key_sha256": _or_null(_is_fingerprint),
    "recorded_at": _is_time,
    "request_id": _is_text,
    "rule": _or_null(_is_text),
    "source_address": _is_text,
    "target": _or_null(_is_text),
    "tenant_id": _is_uuid,
}

OF_EVERY_FORMAT: Format = {
    name: FORMAT_1[name] for name in ("format", "id", "number", "recorded_at", "tenant_id")
}
"""The fields that a record of an unknown format must have."""

FORMATS: Formats = {1: FORMAT_1}
"""The formats that this version can verify."""
