"""Decodes JSON and TOML that others wrote: whatever it is, it is decoded or refused.

msgspec raises RecursionError for deep nesting, which is no ValueError; a name of many parts in TOML
costs time and memory that grow with the square of their number.

Which characters names and texts may have is here too, on every version of Python the same. Each has
the characters of one version of Unicode. A code point without a character there may have a visible
one in a later version: what one version takes, all of them take.
"""

import re
import unicodedata
from typing import TypeVar

import msgspec

_NEVER_SHOWN = frozenset({0x2065, *range(0xFFF0, 0xFFF9)})
"""Reserved for characters that are not shown (Unicode 15, 5.21)."""
_BEYOND = 0xE0000
"""Plane 14 has formatting characters, and the two after it are private."""


def is_newer(character: str) -> bool:
    """Return whether a visible character may be assigned there by a later version of Unicode.

    Noncharacters never are.
    """
    if unicodedata.category(character) != "Cn":
        return False
    point = ord(character)
    is_noncharacter = 0xFDD0 <= point <= 0xFDEF or point & 0xFFFE == 0xFFFE  # noqa: PLR2004
    return not is_noncharacter and point not in _NEVER_SHOWN and point < _BEYOND


def is_printable(text: str) -> bool:
    """Return whether a text is printable, or may be in a later version of Unicode."""
    return text.isprintable() or all(each.isprintable() or is_newer(each) for each in text)


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
