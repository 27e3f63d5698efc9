"""Decodes JSON and TOML that others wrote: whatever it is, it is decoded or refused.

msgspec raises RecursionError for deep nesting, which is no ValueError; a name of many parts in TOML
costs time and memory that grow with the square of their number.
"""

import re
from typing import TypeVar

import msgspec

T = TypeVar("T")

MAX_PARTS = 16
"""Parts of a name in TOML, a.b.c."""
_PART = r"(?:[A-Za-z0-9_-]++|\"(?:[^\"\\\n]|\\.)*+\"|'[^'\n]*+')"
_TOO_MANY_PARTS = re.compile(rf"(?<![^\s.\[{{,]){_PART}(?:[ \t]*+\.[ \t]*+{_PART}){{{MAX_PARTS}}}")


class MalformedDocumentError(ValueError):
    """A document is not what it should be. The message repeats no value of it."""


def decode_json(data: bytes | str | msgspec.Raw, kind: type[T]) -> T:
    """Return what a JSON document says. Raises MalformedDocumentError."""
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        raise MalformedDocumentError("not the expected JSON document") from None


def decode_toml(text: str, kind: type[T]) -> T:
    """Return what a TOML document says. Raises MalformedDocumentError, which names the line."""
    if _TOO_MANY_PARTS.search(text):
        raise MalformedDocumentError(f"a name has more than {MAX_PARTS} parts")
    try:
        return msgspec.toml.decode(text, type=kind)
    except (msgspec.MsgspecError, ValueError) as error:
        raise MalformedDocumentError(str(error)) from None
    except RecursionError:
        raise MalformedDocumentError("it is nested too deeply") from None
