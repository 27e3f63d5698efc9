"""Keys: their versions, and what becomes of them."""

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
from pqkeep_gateway.portal.views.algorithms import ABOUT, About, Choice, choices
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
    """None: it was never used, or its use cannot be read."""
    keyring: str = DEFAULT_KEYRING

    @property
    def name(self) -> str:
        """What people type to confirm: ``Kyber768 v2``, or ``payments/Kyber768 v2``."""
        before = "" if self.keyring == DEFAULT_KEYRING else f"{self.keyring}/"
        return f"{before}{self.key.algorithm.value} v{self.key.key_version}"

    @property
    def line(self) -> str:
        """What tells its line of versions from others on a page: ``payments-Kyber768``."""
        before = "" if self.keyring == DEFAULT_KEYRING else f"{self.keyring}-"
        return f"{before}{self.key.algorithm.value}"

    @property
    def named(self) -> Mapping[str, str]:
        """The field that names its keyring, where it has to be named."""
        return in_keyring(self.keyring)

    @property
    def path(self) -> str:
        """Its page, beneath the portal."""
        after = "" if self.keyring == DEFAULT_KEYRING else f"?{urlencode(in_keyring(self.keyring))}"
        return f"/keys/{self.key.algorithm.value}/{self.key.key_version}{after}"

    @property
    def archive_at(self) -> str:
        """When its private half is destroyed, if that is scheduled; else empty."""
        return self.key.archive_at or ""


@dataclass(frozen=True, slots=True)
class Line:
    """The versions that follow one another, the newest first: those of one key of a keyring."""

    about: About
    versions: tuple[Version, ...]

    @property
    def active(self) -> Version | None:
        """The version that encrypts or signs, if it is among them."""
        return next((each for each in self.versions if each.key.status is KeyStatus.ACTIVE), None)


def lines(keys: Iterable[Key], used: Mapping[str, Used], unnamed: str) -> tuple[Line, ...]:
    """Return keys, which come ordered by keyring and algorithm, as the lines that they belong to.

    ``unnamed`` is the keyring of keys that do not say theirs.
    """
    found: dict[tuple[str, Algorithm], list[Version]] = {}
    for each in keys:
        keyring = each.keyring or unnamed
        usage = used.get(keyring, {}).get((each.algorithm, each.key_version))
        found.setdefault((keyring, each.algorithm), []).append(Version(each, usage, keyring))
    return tuple(Line(ABOUT[name], tuple(reversed(each))) for (_, name), each in found.items())


def _used(section: Section) -> Used:
    usage = section.data.usage if section.data else ()
    return {(each.algorithm, each.key_version): each for each in usage}


async def _usage(reader: Reader, keyrings: Iterable[str], algorithm: str | None) -> list[Section]:
    """Return how much keys are in use, of each of some keyrings."""
    asked = (
        reader.section("list_key_usage", algorithm=algorithm, **in_keyring(each))
        for each in keyrings
    )
    return list(await asyncio.gather(*asked))


async def _read_list(visit: Visit) -> Content:
    reader, query = visit.reader, visit.query
    algorithm, status = query.get("algorithm") or None, query.get("status") or None
    after, chosen = query.get("after") or None, query.get("keyring") or None
    keyring = chosen or DEFAULT_KEYRING  # where keys are generated
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
    shown = tuple(dict.fromkeys(each.keyring or keyring for each in listed))
    usage = await _usage(reader, shown, algorithm)
    used = {name: _used(section) for name, section in zip(shown, usage, strict=True)}
    is_whole = bool(keys.data) and not (algorithm or status or after or keys.data.next)
    in_default = [each for each in listed if (each.keyring or keyring) == keyring]
    is_of_one = chosen is not None or len(keyrings.names) == 1
    return {
        "listed": keys,
        "usage_error": next((each.error for each in usage if each.error), None),
        "lines": lines(listed, used, keyring),
        "chosen": chosen or "",
        "keyring": keyring,
        "keyrings": keyrings,
        "named": in_keyring(keyring),
        "has_keyrings": len(keyrings.names) > 1 or any(each != keyring for each in shown),
        "has_key_set": is_of_one and _are_in_key_set(listed),
        "choices": await _choices(reader, in_default if is_whole else None, in_keyring(keyring)),
        "algorithms": [(each.value, each.value) for each in Algorithm],
        "statuses": [(each.value, each.value) for each in KeyStatus],
        "is_filtered": bool(algorithm or status),
    }


def _are_in_key_set(keys: Iterable[Key]) -> bool:
    """Return whether one of these keys is in its keyring's JWK Set."""
    verifies = (KeyStatus.ACTIVE, KeyStatus.RETIRED)
    return any(each.algorithm in JWK_ALGORITHM and each.status in verifies for each in keys)


async def _choices(
    reader: Reader, keys: Sequence[Key] | None, named: Mapping[str, str]
) -> tuple[Choice, ...]:
    """Return what can be generated in a keyring; its keys, if all of them were read already."""
    if not reader.allows("generate_key"):
        return ()
    active = KeyStatus.ACTIVE
    listed = keys
    if listed is None:
        found = await reader.section("list_keys", status=active.value, **named)
        listed = found.data.keys if found.data else ()
    return await choices(reader, [each.algorithm for each in listed if each.status is active])


async def _read_key(visit: Visit) -> Content:
    algorithm, version = _named(visit)
    reader, keyring = visit.reader, visit.query.get("keyring") or DEFAULT_KEYRING
    # What lists say of it, so that looking at a key is not in the audit log as a use of it.
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
    key = next((each for each in keys.keys if each.key_version == version), None)
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
            each
            for each in PublicKeyFormat
            if each is not PublicKeyFormat.JWK or algorithm in JWK_ALGORITHM
        ],
        "usage": usage,
        "records": records,
        "people": people,
        "operations": [(each.value, each.value.replace("-", " ")) for each in operations],
    }


def _named(visit: Visit) -> tuple[Algorithm, int]:
    """Return the key version that the path names. Raises ApiError."""
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
    having = [each.algorithm for each in active.data.keys] if active.data else []
    open_to = await choices(reader, having)
    return {
        "active": active,
        "keyring": keyring,
        "named": named,
        "algorithms": [
            (each.about.algorithm.value, f"{each.about.algorithm}: {each.about.purpose}")
            for each in open_to
            if each.is_open
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
