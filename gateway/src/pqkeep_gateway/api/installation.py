"""/api/v1/installation: the state of the installation for its operators; /healthz for supervisors."""

import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from typing import Annotated, Literal

from msgspec import Meta

from pqkeep_gateway.access.callers import Permission
from pqkeep_gateway.api.errors import BAD_REQUEST_FIELDS
from pqkeep_gateway.http.endpoint import ApiCall, Endpoint
from pqkeep_gateway.http.envelope import Data
from pqkeep_gateway.http.text import Timestamp, timestamp
from pqkeep_gateway.management.installation import (
    NAMES,
    Inspection,
    Installation,
    MailMode,
    ShardState,
)
from pqkeep_gateway.storage.monitoring import Accounts
from pqkeep_gateway.storage.operators import Operator
from pqkeep_gateway.unavailable import UnavailableError

Count = Annotated[int, Meta(ge=0)]
VERSION = version("pqkeep-gateway")


class PartData(Data, frozen=True, kw_only=True):
    """One part of the installation."""

    name: Annotated[str, Meta(description="One of " + ", ".join(NAMES) + ".")]
    ready: bool
    reason: Annotated[str | None, Meta(description="The reason if it is not ready.")]


class LogData(Data, frozen=True, kw_only=True):
    """The audit log, and the events that wait for it."""

    log_id: str | None
    size: Annotated[Count | None, Meta(description="The number of records.")]
    newest_checkpoint_at: Timestamp | None
    checkpoint_size: Annotated[
        Count | None, Meta(description="The number of records that the newest checkpoint covers.")
    ]
    outbox_waiting: Annotated[Count | None, Meta(description="Events that are not in the log yet.")]
    outbox_oldest_at: Timestamp | None
    quarantined: Annotated[Count | None, Meta(description="Events that the log rejected.")]


class RotationData(Data, frozen=True, kw_only=True):
    """Progress of a root key rotation."""

    done: Annotated[Count, Meta(description="Keys that only the newest root key seals.")]
    remaining: Annotated[Count, Meta(description="Keys that an older root key still seals.")]


class RootKeyData(Data, frozen=True, kw_only=True):
    """The root key that seals new keys. Its number is not a secret."""

    id: Count
    created_at: Annotated[Timestamp, Meta(description="The time of its first use.")]
    rotation: Annotated[
        RotationData | None,
        Meta(description="The rotation of the root key; null: no rotation is running."),
    ]


class MailData(Data, frozen=True, kw_only=True):
    """The e-mail queue."""

    mode: MailMode
    waiting: Annotated[Count | None, Meta(description="Messages that are not delivered yet.")]
    failed: Annotated[Count | None, Meta(description="Waiting messages with a failed attempt.")]
    oldest_at: Timestamp | None


class BackupsData(Data, frozen=True, kw_only=True):
    """The newest backup that ``pqkeepd backup`` announced; null values before the first backup."""

    last_at: Timestamp | None
    last_number: Annotated[
        str | None, Meta(description=("The number that ``pqkeepd backup`` printed."))
    ]
    age_seconds: Count | None


class NamedOperatorData(Data, frozen=True, kw_only=True):
    """A named operator."""

    name: str
    created_at: Timestamp


class TenantCountsData(Data, frozen=True, kw_only=True):
    """The numbers of tenants."""

    total: Annotated[Count, Meta(description="The number of tenants, without deleted ones.")]
    suspended: Count
    scheduled_for_deletion: Annotated[
        Count, Meta(description=("Suspended tenants with a scheduled deletion."))
    ]


class CertificateData(Data, frozen=True, kw_only=True):
    """A certificate that the gateway uses."""

    name: Annotated[
        str, Meta(description="The certificate's purpose: https, link.gateway or link.keyservice.")
    ]
    expires_at: Timestamp


class ShardData(Data, frozen=True, kw_only=True):
    """One shard: a key service with its own database, keys and audit log."""

    name: str
    ready: bool
    reason: Annotated[str | None, Meta(description="The reason if it is not ready.")]
    draining: Annotated[bool | None, Meta(description="Whether it accepts no new tenants.")]
    tenants: Annotated[
        Count | None, Meta(description="The number of its tenants, without deleted ones.")
    ]
    moving: Annotated[
        Count | None,
        Meta(description=("Tenants that move to another shard. Their requests get 503.")),
    ]
    log_id: str | None
    log_size: Annotated[Count | None, Meta(description="The number of records in its log.")]
    unsigned: Annotated[Count | None, Meta(description="Records that no checkpoint covers yet.")]
    newest_checkpoint_at: Timestamp | None
    root_key: Annotated[
        Count | None, Meta(description=("The number of the root key that seals its new keys."))
    ]
    last_backup_at: Timestamp | None


class InstallationData(Data, frozen=True, kw_only=True):
    """The state of the installation. Values of an unavailable part are null."""

    version: str
    parts: tuple[PartData, ...]
    shards: Annotated[
        tuple[ShardData, ...],
        Meta(description=("The first is `default`; log and root_key belong to it.")),
    ]
    log: LogData
    root_key: RootKeyData | None
    mail: MailData
    backups: BackupsData
    operators: tuple[NamedOperatorData, ...] | None
    tenants: TenantCountsData | None
    certificates: tuple[CertificateData, ...]


_AT = timestamp(datetime(2026, 1, 31, 12, tzinfo=UTC))
_EXAMPLE = InstallationData(
    version="0.1.0",
    parts=(
        PartData(name="key_service", ready=True, reason=None),
        PartData(
            name="mail_server",
            ready=False,
            reason="the last message could not be delivered; the delivery will be retried",
        ),
    ),
    shards=(
        ShardData(
            name="default",
            ready=True,
            reason=None,
            draining=False,
            tenants=7,
            moving=0,
            log_id="0b9f8d5e-3f7c-4a55-9d0e-6f6d1f2f9c11",
            log_size=42,
            unsigned=0,
            newest_checkpoint_at=_AT,
            root_key=1,
            last_backup_at=_AT,
        ),
    ),
    log=LogData(
        log_id="0b9f8d5e-3f7c-4a55-9d0e-6f6d1f2f9c11",
        size=42,
        newest_checkpoint_at=_AT,
        checkpoint_size=42,
        outbox_waiting=0,
        outbox_oldest_at=None,
        quarantined=0,
    ),
    root_key=RootKeyData(id=1, created_at=_AT, rotation=None),
    mail=MailData(mode=MailMode.SMTP, waiting=1, failed=1, oldest_at=_AT),
    backups=BackupsData(last_at=_AT, last_number="0.40", age_seconds=3600),
    operators=(NamedOperatorData(name="ada", created_at=_AT),),
    tenants=TenantCountsData(total=7, suspended=1, scheduled_for_deletion=0),
    certificates=(CertificateData(name="https", expires_at=_AT),),
)


def endpoints(inspection: Inspection) -> tuple[Endpoint, ...]:
    """Return the endpoint of the installation."""

    async def get_installation(call: ApiCall) -> InstallationData:
        """Return the state of each part of the installation.

        The response does not need any part except the one that authenticates operators.
        """
        return _installation(await inspection.inspect())

    return (
        Endpoint(
            method="GET",
            path="/installation",
            name="get_installation",
            handler=get_installation,
            permission=Permission.VIEW_INSTALLATION,
            field_codes=BAD_REQUEST_FIELDS,
            example=_EXAMPLE,
        ),
    )


def _installation(found: Installation) -> InstallationData:
    accounts = found.accounts
    return InstallationData(
        version=VERSION,
        parts=tuple(
            PartData(name=part.name, ready=part.reason is None, reason=part.reason)
            for part in found.parts
        ),
        shards=tuple(map(_shard, found.shards)),
        log=_log(found),
        root_key=_root_key(found.shards[0].numbers),
        mail=MailData(
            mode=found.mail,
            waiting=None if accounts is None else accounts.backlog.mail_waiting,
            failed=None if accounts is None else accounts.mail_attempted,
            oldest_at=None if accounts is None else _at_us(accounts.backlog.oldest_mail_us),
        ),
        backups=_backups(found.shards, time.time()),
        operators=None if found.operators is None else tuple(map(_operator, found.operators)),
        tenants=None if accounts is None else _tenants(accounts),
        certificates=tuple(
            CertificateData(name=name, expires_at=_at(at))
            for name, at in found.certificates.items()
        ),
    )


def _log(found: Installation) -> LogData:
    checkpoint, accounts = found.shards[0].checkpoint, found.accounts
    size = found.shards[0].numbers.get(("pqkeep_audit_log_records",))
    backlog = None if accounts is None else accounts.backlog
    return LogData(
        log_id=None if checkpoint is None else str(checkpoint.log_id),
        size=None if size is None else int(size),
        newest_checkpoint_at=None if checkpoint is None else _at_us(checkpoint.at_us),
        checkpoint_size=None if checkpoint is None else checkpoint.size,
        outbox_waiting=None if backlog is None else backlog.events_waiting,
        outbox_oldest_at=None if backlog is None else _at_us(backlog.oldest_event_us),
        quarantined=None if backlog is None else backlog.events_refused,
    )


def _shard(shard: ShardState) -> ShardData:
    stored, checkpoint = shard.stored, shard.checkpoint
    backup_at = shard.numbers.get(("pqkeep_last_backup_timestamp_seconds",))
    return ShardData(
        name=shard.name,
        ready=shard.reason is None,
        reason=shard.reason,
        draining=None if stored is None else stored.draining,
        tenants=None if stored is None else stored.tenants,
        moving=None if stored is None else stored.moving,
        log_id=None if checkpoint is None else str(checkpoint.log_id),
        log_size=_count(shard.numbers, "pqkeep_audit_log_records"),
        unsigned=_count(shard.numbers, "pqkeep_audit_log_unsigned_records"),
        newest_checkpoint_at=None if checkpoint is None else _at_us(checkpoint.at_us),
        root_key=_count(shard.numbers, "pqkeep_root_key_id"),
        last_backup_at=None if backup_at is None else _at(backup_at),
    )


def _count(numbers: Mapping[tuple[str, ...], float], name: str) -> int | None:
    found = numbers.get((name,))
    return None if found is None else int(found)


def _root_key(numbers: Mapping[tuple[str, ...], float]) -> RootKeyData | None:
    root_key = numbers.get(("pqkeep_root_key_id",))
    added_at = numbers.get(("pqkeep_root_key_added_timestamp_seconds",))
    if root_key is None or added_at is None:
        return None
    done = numbers.get(("pqkeep_root_key_rotation_keys", "done"))
    remaining = numbers.get(("pqkeep_root_key_rotation_keys", "remaining"))
    rotation = None
    if done is not None and remaining is not None:
        rotation = RotationData(done=int(done), remaining=int(remaining))
    return RootKeyData(id=int(root_key), created_at=_at(added_at), rotation=rotation)


def _backups(shards: Sequence[ShardState], now: float) -> BackupsData:
    """Return the newest backup of all shards; the oldest announced one if shards differ."""
    newest = [shard.numbers.get(("pqkeep_last_backup_timestamp_seconds",)) for shard in shards]
    known = [entry for entry in newest if entry is not None]
    if len(known) < len(shards):
        return BackupsData(last_at=None, last_number=None, age_seconds=None)
    number = ",".join(f"{shard.name}:{_backup_number(shard.numbers)}" for shard in shards)
    return BackupsData(
        last_at=_at(min(known)),
        last_number=number if len(shards) > 1 else _backup_number(shards[0].numbers),
        age_seconds=max(0, int(now - min(known))),
    )


def _backup_number(numbers: Mapping[tuple[str, ...], float]) -> str:
    parts = [numbers.get(("pqkeep_last_backup_number", part)) for part in ("generation", "records")]
    return ".".join(str(int(part)) for part in parts if part is not None)


def _operator(operator: Operator) -> NamedOperatorData:
    return NamedOperatorData(name=operator.name, created_at=timestamp(operator.added_at))


def _tenants(accounts: Accounts) -> TenantCountsData:
    return TenantCountsData(
        total=accounts.tenants,
        suspended=accounts.suspended,
        scheduled_for_deletion=accounts.scheduled,
    )


def _at(seconds: float) -> Timestamp:
    return timestamp(datetime.fromtimestamp(seconds, UTC))


def _at_us(microseconds: int) -> Timestamp | None:
    """Return a time; 0 becomes None, which means no time."""
    return _at(microseconds / 1_000_000) if microseconds else None


class Health(Data, frozen=True, kw_only=True):
    """The gateway can serve requests."""

    status: Literal["ok"]


def health_endpoint(is_healthy: Callable[[], Awaitable[bool]]) -> Endpoint:
    """Return the endpoint."""

    async def check(call: ApiCall) -> Health:
        """Check whether the gateway can serve requests. For supervisors and load balancers."""
        if not await is_healthy():
            raise UnavailableError
        return Health(status="ok")

    return Endpoint(
        method="GET",
        path="/healthz",
        name="check_health",
        handler=check,
        permission=Permission.PUBLIC,
        example=Health(status="ok"),
        field_codes=BAD_REQUEST_FIELDS,
    )
