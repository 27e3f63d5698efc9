"""The e-mail addresses that are accepted."""

import re

MAX_EMAIL = 254
_MAX_LOCAL = 64
_WORD = r"[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+"
EMAIL_PATTERN = rf"^{_WORD}(\.{_WORD})*@[A-Za-z0-9-]+(\.[A-Za-z0-9-]+)*$"
"""RFC 5321 without quoted forms, which mail programs may read as several addresses."""
_EMAIL = re.compile(EMAIL_PATTERN)


def is_email(text: str) -> bool:
    """Return whether a text is an e-mail address in ASCII, of at most 254 characters."""
    fits = len(text) <= MAX_EMAIL and text.find("@") <= _MAX_LOCAL
    return fits and _EMAIL.fullmatch(text) is not None
