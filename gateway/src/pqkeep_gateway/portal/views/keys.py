"""Keys: their versions, history, and import."""

import asyncio
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any
from urllib.parse import urlencode

import msgspec

from pqkeep_gateway.access.callers import Permission
from pqkeep_gateway.api.inventory import InventoryKeyData
from pqkeep_gateway.api.keys import Key, KeyUsage
from pqkeep_gateway.api.public_keys import PublicKeyFormat
from pqkeep_gateway.http.errors import invalid, not_found
from pqkeep_gateway.portal import lists
from pqkeep_gateway.portal.lists import MAX_EXPORTED, Export, ListKind, Query
from pqkeep_gateway.portal.outcomes import OUTCOME_WORDS
from pqkeep_gateway.portal.pages import Content, Page, Visit
from pqkeep_gateway.portal.reading import Reader, Section
from pqkeep_gateway.portal.views.algorithms import ABOUT, LEGENDS, Choice, choices
from pqkeep_gateway.portal.views.audit import place
from pqkeep_gateway.portal.views.keyrings import in_keyring
from pqkeep_gateway.portal.views.people import addresses
from pqkeep_protocol.algorithms import (
    ALGORITHMS,
    ALIASES,
    LEGACY,
    LIFECYCLE,
    Algorithm,
    Kind,
    Operation,
)
from pqkeep_protocol.audit import MAX_BRIEF_LISTED
from pqkeep_protocol.audit_events import API_KEY, PERSON
from pqkeep_protocol.keys import DEFAULT_KEYRING, MAX_KEY_VERSION, KeyStatus
from pqkeep_protocol.messages import IMPORT_KEY_SECONDS
from pqkeep_protocol.public_keys import JWK_ALGORITHM

PRINCIPALS = 8
"""Uses by principal and operation that the list reads of each key version."""
SUGGESTED = 12
"""Suggestions of a filter's values."""
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
class Row:
    """One row of the list."""

    key: InventoryKeyData

    @property
    def path(self) -> str:
        """The path of its page, below the portal's root."""
        named = in_keyring(self.key.keyring)
        after = f"?{urlencode(named)}" if named else ""
        return f"/keys/{self.key.algorithm.value}/{self.key.key_version}{after}"

    @property
    def rotation_at(self) -> str:
        """The time of its automatic rotation, or empty."""
        return self.key.rotation_at or ""

    @property
    def archive_at(self) -> str:
        """The scheduled time of its private key's destruction, or empty."""
        return self.key.archive_at or ""

    @property
    def is_keyring_deleted(self) -> bool:
        """Whether its keyring is deleted: then it has no page."""
        return bool(self.key.keyring_deleted)

    @property
    def users(self) -> tuple[str, ...]:
        """The principals that used it, without duplicates: the first ones only."""
        return tuple(dict.fromkeys(use.principal for use in self.key.principals))


def _used(section: Section) -> Used:
    usage = section.data.usage if section.data else ()
    return {(used.algorithm, used.key_version): used for used in usage}


KIND = ListKind(
    path="/keys",
    filters=(
        lists.choice(
            "algorithm",
            "the algorithm, by either name",
            "algorithm",
            tuple(Algorithm),
            {**ALIASES, **{about.standard_name: name for name, about in ABOUT.items()}},
        ),
        lists.choice("status", "the status", "status", tuple(KeyStatus)),
        lists.text(
            "keyring",
            "the keyring",
            "keyring",
            without="not_keyring",
            source=f"/api/v1/kms/keyrings?limit={SUGGESTED}&prefix=",
            pick="keyrings.name",
        ),
        lists.age(
            "age", "the time since it was created", older="created_before", younger="created_since"
        ),
        lists.within("used", "used within this time", "used_since"),
        lists.within("unused", "not used within this time, or never", "unused_since"),
        lists.text(
            "used-by",
            "used by this API key or person; then used: and unused: are about these uses",
            "used_by",
            without="not_used_by",
        ),
        lists.upcoming("rotates", "rotated automatically within this time", "rotation_before"),
        lists.upcoming("destroyed", "destroyed within this time", "destruction_before"),
        lists.flags(
            "is",
            "a property",
            {
                "scheduled": "scheduled",
                "imported": "imported",
                "legacy": "legacy",
                "deleted": "keyring_deleted",
            },
        ),
    ),
    sorts=(
        "name",
        "algorithm",
        "status",
        "created",
        "last-used",
        "uses",
        "rotation",
        "destruction",
    ),
    words="name",
    noun="key version",
    examples=("algorithm:Kyber768 age:>1y", "status:active unused:90d", "rotates:30d"),
)
"""The list of keys."""
COLUMNS = (
    *("keyring", "algorithm", "key_version", "status", "created_at", "last_used_at", "uses"),
    *("rotation_at", "archive_at", "imported", "private_key", "fingerprint"),
)
"""The columns of an export."""


def _parameters(query: Query) -> Mapping[str, object]:
    """Return the API's parameters: keys of deleted keyrings are listed only if they are asked for."""
    return {"keyring_deleted": False, **query.parameters}


async def _read_list(visit: Visit) -> Content:
    reader = visit.reader
    query = Query.of(KIND, visit.query)
    chosen = str(query.parameters.get("keyring", ""))
    keyring = chosen or DEFAULT_KEYRING  # for new keys
    listed, offered = await asyncio.gather(
        _listed(reader, query), _choices(reader, in_keyring(keyring))
    )
    keys: Sequence[InventoryKeyData] = listed.data.keys if listed.data else ()
    rows = tuple(map(Row, keys))
    principals = Counter(name for row in rows for name in row.users)
    has_people = any(name.startswith(PERSON) for name in principals)
    return {
        "query": replace(query, kind=_with_users(principals)),
        "listed": listed,
        "rows": rows,
        "position": query.page(len(rows), listed.data.total if listed.data else 0),
        "people": await addresses(reader) if has_people else {},
        "chosen": chosen,
        "keyring": keyring,
        "named": in_keyring(keyring),
        "has_key_set": bool(chosen) or not query.is_filtered,
        "legends": LEGENDS,
        "choices": offered,
    }


async def _listed(reader: Reader, query: Query) -> Section:
    if query.error:
        return Section()
    asked = {**query.request(), **_parameters(query), "principals": PRINCIPALS, "access": True}
    return await reader.section("list_inventory", **asked)


def _with_users(principals: Counter[str]) -> ListKind:
    """Return the list with names of principals to suggest: those of the most keys."""
    names = (
        name.partition("/")[2] for name, _ in principals.most_common() if name.startswith(API_KEY)
    )
    most = sorted(filter(None, islice(names, SUGGESTED)))
    filters = (
        replace(row, values=tuple(most)) if row.name == "used-by" else row for row in KIND.filters
    )
    return replace(KIND, filters=tuple(filters))


async def _export(visit: Visit) -> Export:
    """Return the rows that match the filters. Raises ApiError."""
    query = Query.of(KIND, visit.query)
    if query.error:
        raise invalid(query.error, "q")
    rows: list[list[object]] = []
    total = 0
    while len(rows) < MAX_EXPORTED:
        asked = {**query.request(MAX_BRIEF_LISTED, len(rows)), **_parameters(query)}
        page = await visit.reader.read("list_inventory", **asked, principals=0)
        total = page.total
        shown = (msgspec.to_builtins(key) for key in page.keys)
        rows += [[key.get(column) for column in COLUMNS] for key in shown]
        if not page.keys or len(rows) >= total:
            break
    return Export(name="keys", columns=COLUMNS, rows=rows[:MAX_EXPORTED], total=total)


def _are_in_key_set(keys: Iterable[Key]) -> bool:
    """Return whether one of these keys is in its keyring's JWK Set."""
    verifies = (KeyStatus.ACTIVE, KeyStatus.RETIRED)
    return any(key.algorithm in JWK_ALGORITHM and key.status in verifies for key in keys)


async def _choices(reader: Reader, named: Mapping[str, str]) -> tuple[Choice, ...]:
    """Return the algorithms for a new key in a keyring."""
    if not reader.allows("generate_key"):
        return ()
    section = await reader.section("list_keys", status=KeyStatus.ACTIVE.value, **named)
    return await choices(
        reader, [key.algorithm for key in section.data.keys] if section.data else []
    )


async def _read_key(visit: Visit) -> Content:
    algorithm, version = _named(visit)
    reader, keyring = visit.reader, visit.query.get("keyring") or DEFAULT_KEYRING
    # From lists: reading the key itself would be recorded in the audit log as its use.
    only: dict[str, Any] = {"algorithm": algorithm.value, "limit": 1, **in_keyring(keyring)}
    if version > 1:
        only["after"] = f"{algorithm.value}:{version - 1}"
    keys, usage, people, listed, records = await asyncio.gather(
        reader.read("list_keys", **only),
        reader.section("list_key_usage", **only),
        addresses(reader),
        reader.section(
            "list_inventory",
            keyring=keyring,
            algorithm=algorithm.value,
            name=f"v{version}",
            principals=PRINCIPALS,
            access=True,
        ),
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
    of_it = (row for row in (listed.data.keys if listed.data else ()))
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
        "formats": [form for form in PublicKeyFormat if form.is_defined_for(algorithm)],
        "usage": usage,
        "access": listed,
        "row": next((Row(row) for row in of_it if row.key_version == version), None),
        "may_use_it": f"may-use:{keyring}/{algorithm.value} status:active",
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
    active = await reader.section("list_keys", status=KeyStatus.ACTIVE.value, legacy=True, **named)
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
        "legacy": [
            (algorithm.value, ABOUT[algorithm].purpose)
            for algorithm in LEGACY
            if algorithm not in active_names
        ],
        "of_public_keys": [
            name for name in LEGACY if ALGORITHMS[name].kind is Kind.LEGACY_VERIFICATION
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
        export=_export,
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
