"""The audit log: records, their proofs, exports."""

import asyncio
import re
from collections.abc import Iterator, Mapping
from datetime import date, timedelta
from itertools import chain

import msgspec

from pqkeep_gateway.access.callers import Credential, Permission
from pqkeep_gateway.http.errors import ApiError, invalid, not_found
from pqkeep_gateway.portal.outcomes import OUTCOME_WORDS
from pqkeep_gateway.portal.pages import Content, Page, Visit
from pqkeep_gateway.portal.reading import Reader, Section
from pqkeep_gateway.portal.views.people import addresses
from pqkeep_protocol.algorithms import Algorithm, Operation
from pqkeep_protocol.audit import REFUSED
from pqkeep_protocol.audit_events import PAGE_VIEWS, AuditEvent
from pqkeep_protocol.keys import INSTALLATION

PAGE = 50
_is_place = re.compile(r"[0-9]{1,15}(\.[0-9]{1,15}){0,99}", re.ASCII).fullmatch
MAX_DIGITS = 14
"""Of a record's number: of the next one, which is named too, the API takes one more."""
_FILTERS = (
    *("operation", "keyring", "algorithm", "outcome", "principal"),
    *("source_address", "tenant"),
)
OPERATIONS = sorted({each.value for each in chain(Operation, AuditEvent)})
_FIRST = (
    *("recorded_at", "happened_at", "operation", "outcome", "policy", "principal"),
    *("source_address", "keyring", "algorithm", "key_version", "public_key_sha256"),
)
_LAST = ("keyring_revision", "event_id", "tenant_id", "id", "number", "nonce", "format")
"""Fields of a record in the order in which people look for them; others are between these."""
OUTCOMES = (
    (REFUSED, "refused, for any reason"),
    *((recorded, f"{words} ({recorded})") for recorded, words in OUTCOME_WORDS.items()),
)
"""What the filter for outcomes offers."""
_IN_FORM = (*_FILTERS, "key_version", "from", "to", "views", "shard")
API_KEY_EVENTS = {
    AuditEvent.CREATE_API_KEY.value,
    AuditEvent.ROTATE_API_KEY.value,
    AuditEvent.REVOKE_API_KEY.value,
}
"""Events whose version is that of an API key."""


async def _read(visit: Visit) -> Content:
    reader, query = visit.reader, visit.query
    operation, shows_views = query.get("operation", "").strip(), bool(query.get("views"))
    records, checkpoints, people = await asyncio.gather(
        _records(visit, page_views=shows_views or operation in PAGE_VIEWS),
        reader.section("list_audit_checkpoints", shard=query.get("shard") or None),
        addresses(reader),
    )
    found = records.data.records if records.data else ()
    return {
        "records": records,
        "tenants": await _tenant_names(reader, {each.tenant_id for each in found}),
        "checkpoints": checkpoints,
        "names": people,
        "api_key_events": API_KEY_EVENTS,
        "filters": {name: query.get(name, "") for name in _IN_FORM},
        "is_filtered": any(query.get(name) for name in _IN_FORM if name not in {"views", "shard"}),
        "hides_views": not shows_views and operation not in PAGE_VIEWS,
        "page_views": sorted(PAGE_VIEWS),
        "operations": OPERATIONS,
        "outcomes": OUTCOMES,
        "algorithms": [each.value for each in Algorithm],
    }


async def _records(visit: Visit, *, page_views: bool) -> Section:
    """Return the records that the form asks for, or what is wrong with it."""
    query = visit.query
    given = {name: query[name].strip() for name in _FILTERS if query.get(name, "").strip()}
    try:
        if given.get("outcome", REFUSED) not in {REFUSED, *OUTCOME_WORDS}:
            raise invalid("There is no such outcome: choose one that the field has.", "outcome")
        given |= _times(query)
        key_version = _key_version(query.get("key_version", "").strip())
    except ApiError as error:
        return Section(error=error)
    return await visit.reader.section(
        "list_audit_records",
        **given,
        page_views=page_views,
        key_version=key_version,
        before=place(query.get("before", "")),
        order="desc",
        limit=PAGE,
        shard=query.get("shard") or None,
    )


async def _tenant_names(reader: Reader, ids: set[str]) -> Mapping[str, str]:
    """Return what tenants are called, by id, for an operator; others see their own tenant's records."""
    if reader.principal.caller is not Credential.OPERATOR:
        return {}
    asked = sorted(ids - {str(INSTALLATION)})
    found = await asyncio.gather(*(reader.section("get_tenant", tenant_id=each) for each in asked))
    names = {
        each: tenant.data.name for each, tenant in zip(asked, found, strict=True) if tenant.data
    }
    return {**names, str(INSTALLATION): "the installation"}


def _times(query: Mapping[str, str]) -> Mapping[str, str]:
    """Return the days that a form names, as times of the API: both days are included."""
    return dict(_days(query))


def _days(query: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    for name, days_later in (("from", 0), ("to", 1)):
        if text := query.get(name, ""):
            try:
                day = date.fromisoformat(text) + timedelta(days=days_later)
            except (ValueError, OverflowError):
                raise invalid("A day is written as 2026-01-31.", name) from None
            yield name, f"{day}T00:00:00Z"


def _key_version(text: str) -> int | None:
    """Return the version that a form names; None: it names none. Raises ApiError."""
    if not text:
        return None
    version = _number(text)
    if not version:
        raise invalid("A key version is a whole number, such as 3.", "key_version")
    return version


def place(text: str) -> str | None:
    """Return where a list goes on: an id, or one for each log."""
    return text if _is_place(text) else None


def _number(text: str) -> int | None:
    is_number = text.isascii() and text.isdecimal() and len(text) <= MAX_DIGITS
    return int(text) if is_number else None


async def _read_record(visit: Visit) -> Content:
    number = _number(visit.path["id"])
    if not number:
        raise not_found("There is no such record.")
    reader, shard = visit.reader, visit.query.get("shard") or None
    log = visit.query.get("log") or None
    found, people = await asyncio.gather(
        reader.section(
            "list_audit_records",
            after=number - 1,
            before=number + 1,
            order="asc",
            limit=1,
            log=log,
            shard=shard,
        ),
        addresses(reader),
    )
    if found.error:
        raise found.error
    if not found.data.records:
        raise not_found("There is no such record.")
    record = msgspec.to_builtins(found.data.records[0])
    between = [name for name in record if name not in {*_FIRST, *_LAST}]
    return {
        "record": {name: record[name] for name in (*_FIRST, *between, *_LAST) if name in record},
        "number": number,
        "log": log,
        "shard": shard,
        "names": people,
        "tenants": await _tenant_names(reader, {record["tenant_id"]}),
    }


PAGES: tuple[Page, ...] = (
    Page(
        path="/audit",
        title="Audit log",
        template="audit/records.html",
        permission=Permission.VIEW_TENANT,
        read=_read,
        icon="audit",
        for_operators=True,
    ),
    Page(
        path="/audit/{id}",
        title="Audit record",
        template="audit/record.html",
        permission=Permission.VIEW_TENANT,
        read=_read_record,
        parent="/audit",
        for_operators=True,
    ),
)
