"""Campaigns of tenants in SQL, with the newest scan of each place.

A campaign plans the move of data from old keys to a new one. It enforces nothing: the key service
counts what was moved, and the scans are statements of their senders.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any

import msgspec
import sqlalchemy as sa
from msgspec import Struct
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from pqkeep_gateway.storage.audit_outbox import add_audit_event
from pqkeep_gateway.storage.database import microseconds, read_transaction, time_of, transaction
from pqkeep_gateway.storage.schema import CAMPAIGN_SCANS, CAMPAIGNS
from pqkeep_gateway.storage.tenant_status import lock_tenant_to_add
from pqkeep_protocol.algorithms import Algorithm
from pqkeep_protocol.audit import Event
from pqkeep_protocol.keys import KeyringName, KeyVersion, TenantId

MAX_CAMPAIGNS = 200
"""Campaigns of a tenant, including closed ones."""
MAX_PLACES = 200
"""Scanned places of a campaign."""


class CampaignNotFoundError(Exception):
    """The tenant has no such campaign."""


class CampaignClosedError(Exception):
    """The campaign is closed."""


class NotInCampaignError(Exception):
    """The request's source or target is not one of the campaign."""


class CampaignExistsError(Exception):
    """A campaign has the name, and the request does not replace it."""


class TooManyCampaignsError(Exception):
    """The tenant has MAX_CAMPAIGNS campaigns."""


class TooManyPlacesError(Exception):
    """The campaign has scans of MAX_PLACES places."""


class CanaryRunsError(Exception):
    """A canary of the campaign runs."""


class NoCanaryError(Exception):
    """No canary of the campaign runs."""


class OlderScanError(Exception):
    """The campaign has a newer scan of the place."""


class CampaignState(StrEnum):
    """Whether re-encryptions and scans may name a campaign."""

    OPEN = "open"
    CLOSED = "closed"


class Source(Struct, frozen=True, array_like=True):
    """Key versions to move away from."""

    keyring: KeyringName
    algorithm: Algorithm
    versions: tuple[KeyVersion, ...] | None = None
    """None: all versions; of the target's own key, all but the active one."""


class Target(Struct, frozen=True, array_like=True):
    """The key to move to. Its active version is used."""

    keyring: KeyringName
    algorithm: Algorithm


class Canary(Struct, frozen=True):
    """A trial: the sources are disabled until a time, and refusals show who needs them."""

    since: datetime
    until: datetime
    by: str
    """The principal that began it."""
    versions: tuple[Source, ...]
    """The disabled key versions."""
    ended: datetime | None = None
    """When a person ended it before its time; None if no person did."""
    earlier: tuple[datetime, ...] = ()
    """The earlier end times, if it was extended."""

    def may_have_disabled(self, until: datetime | None) -> bool:
        """Return whether this canary may have disabled a key that is disabled until a time."""
        return until == self.until or until in self.earlier

    def end(self, now: datetime) -> datetime | None:
        """Return when it ended; None if it still runs."""
        return self.ended or (self.until if self.until <= now else None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Campaign:
    """A campaign of a tenant."""

    tenant: TenantId
    name: str
    description: str
    sources: tuple[Source, ...]
    target: Target
    quiet_days: int
    state: CampaignState
    created_at: datetime
    created_by: str
    """The principal that created it."""
    changed_at: datetime
    canary: Canary | None = None
    """The newest canary of the campaign."""

    def has_source(self, keyring: KeyringName, algorithm: str, version: int) -> bool:
        """Return whether a key version is one of the sources."""
        return any(
            (source.keyring, source.algorithm) == (keyring, algorithm)
            and (source.versions is None or version in source.versions)
            for source in self.sources
        )


class VersionCount(Struct, frozen=True, array_like=True):
    """The ciphertexts of a key version that a scan found."""

    keyring: KeyringName
    algorithm: Algorithm
    version: KeyVersion
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Scan:
    """A statement about the ciphertexts in a place."""

    place: str
    digest: bytes
    """SHA-256 of the scan's file (32 bytes)."""
    scanned_at: datetime
    """The end of the scan, by its sender."""
    recorded_at: datetime
    principal: str
    counts: tuple[VersionCount, ...]
    unreadable: int
    """The entries in which the scan found no key version."""


_SOURCES = msgspec.json.Decoder(tuple[Source, ...])
_CANARY = msgspec.json.Decoder(Canary)
_COUNTS = msgspec.json.Decoder(tuple[VersionCount, ...])


class SqlCampaigns:
    """Campaigns in the database. All methods raise UnavailableError."""

    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine

    async def put(
        self, campaign: Campaign, audit_event: Event, *, replaces: bool = True
    ) -> Campaign:
        """Store a campaign, or replace the one with its name; return the stored campaign.

        Raises TenantNotFoundError, TooManyCampaignsError, and CampaignExistsError if the campaign
        exists and ``replaces`` is False. Raises CanaryRunsError if the sources would change during
        a canary.
        """
        is_same = _is_named(campaign.tenant, campaign.name)
        changes = {
            "description": campaign.description,
            "sources": msgspec.json.encode(campaign.sources).decode(),
            "target_keyring": campaign.target.keyring,
            "target_algorithm": campaign.target.algorithm,
            "quiet_days": campaign.quiet_days,
            "state": campaign.state,
            "changed_at_us": microseconds(campaign.changed_at),
        }
        async with transaction(self._engine) as connection:
            await lock_tenant_to_add(connection, campaign.tenant)
            before = (await connection.execute(sa.select(CAMPAIGNS).where(is_same))).one_or_none()
            if before is not None:
                if not replaces:
                    raise CampaignExistsError
                _require_same_sources(_campaign(before), campaign)
            update = sa.update(CAMPAIGNS).where(is_same).values(changes)
            if (await connection.execute(update)).rowcount == 0:
                of_tenant = CAMPAIGNS.c.tenant_id == campaign.tenant
                if await _count(connection, CAMPAIGNS, of_tenant) >= MAX_CAMPAIGNS:
                    raise TooManyCampaignsError
                row = {
                    "tenant_id": campaign.tenant,
                    "name": campaign.name,
                    "created_at_us": microseconds(campaign.created_at),
                    "created_by": campaign.created_by,
                    **changes,
                }
                await connection.execute(sa.insert(CAMPAIGNS), row)
            await add_audit_event(connection, audit_event)
            return await _find(connection, campaign.tenant, campaign.name)

    async def get(self, tenant: TenantId, name: str) -> Campaign:
        """Return a campaign. Raises CampaignNotFoundError."""
        async with read_transaction(self._engine) as connection:
            return await _find(connection, tenant, name)

    async def find(self, tenant: TenantId, names: Collection[str]) -> Mapping[str, Campaign]:
        """Return the existing campaigns with these names, by name."""
        query = sa.select(CAMPAIGNS).where(
            CAMPAIGNS.c.tenant_id == tenant, CAMPAIGNS.c.name.in_(names)
        )
        async with read_transaction(self._engine) as connection:
            return {row.name: _campaign(row) for row in await connection.execute(query)}

    async def list(self, tenant: TenantId) -> Sequence[Campaign]:
        """Return a tenant's campaigns by name."""
        query = sa.select(CAMPAIGNS).where(CAMPAIGNS.c.tenant_id == tenant)
        async with read_transaction(self._engine) as connection:
            rows = await connection.execute(query.order_by(CAMPAIGNS.c.name))
            return [_campaign(row) for row in rows]

    async def close(
        self, tenant: TenantId, name: str, now: datetime, audit_event: Event
    ) -> Campaign:
        """Close a campaign, if it is not closed; return it. Raises CampaignNotFoundError."""
        is_open = CAMPAIGNS.c.state == CampaignState.OPEN
        values = {"state": CampaignState.CLOSED, "changed_at_us": microseconds(now)}
        close = sa.update(CAMPAIGNS).where(_is_named(tenant, name), is_open).values(values)
        async with transaction(self._engine) as connection:
            if (await connection.execute(close)).rowcount:
                await add_audit_event(connection, audit_event)
            return await _find(connection, tenant, name)

    async def add_scan(self, tenant: TenantId, name: str, scan: Scan, audit_event: Event) -> None:
        """Store a scan of an open campaign instead of the place's earlier one.

        Raises CampaignNotFoundError, CampaignClosedError, TooManyPlacesError, OlderScanError.
        """
        of_campaign = CAMPAIGN_SCANS.c.tenant_id == tenant, CAMPAIGN_SCANS.c.campaign == name
        is_same = sa.and_(*of_campaign, CAMPAIGN_SCANS.c.place == scan.place)
        values = {
            "digest": scan.digest,
            "scanned_at_us": microseconds(scan.scanned_at),
            "recorded_at_us": microseconds(scan.recorded_at),
            "principal": scan.principal,
            "counts": msgspec.json.encode(scan.counts).decode(),
            "unreadable": scan.unreadable,
        }
        async with transaction(self._engine) as connection:
            await lock_tenant_to_add(connection, tenant)
            if (await _find(connection, tenant, name)).state is CampaignState.CLOSED:
                raise CampaignClosedError
            query = sa.select(CAMPAIGN_SCANS.c.scanned_at_us).where(is_same)
            earlier = (await connection.execute(query)).scalar()
            if earlier is None:
                if await _count(connection, CAMPAIGN_SCANS, *of_campaign) >= MAX_PLACES:
                    raise TooManyPlacesError
                row = {"tenant_id": tenant, "campaign": name, "place": scan.place, **values}
                await connection.execute(sa.insert(CAMPAIGN_SCANS), row)
            elif earlier > microseconds(scan.scanned_at):
                raise OlderScanError
            else:
                await connection.execute(sa.update(CAMPAIGN_SCANS).where(is_same).values(values))
            await add_audit_event(connection, audit_event)

    async def save_canary(
        self, tenant: TenantId, name: str, canary: Canary, audit_event: Event
    ) -> None:
        """Store the newest canary. Raises CampaignNotFoundError."""
        save = sa.update(CAMPAIGNS).where(_is_named(tenant, name))
        stored = msgspec.json.encode(canary).decode()
        async with transaction(self._engine) as connection:
            if (await connection.execute(save.values(canary=stored))).rowcount == 0:
                raise CampaignNotFoundError
            await add_audit_event(connection, audit_event)

    async def list_scans(self, tenant: TenantId, name: str) -> Sequence[Scan]:
        """Return the newest scan of each place, by place."""
        query = sa.select(CAMPAIGN_SCANS).where(
            CAMPAIGN_SCANS.c.tenant_id == tenant, CAMPAIGN_SCANS.c.campaign == name
        )
        async with read_transaction(self._engine) as connection:
            rows = await connection.execute(query.order_by(CAMPAIGN_SCANS.c.place))
            return [_scan(row) for row in rows]


def _require_same_sources(before: Campaign, after: Campaign) -> None:
    runs = before.canary is not None and before.canary.end(after.changed_at) is None
    if runs and before.sources != after.sources:
        raise CanaryRunsError


def _is_named(tenant: TenantId, name: str) -> sa.ColumnElement[bool]:
    return sa.and_(CAMPAIGNS.c.tenant_id == tenant, CAMPAIGNS.c.name == name)


async def _find(connection: AsyncConnection, tenant: TenantId, name: str) -> Campaign:
    query = sa.select(CAMPAIGNS).where(_is_named(tenant, name))
    row = (await connection.execute(query)).one_or_none()
    if row is None:
        raise CampaignNotFoundError
    return _campaign(row)


async def _count(
    connection: AsyncConnection, table: sa.Table, *conditions: sa.ColumnElement[bool]
) -> int:
    query = sa.select(sa.func.count()).select_from(table).where(*conditions)
    return (await connection.execute(query)).scalar_one()


def _campaign(row: sa.Row[Any]) -> Campaign:
    return Campaign(
        tenant=TenantId(row.tenant_id),
        name=row.name,
        description=row.description,
        sources=_SOURCES.decode(row.sources),
        target=Target(row.target_keyring, Algorithm(row.target_algorithm)),
        quiet_days=row.quiet_days,
        state=CampaignState(row.state),
        created_at=time_of(row.created_at_us),
        created_by=row.created_by,
        changed_at=time_of(row.changed_at_us),
        canary=None if row.canary is None else _CANARY.decode(row.canary),
    )


def _scan(row: sa.Row[Any]) -> Scan:
    return Scan(
        place=row.place,
        digest=row.digest,
        scanned_at=time_of(row.scanned_at_us),
        recorded_at=time_of(row.recorded_at_us),
        principal=row.principal,
        counts=_COUNTS.decode(row.counts),
        unreadable=row.unreadable,
    )
