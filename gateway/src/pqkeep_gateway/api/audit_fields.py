"""What requests about the audit log say: which records, which page, whose log."""

from enum import StrEnum
from typing import cast

from pqkeep_gateway.api.audit_pages import place_field
from pqkeep_gateway.api.key_fields import keyring_field, shard_field
from pqkeep_gateway.http.field import (
    Field,
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
from pqkeep_protocol.audit import MAX_PAGE, REFUSED
from pqkeep_protocol.keys import DEFAULT_SHARD, MAX_KEY_VERSION, KeyVersion

_SIGNING_ALGORITHMS = (Algorithm.ML_DSA_65, Algorithm.SLH_DSA_SHA2_128S)
_MAX_NUMBER = 2**53 - 1
_MAX_TEXT = 32
_MAX_ADDRESS = 64
_MAX_REQUEST_ID = 128
_DEFAULT_LIMIT = 100
_MAX_CHECKPOINTS = 100


class Order(StrEnum):
    """Of records."""

    ASCENDING = "asc"
    DESCENDING = "desc"


def _number(name: str, description: str, example: int) -> Field[int]:
    return integer_field(name, description, example, at_least=0, at_most=_MAX_NUMBER)


def _limit(at_most: int) -> Field[int]:
    default = min(at_most, _DEFAULT_LIMIT)
    field = integer_field("limit", "How many at most.", default, at_least=1, at_most=at_most)
    return field.or_default(default)


AFTER = place_field("after", "Only what comes after this id, or this `next`.", 0).optional()
BEFORE = place_field("before", "Only what comes before this id, or this `next`.", 100).optional()
ORDER = choice_field(
    "order", "By id, or the newest first.", tuple(Order), Order.DESCENDING
).or_default(Order.ASCENDING)
FROM = time_field("from", "Recorded then or later.", "2026-01-31T12:00:00Z").optional()
TO = time_field("to", "Recorded before then.", "2026-02-01T00:00:00Z").optional()
OPERATION = text_field("operation", "Only this operation.", "encrypt", at_most=_MAX_TEXT).optional()
OUTCOME = text_field(
    "outcome",
    f"Only this outcome; `{REFUSED}` is every refusal.",
    "success",
    at_most=_MAX_TEXT,
).optional()
PRINCIPAL = text_field(
    "principal",
    "Only what this principal did: as records have it, an API key's with its name or without it; or a"
    " member's e-mail address, an API key's name, an operator's name.",
    "api-key:1",
    at_most=MAX_EMAIL,
).optional()
SOURCE_ADDRESS = text_field(
    "source_address", "Only what came from this address.", "192.0.2.1", at_most=_MAX_ADDRESS
).optional()
TENANT = text_field(
    "tenant",
    "Only this tenant's records, by its id or name, for the operator alone to say. Without a shard or"
    " a log: of all logs that have some.",
    "6f1c2c52-52a5-4d0e-9a43-7f4d0c8f8a11",
    at_most=MAX_NAME,
    is_valid=None,
).optional()
REQUEST_ID = text_field(
    "request_id",
    "Only what the request with this id did. Searched for as everything else is: say when it was.",
    "order-4711",
    at_most=_MAX_REQUEST_ID,
).optional()
ALGORITHM = choice_field(
    "algorithm", "Only this algorithm.", tuple(Algorithm), Algorithm.ML_DSA_65
).optional()
KEYRING = keyring_field("keyring", "Only what concerns this keyring.").optional()
KEY_VERSION = cast(
    "Field[KeyVersion]",
    integer_field("key_version", "Only this key version.", 1, at_least=1, at_most=MAX_KEY_VERSION),
).optional()
PAGE_VIEWS = boolean_field(
    "page_views",
    "Whether to list page views too: lists of keys and keyrings that were read with people's"
    " sessions, which succeeded.",
    example=False,
).or_default(default=True)
RECORDS_LIMIT = _limit(MAX_PAGE)
RECORD_ID = integer_field(
    "id", "The record's id.", 1, at_least=1, at_most=_MAX_NUMBER, too_large="no such record"
)
SIZE_AFTER = _number(
    "after", "Only checkpoints of more records. Left out: the newest of each algorithm.", 0
).optional()
CHECKPOINTS_LIMIT = _limit(_MAX_CHECKPOINTS)
SIGNING = choice_field(
    "algorithm", "What to sign with.", _SIGNING_ALGORITHMS, _SIGNING_ALGORITHMS[0]
).or_default(_SIGNING_ALGORITHMS[0])
FIRST = _number("first", "The smaller size.", 32)
SECOND = _number("second", "The larger size.", 64)
EXPORTED_AFTER = _number(
    "after",
    "Of the whole log, and so for the operator alone: records after this id, without proofs.",
    0,
).optional()
SHARD = shard_field(
    "Whose log is meant, for the operator alone to say: there is one for each shard."
    f" Left out: `{DEFAULT_SHARD}`."
).optional()


LOG = uuid_field(
    "log",
    "Which log is meant, by its id, where the tenant's records are in several. Left out: all of them"
    " in a list of records and an export, otherwise that of the shard where it is.",
    "0b9f8d5e-3f7c-4a55-9d0e-6f6d1f2f9c11",
).optional()
