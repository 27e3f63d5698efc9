"""Passwords of twelve or more characters that attackers try first.

People build passwords from one or two common passwords with digits before or after, from a keyboard
run, or from a repetition. They add capitals and punctuation, and write signs for letters. The
common passwords are a published list, stored as digests. The script requirements/common-passwords
runs this file to make them.
"""

import sys
from collections.abc import Iterable
from functools import cache
from hashlib import sha256
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
"""Words of this service and its field, in addition to the list (NIST SP 800-63B, 5.1.1.2)."""

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
"""A password with this many different characters, or fewer, is common."""
SHORTEST = 8
"""Characters without punctuation. A shorter text is mostly punctuation, and is not checked."""
LONGEST = 64
"""Characters of the longest pair of listed passwords with digits."""
LONGEST_REPEATED = 64
"""Characters of a repeated part: attackers try no longer ones. The limit also bounds the work,
because NFKC can make 18 characters of one, and a password may have 1,024."""
SHORTEST_WORD = 3
DIGEST_SIZE = 6
"""Bytes of a word's digest. With 20,000 words, one in ten billion other words is taken for one."""
PAIR_ENDINGS = ("", "1", "123")

_LETTERS = str.maketrans("@4301!5$7+", "aaeoiisstt")
_PUNCTUATION = "!?.,;:#*-_+&%$@ "


def is_common(password: str) -> bool:
    """Return whether attackers try this password first."""
    text = password.lower()
    stripped = text.strip(_PUNCTUATION)
    forms = {text, stripped, "".join(sign for sign in stripped if sign not in _PUNCTUATION)}
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
    """Return whether a text repeats a short part. The last repetition may be incomplete."""
    longest = min(len(text) // 2, LONGEST_REPEATED)
    return any(
        text[:size] == text[size : 2 * size] and text[size:] == text[:-size]
        for size in range(1, longest + 1)
    )


def _is_composed(text: str) -> bool:
    """Return whether a text is one or two common passwords, with or without digits."""
    if not SHORTEST <= len(text) <= LONGEST:
        return False
    words = common_words()
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
    words = common_words()
    return any(
        text[:at] in words and (text[at:] in words or text[at:].removeprefix("and") in words)
        for at in range(len(text))
    )


def _are_digits(text: str) -> bool:
    """Return whether a text is empty, a few digits, a year or a run of digits."""
    is_short = len(text) <= len("2026")
    return not text or (text.isdecimal() and (is_short or text in "1234567890"))


def _with_letters(text: str) -> str:
    """Replace signs by the letters that they stand for, except in the digits at the end."""
    stem = text.rstrip("0123456789")
    return stem.translate(_LETTERS) + text[len(stem) :]


class Words:
    """A set of words, stored as SHA-256 digests of six bytes each."""

    def __init__(self, digests: bytes, more: Iterable[str] = ()) -> None:
        self._digests = frozenset(
            digests[at : at + DIGEST_SIZE] for at in range(0, len(digests), DIGEST_SIZE)
        ).union(map(digest, more))

    def __contains__(self, word: str) -> bool:
        return len(word) >= SHORTEST_WORD and digest(word) in self._digests

    def __len__(self) -> int:
        return len(self._digests)


def digest(word: str) -> bytes:
    """Return a word's SHA-256 digest, cut to 6 bytes."""
    return sha256(word.encode("utf-8", "surrogatepass")).digest()[:DIGEST_SIZE]


@cache
def common_words() -> Words:
    """Return the listed passwords and the context words."""
    return Words(files(__package__).joinpath("common_passwords.bin").read_bytes(), CONTEXT_WORDS)


if __name__ == "__main__":
    lines = {line.strip() for line in sys.stdin}
    sys.stdout.buffer.writelines(
        sorted(digest(line) for line in lines if len(line) >= SHORTEST_WORD)
    )
