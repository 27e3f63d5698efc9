"""Importing a private key: the import key, and the command that wraps to it and sends it."""

from pqkeep_gateway.access.callers import Permission
from pqkeep_gateway.portal.outcomes import OUTCOME_WORDS
from pqkeep_gateway.portal.pages import Content, Page, Visit
from pqkeep_gateway.portal.views.algorithms import choices
from pqkeep_gateway.portal.views.keyrings import in_keyring
from pqkeep_protocol.keys import DEFAULT_KEYRING, KeyStatus
from pqkeep_protocol.messages import IMPORT_KEY_SECONDS


async def _read(visit: Visit) -> Content:
    reader, keyring = visit.reader, visit.query.get("keyring") or DEFAULT_KEYRING
    named = in_keyring(keyring)
    active = await reader.section("list_keys", status=KeyStatus.ACTIVE.value, **named)
    having = [each.algorithm for each in active.data.keys] if active.data else []
    offered = await choices(reader, having)
    return {
        "active": active,
        "keyring": keyring,
        "named": named,
        "algorithms": [
            (each.about.algorithm.value, f"{each.about.algorithm}: {each.about.purpose}")
            for each in offered
            if each.is_open
        ],
        "seconds": IMPORT_KEY_SECONDS,
        "words": OUTCOME_WORDS,
    }


PAGES: tuple[Page, ...] = (
    Page(
        path="/keys/import",
        title="Import a key",
        template="keys/import.html",
        permission=Permission.MANAGE_KEYS,
        read=_read,
        parent="/keys",
    ),
)
