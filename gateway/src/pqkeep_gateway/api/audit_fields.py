"""The request fields of the audit log: filters, pages and logs.

A position in a list is a position in each log, in the order in which the shards got the tenant:
``120.33``. It remains valid when the tenant moves again: the records of a later log are all after
it. With one log, a position is a record's id.
"""

import re
from collections.abc import Callable, Sequence
from enum import StrEnum
from ipaddress import ip_address, ip_network
from typing import NamedTuple, TypeVar, cast

from pqkeep_gateway.api.audit_data import RecordData, record
from pqkeep_gateway.api.key_fields import keyring_field, recorded_name_field, shard_field
from pqkeep_gateway.http.field import (
    Field,
    InvalidValueError,
    boolean_field,
    choice_field,
    integer_field,
    text_field,
    time_field,
    uuid_field,
)
from pqkeep_gateway.outgoing_mail import MAX_EMAIL
from pqkeep_gateway.storage.tenants import MAX_NAME
from pqkeep_protocol.algorithms import Algorithm
from pqkeep_protocol.audit import (
    MAX_COUNTED_VALUES,
    MAX_OPERATIONS,
    MAX_PAGE,
    REFUSED,
    CountBy,
    Records,
)
from pqkeep_protocol.keys import DEFAULT_SHARD, MAX_KEY_VERSION, KeyVersion

_SIGNING_ALGORITHMS = (Algorithm.ML_DSA_65, Algorithm.SLH_DSA_SHA2_128S)
_MAX_NUMBER = 2**53 - 1
_MAX_TEXT = 32
_MAX_ADDRESS = 64
_MAX_REQUEST_ID = 128
_DEFAULT_LIMIT = 100
_MAX_CHECKPOINTS = 100


T = TypeVar("T")


class Order(StrEnum):
    """The order of records."""

    ASCENDING = "asc"
    DESCENDING = "desc"


def _number(name: str, description: str, example: int) -> Field[int]:
    return integer_field(name, description, example, at_least=0, at_most=_MAX_NUMBER)


def _limit(at_most: int) -> Field[int]:
    default = min(at_most, _DEFAULT_LIMIT)
    field = integer_field(
        "limit", "The most entries to return.", default, at_least=1, at_most=at_most
    )
    return field.or_default(default)


def _parsed(field: Field[str], read: Callable[[str], T]) -> Field[T]:
    """Return a text field. ``read`` converts the text; it raises InvalidValueError."""
    return Field(
        name=field.name,
        description=field.description,
        schema=field.schema,
        example=field.example,
        parse=lambda value: read(field.parse(value)),
    )


def _operations(text: str) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(name.strip() for name in text.split(",")))
    if len(names) > MAX_OPERATIONS or not all(0 < len(name) <= _MAX_TEXT for name in names):
        raise InvalidValueError(f"must be at most {MAX_OPERATIONS} names with commas between them")
    return names


def _source(text: str) -> str:
    """Return an address or a network in the form that records have."""
    try:
        if "/" in text:
            return str(ip_network(text, strict=False))
        return str(ip_address(text))
    except ValueError:
        if "/" in text:
            raise InvalidValueError(
                "must be an address, or a network such as 192.0.2.0/24"
            ) from None
        return text


Place = tuple[int, ...]
PLACE = r"^[0-9]{1,15}(\.[0-9]{1,15}){0,99}$"
_is_place = re.compile(PLACE.replace("$", r"\Z")).match


LAST = 10**15 - 1
"""A place after all records of a log."""


class MergedPage(NamedTuple):
    """A page of the merged list."""

    records: tuple[RecordData, ...]
    logs: tuple[int, ...]
    """The index of each record's log."""
    next: str | None
    """The place of the next page; None at the end."""


def place_field(name: str, description: str, example: int) -> Field[Place]:
    """Return a field for a place in a list of records."""

    def parse(value: object) -> Place:
        text = str(value) if type(value) is int else value
        if not isinstance(text, str) or _is_place(text) is None:
            raise InvalidValueError(
                "must be a record's id, or the value `next` of an earlier response"
            )
        return tuple(map(int, text.split(".")))

    return Field(
        name=name,
        description=description,
        schema={"type": "string", "pattern": PLACE},
        example=str(example),
        parse=parse,
    )


def after_in(place: Place | None, log: int) -> int | None:
    """Return the record of a log after which a place is; None: before all records."""
    return place[log] if place is not None and log < len(place) else None


def before_in(place: Place | None, log: int) -> int | None:
    """Return the record of a log before which a place is; None: after all records."""
    if place is None:
        return None
    return place[log] if log < len(place) else 0


def merged(
    pages: Sequence[Records], begin: Sequence[int | None], *, newest_first: bool, limit: int
) -> MergedPage:
    """Return the first records of several logs' pages, and the next place.

    ``begin`` has the position at which each page began. The list ends at the last record of a page
    that is not the last of its log: the following records of that log are unknown, and would come
    before later records of other logs.
    """
    at = [LAST if newest_first and start is None else start or 0 for start in begin]
    waiting = [list(map(record, page.lines)) for page in pages]
    taken = [0] * len(pages)
    records: list[RecordData] = []
    logs: list[int] = []
    while len(records) < limit:
        heads = [
            (page_records[taken[log]].recorded_at, log)
            for log, page_records in enumerate(waiting)
            if taken[log] < len(page_records)
        ]
        is_cut = any(
            taken[log] == len(waiting[log]) and page.next is not None
            for log, page in enumerate(pages)
        )
        if is_cut or not heads:
            break
        _, log = max(heads) if newest_first else min(heads)
        records.append(waiting[log][taken[log]])
        logs.append(log)
        taken[log] += 1
    is_end = all(
        taken[log] == len(waiting[log]) and page.next is None for log, page in enumerate(pages)
    )
    going_on = ".".join(
        str(
            _next_place(
                page, waiting[log][: taken[log]], at[log], is_all=taken[log] == len(waiting[log])
            )
        )
        for log, page in enumerate(pages)
    )
    return MergedPage(tuple(records), tuple(logs), None if is_end else going_on)


def _next_place(page: Records, taken: Sequence[RecordData], begin: int, *, is_all: bool) -> int:
    if is_all and page.next is not None:
        return page.next
    return taken[-1].id if taken else begin


AFTER = place_field("after", "Only entries after this id or `next`.", 0).optional()
BEFORE = place_field("before", "Only entries before this id or `next`.", 100).optional()
ORDER = choice_field(
    "order", "By id, or the newest first.", tuple(Order), Order.DESCENDING
).or_default(Order.ASCENDING)
FROM = time_field("from", "Only records from this time on.", "2026-01-31T12:00:00Z").optional()
TO = time_field("to", "Only records before this time.", "2026-02-01T00:00:00Z").optional()
OPERATION = _parsed(
    text_field(
        "operation",
        "Only this operation, or one of several with commas between them.",
        "encrypt",
        at_most=MAX_OPERATIONS * (_MAX_TEXT + 1),
    ),
    _operations,
).optional()
OUTCOME = text_field(
    "outcome",
    f"Only this outcome; `{REFUSED}` matches every refusal.",
    "success",
    at_most=_MAX_TEXT,
).optional()
PRINCIPAL = text_field(
    "principal",
    "Only records of this principal, in the form that records have (an API key's with or "
    "without its name). Also accepted: a member's e-mail address, an API key's name, an "
    "operator's name.",
    "api-key:1",
    at_most=MAX_EMAIL,
).optional()
SOURCE_ADDRESS = _parsed(
    text_field(
        "source_address",
        "Only requests from this address, or from this network, such as `192.0.2.0/24`.",
        "192.0.2.1",
        at_most=_MAX_ADDRESS,
    ),
    _source,
).optional()
TENANT = text_field(
    "tenant",
    "Only this tenant's records, by its id or name. Only for operators. Without a shard or a "
    "log, all logs are searched.",
    "6f1c2c52-52a5-4d0e-9a43-7f4d0c8f8a11",
    at_most=MAX_NAME,
    is_valid=None,
).optional()
REQUEST_ID = text_field(
    "request_id",
    "Only records of the request with this id. The search has no index: add `from` and `to`.",
    "order-4711",
    at_most=_MAX_REQUEST_ID,
).optional()
ALGORITHM = choice_field(
    "algorithm", "Only this algorithm.", tuple(Algorithm), Algorithm.ML_DSA_65
).optional()
KEYRING = keyring_field("keyring", "Only records of this keyring.").optional()
KEY_VERSION = cast(
    "Field[KeyVersion]",
    integer_field("key_version", "Only this key version.", 1, at_least=1, at_most=MAX_KEY_VERSION),
).optional()
RULE = recorded_name_field(
    "rule", "Only records that this rule warned of or refused.", "cnsa-2.0"
).optional()
CAMPAIGN = recorded_name_field(
    "campaign", "Only re-encryptions of this campaign.", "to-ml-kem-1024"
).optional()
PAGE_VIEWS = boolean_field(
    "page_views",
    "Whether to include page views: successful lists of keys, keyrings and rules in people's "
    "sessions.",
    example=False,
).or_default(default=True)
RECORDS_LIMIT = _limit(MAX_PAGE)
COUNT_BY = choice_field(
    "by",
    "The value to count by. `key` is keyring, algorithm and version. Records without it are not "
    "counted.",
    tuple(CountBy),
    CountBy.PRINCIPAL,
)
VALUES_LIMIT = _limit(MAX_COUNTED_VALUES)
RECORD_ID = integer_field(
    "id", "The record's id.", 1, at_least=1, at_most=_MAX_NUMBER, too_large="no such record"
)
SIZE_AFTER = _number(
    "after",
    "Only checkpoints with more records than this. Left out: the newest one for each algorithm.",
    0,
).optional()
CHECKPOINTS_LIMIT = _limit(_MAX_CHECKPOINTS)
SIGNING = choice_field(
    "algorithm", "The signature algorithm.", _SIGNING_ALGORITHMS, _SIGNING_ALGORITHMS[0]
).or_default(_SIGNING_ALGORITHMS[0])
FIRST = _number("first", "The smaller size.", 32)
SECOND = _number("second", "The larger size.", 64)
EXPORTED_AFTER = _number(
    "after",
    "Only records after this id, without proofs. Exports the whole log; only for operators.",
    0,
).optional()
SHARD = shard_field(
    f"The shard of the log: each shard has one. Only for operators. Left out: `{DEFAULT_SHARD}`."
).optional()


LOG = uuid_field(
    "log",
    "The id of the log, if the tenant's records are in several. Left out: lists of records and"
    " exports include all logs; other requests use the log of the tenant's shard.",
    "0b9f8d5e-3f7c-4a55-9d0e-6f6d1f2f9c11",
).optional()
