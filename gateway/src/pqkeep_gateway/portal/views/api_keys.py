"""API keys: created, rotated, revoked. Workloads: issuers that a tenant trusts, and roles."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import NamedTuple

import msgspec

from pqkeep_gateway.access.callers import Permission
from pqkeep_gateway.access.scopes import ALL, Group
from pqkeep_gateway.api.api_key_fields import ScopeData
from pqkeep_gateway.api.api_keys import ApiKeyData
from pqkeep_gateway.api.workloads import WorkloadRoleData
from pqkeep_gateway.http.errors import not_found
from pqkeep_gateway.languages import gettext, said
from pqkeep_gateway.portal import lists
from pqkeep_gateway.portal.lists import Export, ListKind, Query, exported
from pqkeep_gateway.portal.pages import Content, Page, Visit
from pqkeep_gateway.portal.reading import Section
from pqkeep_gateway.portal.rendering import instant
from pqkeep_gateway.storage.api_keys import API_KEY_SORTS, ApiKeyState
from pqkeep_protocol.algorithms import Algorithm, GivenKeyAlgorithm

MAX_DIGITS = 9
"""The digits of a version."""
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
WORDS = {group.value: title.lower() for group, (title, _) in GROUPS.items()}
"""The groups within a sentence."""

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


KIND = ListKind(
    path="/api-keys",
    filters=(
        lists.choice("status", "the state", "status", tuple(ApiKeyState)),
        lists.within("used", "used within this time", "used_since"),
        lists.within("unused", "not used within this time, or never", "unused_since"),
        lists.upcoming("expires", "expires within this time", "expires_before"),
        lists.age(
            "age", "the time since it was created", older="created_before", younger="created_since"
        ),
        lists.text(
            "scope",
            "an operation, keyring or algorithm that it may use",
            "scope",
            values=tuple(group.value for group in Group),
        ),
        lists.text("may-use", "may use this key, such as payments/Kyber768", "may_use"),
    ),
    sorts=API_KEY_SORTS,
    words="name",
    noun="API key",
    examples=("status:active unused:90d", "expires:<30d", "scope:administer"),
)
"""The list of API keys."""
CHOICES: Content = {
    "groups": [(group.value, *GROUPS[group]) for group in Group],
    "whole_tenant": Group.ADMINISTER.value,
    "algorithms": [algorithm.value for algorithm in Algorithm],
}
"""The choices of permissions in a form."""
COLUMNS = (
    *("version", "name", "key_last4", "status", "created_at", "last_used_at", "last_used_from"),
    *("expires_at", "revoked_at"),
)
"""The columns of an export."""


async def _read(visit: Visit) -> Content:
    reader = visit.reader
    query = Query.of(KIND, visit.query)
    tenant_id = _tenant(visit)
    listed = Section()
    if not query.error:
        listed = await reader.section(
            "list_api_keys", tenant_id=tenant_id, details=True, **query.request()
        )
    keys = listed.data.api_keys if listed.data else ()
    now = datetime.now(UTC)
    return {
        **_offered(tenant_id, listed),
        "query": query,
        "position": query.page(len(keys), listed.data.total if listed.data else 0),
        "listed": listed,
        "used_up": used_up(await reader.section("get_usage")),
        "api_keys": [_line(key, now) for key in keys],
    }


def used_up(usage: Section) -> str:
    """Return a message about an API key that uses up the rate limit, or an empty text."""
    if not usage.data or not usage.data.busiest_api_keys or not usage.data.requests_per_minute:
        return ""
    busiest = usage.data.busiest_api_keys[0]
    if busiest.requests < USED_UP * usage.data.requests_per_minute:
        return ""
    name = f" “{busiest.name}”" if busiest.name else ""
    sender = f"API key version {busiest.version}" if busiest.version else "workloads with the role"
    return (
        f"The rate limit is used up: {sender}{name} sent"
        f" {busiest.requests:,} requests in the last two minutes."
    )


async def _export(visit: Visit) -> Export:
    """Return the rows that match the filters. Raises ApiError."""
    query, tenant_id = Query.of(KIND, visit.query), _tenant(visit)

    async def read(offset: int, limit: int) -> tuple[Sequence[ApiKeyData], int]:
        asked = query.request(limit, offset)
        page = await visit.reader.read("list_api_keys", tenant_id=tenant_id, details=True, **asked)
        return page.api_keys, page.total

    return await exported(query, read, "api-keys", COLUMNS)


def _tenant(visit: Visit) -> str:
    if visit.reader.principal.tenant is None:
        raise not_found("API keys belong to an organization.")
    return str(visit.reader.principal.tenant)


async def _read_key(visit: Visit) -> Content:
    reader, version, tenant_id = visit.reader, visit.path["version"], _tenant(visit)
    is_number = version.isascii() and version.isdecimal() and len(version) <= MAX_DIGITS
    if not is_number or not int(version):
        raise not_found("There is no such API key.")
    listed = await reader.section(
        "list_api_keys", tenant_id=tenant_id, details=True, version=int(version), limit=1
    )
    if listed.error:
        raise listed.error
    key = next(iter(listed.data.api_keys), None)
    if key is None:
        raise not_found("There is no such API key.")
    return {**_offered(tenant_id, listed), "line": _line(key, datetime.now(UTC))}


def _offered(tenant_id: str, listed: Section) -> Content:
    """Return the choices of a form for API keys."""
    return {
        "tenant_id": tenant_id,
        "longest": listed.data.max_overlap_seconds if listed.data else 0,
        **CHOICES,
    }


def _line(key: ApiKeyData, now: datetime) -> Line:
    is_expired = bool(key.expires_at) and instant(str(key.expires_at)) <= now
    return Line(key, seconds_left(key, now), sentences(key.scopes or None), is_expired)


def sentences(scopes: Sequence[ScopeData] | None) -> tuple[str, ...]:
    """Return an API key's permissions: ``use keys, in payments.*, with Kyber768``."""
    if scopes is None:
        return (said("everything"),)
    return tuple(", ".join(_parts(scope)) for scope in scopes)


def _parts(scope: ScopeData) -> Iterator[str]:
    operations = scope.operations or (ALL,)
    conjunction = gettext(" and ")
    yield (
        said("everything")
        if ALL in operations
        else conjunction.join(said(WORDS.get(operation, operation)) for operation in operations)
    )
    if scope.keyrings:
        yield said(f"in {conjunction.join(scope.keyrings)}")
    if scope.algorithms:
        yield said(f"with {conjunction.join(scope.algorithms)}")


def seconds_left(key: ApiKeyData, now: datetime | None = None) -> int:
    """Return the seconds that a rotated key still works. 0: it has ended, or was not rotated."""
    if not key.overlap_ends_at:
        return 0
    left = instant(key.overlap_ends_at) - (now or datetime.now(UTC))
    return max(0, round(left.total_seconds()))


class RoleLine(NamedTuple):
    """One role in the list."""

    role: WorkloadRoleData
    may: tuple[str, ...]
    """Its permissions, one phrase for each scope."""
    scopes: str
    """Its scopes as JSON."""


async def _read_workloads(visit: Visit) -> Content:
    tenant_id = str(visit.reader.principal.tenant)
    listed = await visit.reader.section("list_workloads", tenant_id=tenant_id)
    issuers = listed.data.issuers if listed.data else ()
    roles = [_role_line(role) for role in (listed.data.roles if listed.data else ())]
    issuer, role = visit.query.get("issuer"), visit.query.get("role")
    return {
        **CHOICES,
        "tenant_id": tenant_id,
        "listed": listed,
        "issuers": issuers,
        "roles": roles,
        "issuer": next((each for each in issuers if each.name == issuer), None),
        "line": next((each for each in roles if each.role.name == role), None),
        "signatures": [algorithm.value for algorithm in GivenKeyAlgorithm],
    }


def _role_line(role: WorkloadRoleData) -> RoleLine:
    return RoleLine(role, sentences(role.scopes), msgspec.json.encode(role.scopes).decode())


PAGES = (
    Page(
        path="/api-keys",
        title="API keys",
        template="api_keys/list.html",
        permission=Permission.VIEW_TENANT,
        read=_read,
        export=_export,
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
    Page(
        path="/workloads",
        title="Workloads",
        template="workloads.html",
        permission=Permission.VIEW_TENANT,
        read=_read_workloads,
        icon="workload",
    ),
)
