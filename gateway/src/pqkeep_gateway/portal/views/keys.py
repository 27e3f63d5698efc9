"""Keys: their versions, history, and import."""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

from pqkeep_gateway.access.callers import Permission
from pqkeep_gateway.api.keys import Key, KeyUsage
from pqkeep_gateway.api.public_keys import PublicKeyFormat
from pqkeep_gateway.http.errors import not_found
from pqkeep_gateway.portal.outcomes import OUTCOME_WORDS
from pqkeep_gateway.portal.pages import Content, Page, Visit
from pqkeep_gateway.portal.reading import Reader, Section
from pqkeep_gateway.portal.views.algorithms import ABOUT, LEGENDS, About, Choice, choices
from pqkeep_gateway.portal.views.audit import place
from pqkeep_gateway.portal.views.keyrings import in_keyring, offered
from pqkeep_gateway.portal.views.people import addresses
from pqkeep_protocol.algorithms import ALGORITHMS, LIFECYCLE, Algorithm, Operation
from pqkeep_protocol.keys import DEFAULT_KEYRING, MAX_KEY_VERSION, KeyStatus
from pqkeep_protocol.messages import IMPORT_KEY_SECONDS
from pqkeep_protocol.public_keys import JWK_ALGORITHM

SHOWN = 100
"""Versions on one page of the list."""
RECORDS = 20
"""Records on one page of a key's history."""
_MAX_DIGITS = 15

Used = Mapping[tuple[Algorithm, int], KeyUsage]


@dataclass(frozen=True, slots=True)
class Version:
    """One version of a key, and its use."""

    key: Key
    usage: KeyUsage | None
    """None: the version was never used, or its use cannot be read."""
    keyring: str = DEFAULT_KEYRING

    @property
    def name(self) -> str:
        """The text to type for a confirmation: ``Kyber768 v2``, or ``payments/Kyber768 v2``."""
        before = "" if self.keyring == DEFAULT_KEYRING else f"{self.keyring}/"
        return f"{before}{self.key.algorithm.value} v{self.key.key_version}"

    @property
    def line(self) -> str:
        """The id of its line of versions on a page: ``payments-Kyber768``."""
        before = "" if self.keyring == DEFAULT_KEYRING else f"{self.keyring}-"
        return f"{before}{self.key.algorithm.value}"

    @property
    def named(self) -> Mapping[str, str]:
        """The request's field for its keyring; empty for the default keyring."""
        return in_keyring(self.keyring)

    @property
    def path(self) -> str:
        """The path of its page, below the portal's root."""
        after = "" if self.keyring == DEFAULT_KEYRING else f"?{urlencode(in_keyring(self.keyring))}"
        return f"/keys/{self.key.algorithm.value}/{self.key.key_version}{after}"

    @property
    def archive_at(self) -> str:
        """The scheduled time of its private key's destruction, or empty."""
        return self.key.archive_at or ""


@dataclass(frozen=True, slots=True)
class Line:
    """The versions of one algorithm in one keyring, newest first."""

    about: About
    versions: tuple[Version, ...]

    @property
    def active(self) -> Version | None:
        """The version that encrypts or signs, or None."""
        active = (version for version in self.versions if version.key.status is KeyStatus.ACTIVE)
        return next(active, None)


def lines(keys: Iterable[Key], used: Mapping[str, Used], unnamed: str) -> tuple[Line, ...]:
    """Return keys, ordered by keyring and algorithm, as lines of versions.

    ``unnamed``: the keyring of keys without a keyring field.
    """
    grouped: dict[tuple[str, Algorithm], list[Version]] = {}
    for key in keys:
        keyring = key.keyring or unnamed
        usage = used.get(keyring, {}).get((key.algorithm, key.key_version))
        grouped.setdefault((keyring, key.algorithm), []).append(Version(key, usage, keyring))
    return tuple(
        Line(ABOUT[algorithm], tuple(reversed(versions)))
        for (_, algorithm), versions in grouped.items()
    )


def _used(section: Section) -> Used:
    usage = section.data.usage if section.data else ()
    return {(used.algorithm, used.key_version): used for used in usage}


async def _usage(reader: Reader, keyrings: Iterable[str], algorithm: str | None) -> list[Section]:
    """Return the use of the keys in each of these keyrings."""
    sections = (
        reader.section("list_key_usage", algorithm=algorithm, **in_keyring(keyring))
        for keyring in keyrings
    )
    return list(await asyncio.gather(*sections))


async def _read_list(visit: Visit) -> Content:
    reader, query = visit.reader, visit.query
    algorithm, status = query.get("algorithm") or None, query.get("status") or None
    after, chosen = query.get("after") or None, query.get("keyring") or None
    keyring = chosen or DEFAULT_KEYRING  # for new keys
    keyrings, keys = await asyncio.gather(
        offered(reader, keyring),
        reader.section(
            "list_keys",
            algorithm=algorithm,
            status=status,
            after=after,
            limit=SHOWN,
            **({"all_keyrings": True} if chosen is None else in_keyring(chosen)),
        ),
    )
    listed: Sequence[Key] = keys.data.keys if keys.data else ()
    shown = tuple(dict.fromkeys(key.keyring or keyring for key in listed))
    usage = await _usage(reader, shown, algorithm)
    used = {name: _used(section) for name, section in zip(shown, usage, strict=True)}
    is_whole = bool(keys.data) and not (algorithm or status or after or keys.data.next)
    in_default = [key for key in listed if (key.keyring or keyring) == keyring]
    is_of_one = chosen is not None or len(keyrings.names) == 1
    return {
        "listed": keys,
        "usage_error": next((section.error for section in usage if section.error), None),
        "lines": lines(listed, used, keyring),
        "chosen": chosen or "",
        "keyring": keyring,
        "keyrings": keyrings,
        "named": in_keyring(keyring),
        "has_keyrings": len(keyrings.names) > 1 or any(name != keyring for name in shown),
        "has_key_set": is_of_one and _are_in_key_set(listed),
        "legends": LEGENDS,
        "choices": await _choices(reader, in_default if is_whole else None, in_keyring(keyring)),
        "algorithms": [(name.value, name.value) for name in Algorithm],
        "statuses": [(name.value, name.value) for name in KeyStatus],
        "is_filtered": bool(algorithm or status),
    }


def _are_in_key_set(keys: Iterable[Key]) -> bool:
    """Return whether one of these keys is in its keyring's JWK Set."""
    verifies = (KeyStatus.ACTIVE, KeyStatus.RETIRED)
    return any(key.algorithm in JWK_ALGORITHM and key.status in verifies for key in keys)


async def _choices(
    reader: Reader, keys: Sequence[Key] | None, named: Mapping[str, str]
) -> tuple[Choice, ...]:
    """Return the algorithms for a new key. ``keys``: the keyring's keys, if all were read."""
    if not reader.allows("generate_key"):
        return ()
    active = KeyStatus.ACTIVE
    listed = keys
    if listed is None:
        section = await reader.section("list_keys", status=active.value, **named)
        listed = section.data.keys if section.data else ()
    return await choices(reader, [key.algorithm for key in listed if key.status is active])


async def _read_key(visit: Visit) -> Content:
    algorithm, version = _named(visit)
    reader, keyring = visit.reader, visit.query.get("keyring") or DEFAULT_KEYRING
    # From lists: reading the key itself would be recorded in the audit log as its use.
    only: dict[str, Any] = {"algorithm": algorithm.value, "limit": 1, **in_keyring(keyring)}
    if version > 1:
        only["after"] = f"{algorithm.value}:{version - 1}"
    keys, usage, people, records = await asyncio.gather(
        reader.read("list_keys", **only),
        reader.section("list_key_usage", **only),
        addresses(reader),
        reader.section(
            "list_audit_records",
            algorithm=algorithm.value,
            key_version=version,
            keyring=keyring,
            operation=visit.query.get("operation") or None,
            before=place(visit.query.get("after", "")),
            order="desc",
            limit=RECORDS,
        ),
    )
    key = next((key for key in keys.keys if key.key_version == version), None)
    if key is None:
        raise not_found("There is no such key.")
    about = ABOUT[algorithm]
    operations = (
        *sorted(ALGORITHMS[algorithm].operations - LIFECYCLE),
        *(Operation.GENERATE_KEY, Operation.ROTATE_KEY),
        *(Operation.RETIRE_KEY, Operation.DISABLE_KEY, Operation.ENABLE_KEY),
        *(Operation.ARCHIVE_KEY, Operation.CANCEL_ARCHIVE),
    )
    return {
        "about": about,
        "version": Version(key, _used(usage).get((algorithm, version)), keyring),
        "named": in_keyring(keyring),
        "has_key_set": _are_in_key_set((key,)),
        "formats": [
            form
            for form in PublicKeyFormat
            if form is not PublicKeyFormat.JWK or algorithm in JWK_ALGORITHM
        ],
        "usage": usage,
        "records": records,
        "people": people,
        "operations": [(name.value, name.value.replace("-", " ")) for name in operations],
    }


def _named(visit: Visit) -> tuple[Algorithm, int]:
    """Return the algorithm and version in the path. Raises ApiError."""
    name, version = visit.path["algorithm"], visit.path["version"]
    if name in ALGORITHMS and _is_number(version) and 0 < int(version) <= MAX_KEY_VERSION:
        return Algorithm(name), int(version)
    raise not_found("There is no such key.")


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= _MAX_DIGITS


async def _read_import(visit: Visit) -> Content:
    reader, keyring = visit.reader, visit.query.get("keyring") or DEFAULT_KEYRING
    named = in_keyring(keyring)
    active = await reader.section("list_keys", status=KeyStatus.ACTIVE.value, **named)
    active_names = [key.algorithm for key in active.data.keys] if active.data else []
    open_to = await choices(reader, active_names)
    return {
        "active": active,
        "keyring": keyring,
        "named": named,
        "algorithms": [
            (choice.about.algorithm.value, f"{choice.about.algorithm}: {choice.about.purpose}")
            for choice in open_to
            if choice.is_open and not choice.about.spec.is_symmetric
        ],
        "seconds": IMPORT_KEY_SECONDS,
        "words": OUTCOME_WORDS,
    }


PAGES = (
    Page(
        path="/keys",
        title="Keys",
        template="keys/list.html",
        permission=Permission.VIEW_KEYS,
        read=_read_list,
        icon="key",
    ),
    Page(
        path="/keys/{algorithm}/{version}",
        title="Key",
        template="keys/key.html",
        permission=Permission.VIEW_KEYS,
        read=_read_key,
        parent="/keys",
    ),
    Page(
        path="/keys/import",
        title="Import a key",
        template="keys/import.html",
        permission=Permission.MANAGE_KEYS,
        read=_read_import,
        parent="/keys",
    ),
)
