"""The e-mail addresses that are accepted."""

import re

MAX_EMAIL = 254
_MAX_LOCAL = 64
_WORD = r"[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+"
_LOCAL = rf"[A-Za-z0-9!#$%&'*+=?^_`{{}}~][A-Za-z0-9!#$%&'*+/=?^_`{{|}}~-]*(\.{_WORD})*"
_LABEL = r"[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
EMAIL_PATTERN = rf"^{_LOCAL}@{_LABEL}(\.{_LABEL})*$"
"""RFC 5321 without quoted forms, which mail programs may read as several addresses; and without a
local part that begins as an option (-), a file (/) or a program (|) does in mail programs' arguments
and aliases."""
_EMAIL = re.compile(EMAIL_PATTERN)


def is_email(text: str) -> bool:
    """Return whether a text is an e-mail address in ASCII, of at most 254 characters."""
    fits = len(text) <= MAX_EMAIL and text.find("@") <= _MAX_LOCAL
    return fits and _EMAIL.fullmatch(text) is not None
