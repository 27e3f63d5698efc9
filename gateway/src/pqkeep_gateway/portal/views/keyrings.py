"""Keyrings: named sets of keys, what they are for, and what happens to keys by itself."""

from collections.abc import Sequence
from dataclasses import dataclass

from pqkeep_gateway.access.callers import Permission
from pqkeep_gateway.http.errors import ApiError
from pqkeep_gateway.portal.pages import SHOWN, Content, Page, Visit
from pqkeep_gateway.portal.reading import Reader
from pqkeep_protocol.keyrings import ALL_PURPOSES, KeyPurpose
from pqkeep_protocol.keys import DEFAULT_KEYRING

OFFERED = 200
"""Keyrings to choose from, at most."""


@dataclass(frozen=True, slots=True)
class Choice:
    """The keyrings that a page offers."""

    names: tuple[str, ...]
    """With the chosen one, and with the default one alone where they cannot be read."""
    error: ApiError | None
    """Why they cannot be read."""


async def offered(reader: Reader, chosen: str) -> Choice:
    """Return the tenant's keyrings to choose from."""
    section = await reader.section("list_keyrings", limit=OFFERED)
    found = section.data.keyrings if section.data else ()
    names = tuple(each.name for each in found) or (DEFAULT_KEYRING,)
    return Choice(names if chosen in names else (*names, chosen), section.error)


def in_keyring(name: str) -> dict[str, str]:
    """Return the field that names a keyring, where it has to be named."""
    return {} if name == DEFAULT_KEYRING else {"keyring": name}


def sentence(purposes: Sequence[KeyPurpose]) -> str:
    """Say what a keyring is for."""
    return "everything" if len(purposes) == len(ALL_PURPOSES) else ", ".join(purposes)


async def _read(visit: Visit) -> Content:
    query = visit.query
    label = query.get("label", "").strip()
    listed = await visit.reader.section(
        "list_keyrings",
        label=label.replace(": ", ":", 1) or None,
        after=query.get("after") or None,
        limit=SHOWN,
    )
    return {
        "listed": listed,
        "keyrings": listed.data.keyrings if listed.data else (),
        "purposes": ALL_PURPOSES,
        "sentence": sentence,
        "label": label,
    }


PAGES: tuple[Page, ...] = (
    Page(
        path="/keyrings",
        title="Keyrings",
        template="keys/keyrings.html",
        permission=Permission.VIEW_KEYS,
        read=_read,
        icon="keyring",
    ),
)
