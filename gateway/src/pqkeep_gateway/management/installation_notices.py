"""The rules of notices to operators: functions of the installation's state, without I/O."""

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta

from pqkeep_gateway.management.installation import Installation, ShardState
from pqkeep_gateway.management.readiness import (
    ACCOUNTS_DATABASE,
    AUDIT_LOG,
    KEY_SERVICE,
    KEYS_DATABASE,
    MAIL_SERVER,
    RATE_LIMITS,
)
from pqkeep_gateway.notices import MAX_NAMED, OPERATOR_KINDS, Details, Finding, NoticeKind
from pqkeep_protocol.audit import WitnessProblem

OLD_ROOT_KEY = timedelta(days=365)
"""The age at which a root key should be rotated."""
ENDS_SOON = timedelta(days=30)
"""The remaining time at which a certificate should be replaced."""
OLD_BACKUP = timedelta(days=2)
"""The age at which the newest backup is overdue."""
SLOW = timedelta(minutes=5)
"""The accepted waiting time of an event for the log, and of a message for delivery."""
TITLES: Mapping[str, str] = {
    KEY_SERVICE: "Key service",
    KEYS_DATABASE: "Keys database",
    ACCOUNTS_DATABASE: "Accounts database",
    RATE_LIMITS: "Rate limits",
    AUDIT_LOG: "Audit log",
    MAIL_SERVER: "Mail",
    "audit_sink": "Audit copy",
}
"""The names of parts in notices."""

Found = Mapping[tuple[NoticeKind, str], Finding | None]


def findings(installation: Installation, now: datetime) -> Found:
    """Return what the rules find, by kind and subject. Kinds with unknown facts are left out."""
    return {
        (kind, ""): finding
        for kind, finding in _findings(installation, now)
        if kind in OPERATOR_KINDS
    }


def _findings(
    installation: Installation, now: datetime
) -> Iterator[tuple[NoticeKind, Finding | None]]:
    parts = [
        (TITLES.get(part.name, part.name), part.reason)
        for part in installation.parts
        if part.reason is not None
    ]
    yield NoticeKind.PART_NOT_READY, _reasons(parts)
    shards = [
        (shard.name, shard.reason)
        for shard in installation.shards
        if shard.reason is not None and len(installation.shards) > 1
    ]
    yield NoticeKind.SHARD_NOT_READY, _reasons(shards)
    yield NoticeKind.CERTIFICATE_EXPIRING, _certificates(installation.certificates, now)
    yield from _of_shards(installation.shards, now)
    if installation.operators is not None:
        unnamed = None if installation.operators else Finding(Details())
        yield NoticeKind.OPERATORS_UNNAMED, unnamed
    accounts = installation.accounts
    if accounts is None:
        return
    backlog = accounts.backlog
    refused = backlog.events_refused
    yield (
        NoticeKind.EVENTS_REFUSED,
        Finding(Details(count=refused)) if refused else None,
    )
    yield NoticeKind.EVENTS_WAITING, _waiting(backlog.oldest_event_us, now)
    yield NoticeKind.MAIL_WAITING, _waiting(backlog.oldest_mail_us, now)
    deleted = accounts.scheduled
    yield NoticeKind.TENANT_DELETION, Finding(Details(count=deleted)) if deleted else None


def _reasons(problems: list[tuple[str, str]]) -> Finding | None:
    if not problems:
        return None
    names = tuple(name for name, _ in problems[:MAX_NAMED])
    return Finding(Details(count=len(problems), names=names, reason=problems[0][1]))


def _certificates(certificates: Mapping[str, float], now: datetime) -> Finding | None:
    soon = sorted(
        (at, name)
        for name, at in certificates.items()
        if datetime.fromtimestamp(at, UTC) - now < ENDS_SOON
    )
    if not soon:
        return None
    names = tuple(name for _, name in soon[:MAX_NAMED])
    at = datetime.fromtimestamp(soon[0][0], UTC)
    return Finding(Details(count=len(soon), names=names, at=at))


def _of_shards(
    shards: tuple[ShardState, ...], now: datetime
) -> Iterator[tuple[NoticeKind, Finding | None]]:
    """Yield the findings about key services, if all of them respond."""
    responding = [shard for shard in shards if shard.numbers]
    if len(responding) < len(shards) or not shards:
        return
    backups = [shard.numbers.get(("pqkeep_last_backup_timestamp_seconds",), 0) for shard in shards]
    yield NoticeKind.BACKUP_OVERDUE, _backup(min(backups), now)
    added = [
        at
        for shard in shards
        if (at := shard.numbers.get(("pqkeep_root_key_added_timestamp_seconds",))) is not None
    ]
    is_old = bool(added) and now - datetime.fromtimestamp(min(added), UTC) > OLD_ROOT_KEY
    yield NoticeKind.ROOT_KEY_OLD, Finding(Details()) if is_old else None
    if all(shard.witnesses is not None for shard in shards):
        conflicts = tuple(
            witness.name
            for shard in shards
            for witness in shard.witnesses or ()
            if witness.problem is WitnessProblem.CONFLICT
        )
        details = Details(count=len(conflicts), names=conflicts[:MAX_NAMED])
        yield NoticeKind.WITNESS_CONFLICT, Finding(details) if conflicts else None


def _backup(at: float, now: datetime) -> Finding | None:
    if not at:
        return Finding(Details())
    newest = datetime.fromtimestamp(at, UTC)
    return Finding(Details(at=newest)) if now - newest > OLD_BACKUP else None


def _waiting(oldest_us: int, now: datetime) -> Finding | None:
    if not oldest_us or now - datetime.fromtimestamp(oldest_us / 1_000_000, UTC) <= SLOW:
        return None
    return Finding(Details(limit=SLOW // timedelta(minutes=1)))
