"""The audit log: records, their proofs, exports."""

import asyncio
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from ipaddress import ip_network
from itertools import chain
from urllib.parse import urlencode

import msgspec

from pqkeep_gateway.access.callers import Credential, Permission
from pqkeep_gateway.http.errors import ApiError, invalid, not_found
from pqkeep_gateway.portal import lists
from pqkeep_gateway.portal.lists import (
    Filter,
    InvalidFilterError,
    ListKind,
    Parameters,
    Query,
)
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
"""The first and last fields of a record's page. The remaining fields are between them."""
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


GROUPS = {
    "sign-ins": "sign-in,sign-in-failed,sign-out,single-sign-on,step-up,step-up-failed,"
    "second-factor-failed,use-recovery-code,refresh-token-reused,end-session,operator-sign-in",
    "key-changes": "generate-key,import-key,rotate-key,retire-key,disable-key,enable-key,"
    "schedule-archive,cancel-archive,archive-key,create-keyring,update-keyring,delete-keyring,"
    "restore-keyring,destroy-keyring",
    "people": "invite-owner,invite-admin,invite-developer,invite-viewer,withdraw-invitation,"
    "accept-invitation,change-role,remove-member,enable-mfa,disable-mfa,change-password",
    "api-keys": "create-api-key,rotate-api-key,revoke-api-key",
    "rules": "put-rule,delete-rule,override-rule",
}
"""Groups of operations, by the word that a person types."""


def _operations(given: Sequence[tuple[str, bool]], _: datetime) -> Mapping[str, object]:
    ((value, is_not),) = given
    if is_not:
        raise InvalidFilterError("cannot be excluded: remove the “-”")
    names = value.casefold().split(",")
    if any(name not in {*GROUPS, *OPERATIONS} for name in names):
        raise InvalidFilterError(f"must be an operation, or one of {', '.join(GROUPS)}")
    return {"operation": ",".join(GROUPS.get(name, name) for name in names)}


def _principal_of(prefix: str) -> Callable[[Sequence[tuple[str, bool]], datetime], Parameters]:
    def read(given: Sequence[tuple[str, bool]], _: datetime) -> Parameters:
        ((value, is_not),) = given
        if is_not or not value:
            raise InvalidFilterError("needs a value after the colon, and no “-” before it")
        return {"principal": f"{prefix}{value}"}

    return read


KIND = ListKind(
    path="/audit",
    filters=(
        lists.text("principal", "a member's address, or the name of an API key", "principal"),
        Filter(name="api-key", about="an API key by its number", read=_principal_of("api-key:")),
        Filter(name="user", about="a person by their id", read=_principal_of("user:")),
        lists.text("outcome", "refused, success or an error code", "outcome", values=(REFUSED,)),
        Filter(
            name="operation",
            about="an operation, or a group of them",
            read=_operations,
            values=(*GROUPS, *OPERATIONS),
        ),
        lists.text(
            "keyring",
            "the keyring",
            "keyring",
            source="/api/v1/kms/keyrings?limit=12&prefix=",
            pick="keyrings.name",
        ),
        lists.text("algorithm", "the algorithm", "algorithm", values=tuple(Algorithm)),
        lists.text("version", "the key version", "key_version"),
        lists.text("address", "an address or a network, such as 192.0.2.0/24", "source_address"),
        lists.text("request", "the id of a request", "request_id"),
        lists.text("rule", "the rule that warned or refused", "rule"),
        lists.text("campaign", "the campaign of re-encryptions", "campaign"),
        lists.within("within", "this time up to now", "from", values=("1h", "12h", "7d", "30d")),
        lists.text("tenant", "the tenant, for operators", "tenant"),
    ),
    sorts=("time",),
    words="words",
    noun="record",
    keeps=("views", "shard"),
    examples=("refused last hour", "operation:sign-ins within:7d", "192.0.2.0/24 refused"),
)
"""The filters of the log that a person types."""
_RECENT = re.compile(r"\blast\s+(?:(\d{1,3})\s+)?(minute|hour|day|week|month)s?\b", re.IGNORECASE)
_SECONDS = {"minute": 60, "hour": 3600, "day": 86400, "week": 604_800, "month": 2_592_000}
_is_code = re.compile(r"ERR_[A-Z_]+_[0-9]{3}", re.IGNORECASE | re.ASCII).fullmatch


async def _understood(
    reader: Reader, parameters: Mapping[str, object], now: datetime
) -> Mapping[str, str]:
    """Return the API's parameters for typed filters, including those for free words."""
    found = {name: str(value) for name, value in parameters.items()}
    words = found.pop("words", "")
    if last := _RECENT.search(words):
        length = int(last[1] or 1) * _SECONDS[last[2].lower()]
        found["from"] = (now - timedelta(seconds=length)).isoformat(timespec="seconds")
        words = words.replace(last[0], " ")
    for word in words.split():
        name, value = _meaning(word)
        if name == "principal" and "@" not in value and await _is_keyring(reader, value):
            name = "keyring"
        if name in found:
            message = f"“{word}” would be a second {name.replace('_', ' ')}. Keep one."
            raise invalid(message, "q")
        found[name] = value
    return found


_ALGORITHMS = {algorithm.casefold(): algorithm.value for algorithm in Algorithm}


def _meaning(word: str) -> tuple[str, str]:
    """Return the API's parameter that a word is a value of, and the value."""
    low = word.casefold()
    if _is_address(word):
        return "source_address", word
    if low == REFUSED or low in OUTCOME_WORDS or _is_code(word):
        return "outcome", word.upper() if _is_code(word) else low
    if low in GROUPS or low in OPERATIONS:
        return "operation", GROUPS.get(low, low)
    if low in _ALGORITHMS:
        return "algorithm", _ALGORITHMS[low]
    if "@" not in word and any(letter.isdigit() for letter in word) and len(word) >= REQUEST_ID:
        return "request_id", word
    return "principal", word


REQUEST_ID = 16
"""A word of this length with a digit is looked for as the id of a request."""


def _is_address(word: str) -> bool:
    try:
        ip_network(word, strict=False)
    except ValueError:
        return False
    return not word.isdigit()


async def _is_keyring(reader: Reader, name: str) -> bool:
    found = await reader.section("list_keyrings", prefix=name, limit=1)
    return bool(found.data) and any(row.name == name for row in found.data.keyrings)


async def _read(visit: Visit) -> Content:
    reader, query = visit.reader, visit.query
    typed = Query.of(KIND, query)
    understood: Mapping[str, str] = {}
    if not typed.error:
        try:
            understood = await _understood(reader, typed.parameters, datetime.now(UTC))
        except ApiError as error:
            typed = replace(typed, error=error.message)
    operation = understood.get("operation", query.get("operation", "")).strip()
    shows_views = bool(query.get("views"))
    includes_views = shows_views or operation in PAGE_VIEWS
    records, checkpoints, witnesses, people = await asyncio.gather(
        _records(visit, understood, page_views=includes_views, problem=typed.error),
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
        "filters": {name: query.get(name, "") for name in (*_IN_FORM, "q")},
        "query": typed,
        "understood": {name.replace("_", " "): value for name, value in understood.items()},
        "evidence": urlencode(_sent(visit, understood, page_views=includes_views)),
        "is_filtered": typed.is_filtered
        or any(query.get(name) for name in _IN_FORM if name not in {"views", "shard"}),
        "hides_views": not shows_views and operation not in PAGE_VIEWS,
        "page_views": sorted(PAGE_VIEWS),
        "operations": OPERATIONS,
        "outcomes": OUTCOMES,
        "algorithms": [algorithm.value for algorithm in Algorithm],
    }


def _sent(visit: Visit, understood: Mapping[str, str], *, page_views: bool) -> Mapping[str, str]:
    """Return the parameters of the evidence of a page's records; empty without a filter."""
    query = visit.query
    try:
        times = _times(query)
    except ApiError:
        return {}
    names = (*_FILTERS, "key_version")
    form = {name: query[name].strip() for name in names if query.get(name, "").strip()}
    filters = {**form, **times, **understood}
    if not filters:
        return {}
    shard = {"shard": query["shard"]} if query.get("shard") else {}
    return {**filters, **shard, **({} if page_views else {"page_views": "false"})}


async def _records(
    visit: Visit, understood: Mapping[str, str], *, page_views: bool, problem: str
) -> Section:
    """Return the records that match the typed filters and the form, or their error."""
    query = visit.query
    if problem:
        return Section(error=invalid(problem, "q"))
    conditions = {name: query[name].strip() for name in _FILTERS if query.get(name, "").strip()}
    try:
        if conditions.get("outcome", REFUSED) not in {REFUSED, *OUTCOME_WORDS}:
            raise invalid("This outcome does not exist. Choose one from the list.", "outcome")
        conditions |= _times(query)
        conditions |= understood
        version = conditions.pop("key_version", "") or query.get("key_version", "").strip()
        key_version = _key_version(version)
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
