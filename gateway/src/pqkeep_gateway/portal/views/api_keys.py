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
from pqkeep_gateway.portal.views.overview import used_up
from pqkeep_gateway.storage.api_keys import ApiKeyStatus
from pqkeep_protocol.algorithms import Algorithm

SHOWN = 25
"""API keys on one page of the list."""
GROUPS: Mapping[Group, tuple[str, str]] = {
    Group.USE: ("Use keys", "encrypt, decrypt, wrap, sign, verify, and look keys up"),
    Group.ENCRYPT_ONLY: ("Encrypt only", "and wrap; it reads nothing"),
    Group.DECRYPT_ONLY: ("Decrypt only", "and unwrap; it makes nothing"),
    Group.VERIFY_ONLY: ("Verify only", "it signs nothing"),
    Group.MANAGE_KEYS: ("Manage keys", "generate, rotate and retire them; it uses none"),
    Group.ADMINISTER: ("Administer", "API keys, usage, plan and the audit log; it touches no key"),
}
"""What an API key can be for, and what that is."""
_WORDS = {each.value: title.lower() for each, (title, _) in GROUPS.items()}


@dataclass(frozen=True, slots=True)
class Line:
    """One API key in the list."""

    key: ApiKeyData
    seconds_left: int
    """For how long it is still accepted after a rotation; 0: it is not, or has no end."""
    may: tuple[str, ...]
    """What it may do, a sentence for each scope."""
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
    found = [each for each in keys if not status or each.status.value == status]
    # The active ones first, the newest of each first.
    found.sort(key=lambda each: (each.status is not ApiKeyStatus.ACTIVE, -each.version))
    now = datetime.now(UTC)
    begin = next((n for n, each in enumerate(found, 1) if str(each.version) == after), 0)
    shown = found[begin : begin + SHOWN]
    return {
        **_offered(tenant_id, listed),
        "listed": listed,
        "used_up": used_up(usage),
        "api_keys": [_line(each, now) for each in shown],
        "next": str(shown[-1].version) if len(found) > begin + SHOWN else "",
        "statuses": [(each.value, each.value) for each in ApiKeyStatus],
    }


async def _read_key(visit: Visit) -> Content:
    reader, version = visit.reader, visit.path["version"]
    if reader.principal.tenant is None:
        raise not_found("API keys belong to an organization.")
    tenant_id = str(reader.principal.tenant)
    listed = await reader.section("list_api_keys", tenant_id=tenant_id, details=True)
    if listed.error:
        raise listed.error
    key = next((each for each in listed.data.api_keys if str(each.version) == version), None)
    if key is None:
        raise not_found("There is no such API key.")
    return {**_offered(tenant_id, listed), "line": _line(key, datetime.now(UTC))}


def _offered(tenant_id: str, listed: Section) -> Content:
    """Return what a form of API keys offers."""
    return {
        "tenant_id": tenant_id,
        "longest": listed.data.max_overlap_seconds if listed.data else 0,
        "groups": [(each.value, *GROUPS[each]) for each in Group],
        "whole_tenant": Group.ADMINISTER.value,
        "algorithms": [each.value for each in Algorithm],
    }


def _line(key: ApiKeyData, now: datetime) -> Line:
    is_expired = bool(key.expires_at) and instant(str(key.expires_at)) <= now
    return Line(key, seconds_left(key, now), sentences(key.scopes or None), is_expired)


def sentences(scopes: Sequence[ScopeData] | None) -> tuple[str, ...]:
    """Say what an API key may do: ``use keys, in payments.*, with Kyber768``."""
    if scopes is None:
        return ("everything",)
    return tuple(", ".join(_parts(each)) for each in scopes)


def _parts(scope: ScopeData) -> Iterator[str]:
    operations = scope.operations or (ALL,)
    yield (
        "everything"
        if ALL in operations
        else " and ".join(_WORDS.get(each, each) for each in operations)
    )
    if scope.keyrings:
        yield "in " + " and ".join(scope.keyrings)
    if scope.algorithms:
        yield "with " + " and ".join(scope.algorithms)


def seconds_left(key: ApiKeyData, now: datetime | None = None) -> int:
    """Return for how long a key that was rotated is still accepted; 0: it is not, or has no end."""
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
