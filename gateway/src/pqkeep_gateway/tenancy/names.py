"""Names of tenants: which there are, and which of them are the same.

Each version of Python has the characters of one version of Unicode. A name that one of them takes,
all of them take: a code point without a character there is taken like a letter, and compared as it
is. So a newer character has no case and no composition until Python knows it (ADR 74).
"""

import hashlib
import unicodedata

from pqkeep_protocol.characters import is_newer

MAX_NAME = 255
"""Code points in NFC."""
_MAX_GIVEN = 4 * MAX_NAME
"""Code points in any form: at most four are one in NFC, and sorting many marks takes quadratic time."""

_MAJOR_CATEGORIES = frozenset("LMNPS")
"""Letters, marks, numbers, punctuation, symbols."""
_JOINERS = "\N{ZERO WIDTH NON-JOINER}\N{ZERO WIDTH JOINER}"
"""Formatting characters that some scripts spell words with."""
_LAST_SPACE = 0x3000
_SPACES = "".join(
    chr(each) for each in range(_LAST_SPACE + 1) if unicodedata.category(chr(each)) == "Zs"
)


def normalized_name(text: str) -> str:
    """Return a name as it is stored: in NFC, without spaces and joiners around it.

    Raises ValueError for a text without a visible character, of more than MAX_NAME code
    points, or with anything but letters, marks, numbers, punctuation, symbols, joiners and spaces.
    """
    given = text.strip(_SPACES + _JOINERS)
    if len(given) > _MAX_GIVEN:
        raise ValueError
    name = unicodedata.normalize("NFC", given).strip(_SPACES + _JOINERS)
    if not (0 < len(name) <= MAX_NAME and all(_may_be_used(each) for each in name)):
        raise ValueError
    return name


def folded_name(name: str) -> str:
    """Return the form in which names are compared, and parts of them are looked for.

    Names are the same if they differ in case, composition, joiners, or the kind and number of
    spaces only (canonical caseless matching, Unicode 15, D145).
    """
    folded = unicodedata.normalize("NFD", unicodedata.normalize("NFD", name).casefold())
    shown = "".join(" " if each in _SPACES else each for each in folded if each not in _JOINERS)
    return " ".join(filter(None, shown.split(" ")))


def name_key(name: str) -> bytes:
    """Return what is the same of names that are the same: a SHA-256 (32 bytes)."""
    return hashlib.sha256(folded_name(name).encode()).digest()


def _may_be_used(character: str) -> bool:
    is_visible = unicodedata.category(character)[0] in _MAJOR_CATEGORIES
    is_shown = is_visible or is_newer(character)
    return is_shown or character in _SPACES or character in _JOINERS
