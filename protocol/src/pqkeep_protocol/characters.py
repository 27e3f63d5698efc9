"""Which characters names and texts may have, on every version of Python the same.

Each version of Python has the characters of one version of Unicode. A code point without a character
there may have a visible one in a later version: what one version takes, all of them take.
"""

import unicodedata

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
