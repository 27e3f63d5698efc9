"""Keyrings: their uses, labels, and automatic rotation and archiving."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from pqkeep_gateway.access.callers import Permission
from pqkeep_gateway.http.errors import ApiError, not_found
from pqkeep_gateway.portal import lists
from pqkeep_gateway.portal.lists import (
    Export,
    Filter,
    InvalidFilterError,
    ListKind,
    Parameters,
    Query,
    exported,
)
from pqkeep_gateway.portal.pages import Content, Page, Visit
from pqkeep_gateway.portal.reading import Reader, Section
from pqkeep_gateway.portal.views.algorithms import ABOUT
from pqkeep_protocol.algorithms import ALIASES, Algorithm
from pqkeep_protocol.keyrings import ALL_PURPOSES, KeyPurpose
from pqkeep_protocol.keys import DEFAULT_KEYRING

OFFERED = 200
"""Keyrings in a list of choices, at most."""


@dataclass(frozen=True, slots=True)
class Choice:
    """The keyrings that a page offers."""

    names: tuple[str, ...]
    """The names, including the chosen one. Only the default keyring if they cannot be read."""
    error: ApiError | None
    """The error, if they cannot be read."""


async def offered(reader: Reader, chosen: str) -> Choice:
    """Return the tenant's keyrings to choose from."""
    section = await reader.section("list_keyrings", limit=OFFERED)
    keyrings = section.data.keyrings if section.data else ()
    names = tuple(keyring.name for keyring in keyrings) or (DEFAULT_KEYRING,)
    return Choice(names if chosen in names else (*names, chosen), section.error)


def in_keyring(name: str) -> dict[str, str]:
    """Return the request's field for a keyring; empty for the default keyring."""
    return {} if name == DEFAULT_KEYRING else {"keyring": name}


def sentence(purposes: Sequence[KeyPurpose]) -> str:
    """Return a keyring's uses as text."""
    return "everything" if len(purposes) == len(ALL_PURPOSES) else ", ".join(purposes)


def _label(given: Sequence[tuple[str, bool]], _: datetime) -> Parameters:
    ((value, is_not),) = given
    name, colon, text = value.partition(":")
    if is_not:
        raise InvalidFilterError("cannot be excluded: remove the “-”")
    if not (name and colon):
        raise InvalidFilterError("needs a name and a value, such as label:team:payments")
    return {"label": f"{name.strip()}:{text.strip()}"}


KIND = ListKind(
    path="/keyrings",
    filters=(
        lists.choice(
            "algorithm",
            "with a key of this algorithm, by either name",
            "algorithm",
            tuple(Algorithm),
            {**ALIASES, **{about.standard_name: name for name, about in ABOUT.items()}},
        ),
        Filter(name="label", about="a label, such as label:team:payments", read=_label),
        lists.age(
            "age", "the time since it was created", older="created_before", younger="created_since"
        ),
        lists.within("used", "a key was used within this time", "used_since"),
        lists.within("unused", "no key was used within this time, or ever", "unused_since"),
        lists.yes_or_no("rotation", "whether keys are rotated automatically", "rotated"),
        lists.flags("is", "a property", {"deleted": "deleted"}),
    ),
    sorts=("name", "created", "last-used", "rotation"),
    words="name",
    noun="keyring",
    examples=("unused:90d", "rotation:no age:>1y", "algorithm:Kyber768"),
)
"""The list of keyrings."""
COLUMNS = (
    *("name", "description", "labels", "purposes", "rotation_days", "archive_after_days"),
    *("created_at", "last_used_at", "archive_at"),
)
"""The columns of an export."""


async def _read(visit: Visit) -> Content:
    query = Query.of(KIND, visit.query)
    listed = Section()
    if not query.error:
        listed = await visit.reader.section("list_keyrings", **query.request())
    keyrings = listed.data.keyrings if listed.data else ()
    return {
        "query": query,
        "listed": listed,
        "keyrings": keyrings,
        "position": query.page(len(keyrings), listed.data.total if listed.data else 0),
        "deleted": bool(query.parameters.get("deleted")),
        "purposes": ALL_PURPOSES,
        "sentence": sentence,
    }


async def _export(visit: Visit) -> Export:
    """Return the rows that match the filters. Raises ApiError."""
    query = Query.of(KIND, visit.query)

    async def read(offset: int, limit: int) -> tuple[Sequence[Any], int]:
        page = await visit.reader.read("list_keyrings", **query.request(limit, offset))
        return page.keyrings, page.total

    return await exported(query, read, "keyrings", COLUMNS)


async def _read_keyring(visit: Visit) -> Content:
    name, reader = visit.path["name"], visit.reader
    # From the list: reading the keyring itself would be recorded in the audit log as its use.
    listed, keys = await asyncio.gather(
        reader.read("list_keyrings", prefix=name, limit=1),
        reader.section("list_inventory", keyring=name, principals=0, limit=1),
    )
    keyring = next((row for row in listed.keyrings if row.name == name), None)
    if keyring is None:
        raise not_found("There is no such keyring.")
    return {
        "keyring": keyring,
        "keys": keys.data.total if keys.data else None,
        "purposes": ALL_PURPOSES,
        "sentence": sentence,
    }


PAGES: tuple[Page, ...] = (
    Page(
        path="/keyrings",
        title="Keyrings",
        template="keys/keyrings.html",
        permission=Permission.VIEW_KEYS,
        read=_read,
        export=_export,
        icon="keyring",
    ),
    Page(
        path="/keyrings/{name}",
        title="Keyring",
        template="keys/keyring.html",
        permission=Permission.VIEW_KEYS,
        read=_read_keyring,
        parent="/keyrings",
    ),
)
