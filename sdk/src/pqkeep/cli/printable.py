"""Text that does nothing to a terminal, whatever a file, a tenant or an answer says."""

import unicodedata


def printable(text: str) -> str:
    """Return text without control characters; each becomes a question mark.

    What has no character in this Python's version of Unicode may have one in the terminal's.
    """
    return "".join(each if each.isprintable() or _is_unassigned(each) else "?" for each in text)


def _is_unassigned(character: str) -> bool:
    return unicodedata.category(character) == "Cn"
