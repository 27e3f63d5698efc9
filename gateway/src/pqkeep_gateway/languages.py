"""The languages of pages and mails: gettext catalogues, and the language of a request.

A text of the code is its own message id, and English needs no catalogue. Values stand in a text as
``{name}``. ``de.po`` has the translations, and ``make texts`` writes ``de.mo`` from it.
"""

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from gettext import GNUTranslations
from importlib.resources import files
from typing import NamedTuple

ENGLISH = "en"
LANGUAGES: Mapping[str, str] = {ENGLISH: "English", "de": "Deutsch"}
"""The names of the languages, in their own words."""
SCRIPT = "script"
"""The message context of texts in the portal's modules."""
CODE = "code"
"""The message context of texts with values that the portal's code makes."""
PROBLEM = "problem"
"""The message context of the API's errors. The API sends them in English, and pages translate."""
MAX_ACCEPTED = 500
"""Characters of an Accept-Language header that are read."""
_MAX_MATCHED = 2_000
"""Characters of a text with values that is compared with messages."""
_FEW, _MAX_VAGUE = 8, 60
"""A message with few characters besides its values matches short texts only."""
_CONTEXT_END = "\x04"
PLACE = re.compile(r"\{(\w+)\}")
"""The place of a value in a text."""
_CLAUSES = frozenset(
    {"error", "fault", "hint", "message", "problem", "reason", "instead", "role", "words"}
)
"""Values that are texts of the code themselves."""
_LIST = "details"
"""Values that are names with "and" between them."""
_FIELD = re.compile(r"[a-z]+(_[a-z]+)*").fullmatch
"""Matches the name of a field, which begins many errors of the API."""
_current: ContextVar[str] = ContextVar("language", default=ENGLISH)


def current() -> str:
    """Return the language of this request."""
    return _current.get()


@contextmanager
def speaking(language: str) -> Iterator[None]:
    """Use a language within the block. An unknown language is English."""
    token = _current.set(language if language in LANGUAGES else ENGLISH)
    try:
        yield
    finally:
        _current.reset(token)


def chosen(preference: str | None, accepted: str) -> str:
    """Return the language for a person's preference, or else for an Accept-Language header."""
    if preference in LANGUAGES:
        return preference or ENGLISH
    best, best_weight = ENGLISH, 0.0
    for entry in accepted[:MAX_ACCEPTED].split(","):
        tag, _, parameter = entry.partition(";")
        language = tag.strip().lower().partition("-")[0]
        found = re.fullmatch(r"\s*q=([01](?:\.[0-9]{0,3})?)\s*", parameter)
        weight = float(found[1]) if found else 0.0 if parameter.strip() else 1.0
        if language in LANGUAGES and weight > best_weight:
            best, best_weight = language, weight
    return best


def gettext(text: str) -> str:
    """Return a text of a page in the language of this request."""
    catalogue = _catalogue(_current.get())
    return text if catalogue is None else catalogue.gettext(text)


def ngettext(one: str, several: str, number: int) -> str:
    """Return the form of a text for a number."""
    catalogue = _catalogue(_current.get())
    if catalogue is None:
        return one if number == 1 else several
    return catalogue.ngettext(one, several, number)


def filled(text: str, values: Mapping[str, object]) -> str:
    """Return a text with its values. Other braces stay."""
    return PLACE.sub(lambda place: str(values.get(place[1], place[0])), text)


def translated(text: str) -> str | None:
    """Return a text of the code, or an error of the API, in the language of this request.

    The values in the text are kept. Returns None if the catalogue does not have it.
    """
    language = _current.get()
    if language == ENGLISH or not text:
        return text
    for key in (text, f"{PROBLEM}{_CONTEXT_END}{text}"):
        if (exact := _messages(language).get(key)) is not None:
            return exact
    return _by_pattern(language, text) if len(text) <= _MAX_MATCHED else None


def _by_pattern(language: str, text: str) -> str | None:
    """Return a text with values, or an error that begins with its field's name."""
    field, _, clause = text.partition(" ")
    if (found := _matched(language, text, is_vague=False)) is not None:
        return found
    if clause and _FIELD(field) and (found := translated(clause)) is not None:
        return f"{field} {found}"
    return _matched(language, text, is_vague=True)


def _matched(language: str, text: str, *, is_vague: bool) -> str | None:
    """Return the translation of the first message that has a text's fixed parts."""
    for pattern in _patterns(language):
        if pattern.is_vague is is_vague and (values := pattern.values_in(text)) is not None:
            shown = {name: _value(name, value) for name, value in values.items()}
            return filled(pattern.translation, shown)
    return None


def _value(name: str, text: str) -> str:
    """Return a value in a text: a number with its noun, or a reason, is translated too."""
    if name.rstrip("0123456789") in _CLAUSES:
        return said(text)
    if name.startswith(_LIST):
        return text.replace(" and ", gettext(" and "))
    number, _, noun = text.partition(" ")
    if not noun or not number.replace(",", "").isdecimal():
        return text
    count = int(number.replace(",", ""))
    one = noun if count == 1 else noun.removesuffix("s")
    form = ngettext(one, f"{one}s", count)
    return text if form == noun else f"{number} {form}"


def said(text: str) -> str:
    """Return a text of the code in the language of this request; in English if it has none."""
    found = translated(text)
    return text if found is None else found


def module(language: str, context: str) -> Mapping[str, str]:
    """Return the translations of one message context."""
    prefix = f"{context}{_CONTEXT_END}"
    return {
        key.removeprefix(prefix): value
        for key, value in _messages(language).items()
        if key.startswith(prefix)
    }


class _Pattern(NamedTuple):
    """A message with values: the texts between them."""

    literals: tuple[str, ...]
    names: tuple[str, ...]
    translation: str

    @property
    def is_vague(self) -> bool:
        """Whether it has few characters besides its values."""
        return sum(map(len, self.literals)) < _FEW

    def values_in(self, text: str) -> Mapping[str, str] | None:
        """Return the values of a text with this pattern, or None if it has another."""
        first, *middle, last = self.literals
        if self.is_vague and len(text) > _MAX_VAGUE:
            return None
        if not (text.startswith(first) and text.endswith(last)):
            return None
        at, end, values = len(first), len(text) - len(last), []
        for literal in middle:
            found = text.find(literal, at, end)
            if found < 0:
                return None
            values.append(text[at:found])
            at = found + len(literal)
        if at > end:
            return None
        values.append(text[at:end])
        return dict(zip(self.names, values, strict=True))


@cache
def _catalogue(language: str) -> GNUTranslations | None:
    if language == ENGLISH:
        return None
    with files(__package__).joinpath(f"{language}.mo").open("rb") as file:
        return GNUTranslations(file)


@cache
def _messages(language: str) -> Mapping[str, str]:
    """Return the translations. Of plural forms, it has the singular."""
    entries: Mapping[str | tuple[str, int], str] = vars(_catalogue(language))["_catalog"]
    singular = {
        key[0]: text for key, text in entries.items() if isinstance(key, tuple) and not key[1]
    }
    return singular | {key: text for key, text in entries.items() if isinstance(key, str) and key}


@cache
def _patterns(language: str) -> tuple[_Pattern, ...]:
    """Return the messages with values. The longest texts come first."""
    found = [
        _Pattern(tuple(parts[::2]), tuple(parts[1::2]), value)
        for key, value in _messages(language).items()
        if key.startswith((f"{CODE}{_CONTEXT_END}", f"{PROBLEM}{_CONTEXT_END}"))
        and len(parts := PLACE.split(key.rpartition(_CONTEXT_END)[2])) > 1
    ]
    return tuple(sorted(found, key=lambda row: -sum(map(len, row.literals))))
