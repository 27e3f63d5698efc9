"""Reading a request's body: bounded in size and in elements, and always a JSON object.

``connection`` bounds it in time, and ``large_bodies`` how much there is of all.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NoReturn, cast

import msgspec
from starlette.types import Receive

from pqkeep_gateway.http.disconnection import ClientGoneError
from pqkeep_gateway.http.errors import invalid
from pqkeep_gateway.http.field import kind_of, sent_twice
from pqkeep_gateway.http.large_bodies import LARGE, LargeBody
from pqkeep_gateway.http.text import integer_in

MAX_ELEMENTS = 1024
"""Commas of a body that is larger than MAX_SMALL, which makes its parsing as fast as its reading.

1.4 MB of base64 take 1.2 ms, 4 MiB in whatever form at most 30 ms; in a thread it is no less, since
the decoder holds the interpreter's lock. 4 MiB of short members would take a second.
"""
MAX_SMALL = 16 * 1024
MAX_NESTED_ELEMENTS = 4096
"""Commas of a body with a field of arrays or objects, and so many brackets and braces: about 1 ms."""
TOO_LARGE = "the body is too large"


@dataclass(frozen=True, slots=True, kw_only=True)
class JsonBody:
    """What an endpoint's body must be: a JSON object, in which no name is twice at any depth."""

    at_most: int
    """Bytes."""
    required: bool
    """Whether it must be there; where it need not, an empty one is an empty object."""
    nested: frozenset[str] = frozenset()
    """Members that may have arrays and objects which are not empty."""

    def check_head(self, headers: Mapping[bytes, bytes]) -> None:
        """Refuse by its head what a body of any size would be refused for. Raises ApiError."""
        if self.required:
            _require_json(headers.get(b"content-type"))
        _check_length(headers, self.at_most)

    def check_size(self, size: int) -> None:
        """Raise ApiError if so many bytes are too many."""
        if size > self.at_most:
            raise invalid(TOO_LARGE)

    def value_of(
        self, body: bytes | bytearray, headers: Mapping[bytes, bytes]
    ) -> Mapping[str, Any]:
        """Return what a body says, which has come as a whole.

        Raises ApiError for everything that is not a JSON object, and FieldError for a name that is
        there twice.
        """
        if not self.required:
            if not body:
                return {}
            _require_json(headers.get(b"content-type"))
        return _object_of(body, self.nested)

    async def read(
        self, receive: Receive, headers: Mapping[bytes, bytes], large: LargeBody
    ) -> Mapping[str, Any]:
        """Return what a body says that is still to come, or large. Raises ClientGoneError, too."""
        is_whole = False
        while not is_whole:
            message = await _next(receive)
            piece = message.get("body", b"")
            is_whole = not message.get("more_body")
            self.check_size(len(large.received) + len(piece))
            large.add(piece)
        if large.size > LARGE:
            await large.wait(receive)
        value = self.value_of(large.received, headers)
        large.received.clear()
        return value


def _object_of(body: bytes | bytearray, nested: frozenset[str]) -> Mapping[str, Any]:
    if len(body) > MAX_NESTED_ELEMENTS and _has_too_many_elements(body, nested):
        raise invalid("the body has too many elements")
    value: Any = None
    fault = ""
    try:
        text = body.decode()
        if b"[" in body or body.rfind(b"{") != body.find(b"{"):
            text = _one_level(text, nested)
        value = STRICT_JSON.decode(text)
        # Only an escape can be half of a pair, which is no text. One byte is found 50 times as fast.
        if b"\\" in body and b"\\u" in body:
            json.dumps(value, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:
        fault = _fault(error, body)
    if not fault and not isinstance(value, dict):
        fault = f"it is {kind_of(value)}"
    if fault:
        raise invalid(f"the body is not a JSON object: {fault}")
    return cast("Mapping[str, Any]", value)


def _fault(error: ValueError | RecursionError, body: bytes | bytearray) -> str:
    """Return why a body was not decoded, without any of it."""
    if not body.strip():
        return "it is empty"
    if body.startswith(_BYTE_ORDER_MARK):
        return "it begins with a byte-order mark, which JSON does not have"
    if b"\0" in body[:4]:
        return "it is not UTF-8, but UTF-16 or UTF-32"
    if isinstance(error, UnicodeDecodeError):
        return f"it is not UTF-8 at byte {error.start}"
    if isinstance(error, UnicodeEncodeError) or _HALF_PAIR.search(body):
        return "it has half of a surrogate pair"
    return _fault_of_syntax(error, body)


def _fault_of_syntax(error: ValueError | RecursionError, body: bytes | bytearray) -> str:
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    if isinstance(error, msgspec.ValidationError):
        return "it is an array" if body.lstrip().startswith(b"[") else "it is another value"
    if isinstance(error, json.JSONDecodeError):
        return f"there is a syntax error at character {error.pos}"
    if isinstance(error, msgspec.DecodeError):
        place = _PLACE.search(str(error))
        at = int(place[1]) if place else len(body)
        if not _CONSTANT.search(body, max(at - 2, 0), at + 10):
            return f"there is a syntax error at byte {at}"
    return "it has NaN or Infinity, which JSON does not have"


def _has_too_many_elements(body: bytes | bytearray, nested: frozenset[str]) -> bool:
    """Return it of a body of more than MAX_NESTED_ELEMENTS bytes: smaller ones have too few."""
    if nested:
        return any(_has_more(mark, body, MAX_NESTED_ELEMENTS) for mark in (b",", b"[", b"{"))
    return len(body) > MAX_SMALL and _has_more(b",", body, MAX_ELEMENTS)


def _one_level(text: str, nested: frozenset[str]) -> str:
    """Return an object whose arrays and objects are empty, but for members that may be nested.

    So they are scanned only: 16 KiB of them take 0.14 ms, and would take 6 ms to parse.
    """
    members = _MEMBERS.decode(text)
    starts = {name: bytes(member)[:1] for name, member in members.items() if name not in nested}
    excess = {name: _EMPTY[start] for name, start in starts.items() if start in _EMPTY}
    if not excess:  # the brackets are in texts, or where they may be
        return text
    return msgspec.json.encode(members | excess).decode()


def _has_more(mark: bytes, body: bytes | bytearray, at_most: int) -> bool:
    """Return whether a byte is there more than so many times: ten times as fast as counting it."""
    found = -1
    for _ in range(at_most + 1):
        found = body.find(mark, found + 1)
        if found < 0:
            return False
    return True


def _require_json(content_type: bytes | None) -> None:
    if content_type not in {None, b"application/json"} and not _is_json(content_type or b""):
        raise invalid("the content type must be application/json")


async def read_bytes(receive: Receive, headers: Mapping[bytes, bytes], *, at_most: int) -> bytes:
    """Return a body as it came. Raises ApiError if it is too large, and ClientGoneError."""
    _check_length(headers, at_most)
    body = bytearray()
    more = True
    while more:
        message = await _next(receive)
        body += _bounded(message.get("body", b""), at_most - len(body))
        more = message.get("more_body", False)
    return bytes(body)


def _check_length(headers: Mapping[bytes, bytes], at_most: int) -> None:
    """Refuse a body that says that it is too large, before it is read."""
    length = headers.get(b"content-length")
    if length is not None and int(length) > at_most:
        raise invalid(TOO_LARGE)


async def _next(receive: Receive) -> Any:
    message = await receive()
    if message["type"] == "http.disconnect":
        raise ClientGoneError
    return message


def _bounded(chunk: bytes, at_most: int) -> bytes:
    if len(chunk) > at_most:
        raise invalid(TOO_LARGE)
    return chunk


def _is_json(content_type: bytes) -> bool:
    return content_type.split(b";", 1)[0].strip().lower() == b"application/json"


def _object(members: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return an object, unless a name is in it twice: no two readers may differ about it."""
    made = dict(members)
    if len(made) < len(members):
        names = [name for name, _ in members]
        raise sent_twice(next(name for name in names if names.count(name) > 1))
    return made


def _no_number(constant: str) -> NoReturn:
    raise ValueError


STRICT_JSON = json.JSONDecoder(
    object_pairs_hook=_object, parse_constant=_no_number, parse_int=integer_in
)
"""The standard library's: the others do not notice a name that is there twice."""
_MEMBERS = msgspec.json.Decoder(dict[str, msgspec.Raw])
_EMPTY = {b"[": msgspec.Raw(b"[]"), b"{": msgspec.Raw(b"{}")}
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_PLACE = re.compile(r"byte (\d+)")
_CONSTANT = re.compile(rb"NaN|Infinity")
_HALF_PAIR = re.compile(
    rb"\\u[dD][89abAB]..(?!\\u[dD][c-fC-F])|(?<!\\u[dD][89abAB]..)\\u[dD][c-fC-F]", re.DOTALL
)
