"""Passwords of twelve characters and more that are tried first.

They are not a list of what has leaked, but what people are known to make long passwords of: a word
or two, a run of the keyboard or a single character, said again or ended with a year or a few
digits, in capitals or not, with the usual signs for letters.
"""

from collections.abc import Iterator
from functools import cache

WORDS = """
password passwort passw0rd pass secret admin administrator root user username login welcome
letmein master default changeme qwerty qwertyuiop azerty asdf asdfgh asdfghjkl zxcvbn zxcvbnm
hello iloveyou love sunshine princess dragon monkey football baseball basketball superman batman
starwars pokemon shadow michael jordan jennifer jessica charlie daniel thomas andrew summer
winter spring autumn monday friday january september october november december company corporate
business office server system database network computer internet google microsoft windows linux
oracle cisco github test testing tester demo guest temp temporary example security secure crypto
cryptography quantum postquantum pqkeep key vault token access trustno whatever freedom flower
cheese chocolate coffee orange purple banana
"""
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
ENDINGS = (
    *("", "1", "12", "123", "1234", "12345", "123456", "1234567", "12345678", "123456789", "01"),
    *("0", "00", "000", "0000", "111", "1111", "321", "4321", "007", "69", "99", "100", "2000"),
    *(str(year) for year in range(1950, 2041)),
)
FEW = 2
"""A password of so many different characters is none."""
SHORTEST = 8
"""Shorter ones are no matter: with marks around them they are still too short."""

_SIGNS = str.maketrans("@4301!5$7+", "aaeoiisstt")
_MARKS = "!?.,;:#*-_+&%$@ "


def is_common(password: str) -> bool:
    """Return whether a password is one of them."""
    text = password.lower()
    bare = text.strip(_MARKS)
    forms = {text, bare, "".join(each for each in bare if each not in _MARKS)}
    return any(
        len(set(form)) <= FEW or _is_run(form) or _is_repetition(form) or form in _made()
        for form in forms | {_without_signs(form) for form in forms}
    )


def _is_run(text: str) -> bool:
    return any(text in run * (len(text) // len(run) + 2) for run in RUNS)


def _is_repetition(text: str) -> bool:
    """Return whether something short is said again and again, perhaps not to its end."""
    return any(
        text == (text[:size] * (len(text) // size + 1))[: len(text)]
        for size in range(1, len(text) // 2 + 1)
    )


def _without_signs(text: str) -> str:
    """Return letters for the signs that stand for them, but for the digits at the end."""
    stem = text.rstrip("0123456789")
    return stem.translate(_SIGNS) + text[len(stem) :]


@cache
def _made() -> frozenset[str]:
    return frozenset(made for made in _all() if len(made) >= SHORTEST)


def _all() -> Iterator[str]:
    words = WORDS.split()
    for word in words:
        for ending in ENDINGS:
            yield word + ending
            yield ending + word
            yield word + word + ending
        for other in words:
            yield word + other
            yield word + other + "1"
            yield word + other + "123"
            yield word + "and" + other
