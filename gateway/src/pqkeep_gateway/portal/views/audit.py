"""The audit log: records, their proofs, exports."""

import asyncio
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, timedelta
from ipaddress import ip_network
from itertools import chain
from urllib.parse import urlencode

import msgspec

from pqkeep_gateway.access.callers import OPERATORS, Permission
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
from pqkeep_gateway.portal.rendering import instant
from pqkeep_gateway.portal.views.people import addresses
from pqkeep_protocol.algorithms import Algorithm, Operation
from pqkeep_protocol.audit import MAX_COUNTED_VALUES, REFUSED
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
        lists.within("within", "this time up to now", "from", values=("1h", "24h", "7d", "30d")),
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


COUNTED = ("principal", "key", "address", "outcome", "operation")
"""The values by which the page groups records."""
GROUPED = 20
"""Groups on a page."""
BARS = 24
"""The most bars of the histogram."""
RANGES = (("1h", "Last hour"), ("24h", "Last 24 hours"), ("7d", "Last 7 days"))
_is_time_filter = re.compile(r"(\bwithin:\S*|" + _RECENT.pattern + ")", re.IGNORECASE)
_KEY = re.compile(r"(?P<keyring>[^/ ]+)(/(?P<algorithm>[^ ]+))?( v(?P<key_version>\d+))?").fullmatch


@dataclass(frozen=True, slots=True)
class Bar:
    """A bar of the histogram: it is a link to its time."""

    x: int
    y: int
    width: int
    height: int
    begins: str
    label: str
    address: str


@dataclass(frozen=True, slots=True)
class Group:
    """A group of records, with a link to them."""

    value: str
    count: int
    address: str


def _narrowed(visit: Visit, **changes: str) -> str:
    """Return the address of the page with some filters changed. It begins at the newest record."""
    kept = {name: value for name, value in visit.query.items() if name != "before" and value}
    return f"?{urlencode({name: value for name, value in {**kept, **changes}.items() if value})}"


def _without_times(visit: Visit) -> str:
    """Return the typed filters without those of time."""
    return " ".join(_is_time_filter.sub(" ", visit.query.get("q", "")).split())


def _bars(visit: Visit, hours: Section) -> Sequence[Bar]:
    """Return the histogram of the counts by hour, with the shortest length that is few bars."""
    counts = {instant(row.value): row.count for row in hours.data.counts} if hours.data else {}
    if not counts:
        return ()
    first, last = min(counts), max(counts)
    length = next((one for one in LENGTHS if _place(last, one) - _place(first, one) < BARS), None)
    length = length or LENGTHS[-1]
    heights = Counter[int]()
    for at, count in counts.items():
        heights[_place(at, length)] += count
    newest = _place(last, length)
    oldest = max(_place(first, length), newest - BARS + 1)
    top, width = max(heights.values()), WIDTH // max(newest - oldest + 1, 12)
    typed, is_hour = _without_times(visit), length < DAY
    bars: list[Bar] = []
    for place in range(oldest, newest + 1):
        if number := heights[place]:
            height = max(number * (HEIGHT - 4) // top, 2)
            begin = MONDAY + place * length
            end = begin + length - (timedelta() if is_hour else DAY)
            form = "%Y-%m-%dT%H:%M" if is_hour else "%Y-%m-%d"
            begins, ends = begin.strftime(form), end.strftime(form)
            shown = f"{begins} to {ends}" if length > DAY else begins.replace("T", " ")
            bars.append(
                Bar(
                    (place - oldest) * width,
                    HEIGHT - height,
                    width - 3,
                    height,
                    begins.replace("T", " "),
                    f"{shown}: {number:,}",
                    _narrowed(visit, **{"q": typed, "from": begins, "to": ends}),
                )
            )
    return bars


def _place(at: datetime, length: timedelta) -> int:
    return (at - MONDAY) // length


DAY = timedelta(days=1)
LENGTHS = (timedelta(hours=1), DAY, 7 * DAY, 28 * DAY)
"""Lengths of the histogram's bars."""
MONDAY = datetime(1970, 1, 5, tzinfo=UTC)
"""Bars begin at a multiple of their length after this time: weeks begin on Mondays."""
WIDTH, HEIGHT = 720, 72


def _groups(visit: Visit, by: str, section: Section) -> Sequence[Group]:
    """Return the groups, each with a link to its records."""
    if not section.data:
        return ()
    return [
        Group(row.value, row.count, _narrowed(visit, group="", **_filter_of(by, row.value)))
        for row in section.data.counts
    ]


def _filter_of(by: str, value: str) -> Mapping[str, str]:
    """Return the form's filters for a group."""
    if by == "key":
        found = _KEY(value)
        return {} if found is None else {k: v for k, v in found.groupdict().items() if v}
    return {{"address": "source_address"}.get(by, by): value}


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
    group = query.get("group", "") if query.get("group") in COUNTED else ""
    hours, groups, records = await asyncio.gather(
        _counts(visit, understood, "hour", page_views=includes_views, problem=typed.error),
        _counts(visit, understood, group, page_views=includes_views, problem=typed.error),
        _records(visit, understood, page_views=includes_views, problem=typed.error),
    )
    checkpoints, witnesses, people = await asyncio.gather(
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
        "bars": _bars(visit, hours),
        "counted": hours,
        "width": WIDTH,
        "height": HEIGHT,
        "ranges": [
            (
                label,
                _narrowed(
                    visit,
                    **{
                        "q": f"{_without_times(visit)} within:{length}".strip(),
                        "from": "",
                        "to": "",
                    },
                ),
            )
            for length, label in RANGES
        ],
        "has_form": any(query.get(name) for name in _IN_FORM if name not in {"views", "shard"}),
        "shown_from": _minute_of(query, "from"),
        "shown_to": _minute_of(query, "to"),
        "group": group,
        "grouped": groups,
        "groups": _groups(visit, group, groups),
        "group_by": [(by, _narrowed(visit, group="" if by == group else by)) for by in COUNTED],
        "query": typed,
        "understood": {name.replace("_", " "): value for name, value in understood.items()},
        "live": urlencode(_sent(visit, understood, page_views=includes_views, always=True)),
        "evidence": urlencode(_sent(visit, understood, page_views=includes_views)),
        "is_filtered": typed.is_filtered
        or any(query.get(name) for name in _IN_FORM if name not in {"views", "shard"}),
        "hides_views": not shows_views and operation not in PAGE_VIEWS,
        "page_views": sorted(PAGE_VIEWS),
        "algorithms": [algorithm.value for algorithm in Algorithm],
    }


def _sent(
    visit: Visit, understood: Mapping[str, str], *, page_views: bool, always: bool = False
) -> Mapping[str, str]:
    """Return the API's parameters for a page's records. Without a filter, only if ``always``."""
    query = visit.query
    try:
        times = _times(query)
    except ApiError:
        return {}
    names = (*_FILTERS, "key_version")
    form = {name: query[name].strip() for name in names if query.get(name, "").strip()}
    if form.get("operation") in GROUPS:
        form["operation"] = GROUPS[form["operation"]]
    filters = {**form, **times, **understood}
    if not (filters or always):
        return {}
    shard = {"shard": query["shard"]} if query.get("shard") else {}
    return {**filters, **shard, **({} if page_views else {"page_views": "false"})}


async def _records(
    visit: Visit, understood: Mapping[str, str], *, page_views: bool, problem: str
) -> Section:
    """Return the records that match the typed filters and the form, or their error."""
    try:
        conditions = _conditions(visit, understood, problem)
    except ApiError as error:
        return Section(error=error)
    return await visit.reader.section(
        "list_audit_records",
        **conditions,
        page_views=page_views,
        before=place(visit.query.get("before", "")),
        order="desc",
        limit=PAGE,
    )


async def _counts(
    visit: Visit, understood: Mapping[str, str], by: str, *, page_views: bool, problem: str
) -> Section:
    """Return the counts of these records by a value; nothing if the filters have an error."""
    try:
        conditions = _conditions(visit, understood, problem)
    except ApiError:
        return Section()
    if not by:
        return Section()
    limit = GROUPED if by in COUNTED else MAX_COUNTED_VALUES
    return await visit.reader.section(
        "count_audit_records", **conditions, by=by, page_views=page_views, limit=limit
    )


def _conditions(visit: Visit, understood: Mapping[str, str], problem: str) -> Mapping[str, object]:
    """Return the API's parameters for the typed filters and the form. Raises ApiError."""
    query = visit.query
    if problem:
        raise invalid(problem, "q")
    conditions: dict[str, object] = {
        name: query[name].strip() for name in _FILTERS if query.get(name, "").strip()
    }
    if conditions.get("outcome", REFUSED) not in {REFUSED, *OUTCOME_WORDS}:
        raise invalid(
            "This outcome does not exist. Type refused, success, or a code of a record.", "outcome"
        )
    if (words := str(conditions.get("operation", ""))) in GROUPS:
        conditions["operation"] = GROUPS[words]
    conditions |= {**_times(query), **understood}
    version = str(conditions.pop("key_version", "")) or query.get("key_version", "").strip()
    return {
        **conditions,
        "key_version": _key_version(version),
        "shard": query.get("shard") or None,
    }


async def _tenant_names(reader: Reader, ids: set[str]) -> Mapping[str, str]:
    """Return tenants' names by id, for an operator. Other callers see one tenant only."""
    if reader.principal.caller not in OPERATORS:
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
    """Return the form's days and times (UTC) for the API. Both days are included."""
    return dict(_days(query))


def _days(query: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    for name, days_later in (("from", 0), ("to", 1)):
        if text := query.get(name, ""):
            try:
                if _is_minute(text):
                    yield name, f"{datetime.fromisoformat(text):%Y-%m-%dT%H:%M:%S}Z"
                else:
                    day = date.fromisoformat(text) + timedelta(days=days_later)
                    yield name, f"{day}T00:00:00Z"
            except (ValueError, OverflowError):
                message = "Write the day as 2026-01-31, or the time as 2026-01-31T12:00."
                raise invalid(message, name) from None


def _minute_of(query: Mapping[str, str], name: str) -> str:
    """Return a time of the form for its field; empty if it is not valid."""
    try:
        return _times({name: query.get(name, "")}).get(name, "")[: len("2026-01-31T12:00")]
    except ApiError:
        return ""


_is_minute = re.compile(r"\d{4}-\d{2}-\d{2}T\d{2}:\d{2}", re.ASCII).fullmatch


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
