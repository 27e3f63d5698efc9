"""Decodes JSON and TOML from outside. Any input is decoded or refused.

msgspec raises RecursionError for deep nesting, which is not a ValueError. A TOML name of many parts
costs time and memory that grow with the square of their number.

This module also decides which characters names and texts may have, the same on every version of
Python. Each Python has the characters of one version of Unicode. A code point that is unassigned
there may be a visible character in a later version. So unassigned code points are accepted.
"""

import re
import unicodedata
from typing import TypeVar

import msgspec

_NEVER_SHOWN = frozenset({0x2065, *range(0xFFF0, 0xFFF9)})
"""Code points reserved for invisible characters (Unicode 15, 5.21)."""
_BEYOND = 0xE0000
"""Plane 14 has formatting characters; planes 15 and 16 are for private use."""


def is_newer(character: str) -> bool:
    """Return whether a later version of Unicode may assign a visible character here.

    It never assigns noncharacters.
    """
    if unicodedata.category(character) != "Cn":
        return False
    point = ord(character)
    is_noncharacter = 0xFDD0 <= point <= 0xFDEF or point & 0xFFFE == 0xFFFE  # noqa: PLR2004
    return not is_noncharacter and point not in _NEVER_SHOWN and point < _BEYOND


def is_printable(text: str) -> bool:
    """Return whether a text is printable, or may be in a later version of Unicode."""
    return text.isprintable() or all(
        character.isprintable() or is_newer(character) for character in text
    )


T = TypeVar("T")

MAX_PARTS = 16
"""Parts of a TOML name: a.b.c has three."""
_PART = r"(?:[A-Za-z0-9_-]++|\"(?:[^\"\\\n]|\\.)*+\"|'[^'\n]*+')"
_TOO_MANY_PARTS = re.compile(rf"(?<![^\s.\[{{,]){_PART}(?:[ \t]*+\.[ \t]*+{_PART}){{{MAX_PARTS}}}")


class MalformedDocumentError(ValueError):
    """A document does not have the expected form. The message quotes none of its values."""


def decode_json(data: bytes | str | msgspec.Raw, kind: type[T]) -> T:
    """Return a decoded JSON document. Raises MalformedDocumentError."""
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        raise MalformedDocumentError("not the expected JSON document") from None


def decode_toml(text: str, kind: type[T]) -> T:
    """Return a decoded TOML document. Raises MalformedDocumentError, which names the line."""
    if _TOO_MANY_PARTS.search(text):
        raise MalformedDocumentError(f"a name has more than {MAX_PARTS} parts")
    try:
        return msgspec.toml.decode(text, type=kind)
    except (msgspec.MsgspecError, ValueError) as error:
        raise MalformedDocumentError(str(error)) from None
    except RecursionError:
        raise MalformedDocumentError("the document is nested too deeply") from None
