"""Passwords of twelve characters and more that attackers try first.

That long, people make them of one or two common passwords with digits before or behind, of a run of
the keyboard, or of a repetition; in capitals or not, with punctuation, and with signs for letters.
The common passwords are a published list: see requirements/common-passwords.
"""

from functools import cache
from importlib.resources import files

CONTEXT_WORDS = frozenset(
    [
        "cisco",
        "corporate",
        "crypto",
        "cryptography",
        "database",
        "example",
        "github",
        "key",
        "linux",
        "postquantum",
        "pqkeep",
        "token",
        "trustno",
        "vault",
    ]
)
"""Words of this service and its field, which are not in the list (NIST SP 800-63B, 5.1.1.2)."""

RUNS = (
    "0123456789",
    "1234567890",
    "9876543210",
    "0987654321",
    "abcdefghijklmnopqrstuvwxyz",
    "zyxwvutsrqponmlkjihgfedcba",
    "qwertyuiopasdfghjklzxcvbnm",
    "azertyuiopqsdfghjklmwxcvbn",
    "qazwsxedcrfvtgbyhnujmikolp",
    "1qaz2wsx3edc4rfv5tgb6yhn7ujm8ik9ol0p",
    "1q2w3e4r5t6y7u8i9o0p",
    "q1w2e3r4t5y6u7i8o9p0",
)
FEW_CHARACTERS = 2
"""So many different characters are too few."""
SHORTEST = 8
"""Of what is left without punctuation: where that is shorter, the punctuation is the password."""
LONGEST = 64
"""No pair of entries with digits is longer."""
SHORTEST_WORD = 3
PAIR_ENDINGS = ("", "1", "123")

_LETTERS = str.maketrans("@4301!5$7+", "aaeoiisstt")
_PUNCTUATION = "!?.,;:#*-_+&%$@ "


def is_common(password: str) -> bool:
    """Return whether a password is one of those that are tried first."""
    text = password.lower()
    stripped = text.strip(_PUNCTUATION)
    forms = {text, stripped, "".join(each for each in stripped if each not in _PUNCTUATION)}
    return any(
        len(set(form)) <= FEW_CHARACTERS
        or _is_run(form)
        or _is_repetition(form)
        or _is_composed(form)
        for form in forms | {_with_letters(form) for form in forms}
    )


def _is_run(text: str) -> bool:
    return any(text in run * (len(text) // len(run) + 2) for run in RUNS)


def _is_repetition(text: str) -> bool:
    """Return whether a text repeats something short, the last time perhaps in part."""
    return any(
        text == (text[:size] * (len(text) // size + 1))[: len(text)]
        for size in range(1, len(text) // 2 + 1)
    )


def _is_composed(text: str) -> bool:
    """Return whether a text is one or two common passwords, with digits or without."""
    if not SHORTEST <= len(text) <= LONGEST:
        return False
    words = _words()
    for at in range(len(text) + 1):
        head, tail = text[:at], text[at:]
        half = head[: at // 2]
        if _are_digits(tail) and (head in words or (half in words and half * 2 == head)):
            return True
        if _are_digits(head) and tail in words:
            return True
        if tail in PAIR_ENDINGS and _is_pair(head):
            return True
    return False


def _is_pair(text: str) -> bool:
    """Return whether a text is two common passwords, or two with "and" between them."""
    words = _words()
    return any(
        text[:at] in words and (text[at:] in words or text[at:].removeprefix("and") in words)
        for at in range(len(text))
    )


def _are_digits(text: str) -> bool:
    """Return whether a text is what people add to a word: a few digits, a year, or nothing."""
    is_short = len(text) <= len("2026")
    return not text or (text.isdecimal() and (is_short or text in "1234567890"))


def _with_letters(text: str) -> str:
    """Return a text with letters for the signs that stand for them, except in the digits at its end."""
    stem = text.rstrip("0123456789")
    return stem.translate(_LETTERS) + text[len(stem) :]


@cache
def _words() -> frozenset[str]:
    listed = files(__package__).joinpath("common_passwords.txt").read_text("utf-8")
    return CONTEXT_WORDS.union(each for each in listed.splitlines() if len(each) >= SHORTEST_WORD)
