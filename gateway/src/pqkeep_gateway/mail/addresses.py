"""E-mail addresses: which are taken from people, and written to."""

import re

MAX_EMAIL = 254
_MAX_LOCAL = 64
_WORD = r"[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+"
EMAIL_PATTERN = rf"^{_WORD}(\.{_WORD})*@[A-Za-z0-9-]+(\.[A-Za-z0-9-]+)*$"
"""RFC 5321's form without quotes: what no mail program reads as two addresses, or as more."""
_EMAIL = re.compile(EMAIL_PATTERN)


def is_email(text: str) -> bool:
    """Return whether a text has the form of an address: ASCII, at most 254 characters."""
    fits = len(text) <= MAX_EMAIL and text.find("@") <= _MAX_LOCAL
    return fits and _EMAIL.fullmatch(text) is not None
