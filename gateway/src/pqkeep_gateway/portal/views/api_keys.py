"""API keys: created, rotated, revoked."""

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from pqkeep_gateway.access.callers import Permission
from pqkeep_gateway.access.scopes import ALL, Group
from pqkeep_gateway.api.api_key_fields import ScopeData
from pqkeep_gateway.api.api_keys import ApiKeyData
from pqkeep_gateway.http.errors import not_found
from pqkeep_gateway.portal.pages import Content, Page, Visit
from pqkeep_gateway.portal.reading import Section
from pqkeep_gateway.portal.rendering import instant
from pqkeep_gateway.storage.api_keys import ApiKeyStatus
from pqkeep_protocol.algorithms import Algorithm

SHOWN = 25
"""API keys on one page of the list."""
GROUPS: Mapping[Group, tuple[str, str]] = {
    Group.USE: ("Use keys", "encrypt, decrypt, wrap, unwrap, sign, verify, and look up keys"),
    Group.ENCRYPT_ONLY: ("Encrypt only", "also wrap, but not decrypt"),
    Group.DECRYPT_ONLY: ("Decrypt only", "also unwrap, but not encrypt"),
    Group.VERIFY_ONLY: ("Verify only", "cannot sign"),
    Group.MANAGE_KEYS: ("Manage keys", "generate, rotate and retire keys, but not use them"),
    Group.DELETE_KEYRINGS: (
        "Delete keyrings",
        "list keyrings, and delete those that allow it",
    ),
    Group.CAMPAIGNS: ("Run campaigns", "re-encrypt, and report scans"),
    Group.INVENTORY: ("Read the inventory", "keys with their uses, and previews of rules"),
    Group.ADMINISTER: ("Administer", "API keys, usage, plan and the audit log, but no keys"),
}
"""The groups of operations, with title and description."""
_WORDS = {group.value: title.lower() for group, (title, _) in GROUPS.items()}

USED_UP = 0.75
"""An API key uses up the rate limit if it sends this part of a minute's limit in two minutes."""


@dataclass(frozen=True, slots=True)
class Line:
    """One API key in the list."""

    key: ApiKeyData
    seconds_left: int
    """The remaining time after a rotation. 0: it is no longer accepted, or was not rotated."""
    may: tuple[str, ...]
    """Its permissions, one phrase for each scope."""
    is_expired: bool


async def _read(visit: Visit) -> Content:
    reader, query = visit.reader, visit.query
    if reader.principal.tenant is None:
        raise not_found("API keys belong to an organization.")
    tenant_id = str(reader.principal.tenant)
    listed, usage = await asyncio.gather(
        reader.section("list_api_keys", tenant_id=tenant_id, details=True),
        reader.section("get_usage"),
    )
    keys = listed.data.api_keys if listed.data else ()
    status, after = query.get("status", ""), query.get("after", "")
    matching = [key for key in keys if not status or key.status.value == status]
    # Active keys first, then newest first.
    matching.sort(key=lambda key: (key.status is not ApiKeyStatus.ACTIVE, -key.version))
    now = datetime.now(UTC)
    begin = next((n for n, key in enumerate(matching, 1) if str(key.version) == after), 0)
    shown = matching[begin : begin + SHOWN]
    return {
        **_offered(tenant_id, listed),
        "listed": listed,
        "used_up": used_up(usage),
        "api_keys": [_line(key, now) for key in shown],
        "next": str(shown[-1].version) if len(matching) > begin + SHOWN else "",
        "statuses": [(status.value, status.value) for status in ApiKeyStatus],
    }


def used_up(usage: Section) -> str:
    """Return a message about an API key that uses up the rate limit, or an empty text."""
    if not usage.data or not usage.data.busiest_api_keys or not usage.data.requests_per_minute:
        return ""
    busiest = usage.data.busiest_api_keys[0]
    if busiest.requests < USED_UP * usage.data.requests_per_minute:
        return ""
    name = f" “{busiest.name}”" if busiest.name else ""
    return (
        f"The rate limit is used up: API key version {busiest.version}{name} sent"
        f" {busiest.requests:,} requests in the last two minutes."
    )


async def _read_key(visit: Visit) -> Content:
    reader, version = visit.reader, visit.path["version"]
    if reader.principal.tenant is None:
        raise not_found("API keys belong to an organization.")
    tenant_id = str(reader.principal.tenant)
    listed = await reader.section("list_api_keys", tenant_id=tenant_id, details=True)
    if listed.error:
        raise listed.error
    key = next((key for key in listed.data.api_keys if str(key.version) == version), None)
    if key is None:
        raise not_found("There is no such API key.")
    return {**_offered(tenant_id, listed), "line": _line(key, datetime.now(UTC))}


def _offered(tenant_id: str, listed: Section) -> Content:
    """Return the choices of a form for API keys."""
    return {
        "tenant_id": tenant_id,
        "longest": listed.data.max_overlap_seconds if listed.data else 0,
        "groups": [(group.value, *GROUPS[group]) for group in Group],
        "whole_tenant": Group.ADMINISTER.value,
        "algorithms": [algorithm.value for algorithm in Algorithm],
    }


def _line(key: ApiKeyData, now: datetime) -> Line:
    is_expired = bool(key.expires_at) and instant(str(key.expires_at)) <= now
    return Line(key, seconds_left(key, now), sentences(key.scopes or None), is_expired)


def sentences(scopes: Sequence[ScopeData] | None) -> tuple[str, ...]:
    """Return an API key's permissions: ``use keys, in payments.*, with Kyber768``."""
    if scopes is None:
        return ("everything",)
    return tuple(", ".join(_parts(scope)) for scope in scopes)


def _parts(scope: ScopeData) -> Iterator[str]:
    operations = scope.operations or (ALL,)
    yield (
        "everything"
        if ALL in operations
        else " and ".join(_WORDS.get(operation, operation) for operation in operations)
    )
    if scope.keyrings:
        yield "in " + " and ".join(scope.keyrings)
    if scope.algorithms:
        yield "with " + " and ".join(scope.algorithms)


def seconds_left(key: ApiKeyData, now: datetime | None = None) -> int:
    """Return the seconds that a rotated key still works. 0: it has ended, or was not rotated."""
    if not key.overlap_ends_at:
        return 0
    left = instant(key.overlap_ends_at) - (now or datetime.now(UTC))
    return max(0, round(left.total_seconds()))


PAGES = (
    Page(
        path="/api-keys",
        title="API keys",
        template="api_keys/list.html",
        permission=Permission.VIEW_TENANT,
        read=_read,
        icon="api",
    ),
    Page(
        path="/api-keys/{version}",
        title="API key",
        template="api_keys/key.html",
        permission=Permission.VIEW_TENANT,
        read=_read_key,
        parent="/api-keys",
    ),
)
