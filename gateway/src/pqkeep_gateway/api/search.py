"""/api/v1/search: finds things by a part of their name, for people and operators.

A search reads at most the newest 10,000 API keys and records, and returns a few of each kind. It
leaves no record, and finds only things that the caller may read.
"""

import asyncio
import re
from collections.abc import Awaitable, Callable, Mapping
from enum import StrEnum
from typing import Annotated

from msgspec import UNSET, Meta, UnsetType

from pqkeep_gateway.access.callers import PERMISSION_OF, Permission, may
from pqkeep_gateway.api.audit_data import record
from pqkeep_gateway.api.audit_log import AuditLogs
from pqkeep_gateway.api.errors import BAD_REQUEST_FIELDS
from pqkeep_gateway.http.endpoint import ApiCall, Endpoint
from pqkeep_gateway.http.envelope import Data
from pqkeep_gateway.http.field import text_field
from pqkeep_gateway.shards import ShardNotFoundError, Shards
from pqkeep_gateway.storage.api_keys import SqlApiKeys
from pqkeep_gateway.storage.pages import Part
from pqkeep_gateway.storage.team import MemberFilter, SqlTeam
from pqkeep_gateway.storage.tenants import SqlTenants, TenantFilter
from pqkeep_gateway.unavailable import UnavailableError
from pqkeep_protocol.algorithms import Operation
from pqkeep_protocol.audit import FindKeyrings, ListRecords
from pqkeep_protocol.documents import is_printable
from pqkeep_protocol.errors import KeyServiceError
from pqkeep_protocol.keys import INSTALLATION, MAX_KEYRING_NAME

MAX_TEXT = 128
FOUND = 6
"""Things of one kind in one response."""
MAX_DIGITS = 15
_is_number = re.compile(rf"[1-9][0-9]{{0,{MAX_DIGITS - 1}}}", re.ASCII).fullmatch
_is_keyring_part = re.compile(rf"[A-Za-z0-9_.-]{{1,{MAX_KEYRING_NAME}}}", re.ASCII).fullmatch
_is_request_id = re.compile(r"[!-~]{8,128}", re.ASCII).fullmatch
"""A shorter text is more often the beginning of a name."""


class FoundKind(StrEnum):
    """The kinds of things that a search finds."""

    KEYRING = "keyring"
    API_KEY = "api-key"
    MEMBER = "member"
    TENANT = "tenant"
    RECORD = "record"


class FoundData(Data, frozen=True, kw_only=True):
    """One found thing."""

    kind: FoundKind
    id: Annotated[
        str,
        Meta(
            description="A keyring's name, an API key's version, the id of a member or tenant, or "
            "a record's position in the log."
        ),
    ]
    name: Annotated[str, Meta(description="Its name, address or operation.")]
    detail: Annotated[
        str | UnsetType,
        Meta(description="An API key's status, a member's role, or a record's time."),
    ] = UNSET


class SearchData(Data, frozen=True, kw_only=True):
    """The found things, by kind."""

    results: tuple[FoundData, ...]
    unavailable: Annotated[
        tuple[FoundKind, ...],
        Meta(description="The kinds that could not be searched, because a part is unavailable."),
    ]


TEXT = text_field(
    "text",
    "A part of a name or an address, the last four characters of an API key, a request id, or a "
    "record's position. Case does not matter, except in a request id.",
    "checkout",
    at_most=MAX_TEXT,
    is_valid=is_printable,
    must="must be printable",
)
_EXAMPLE = SearchData(
    results=(
        FoundData(kind=FoundKind.KEYRING, id="checkout.cards", name="checkout.cards"),
        FoundData(kind=FoundKind.API_KEY, id="3", name="checkout", detail="active"),
    ),
    unavailable=(),
)


def endpoints(
    shards: Shards, api_keys: SqlApiKeys, team: SqlTeam, tenants: SqlTenants
) -> tuple[Endpoint, ...]:
    """Return the endpoint of the search."""
    return (
        Endpoint(
            method="GET",
            path="/search",
            name="search",
            handler=_Search(AuditLogs(shards), api_keys, team, tenants).search,
            permission=Permission.SEARCH,
            fields=(TEXT,),
            field_codes=BAD_REQUEST_FIELDS,
            example=_EXAMPLE,
            errors=(ShardNotFoundError,),
        ),
    )


Find = Callable[[ApiCall, str], Awaitable[list[FoundData]]]


class _Search:
    """The handler, and the search of each kind."""

    def __init__(
        self, logs: AuditLogs, api_keys: SqlApiKeys, team: SqlTeam, tenants: SqlTenants
    ) -> None:
        self._logs = logs
        self._api_keys = api_keys
        self._team = team
        self._tenants = tenants
        self._of_tenants: Mapping[FoundKind, tuple[Permission, Find]] = {
            FoundKind.KEYRING: (PERMISSION_OF[Operation.LIST_KEYRINGS], self._find_keyrings),
            FoundKind.API_KEY: (Permission.VIEW_TENANT, self._find_api_keys),
            FoundKind.MEMBER: (Permission.VIEW_TEAM, self._find_members),
            FoundKind.RECORD: (Permission.VIEW_TENANT, self._find_records),
        }
        self._of_operators: Mapping[FoundKind, tuple[Permission, Find]] = {
            FoundKind.TENANT: (Permission.VIEW_TENANT, self._find_tenants),
            FoundKind.RECORD: (Permission.VIEW_INSTALLATION, self._find_records),
        }

    async def search(self, call: ApiCall) -> SearchData:
        """Find keyrings, API keys, members, tenants and records by a part of their name.

        Each caller finds what their role may read: owners and admins also find members, and
        operators find tenants and records. Record numbers and request ids are compared as a whole,
        request ids with the newest 10,000 records.
        """
        text = call[TEXT].strip()
        if not text:
            return SearchData(results=(), unavailable=())
        kinds = self._of_operators if call.principal.tenant is None else self._of_tenants
        allowed = {
            kind: find
            for kind, (permission, find) in kinds.items()
            if may(call.principal.caller, permission)
        }
        found = await asyncio.gather(*(_part(find, call, text) for find in allowed.values()))
        return SearchData(
            results=tuple(result for results in found for result in results or ()),
            unavailable=tuple(
                kind for kind, results in zip(allowed, found, strict=True) if results is None
            ),
        )

    async def _find_keyrings(self, call: ApiCall, text: str) -> list[FoundData]:
        if not _is_keyring_part(text):
            return []
        log = await self._logs.one(call)
        request = FindKeyrings(tenant=call.tenant.tenant, text=text, limit=FOUND)
        names = (await log.ask(request)).names
        return [FoundData(kind=FoundKind.KEYRING, id=name, name=name) for name in names]

    async def _find_api_keys(self, call: ApiCall, text: str) -> list[FoundData]:
        return [
            FoundData(
                kind=FoundKind.API_KEY,
                id=str(key.version),
                name=key.name or f"…{key.last4}",
                detail=key.status,
            )
            for key in await self._api_keys.search(call.tenant.tenant, text, FOUND)
        ]

    async def _find_members(self, call: ApiCall, text: str) -> list[FoundData]:
        page = await self._team.list_members(
            call.tenant.tenant, Part(FOUND), MemberFilter(email=text)
        )
        return [
            FoundData(
                kind=FoundKind.MEMBER,
                id=str(member.user.id),
                name=member.user.email,
                detail=member.user.role,
            )
            for member in page.entries
        ]

    async def _find_tenants(self, _: ApiCall, text: str) -> list[FoundData]:
        page = await self._tenants.list(FOUND, only=TenantFilter(name=text))
        return [
            FoundData(
                kind=FoundKind.TENANT, id=str(tenant.id), name=tenant.name, detail=tenant.status
            )
            for tenant in page.tenants
        ]

    async def _find_records(self, call: ApiCall, text: str) -> list[FoundData]:
        of = call.principal.tenant or INSTALLATION
        if _is_number(text):
            place = int(text)
            request = ListRecords(tenant=of, after=place - 1, before=place + 1, limit=1)
        elif _is_request_id(text):
            request = ListRecords(tenant=of, request_id=text, newest_first=True, limit=FOUND)
        else:
            return []
        log = await self._logs.one(call)
        return [
            FoundData(
                kind=FoundKind.RECORD,
                id=str(found.id),
                name=f"record {found.id}: {found.operation}",
                detail=found.recorded_at,
            )
            for found in map(record, (await log.ask(request)).lines)
        ]


async def _part(find: Find, call: ApiCall, text: str) -> list[FoundData] | None:
    """Return the results of one kind; None if its part of the service is unavailable."""
    try:
        return await find(call, text)
    except (KeyServiceError, UnavailableError):
        return None
