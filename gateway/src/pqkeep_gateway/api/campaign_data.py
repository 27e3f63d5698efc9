"""Campaigns in requests and responses: the plan, and what is known about its progress."""

import re
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Annotated, Any, TypeVar, cast

from msgspec import Meta

from pqkeep_gateway.api.key_fields import (
    KEY_VERSION,
    KEYRING,
    algorithm_field,
    recorded_name_field,
)
from pqkeep_gateway.http.envelope import Data
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
from pqkeep_gateway.http.text import Timestamp, timestamp
from pqkeep_gateway.storage.campaigns import (
    Campaign,
    CampaignState,
    Scan,
    Source,
    Target,
    VersionCount,
)
from pqkeep_gateway.storage.database import time_of
from pqkeep_protocol.algorithms import Algorithm, Operation
from pqkeep_protocol.audit import KeyVersionSet, Migration
from pqkeep_protocol.keys import DEFAULT_KEYRING, MAX_KEY_VERSION, KeyVersion

Count = Annotated[int, Meta(ge=0)]


class SourceData(Data, frozen=True, kw_only=True):
    """Key versions to move away from."""

    keyring: str
    algorithm: str
    key_versions: Annotated[
        tuple[int, ...] | None,
        Meta(
            description="The versions. null: all; of the target's own key, all but the active version."
        ),
    ]


class TargetData(Data, frozen=True, kw_only=True):
    """The key to move to. Its active version is used."""

    keyring: str
    algorithm: str


class CampaignData(Data, frozen=True, kw_only=True):
    """A campaign: a plan to move data from old keys to a new one."""

    name: str
    description: str
    sources: tuple[SourceData, ...]
    target: TargetData
    quiet_days: Annotated[
        int, Meta(description="Days without a use of a source after which the sources are quiet.")
    ]
    state: CampaignState
    created_at: Timestamp
    created_by: Annotated[str, Meta(description="The principal that created it.")]
    changed_at: Timestamp


class CampaignList(Data, frozen=True, kw_only=True):
    """A tenant's campaigns, by name."""

    campaigns: tuple[CampaignData, ...]
    total: Count


class Knowledge(StrEnum):
    """The kind of knowledge behind a part of a campaign's state."""

    EXACT = "exact"
    """A count of the audit log."""
    STATEMENT = "statement"
    """A statement of callers. The service cannot check it."""
    OBSERVED = "observed"
    """What the service saw. It does not see local files and programs that do nothing."""


class CanaryState(StrEnum):
    """The state of a campaign's canary."""

    NONE = "none"
    RUNNING = "running"
    ENDED = "ended"


class MovedData(Data, frozen=True, kw_only=True):
    """The re-encryptions from one key version to another."""

    keyring: str
    algorithm: str
    key_version: int
    target_keyring: str
    target_algorithm: str
    target_key_version: int
    count: Count
    first_at: Timestamp
    last_at: Timestamp


class Moved(Data, frozen=True, kw_only=True):
    """The re-encryptions that name the campaign."""

    knowledge: Knowledge
    as_of: Timestamp
    count: Annotated[
        Count, Meta(description="Re-encryptions. One ciphertext can be re-encrypted twice.")
    ]
    last_at: Timestamp | None
    by_version: tuple[MovedData, ...]


class ScanData(Data, frozen=True, kw_only=True):
    """A statement about the ciphertexts in a place."""

    place: str
    sha256: Annotated[str, Meta(description="SHA-256 of the scan's file, in hexadecimal.")]
    scanned_at: Annotated[
        Timestamp, Meta(description="The end of the scan, as its sender states it.")
    ]
    recorded_at: Timestamp
    principal: Annotated[str, Meta(description="The principal that makes the statement.")]
    left: Annotated[Count, Meta(description="Ciphertexts of source versions.")]
    other: Annotated[Count, Meta(description="Ciphertexts of other key versions.")]
    unreadable: Annotated[Count, Meta(description="Entries without a known key version.")]


class Left(Data, frozen=True, kw_only=True):
    """The ciphertexts of source versions, by the newest scan of each place."""

    knowledge: Knowledge
    as_of: Annotated[Timestamp | None, Meta(description="The time of the oldest of these scans.")]
    count: Annotated[
        Count | None, Meta(description="The number of ciphertexts; null: there is no scan.")
    ]
    unreadable: Count
    scans: tuple[ScanData, ...]


class Quiet(Data, frozen=True, kw_only=True):
    """Whether no source was used for the campaign's quiet days."""

    knowledge: Knowledge
    as_of: Timestamp
    is_quiet: bool
    last_used_at: Annotated[
        Timestamp | None, Meta(description="The newest use of a source; null if it was never used.")
    ]


class RefusedData(Data, frozen=True, kw_only=True):
    """A principal's refused uses of a key version."""

    principal: str
    keyring: str
    algorithm: str
    key_version: Annotated[
        int | None,
        Meta(description="The requested version; null: the caller asked for the active version."),
    ]
    count: Count
    last_at: Timestamp


class CanaryData(Data, frozen=True, kw_only=True):
    """The newest canary: the sources are disabled until a time."""

    knowledge: Knowledge
    as_of: Timestamp
    state: CanaryState
    since: Timestamp | None
    until: Timestamp | None
    ended_at: Annotated[
        Timestamp | None, Meta(description="The end of the canary; null: it has not ended.")
    ]
    begun_by: str | None
    disabled: tuple[SourceData, ...]
    refused: Annotated[
        tuple[RefusedData, ...], Meta(description="Refused uses in that time, the newest first.")
    ]
    complete: Annotated[bool, Meta(description="Whether `refused` has all of them.")]


class CampaignProgress(CampaignData, frozen=True, kw_only=True):
    """A campaign and its progress. No percentage is shown, because the total is unknown."""

    moved: Moved
    left: Left
    quiet: Quiet
    canary: CanaryData


def campaign_data(campaign: Campaign) -> CampaignData:
    """Return a plan as responses show it."""
    return CampaignData(
        name=campaign.name,
        description=campaign.description,
        sources=tuple(map(_source_data, campaign.sources)),
        target=TargetData(keyring=campaign.target.keyring, algorithm=campaign.target.algorithm),
        quiet_days=campaign.quiet_days,
        state=campaign.state,
        created_at=timestamp(campaign.created_at),
        created_by=campaign.created_by,
        changed_at=timestamp(campaign.changed_at),
    )


def version_sets(
    sources: Sequence[Source], campaign: Campaign, active: KeyVersion | None
) -> tuple[KeyVersionSet, ...]:
    """Return sources as sets of key versions. ``active``: the target's active version."""
    target = campaign.target
    return tuple(
        KeyVersionSet(
            source.keyring,
            source.algorithm,
            source.versions,
            active
            if source.versions is None
            and (source.keyring, source.algorithm) == (target.keyring, target.algorithm)
            else None,
        )
        for source in sources
    )


def united(before: Sequence[Source], after: Sequence[Source]) -> tuple[Source, ...]:
    """Return the key versions of both lists, without duplicates."""
    versions: dict[tuple[str, Algorithm], set[KeyVersion]] = {}
    for source in (*before, *after):
        found = versions.setdefault((source.keyring, source.algorithm), set())
        found.update(source.versions or ())
    return tuple(Source(*key, tuple(sorted(found))) for key, found in versions.items() if found)


def _time(at_us: int) -> Timestamp:
    return timestamp(time_of(at_us))


def moved_data(found: Migration, now: datetime) -> Moved:
    """Return the re-encryptions that the audit log counts."""
    return Moved(
        knowledge=Knowledge.EXACT,
        as_of=timestamp(now),
        count=sum(moved.count for moved in found.moved),
        last_at=_time(max(moved.last_us for moved in found.moved)) if found.moved else None,
        by_version=tuple(
            MovedData(
                keyring=moved.keyring,
                algorithm=moved.algorithm,
                key_version=moved.version,
                target_keyring=moved.target_keyring,
                target_algorithm=moved.target_algorithm,
                target_key_version=moved.target_version,
                count=moved.count,
                first_at=_time(moved.first_us),
                last_at=_time(moved.last_us),
            )
            for moved in found.moved
        ),
    )


def left_data(scans: Sequence[Scan], campaign: Campaign, active: KeyVersion | None) -> Left:
    """Return the statements of scans. ``active``: the target's active version."""
    shown = tuple(scan_data(scan, campaign, active) for scan in scans)
    return Left(
        knowledge=Knowledge.STATEMENT,
        as_of=timestamp(min(scan.scanned_at for scan in scans)) if scans else None,
        count=sum(scan.left for scan in shown) if scans else None,
        unreadable=sum(scan.unreadable for scan in scans),
        scans=shown,
    )


def quiet_data(found: Migration, campaign: Campaign, now: datetime) -> Quiet:
    """Return whether the sources are quiet."""
    last = None if found.last_used_us is None else time_of(found.last_used_us)
    quiet = timedelta(days=campaign.quiet_days)
    return Quiet(
        knowledge=Knowledge.OBSERVED,
        as_of=timestamp(now),
        is_quiet=last is None or last + quiet <= now,
        last_used_at=None if last is None else timestamp(last),
    )


def canary_data(campaign: Campaign, found: Migration, now: datetime) -> CanaryData:
    """Return the newest canary with the refused uses."""
    canary = campaign.canary
    ended = None if canary is None else canary.end(now)
    running = CanaryState.RUNNING if ended is None else CanaryState.ENDED
    return CanaryData(
        knowledge=Knowledge.OBSERVED,
        as_of=timestamp(now),
        state=CanaryState.NONE if canary is None else running,
        since=None if canary is None else timestamp(canary.since),
        until=None if canary is None else timestamp(canary.until),
        ended_at=None if ended is None else timestamp(ended),
        begun_by=None if canary is None else canary.by,
        disabled=() if canary is None else tuple(map(_source_data, canary.versions)),
        refused=tuple(
            RefusedData(
                principal=refused.principal,
                keyring=refused.keyring,
                algorithm=refused.algorithm,
                key_version=refused.version,
                count=refused.count,
                last_at=_time(refused.last_us),
            )
            for refused in found.refused
        ),
        complete=found.is_whole,
    )


def _source_data(source: Source) -> SourceData:
    return SourceData(
        keyring=source.keyring, algorithm=source.algorithm, key_versions=source.versions
    )


def scan_data(scan: Scan, campaign: Campaign, active: KeyVersion | None) -> ScanData:
    """Return a scan with its counts of sources. ``active``: the target's active version."""
    chosen = version_sets(campaign.sources, campaign, active)
    left = sum(
        counted.count
        for counted in scan.counts
        if any(each.has(counted.keyring, counted.algorithm, counted.version) for each in chosen)
    )
    return ScanData(
        place=scan.place,
        sha256=scan.digest.hex(),
        scanned_at=timestamp(scan.scanned_at),
        recorded_at=timestamp(scan.recorded_at),
        principal=scan.principal,
        left=left,
        other=sum(counted.count for counted in scan.counts) - left,
        unreadable=scan.unreadable,
    )


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
