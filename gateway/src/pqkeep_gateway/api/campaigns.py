"""/api/v1/campaigns: plans to move data from old keys to a new one, and their progress."""

import re
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from hashlib import sha256
from typing import Annotated, Any, TypeVar, cast

import msgspec
from msgspec import Meta, structs

from pqkeep_gateway.access.callers import Permission
from pqkeep_gateway.access.clock import Clock, date_of
from pqkeep_gateway.access.entitlements import TenantNotFoundError
from pqkeep_gateway.access.scopes import ScopeDeniedError
from pqkeep_gateway.api.errors import (
    BAD_REQUEST_FIELDS,
    KEY_SERVICE_OUTAGE,
    codes_of_operation,
    error_for,
    key_service_error,
)
from pqkeep_gateway.api.key_fields import (
    KEY_VERSION,
    KEYRING,
    UNTIL,
    algorithm_field,
    recorded_name_field,
)
from pqkeep_gateway.api.key_operation import KeyAccess
from pqkeep_gateway.audit_delivery import AuditDelivery
from pqkeep_gateway.audit_events import event
from pqkeep_gateway.http.endpoint import ApiCall, Endpoint, Subject
from pqkeep_gateway.http.envelope import Data
from pqkeep_gateway.http.field import (
    MAX_LISTED,
    Field,
    FieldError,
    InvalidValueError,
    Problem,
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
    CampaignClosedError,
    CampaignExistsError,
    CampaignNotFoundError,
    CampaignState,
    Canary,
    CanaryRunsError,
    NoCanaryError,
    OlderScanError,
    Scan,
    Source,
    Target,
    TooManyCampaignsError,
    TooManyPlacesError,
    VersionCount,
)
from pqkeep_gateway.storage.database import MICROSECOND, microseconds, time_of
from pqkeep_protocol.algorithms import Algorithm, Operation
from pqkeep_protocol.audit import Event, GetMigration, KeyVersionSet, Migration
from pqkeep_protocol.audit_events import AuditEvent
from pqkeep_protocol.errors import ErrorKind, KeyServiceError
from pqkeep_protocol.keys import DEFAULT_KEYRING, MAX_KEY_VERSION, KeyStatus, KeyVersion
from pqkeep_protocol.messages import DisableKey, EnableKey, GetActiveKey, ListKeys

T = TypeVar("T")
Values = Mapping[str, object]

MAX_SOURCES = 20
MAX_VERSIONS = 100
"""Key versions of a source, and key versions in a scan."""
MAX_PLACE = 200
MAX_COUNT = 10**15
"""The largest count in a scan."""
MAX_QUIET_DAYS = 3650
CLOCK_LEAD_US = timedelta(minutes=5) // MICROSECOND
"""The largest lead of a scanning program's clock, in microseconds."""
Count = Annotated[int, Meta(ge=0)]
MAX_EXTENSIONS = 100
"""The most earlier times of a canary that are kept."""
_USABLE = frozenset({KeyStatus.ACTIVE, KeyStatus.RETIRED})


class SourceData(Data, frozen=True, kw_only=True):
    """Key versions to move away from."""

    keyring: str
    algorithm: str
    key_versions: Annotated[
        tuple[int, ...] | None,
        Meta(description="null: all; of the target's own key, all but the active version."),
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
    """What callers state. The service cannot check it."""
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
    scanned_at: Annotated[Timestamp, Meta(description="The end of the scan, by its sender.")]
    recorded_at: Timestamp
    principal: Annotated[str, Meta(description="The principal that makes the statement.")]
    left: Annotated[Count, Meta(description="Ciphertexts of source versions.")]
    other: Annotated[Count, Meta(description="Ciphertexts of other key versions.")]
    unreadable: Annotated[Count, Meta(description="Entries without a known key version.")]


class Left(Data, frozen=True, kw_only=True):
    """The ciphertexts of source versions, by the newest scan of each place."""

    knowledge: Knowledge
    as_of: Annotated[Timestamp | None, Meta(description="The time of the oldest of these scans.")]
    count: Annotated[Count | None, Meta(description="null: there is no scan.")]
    unreadable: Count
    scans: tuple[ScanData, ...]


class Quiet(Data, frozen=True, kw_only=True):
    """Whether no source was used for the campaign's quiet days."""

    knowledge: Knowledge
    as_of: Timestamp
    is_quiet: bool
    last_used_at: Annotated[
        Timestamp | None, Meta(description="The newest use of a source; null: there is none.")
    ]


class RefusedData(Data, frozen=True, kw_only=True):
    """A principal's refused uses of a key version."""

    principal: str
    keyring: str
    algorithm: str
    key_version: Annotated[
        int | None, Meta(description="null: the caller asked for the active version.")
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
    ended_at: Annotated[Timestamp | None, Meta(description="null: it has not ended.")]
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

_AT = timestamp(datetime(2026, 1, 31, 12, tzinfo=UTC))
_EXAMPLE = CampaignData(
    name="cards-2026",
    description=str(DESCRIPTION.example),
    sources=(SourceData(keyring="payments.cards", algorithm="ML-KEM-768", key_versions=None),),
    target=TargetData(keyring="payments.cards", algorithm="ML-KEM-1024"),
    quiet_days=30,
    state=CampaignState.OPEN,
    created_at=_AT,
    created_by="user:6f5a1c9e-0d3b-4a53-9a55-2c1f9b1d7e10",
    changed_at=_AT,
)
_SCAN = ScanData(
    place=str(PLACE.example),
    sha256=str(SHA256.example),
    scanned_at=_AT,
    recorded_at=_AT,
    principal="api-key:3/migration",
    left=17,
    other=0,
    unreadable=0,
)


_CANARY = CanaryData(
    knowledge=Knowledge.OBSERVED,
    as_of=_AT,
    state=CanaryState.RUNNING,
    since=_AT,
    until=timestamp(datetime(2026, 2, 7, 12, tzinfo=UTC)),
    ended_at=None,
    begun_by=_EXAMPLE.created_by,
    disabled=_EXAMPLE.sources,
    refused=(),
    complete=True,
)
_PROGRESS = CampaignProgress(
    **structs.asdict(_EXAMPLE),
    moved=Moved(knowledge=Knowledge.EXACT, as_of=_AT, count=0, last_at=None, by_version=()),
    left=Left(knowledge=Knowledge.STATEMENT, as_of=_AT, count=17, unreadable=0, scans=(_SCAN,)),
    quiet=Quiet(knowledge=Knowledge.OBSERVED, as_of=_AT, is_quiet=False, last_used_at=_AT),
    canary=_CANARY,
)


def endpoints(
    access: KeyAccess, audit_delivery: AuditDelivery, clock: Clock
) -> tuple[Endpoint, ...]:
    """Return the endpoints of campaigns."""
    handlers = _Campaigns(access, audit_delivery, clock)
    return (
        Endpoint(
            method="PUT",
            path="/campaigns/{name}",
            name="put_campaign",
            handler=handlers.put,
            permission=Permission.MANAGE_KEYS,
            example=_EXAMPLE,
            fields=(NEW_NAME, DESCRIPTION, SOURCES, TARGET, QUIET_DAYS, STATE, REPLACE),
            field_codes=BAD_REQUEST_FIELDS,
            errors=(
                TenantNotFoundError,
                TooManyCampaignsError,
                CampaignExistsError,
                CanaryRunsError,
            ),
        ),
        Endpoint(
            method="GET",
            path="/campaigns",
            name="list_campaigns",
            handler=handlers.list_,
            permission=Permission.VIEW_KEYS,
            example=CampaignList(campaigns=(_EXAMPLE,), total=1),
            field_codes=BAD_REQUEST_FIELDS,
        ),
        Endpoint(
            method="GET",
            path="/campaigns/{name}",
            name="get_campaign",
            handler=handlers.get,
            permission=Permission.VIEW_KEYS,
            example=_PROGRESS,
            fields=(NAME,),
            field_codes=BAD_REQUEST_FIELDS,
            codes=KEY_SERVICE_OUTAGE,
            errors=(CampaignNotFoundError,),
        ),
        Endpoint(
            method="POST",
            path="/campaigns/{name}/scans",
            name="add_campaign_scan",
            handler=handlers.add_scan,
            permission=Permission.USE_KEYS,
            example=_SCAN,
            fields=(NAME, PLACE, SHA256, SCANNED_AT, COUNTS, UNREADABLE),
            field_codes=BAD_REQUEST_FIELDS,
            status=201,
            errors=(
                CampaignNotFoundError,
                CampaignClosedError,
                TenantNotFoundError,
                TooManyPlacesError,
                OlderScanError,
            ),
        ),
        Endpoint(
            method="POST",
            path="/campaigns/{name}/canary",
            name="begin_canary",
            handler=handlers.begin_canary,
            permission=Permission.RUN_CANARIES,
            example=_CANARY,
            fields=(NAME, UNTIL),
            field_codes=BAD_REQUEST_FIELDS,
            codes=codes_of_operation(Operation.DISABLE_KEY),
            status=201,
            needs_step_up=True,
            subject_of=handlers.subject_of_canary,
            errors=(CampaignNotFoundError, CampaignClosedError, ScopeDeniedError),
        ),
        Endpoint(
            method="DELETE",
            path="/campaigns/{name}/canary",
            name="end_canary",
            handler=handlers.end_canary,
            permission=Permission.RUN_CANARIES,
            example=structs.replace(_CANARY, state=CanaryState.ENDED),
            fields=(NAME,),
            field_codes=BAD_REQUEST_FIELDS,
            codes=codes_of_operation(Operation.ENABLE_KEY),
            errors=(CampaignNotFoundError, NoCanaryError, ScopeDeniedError),
        ),
        Endpoint(
            method="DELETE",
            path="/campaigns/{name}",
            name="close_campaign",
            handler=handlers.close,
            permission=Permission.MANAGE_KEYS,
            example=structs.replace(_EXAMPLE, state=CampaignState.CLOSED),
            fields=(NAME,),
            field_codes=BAD_REQUEST_FIELDS,
            errors=(CampaignNotFoundError,),
        ),
    )


class _Campaigns:
    """The handlers."""

    def __init__(self, access: KeyAccess, audit_delivery: AuditDelivery, clock: Clock) -> None:
        self._access = access
        self._stored = access.campaigns
        self._audit_delivery = audit_delivery
        self._clock = clock

    async def put(self, call: ApiCall) -> CampaignData:
        """Create a campaign, or replace the campaign with this name.

        A campaign enforces nothing. Re-encryptions that name the campaign count as moved. A
        replaced campaign keeps its scans and its moves.
        """
        sources = call[SOURCES]
        if len({(source.keyring, source.algorithm) for source in sources}) < len(sources):
            message = "sources must name a keyring's algorithm only once"
            raise FieldError(SOURCES.name, Problem.MALFORMED, message)
        now = date_of(self._clock())
        campaign = Campaign(
            tenant=call.tenant.tenant,
            name=call[NEW_NAME],
            description=call[DESCRIPTION],
            sources=sources,
            target=call[TARGET],
            quiet_days=call[QUIET_DAYS],
            state=call[STATE],
            created_at=now,
            created_by=str(call.principal),
            changed_at=now,
        )
        content = msgspec.json.encode([sources, campaign.target, campaign.quiet_days])
        put = _event(call, AuditEvent.PUT_CAMPAIGN, campaign.name, sha256(content).digest())
        stored = await self._stored.put(campaign, put, replaces=call[REPLACE])
        await self._audit_delivery.deliver()
        return _campaign(stored)

    async def list_(self, call: ApiCall) -> CampaignList:
        """List campaigns by name, including closed ones."""
        listed = await self._stored.list(call.tenant.tenant)
        return CampaignList(campaigns=tuple(map(_campaign, listed)), total=len(listed))

    async def get(self, call: ApiCall) -> CampaignProgress:
        """Return a campaign and its progress.

        `moved` is a count of the audit log. `left` is what scans state. `quiet` and `canary` are
        what the service saw.
        """
        tenant, name = call.tenant.tenant, call[NAME]
        campaign = await self._stored.get(tenant, name)
        scans = await self._stored.list_scans(tenant, name)
        now = date_of(self._clock())
        active = await self._active_of_target(call, campaign)
        found = await self._migration(call, campaign, active, now)
        return CampaignProgress(
            **structs.asdict(_campaign(campaign)),
            moved=_moved(found, now),
            left=_left(scans, campaign, active),
            quiet=_quiet(found, campaign, now),
            canary=_canary(campaign, found, now),
        )

    async def begin_canary(self, call: ApiCall) -> CanaryData:
        """Disable the sources until a time, to see in the refusals who still needs them.

        The key service enables them at that time. A key version that a person disabled stays
        disabled, until its own time. The request can be repeated, also with a later time.
        """
        tenant, now = call.tenant.tenant, date_of(self._clock())
        campaign = await self._stored.get(tenant, call[NAME])
        if campaign.state is CampaignState.CLOSED:
            raise CampaignClosedError
        until = call[UNTIL]
        for source in campaign.sources:
            self._access.attribute(call, Operation.DISABLE_KEY, source.keyring, source.algorithm)
        active = await self._active_of_target(call, campaign)
        before = campaign.canary
        if before is not None and before.end(now) is not None:
            before = None
        versions = [
            await self._usable(call, chosen, before)
            for chosen in _chosen(campaign.sources, campaign, active)
        ]
        canary = Canary(now, until, str(call.principal), _united((), versions))
        if before is not None:
            until = max(until, before.until)
            times = {*before.earlier, before.until} - {until}
            canary = structs.replace(
                canary,
                since=before.since,
                until=until,
                versions=_united(before.versions, versions),
                earlier=tuple(sorted(times)[-MAX_EXTENSIONS:]),
            )
        begun = _event(call, AuditEvent.BEGIN_CANARY, campaign.name)
        begun = structs.replace(begun, policy=f"until-{timestamp(until)}")
        await self._stored.save_canary(tenant, campaign.name, canary, begun)
        await self._audit_delivery.deliver()
        await self._change(
            call,
            Operation.DISABLE_KEY,
            _united((), versions),
            lambda key: DisableKey(**key, until=until),
        )
        changed = await self._stored.get(tenant, campaign.name)
        return _canary(changed, await self._migration(call, changed, active, now), now)

    async def subject_of_canary(self, call: ApiCall) -> Subject:
        """Return the campaign of a canary, which disables its sources."""
        campaign = await self._stored.get(call.tenant.tenant, call[NAME])
        return Subject(
            f"Begin a canary: disable the sources of the campaign {campaign.name} until"
            f" {call[UNTIL]:%Y-%m-%d %H:%M} UTC",
            [campaign.sources, campaign.target, campaign.state, campaign.changed_at],
            Permission.RUN_CANARIES,
        )

    async def end_canary(self, call: ApiCall) -> CanaryData:
        """Enable the disabled sources at once, except those that a person has disabled since."""
        tenant, now = call.tenant.tenant, date_of(self._clock())
        campaign = await self._stored.get(tenant, call[NAME])
        canary = campaign.canary
        if canary is None or canary.end(now) is not None:
            raise NoCanaryError
        until = canary.until
        await self._change(
            call,
            Operation.ENABLE_KEY,
            canary.versions,
            lambda key: EnableKey(**key, until=until),
        )
        ended = _event(call, AuditEvent.END_CANARY, campaign.name)
        await self._stored.save_canary(
            tenant, campaign.name, structs.replace(canary, ended=now), ended
        )
        await self._audit_delivery.deliver()
        changed = await self._stored.get(tenant, campaign.name)
        active = await self._active_of_target(call, campaign)
        return _canary(changed, await self._migration(call, changed, active, now), now)

    async def _change(
        self,
        call: ApiCall,
        operation: Operation,
        versions: Sequence[Source],
        make: Callable[[dict[str, Any]], DisableKey | EnableKey],
    ) -> None:
        """Change key versions of a canary. Raises ApiError; a repeated request continues."""
        for source in versions:
            attribution = self._access.attribute(call, operation, source.keyring, source.algorithm)
            for version in source.versions or ():
                request = make(
                    {
                        "tenant": call.tenant.tenant,
                        "keyring": source.keyring,
                        "algorithm": source.algorithm,
                        "version": version,
                    }
                )
                try:
                    await self._access.keys.execute(request, attribution, call.tenant.placement)
                except KeyServiceError as refusal:
                    if refusal.kind not in {ErrorKind.KEY_STATUS, ErrorKind.KEY_NOT_FOUND}:
                        raise error_for(operation, refusal) from None

    async def _usable(self, call: ApiCall, chosen: KeyVersionSet, running: Canary | None) -> Source:
        """Return the key versions of a set that are usable, or disabled by a running canary.

        Raises ApiError.
        """
        request = ListKeys(
            tenant=call.tenant.tenant,
            keyring=chosen.keyring,
            algorithm=chosen.algorithm,
            status=None,
        )
        attribution = self._access.attribute(
            call, Operation.LIST_KEYS, chosen.keyring, chosen.algorithm
        )
        found: list[KeyVersion] = []
        try:
            async for page in self._access.pages(
                request, attribution, call.tenant.placement, MAX_LISTED
            ):
                found += (
                    key.version
                    for key in page.keys
                    if chosen.has(key.keyring, key.algorithm, key.version)
                    and (
                        key.status in _USABLE
                        or (
                            key.status is KeyStatus.DISABLED
                            and running is not None
                            and running.may_have_disabled(key.disabled_until)
                        )
                    )
                )
        except KeyServiceError as refusal:
            raise error_for(Operation.LIST_KEYS, refusal) from None
        if len(found) > MAX_VERSIONS:
            message = f"a canary disables at most {MAX_VERSIONS} versions of a key: name them"
            raise FieldError(NAME.name, Problem.MALFORMED, message)
        return Source(chosen.keyring, chosen.algorithm, tuple(found))

    async def _active_of_target(self, call: ApiCall, campaign: Campaign) -> KeyVersion | None:
        """Return the active version of the target, or None.

        It is needed if a source belongs to the target's key.
        """
        target = campaign.target
        own = (target.keyring, target.algorithm)
        if not any(
            (source.keyring, source.algorithm) == own and source.versions is None
            for source in campaign.sources
        ):
            return None
        request = GetActiveKey(
            tenant=call.tenant.tenant, keyring=target.keyring, algorithm=target.algorithm
        )
        try:
            found = await self._access.keys.execute(
                request, call.attribution, call.tenant.placement
            )
        except KeyServiceError as refusal:
            if refusal.kind in {ErrorKind.KEY_NOT_FOUND, ErrorKind.KEYRING_NOT_FOUND}:
                return None
            raise key_service_error(refusal.kind) from None
        return found.key.version

    async def _migration(
        self, call: ApiCall, campaign: Campaign, active: KeyVersion | None, now: datetime
    ) -> Migration:
        """Return what the key service has of a campaign. Raises ApiError."""
        canary = campaign.canary
        request = GetMigration(
            tenant=call.tenant.tenant,
            campaign=campaign.name,
            sources=_chosen(campaign.sources, campaign, active),
            refused=() if canary is None else _chosen(canary.versions, campaign, None),
            since_us=0 if canary is None else microseconds(canary.since),
            until_us=0 if canary is None else microseconds(canary.end(now) or now) + 1,
        )
        try:
            return await self._access.keys.execute(request, call.attribution, call.tenant.placement)
        except KeyServiceError as refusal:
            raise key_service_error(refusal.kind) from None

    async def close(self, call: ApiCall) -> CampaignData:
        """Close a campaign. The campaign keeps its scans and moves, and a PUT opens it again."""
        closed = _event(call, AuditEvent.CLOSE_CAMPAIGN, call[NAME])
        now = date_of(self._clock())
        campaign = await self._stored.close(call.tenant.tenant, call[NAME], now, closed)
        await self._audit_delivery.deliver()
        return _campaign(campaign)

    async def add_scan(self, call: ApiCall) -> ScanData:
        """Record a scan: the caller's statement about the ciphertexts in a place.

        It replaces the earlier scan of the same place. The service cannot check it. The audit log
        records the digest of the scan's file.
        """
        tenant, now_us, scanned_at_us = (
            call.tenant.tenant,
            microseconds(date_of(self._clock())),
            call[SCANNED_AT],
        )
        if scanned_at_us > now_us + CLOCK_LEAD_US:
            message = "scanned_at must not be in the future"
            raise FieldError(SCANNED_AT.name, Problem.MALFORMED, message)
        counts = call[COUNTS]
        if len({structs.astuple(counted)[:3] for counted in counts}) < len(counts):
            message = "counts must name a key version only once"
            raise FieldError(COUNTS.name, Problem.MALFORMED, message)
        campaign = await self._stored.get(tenant, call[NAME])
        scan = Scan(
            place=call[PLACE],
            digest=bytes.fromhex(call[SHA256]),
            scanned_at=time_of(scanned_at_us),
            recorded_at=time_of(now_us),
            principal=str(call.principal),
            counts=counts,
            unreadable=call[UNREADABLE],
        )
        added = _event(call, AuditEvent.ADD_CAMPAIGN_SCAN, call[NAME], scan.digest)
        await self._stored.add_scan(tenant, call[NAME], scan, added)
        await self._audit_delivery.deliver()
        active = await self._active_of_target(call, campaign)
        return _scan(scan, campaign, active)


def _event(call: ApiCall, operation: AuditEvent, campaign: str, digest: bytes = b"") -> Event:
    """Return the event of a change. ``digest``: SHA-256 of the change's content."""
    policy = f"sha256-{digest.hex()}" if digest else ""
    tenant = call.tenant.tenant
    return structs.replace(
        event(call.attribution, tenant, operation, policy=policy), campaign=campaign
    )


def _campaign(campaign: Campaign) -> CampaignData:
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


def _chosen(
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


def _united(before: Sequence[Source], after: Sequence[Source]) -> tuple[Source, ...]:
    """Return the key versions of both lists, without duplicates."""
    versions: dict[tuple[str, Algorithm], set[KeyVersion]] = {}
    for source in (*before, *after):
        found = versions.setdefault((source.keyring, source.algorithm), set())
        found.update(source.versions or ())
    return tuple(Source(*key, tuple(sorted(found))) for key, found in versions.items() if found)


def _time(at_us: int) -> Timestamp:
    return timestamp(time_of(at_us))


def _moved(found: Migration, now: datetime) -> Moved:
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


def _left(scans: Sequence[Scan], campaign: Campaign, active: KeyVersion | None) -> Left:
    shown = tuple(_scan(scan, campaign, active) for scan in scans)
    return Left(
        knowledge=Knowledge.STATEMENT,
        as_of=timestamp(min(scan.scanned_at for scan in scans)) if scans else None,
        count=sum(scan.left for scan in shown) if scans else None,
        unreadable=sum(scan.unreadable for scan in scans),
        scans=shown,
    )


def _quiet(found: Migration, campaign: Campaign, now: datetime) -> Quiet:
    last = None if found.last_used_us is None else time_of(found.last_used_us)
    quiet = timedelta(days=campaign.quiet_days)
    return Quiet(
        knowledge=Knowledge.OBSERVED,
        as_of=timestamp(now),
        is_quiet=last is None or last + quiet <= now,
        last_used_at=None if last is None else timestamp(last),
    )


def _canary(campaign: Campaign, found: Migration, now: datetime) -> CanaryData:
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


def _scan(scan: Scan, campaign: Campaign, active: KeyVersion | None) -> ScanData:
    chosen = _chosen(campaign.sources, campaign, active)
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
