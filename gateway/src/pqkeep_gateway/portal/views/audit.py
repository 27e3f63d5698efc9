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
"""The digits of a record's number. The API accepts one digit more, for the number that follows."""
_FILTERS = (
    *("operation", "keyring", "algorithm", "outcome", "principal"),
    *("source_address", "tenant"),
)
OPERATIONS = sorted({operation.value for operation in chain(Operation, AuditEvent)})
_FIRST = (
    *("recorded_at", "happened_at", "operation", "outcome", "policy", "principal"),
    *("source_address", "keyring", "algorithm", "key_version", "public_key_sha256"),
)
_LAST = ("keyring_revision", "event_id", "tenant_id", "id", "number", "nonce", "format")
"""The first and last fields of a record's page. The other fields are between them."""
OUTCOMES = (
    (REFUSED, "refused, for any reason"),
    *((recorded, f"{words} ({recorded})") for recorded, words in OUTCOME_WORDS.items()),
)
"""The choices of the filter for outcomes."""
_IN_FORM = (*_FILTERS, "key_version", "from", "to", "views", "shard")
API_KEY_EVENTS = {
    AuditEvent.CREATE_API_KEY.value,
    AuditEvent.ROTATE_API_KEY.value,
    AuditEvent.REVOKE_API_KEY.value,
}
"""Events with an API key's version."""


async def _read(visit: Visit) -> Content:
    reader, query = visit.reader, visit.query
    operation, shows_views = query.get("operation", "").strip(), bool(query.get("views"))
    records, checkpoints, witnesses, people = await asyncio.gather(
        _records(visit, page_views=shows_views or operation in PAGE_VIEWS),
        reader.section("list_audit_checkpoints", shard=query.get("shard") or None),
        reader.section("list_audit_witnesses", shard=query.get("shard") or None),
        addresses(reader),
    )
    shown = records.data.records if records.data else ()
    return {
        "records": records,
        "tenants": await _tenant_names(reader, {record.tenant_id for record in shown}),
        "checkpoints": checkpoints,
        "witnesses": witnesses,
        "names": people,
        "api_key_events": API_KEY_EVENTS,
        "filters": {name: query.get(name, "") for name in _IN_FORM},
        "is_filtered": any(query.get(name) for name in _IN_FORM if name not in {"views", "shard"}),
        "hides_views": not shows_views and operation not in PAGE_VIEWS,
        "page_views": sorted(PAGE_VIEWS),
        "operations": OPERATIONS,
        "outcomes": OUTCOMES,
        "algorithms": [algorithm.value for algorithm in Algorithm],
    }


async def _records(visit: Visit, *, page_views: bool) -> Section:
    """Return the records that match the form, or the form's error."""
    query = visit.query
    conditions = {name: query[name].strip() for name in _FILTERS if query.get(name, "").strip()}
    try:
        if conditions.get("outcome", REFUSED) not in {REFUSED, *OUTCOME_WORDS}:
            raise invalid("This outcome does not exist. Choose one from the list.", "outcome")
        conditions |= _times(query)
        key_version = _key_version(query.get("key_version", "").strip())
    except ApiError as error:
        return Section(error=error)
    return await visit.reader.section(
        "list_audit_records",
        **conditions,
        page_views=page_views,
        key_version=key_version,
        before=place(query.get("before", "")),
        order="desc",
        limit=PAGE,
        shard=query.get("shard") or None,
    )


async def _tenant_names(reader: Reader, ids: set[str]) -> Mapping[str, str]:
    """Return tenants' names by id, for an operator. Other callers see one tenant only."""
    if reader.principal.caller is not Credential.OPERATOR:
        return {}
    ordered = sorted(ids - {str(INSTALLATION)})
    tenants = await asyncio.gather(
        *(reader.section("get_tenant", tenant_id=identifier) for identifier in ordered)
    )
    names = {
        identifier: tenant.data.name
        for identifier, tenant in zip(ordered, tenants, strict=True)
        if tenant.data
    }
    return {**names, str(INSTALLATION): "the installation"}


def _times(query: Mapping[str, str]) -> Mapping[str, str]:
    """Return the form's days as timestamps for the API. Both days are included."""
    return dict(_days(query))


def _days(query: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    for name, days_later in (("from", 0), ("to", 1)):
        if text := query.get(name, ""):
            try:
                day = date.fromisoformat(text) + timedelta(days=days_later)
            except (ValueError, OverflowError):
                raise invalid("Write the day as 2026-01-31.", name) from None
            yield name, f"{day}T00:00:00Z"


def _key_version(text: str) -> int | None:
    """Return the form's version; None if it is empty. Raises ApiError."""
    if not text:
        return None
    version = _number(text)
    if not version:
        raise invalid("The key version must be a whole number, such as 3.", "key_version")
    return version


def place(text: str) -> str | None:
    """Return a valid position in the list: an id, or one id for each log. Else None."""
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
    section, people = await asyncio.gather(
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
    if section.error:
        raise section.error
    if not section.data.records:
        raise not_found("There is no such record.")
    record = msgspec.to_builtins(section.data.records[0])
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
