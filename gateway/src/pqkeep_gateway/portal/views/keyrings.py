"""Keyrings: their uses, labels, and automatic rotation and archiving."""

from collections.abc import Sequence
from dataclasses import dataclass

from pqkeep_gateway.access.callers import Permission
from pqkeep_gateway.http.errors import ApiError
from pqkeep_gateway.portal.pages import SHOWN, Content, Page, Visit
from pqkeep_gateway.portal.reading import Reader
from pqkeep_protocol.keyrings import ALL_PURPOSES, KeyPurpose
from pqkeep_protocol.keys import DEFAULT_KEYRING

OFFERED = 200
"""Keyrings in a list of choices, at most."""


@dataclass(frozen=True, slots=True)
class Choice:
    """The keyrings that a page offers."""

    names: tuple[str, ...]
    """The names, including the chosen one. If they cannot be read, only the default one."""
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


async def _read(visit: Visit) -> Content:
    query = visit.query
    label = query.get("label", "").strip()
    prefix, deleted = query.get("prefix", "").strip(), query.get("deleted") == "true"
    listed = await visit.reader.section(
        "list_keyrings",
        prefix=prefix or None,
        deleted=deleted,
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
        "prefix": prefix,
        "deleted": deleted,
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
