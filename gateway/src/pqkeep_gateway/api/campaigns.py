"""/api/v1/campaigns: plans to move data from old keys to a new one, and their progress."""

from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from typing import Any

import msgspec
from msgspec import structs

from pqkeep_gateway.access.callers import Permission
from pqkeep_gateway.access.clock import Clock, date_of
from pqkeep_gateway.access.entitlements import TenantNotFoundError
from pqkeep_gateway.access.scopes import ScopeDeniedError
from pqkeep_gateway.api.campaign_data import (
    COUNTS,
    DESCRIPTION,
    MAX_VERSIONS,
    NAME,
    NEW_NAME,
    PLACE,
    QUIET_DAYS,
    REPLACE,
    SCANNED_AT,
    SHA256,
    SOURCES,
    STATE,
    TARGET,
    UNREADABLE,
    CampaignData,
    CampaignList,
    CampaignProgress,
    CanaryData,
    CanaryState,
    Knowledge,
    Left,
    Moved,
    Quiet,
    ScanData,
    SourceData,
    TargetData,
    campaign_data,
    canary_data,
    left_data,
    moved_data,
    quiet_data,
    scan_data,
    united,
    version_sets,
)
from pqkeep_gateway.api.errors import (
    BAD_REQUEST_FIELDS,
    KEY_SERVICE_OUTAGE,
    codes_of_operation,
    error_for,
    key_service_error,
)
from pqkeep_gateway.api.key_fields import (
    UNTIL,
)
from pqkeep_gateway.api.key_operation import KeyAccess
from pqkeep_gateway.audit_delivery import AuditDelivery
from pqkeep_gateway.audit_events import event
from pqkeep_gateway.http.endpoint import ApiCall, Endpoint, Subject
from pqkeep_gateway.http.field import (
    MAX_LISTED,
    FieldError,
    Problem,
)
from pqkeep_gateway.http.text import timestamp
from pqkeep_gateway.outgoing_mail import shown_time
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
    TooManyCampaignsError,
    TooManyPlacesError,
)
from pqkeep_gateway.storage.database import MICROSECOND, microseconds, time_of
from pqkeep_protocol.algorithms import Operation
from pqkeep_protocol.audit import Event, GetMigration, KeyVersionSet, Migration
from pqkeep_protocol.audit_events import AuditEvent
from pqkeep_protocol.errors import ErrorKind, KeyServiceError
from pqkeep_protocol.keys import KeyStatus, KeyVersion
from pqkeep_protocol.messages import DisableKey, EnableKey, GetActiveKey, ListKeys

CLOCK_LEAD_US = timedelta(minutes=5) // MICROSECOND
"""The largest lead of a scanning program's clock, in microseconds."""
MAX_EXTENSIONS = 100
"""The most earlier times of a canary that are kept."""
_USABLE = frozenset({KeyStatus.ACTIVE, KeyStatus.RETIRED})

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
        return campaign_data(stored)

    async def list_(self, call: ApiCall) -> CampaignList:
        """List campaigns by name, including closed ones."""
        listed = await self._stored.list(call.tenant.tenant)
        return CampaignList(campaigns=tuple(map(campaign_data, listed)), total=len(listed))

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
            **structs.asdict(campaign_data(campaign)),
            moved=moved_data(found, now),
            left=left_data(scans, campaign, active),
            quiet=quiet_data(found, campaign, now),
            canary=canary_data(campaign, found, now),
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
            for chosen in version_sets(campaign.sources, campaign, active)
        ]
        canary = Canary(now, until, str(call.principal), united((), versions))
        if before is not None:
            until = max(until, before.until)
            times = {*before.earlier, before.until} - {until}
            canary = structs.replace(
                canary,
                since=before.since,
                until=until,
                versions=united(before.versions, versions),
                earlier=tuple(sorted(times)[-MAX_EXTENSIONS:]),
            )
        begun = _event(call, AuditEvent.BEGIN_CANARY, campaign.name)
        begun = structs.replace(begun, policy=f"until-{timestamp(until)}")
        await self._stored.save_canary(tenant, campaign.name, canary, begun)
        await self._audit_delivery.deliver()
        await self._change(
            call,
            Operation.DISABLE_KEY,
            united((), versions),
            lambda key: DisableKey(**key, until=until),
        )
        changed = await self._stored.get(tenant, campaign.name)
        return canary_data(changed, await self._migration(call, changed, active, now), now)

    async def subject_of_canary(self, call: ApiCall) -> Subject:
        """Return the campaign of a canary, which disables its sources."""
        campaign = await self._stored.get(call.tenant.tenant, call[NAME])
        until = shown_time(call[UNTIL])
        return Subject(
            f"Begin a canary: disable the sources of the campaign {campaign.name} until {until}",
            [campaign.sources, campaign.target, campaign.state, campaign.changed_at],
            Permission.RUN_CANARIES,
        )

    async def end_canary(self, call: ApiCall) -> CanaryData:
        """Enable the disabled sources at once.

        Sources that a person has disabled since stay disabled.
        """
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
        return canary_data(changed, await self._migration(call, changed, active, now), now)

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
            sources=version_sets(campaign.sources, campaign, active),
            refused=() if canary is None else version_sets(canary.versions, campaign, None),
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
        return campaign_data(campaign)

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
        return scan_data(scan, campaign, active)


def _event(call: ApiCall, operation: AuditEvent, campaign: str, digest: bytes = b"") -> Event:
    """Return the event of a change. ``digest``: SHA-256 of the change's content."""
    policy = f"sha256-{digest.hex()}" if digest else ""
    tenant = call.tenant.tenant
    return structs.replace(
        event(call.attribution, tenant, operation, policy=policy), campaign=campaign
    )
