"""What operators are told: each kind by its cause, and nothing that is unknown."""

from __future__ import annotations

import dataclasses
from datetime import UTC, datetime, timedelta

from msgspec import structs

from pqkeep_gateway.management.installation import (
    Installation,
    MailMode,
    Part,
    ShardState,
)
from pqkeep_gateway.management.installation_notices import findings
from pqkeep_gateway.notices import KINDS, OPERATOR_KINDS, NoticeKind
from pqkeep_gateway.storage.monitoring import Accounts, Backlog
from pqkeep_gateway.storage.operators import Operator
from pqkeep_protocol.audit import WitnessProblem, WitnessState

NOW = datetime(2026, 1, 31, 12, tzinfo=UTC)
FRESH: dict[tuple[str, ...], float] = {
    ("pqkeep_last_backup_timestamp_seconds",): NOW.timestamp() - 3600,
    ("pqkeep_root_key_added_timestamp_seconds",): NOW.timestamp() - 3600,
}
WITNESS = WitnessState(name="witness.example", origin="log", size=None, at=None, problem=None)
SHARD = ShardState("default", None, None, None, FRESH, (WITNESS,))
QUIET = Installation(
    parts=(Part("mail_server", None),),
    accounts=Accounts(Backlog(0, 0, 0, 0, 0), 0, 1, 0, 0),
    operators=(Operator("ada", NOW, NOW, None, None),),
    shards=(SHARD,),
    mail=MailMode.SMTP,
    certificates={"https": (NOW + timedelta(days=90)).timestamp()},
)


def texts(installation: Installation) -> dict[NoticeKind, str]:
    """Return the sentences of what is found, by kind."""
    found = findings(installation, NOW)
    return {
        kind: KINDS[kind].sentence(finding.details)
        for (kind, _), finding in found.items()
        if finding is not None
    }


def test_a_good_installation_is_quiet() -> None:
    """Every kind of operators is looked at, and none is found."""
    assert texts(QUIET) == {}
    assert {kind for kind, _ in findings(QUIET, NOW)} == set(OPERATOR_KINDS)


def test_each_cause_is_told() -> None:
    """Each cause alone makes its kind, and only that."""
    hour_ago = (NOW - timedelta(hours=1)).timestamp() * 1_000_000
    late = dataclasses.replace

    def accounts(**changed: int) -> Installation:
        backlog = {name: changed.pop(name) for name in ("events_refused",) if name in changed}
        backlog |= {
            name: changed.pop(name)
            for name in ("oldest_event_us", "oldest_mail_us")
            if name in changed
        }
        of = Accounts(late(Backlog(0, 0, 0, 0, 0), **backlog), 0, 1, 0, changed.pop("scheduled", 0))
        return late(QUIET, accounts=of)

    def shard(**numbers: float) -> Installation:
        changed = {(name,): value for name, value in numbers.items()}
        return late(QUIET, shards=(late(SHARD, numbers={**FRESH, **changed}),))

    conflict = late(SHARD, witnesses=(structs.replace(WITNESS, problem=WitnessProblem.CONFLICT),))
    broken = late(SHARD, name="b", reason="it does not answer")
    year_ago = (NOW - timedelta(days=400)).timestamp()
    for installation, kind, text in (
        (late(QUIET, parts=(Part("mail_server", "it is off"),)), "part-not-ready", "Mail: it is"),
        (late(QUIET, shards=(SHARD, broken)), "shard-not-ready", "Shard b: it does not"),
        (late(QUIET, certificates={"https": NOW.timestamp()}), "certificate-expiring", "https"),
        (late(QUIET, operators=()), "operators-unnamed", "No operator"),
        (accounts(events_refused=2), "events-refused", "2 events"),
        (accounts(oldest_event_us=int(hour_ago)), "events-waiting", "5 minutes"),
        (accounts(oldest_mail_us=int(hour_ago)), "mail-waiting", "5 minutes"),
        (accounts(scheduled=2), "tenant-deletion", "2 tenants"),
        (shard(pqkeep_last_backup_timestamp_seconds=0), "backup-overdue", "No backup"),
        (shard(pqkeep_last_backup_timestamp_seconds=year_ago), "backup-overdue", "newest backup"),
        (shard(pqkeep_root_key_added_timestamp_seconds=year_ago), "root-key-old", "a year"),
        (late(QUIET, shards=(conflict,)), "witness-conflict", "witness.example"),
    ):
        found = texts(installation)
        assert set(found) == {NoticeKind(kind)}, kind
        assert text in found[NoticeKind(kind)]


def test_what_is_unknown_closes_nothing() -> None:
    """A part that does not respond leaves the notices about it as they are."""
    silent = dataclasses.replace(
        QUIET,
        accounts=None,
        operators=None,
        shards=(dataclasses.replace(SHARD, numbers={}, witnesses=None),),
    )
    known = {kind for kind, _ in findings(silent, NOW)}
    assert known == {
        NoticeKind.PART_NOT_READY,
        NoticeKind.SHARD_NOT_READY,
        NoticeKind.CERTIFICATE_EXPIRING,
    }
