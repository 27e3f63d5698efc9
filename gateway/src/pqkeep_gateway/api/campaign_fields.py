"""The fields of requests about campaigns."""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar, cast

from pqkeep_gateway.api.key_fields import (
    KEY_VERSION,
    KEYRING,
    algorithm_field,
    recorded_name_field,
)
from pqkeep_gateway.http.field import (
    Field,
    FieldError,
    InvalidValueError,
    boolean_field,
    choice_field,
    integer_field,
    object_schema,
    text_field,
    time_field,
    unknown_field,
)
from pqkeep_gateway.storage.campaigns import CampaignState, Source, Target, VersionCount
from pqkeep_protocol.algorithms import Operation
from pqkeep_protocol.keys import DEFAULT_KEYRING, MAX_KEY_VERSION

T = TypeVar("T")
Values = Mapping[str, object]

MAX_SOURCES = 20
MAX_VERSIONS = 100
"""Key versions of a source, and key versions in a scan."""
MAX_PLACE = 200
MAX_COUNT = 10**15
"""The largest count in a scan."""
MAX_QUIET_DAYS = 3650


def _parse_object(value: object, fields: Sequence[Field[Any]]) -> Values:
    """Return an object that has only these fields. Raises InvalidValueError and FieldError."""
    names = [field.name for field in fields]
    if not isinstance(value, dict):
        raise InvalidValueError(f"must have objects with the fields {', '.join(names)}")
    values = cast("Values", value)
    if unknown := values.keys() - set(names):
        raise unknown_field(unknown, names)
    return values


def _object_field(
    name: str, description: str, fields: Sequence[Field[Any]], make: Callable[[Values], T]
) -> Field[T]:
    """Return a field of an object with these fields."""

    def parse(value: object) -> T:
        try:
            return make(_parse_object(value, fields))
        except FieldError as error:
            raise InvalidValueError(f"cannot be read: {error.message}") from None

    return Field(
        name=name,
        description=description,
        schema=object_schema(fields),
        example={field.name: field.example for field in fields},
        parse=parse,
    )


def _list_field(
    name: str,
    description: str,
    fields: Sequence[Field[Any]],
    make: Callable[[Values], T],
    at_least: int,
    at_most: int,
) -> Field[tuple[T, ...]]:
    """Return a field of a list of objects with these fields."""
    entry = _object_field(name, description, fields, make)
    message = f"must be a list of {at_least} to {at_most} objects"

    def parse(value: object) -> tuple[T, ...]:
        if not (isinstance(value, list) and at_least <= len(value) <= at_most):
            raise InvalidValueError(message)
        return tuple(entry.parse(element) for element in cast("list[object]", value))

    return Field(
        name=name,
        description=description,
        schema={
            "type": "array",
            "minItems": at_least,
            "maxItems": at_most,
            "items": entry.schema,
        },
        example=[entry.example],
        parse=parse,
    )


def _parse_versions(value: object) -> tuple[int, ...]:
    versions = cast("list[object]", value) if isinstance(value, list) else []
    if not 0 < len(versions) <= MAX_VERSIONS:
        raise InvalidValueError(f"must be a list of 1 to {MAX_VERSIONS} key versions")
    numbers = {KEY_VERSION.parse(version) for version in versions}
    return tuple(sorted(numbers))


_KEY_VERSIONS: Field[tuple[int, ...] | None] = Field(
    name="key_versions",
    description="The versions. Left out: all; of the target's own key, all but the active one.",
    schema={
        "type": "array",
        "items": {"type": "integer", "minimum": 1, "maximum": MAX_KEY_VERSION},
        "minItems": 1,
        "maxItems": MAX_VERSIONS,
    },
    example=[1, 2],
    parse=_parse_versions,
    required=False,
)
_ALGORITHM = algorithm_field(Operation.RE_ENCRYPT)
_TARGET_ALGORITHM = algorithm_field(Operation.ENCRYPT)
_COUNT = integer_field("count", "The number of ciphertexts.", 17, at_least=0, at_most=MAX_COUNT)


def _source(values: Values) -> Source:
    return Source(
        KEYRING.read(values) or DEFAULT_KEYRING,
        _ALGORITHM.read(values),
        cast("Any", _KEY_VERSIONS.read(values)),
    )


def _target(values: Values) -> Target:
    return Target(KEYRING.read(values) or DEFAULT_KEYRING, _TARGET_ALGORITHM.read(values))


def _count(values: Values) -> VersionCount:
    return VersionCount(
        KEYRING.read(values) or DEFAULT_KEYRING,
        _ALGORITHM.read(values),
        KEY_VERSION.read(values),
        _COUNT.read(values),
    )


_is_sha256 = re.compile("[0-9a-f]{64}").fullmatch
NEW_NAME = recorded_name_field("name", "The campaign's name. It cannot be changed.", "cards-2026")
NAME = recorded_name_field(
    "name", "The campaign's name.", "cards-2026", not_found="no such campaign"
)
DESCRIPTION = text_field(
    "description", "A description for people.", "Cards to ML-KEM-1024", at_most=256, at_least=0
).or_default("")
SOURCES = _list_field(
    "sources",
    f"The key versions to move away from: 1 to {MAX_SOURCES} keys.",
    (KEYRING, _ALGORITHM, _KEY_VERSIONS),
    _source,
    1,
    MAX_SOURCES,
)
TARGET = _object_field(
    "target",
    "The key to move to. Its active version is used.",
    (KEYRING, _TARGET_ALGORITHM),
    _target,
)
QUIET_DAYS = integer_field(
    "quiet_days",
    "Days without a use of a source after which the sources are quiet.",
    30,
    at_least=1,
    at_most=MAX_QUIET_DAYS,
).or_default(30)
STATE = choice_field(
    "state",
    "Re-encryptions and scans can name only an open campaign.",
    tuple(CampaignState),
    CampaignState.OPEN,
).or_default(CampaignState.OPEN)
REPLACE = boolean_field(
    "replace", "Whether to replace a campaign that has the name. Left out: true.", example=True
).or_default(default=True)
PLACE = text_field(
    "place",
    "The scanned place, such as a folder or a table. The audit log's readers can read it.",
    "payments.cards",
    at_most=MAX_PLACE,
)
SHA256 = text_field(
    "sha256",
    "SHA-256 of the scan's file, in lower-case hexadecimal. The audit log records it.",
    "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
    at_least=64,
    at_most=64,
    pattern="^[0-9a-f]{64}$",
    is_valid=lambda text: _is_sha256(text) is not None,
    must="must be 64 digits of lower-case hexadecimal",
)
SCANNED_AT = time_field("scanned_at", "The end of the scan.", "2026-01-31T12:00:00Z")
COUNTS = _list_field(
    "counts",
    f"The number of ciphertexts by key version: at most {MAX_VERSIONS} versions.",
    (KEYRING, _ALGORITHM, KEY_VERSION, _COUNT),
    _count,
    0,
    MAX_VERSIONS,
)
UNREADABLE = integer_field(
    "unreadable",
    "The number of entries in which the scan found no key version.",
    0,
    at_least=0,
    at_most=MAX_COUNT,
).or_default(0)
