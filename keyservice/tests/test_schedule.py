"""Due changes are made once, with a record, unless they were cancelled."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest

from pqkeep_keyservice import schedule as schedules
from pqkeep_keyservice.keys import key_versions
from pqkeep_keyservice.keys.changes import CommitOutcome, KeyChange
from pqkeep_keyservice.keys.key_versions import KeyName
from pqkeep_keyservice.operations.scheduled import DueChange
from pqkeep_keyservice.succession import continue_log
from pqkeep_protocol.algorithms import ALGORITHMS, Algorithm, HashAlgorithm, Operation
from pqkeep_protocol.errors import ErrorKind, KeyServiceError
from pqkeep_protocol.keys import KeyInfo, KeyStatus, KeyVersion, TenantId
from pqkeep_protocol.messages import (
    Attribution,
    CancelArchive,
    CreateKeyring,
    Decapsulate,
    Decrypt,
    DisableKey,
    EnableKey,
    Encapsulate,
    Encrypt,
    GenerateKey,
    GetActiveKey,
    GetKey,
    KeyService,
    ListKeys,
    Request,
    RetireKey,
    RotateKey,
    ScheduleArchive,
    Sign,
    SignHash,
    Unwrap,
    UpdateKeyring,
    Verify,
    VerifyHash,
    Wrap,
)

if TYPE_CHECKING:
    from keyservice.tests.conftest import InProcessService, Location, Serving

    from pqkeep_keyservice.keys.sealing import Sealer

Sql = Callable[..., list[Any]]
KEM, SIGNATURE = Algorithm.X_WING, Algorithm.ML_DSA_87
V1, V2 = KeyVersion(1), KeyVersion(2)
NOT_FOUND, STATUS = ErrorKind.KEY_NOT_FOUND, ErrorKind.KEY_STATUS
DIGEST: dict[str, Any] = {"hash_algorithm": HashAlgorithm.SHA_256, "digest": bytes(32)}
RECORDS = "SELECT operation, principal, key_version, outcome FROM audit_records ORDER BY id"
both_databases = pytest.mark.parametrize("backend", ["sqlite", "postgresql"], indirect=True)


def days(number: float) -> datetime:
    """Return the time in some days."""
    return datetime.now(UTC) + timedelta(days=number)


class Caller:
    """A caller with a key of one algorithm."""

    def __init__(self, keys: KeyService, algorithm: Algorithm = KEM) -> None:
        self.tenant = TenantId(uuid4())
        self.algorithm = algorithm
        self.keys = keys
        self.name = KeyName(self.tenant, algorithm)
        self.key: dict[str, Any] = {"tenant": self.tenant, "algorithm": algorithm}

    async def ask(self, request: Request[Any], of: KeyService | None = None) -> Any:
        """Return a result, or the kind of the refusal."""
        try:
            return await (of or self.keys).execute(request, Attribution("r", "person", "", ""))
        except KeyServiceError as refusal:
            return refusal.kind

    async def change(
        self,
        kind: Callable[..., Request[Any]],
        version: KeyVersion = V1,
        *,
        of: KeyService | None = None,
        **also: object,
    ) -> KeyInfo:
        """Change a version, which must succeed."""
        done = await self.ask(kind(**self.key, version=version, **also), of)
        assert isinstance(done.key, KeyInfo)
        return done.key

    async def prepare(self) -> None:
        """Make version 1, retired, and version 2, active."""
        await self.ask(GenerateKey(**self.key, quota=None))
        await self.ask(RotateKey(**self.key))

    async def reads(self, version: KeyVersion) -> list[Request[Any]]:
        """Return requests that read data protected by the version, which must be active."""
        one: dict[str, Any] = {**self.key, "version": version}
        if Operation.SIGN in ALGORITHMS[self.algorithm].operations:
            signed = await self.ask(Sign(**one, message=b"text"))
            hashed = await self.ask(SignHash(**one, **DIGEST))
            return [
                Verify(**one, message=b"text", signature=signed.signature),
                VerifyHash(**one, **DIGEST, signature=hashed.signature),
            ]
        blob = await self.ask(Encrypt(**one, plaintext=b"text"))
        capsule = await self.ask(Encapsulate(**one))
        wrapped = await self.ask(Wrap(**one, symmetric_key=bytearray(32)))
        return [
            Decrypt(**one, ciphertext=blob.ciphertext),
            Decapsulate(**one, kem_ciphertext=capsule.kem_ciphertext),
            Unwrap(**one, wrapped_key=wrapped.wrapped_key),
        ]

    def writes(self, version: KeyVersion | None) -> list[Request[Any]]:
        """Return requests that protect data with the version, or with the active key."""
        one: dict[str, Any] = {**self.key, "version": version}
        if Operation.SIGN in ALGORITHMS[self.algorithm].operations:
            return [Sign(**one, message=b"text"), SignHash(**one, **DIGEST)]
        named = [Encapsulate(**one), Wrap(**one, symmetric_key=bytearray(32))] if version else []
        return [Encrypt(**one, plaintext=b"text"), *named]

    async def outcomes(self, requests: list[Request[Any]]) -> set[ErrorKind | None]:
        """Return the outcomes of requests. None is success."""
        found = [await self.ask(request) for request in requests]
        return {outcome if isinstance(outcome, ErrorKind) else None for outcome in found}


async def scheduled(keys: KeyService, number: int = 7) -> Caller:
    """Return a caller whose version 1 is archived in some days."""
    caller = Caller(keys)
    await caller.prepare()
    await caller.change(ScheduleArchive, days=number)
    return caller


@pytest.mark.parametrize("algorithm", [KEM, SIGNATURE])
async def test_a_key_to_be_archived_is_refused_for_every_use(
    keys: KeyService, algorithm: Algorithm
) -> None:
    """A scheduled key is unusable, shows its time, and works again when cancelled."""
    caller = Caller(keys, algorithm)
    await caller.ask(GenerateKey(**caller.key, quota=None))
    reads = await caller.reads(V1)
    await caller.ask(RotateKey(**caller.key))
    assert await caller.outcomes(reads) == {None}
    before = days(7)
    shown = await caller.change(ScheduleArchive, days=7)
    assert shown.archive_at is not None
    assert before <= shown.archive_at <= days(7)
    assert shown.status is KeyStatus.RETIRED
    assert await caller.outcomes(reads) == {NOT_FOUND}
    assert await caller.outcomes(caller.writes(V1)) == {NOT_FOUND}
    assert (await caller.change(GetKey)) == shown
    listed = await caller.ask(ListKeys(**caller.key, status=KeyStatus.RETIRED))
    assert listed.keys == (shown,)
    kept = await caller.change(CancelArchive)
    assert (kept.status, kept.archive_at) == (KeyStatus.RETIRED, None)
    assert await caller.outcomes(reads) == {None}


@pytest.mark.parametrize("algorithm", [KEM, SIGNATURE])
async def test_a_disabled_key_is_refused_for_every_use(
    keys: KeyService, algorithm: Algorithm
) -> None:
    """A disabled key refuses every use, with and without a version in the request."""
    caller = Caller(keys, algorithm)
    await caller.ask(GenerateKey(**caller.key, quota=None))
    uses = [*await caller.reads(V1), *caller.writes(V1), *caller.writes(None)]
    uses.append(GetActiveKey(**caller.key))
    assert (await caller.change(DisableKey)).status is KeyStatus.DISABLED
    assert await caller.outcomes(uses) == {NOT_FOUND}
    assert (await caller.change(EnableKey)).status is KeyStatus.ACTIVE
    uses = [*await caller.reads(V1), *caller.writes(V1), *caller.writes(None)]
    assert await caller.outcomes(uses) == {None}


@both_databases
async def test_a_key_disabled_until_a_time_is_enabled_then(
    service: InProcessService, sql: Sql
) -> None:
    """The schedule restores the status at that time, once, with a record; a restart changes nothing."""
    caller = Caller(service)
    await caller.prepare()
    until = days(3)
    for version in (V1, V2):
        shown = await caller.change(DisableKey, version, until=until)
        assert (shown.status, shown.disabled_until) == (KeyStatus.DISABLED, until)
    await service.parts.schedule.carry_out(days(2))
    assert (await caller.change(GetKey)).status is KeyStatus.DISABLED
    for _ in range(2):
        await service.parts.schedule.carry_out(days(3))
    found = [await caller.change(GetKey, version) for version in (V1, V2)]
    assert [(key.status, key.disabled_until) for key in found] == [
        (KeyStatus.RETIRED, None),
        (KeyStatus.ACTIVE, None),
    ]
    made = [record for record in sql(RECORDS) if record[1] == "schedule"]
    assert made == [("enable-key", "schedule", version, "success") for version in (1, 2)]


@both_databases
async def test_a_time_never_ends_a_disabling_without_one(service: InProcessService) -> None:
    """A key disabled without a time stays disabled; a request without one removes the time."""
    caller = Caller(service)
    await caller.prepare()
    await caller.change(DisableKey)
    assert (await caller.change(DisableKey, until=days(1))).disabled_until is None
    await caller.change(DisableKey, V2, until=days(1))
    assert (await caller.change(DisableKey, V2)).disabled_until is None
    await service.parts.schedule.carry_out(days(400))
    for version in (V1, V2):
        assert (await caller.change(GetKey, version)).status is KeyStatus.DISABLED


@pytest.mark.threat("compromised-gateway")
async def test_a_later_time_is_never_replaced_by_an_earlier_one(keys: KeyService) -> None:
    """Disabling a disabled key can extend its time. Only enabling ends it early."""
    caller = Caller(keys)
    await caller.prepare()
    until = days(2)
    await caller.change(DisableKey, until=until)
    for earlier in (days(1), days(-1)):
        assert (await caller.change(DisableKey, until=earlier)).disabled_until == until
    later = days(3)
    assert (await caller.change(DisableKey, until=later)).disabled_until == later


async def test_a_disabling_is_ended_early_only_by_its_own_time(keys: KeyService) -> None:
    """The enabling of one time leaves keys disabled that have another time, or none."""
    caller = Caller(keys)
    await caller.prepare()
    until, other = days(1), days(2)
    await caller.change(DisableKey, until=until)
    assert (await caller.change(EnableKey, until=other)).status is KeyStatus.DISABLED
    assert (await caller.change(EnableKey, until=until)).status is KeyStatus.RETIRED
    await caller.change(DisableKey)
    assert (await caller.change(EnableKey, until=until)).status is KeyStatus.DISABLED
    too_far = DisableKey(**caller.key, version=V1, until=days(367))
    assert await caller.ask(too_far) is STATUS


@both_databases
async def test_no_key_becomes_active_beside_a_disabled_one(keys: KeyService, sql: Sql) -> None:
    """A disabled active key keeps its place and counts in the quota.

    With a successor it becomes retired.
    """
    caller = Caller(keys)
    generate = GenerateKey(**caller.key, quota=1)
    await caller.ask(generate)
    await caller.change(DisableKey)
    assert await caller.ask(generate) is ErrorKind.KEY_EXISTS
    other = GenerateKey(tenant=caller.tenant, algorithm=SIGNATURE, quota=1)
    assert await caller.ask(other) is ErrorKind.KEY_QUOTA_REACHED
    assert (await caller.ask(RotateKey(**caller.key))).old_version == V1
    assert (await caller.change(EnableKey)).status is KeyStatus.RETIRED
    assert sql("SELECT status, disabled_from FROM keys ORDER BY version") == [
        ("retired", None),
        ("active", None),
    ]


async def test_a_disabled_key_is_archived_without_being_enabled(keys: KeyService, sql: Sql) -> None:
    """A disabled key can be retired and archived, and cannot be enabled after that."""
    caller = Caller(keys)
    await caller.prepare()
    await caller.change(DisableKey, V2)
    assert await caller.ask(ScheduleArchive(days=0, **caller.key, version=V2)) is STATUS
    assert await caller.ask(ScheduleArchive(**caller.key, version=V2, days=7)) is STATUS
    assert (await caller.change(RetireKey, V2)).status is KeyStatus.DISABLED
    assert (await caller.change(ScheduleArchive, V2, days=7)).status is KeyStatus.DISABLED
    await caller.change(CancelArchive, V2)
    at_once = partial(ScheduleArchive, days=0)
    assert (await caller.change(at_once, V2)).status is KeyStatus.ARCHIVED
    for kind in (DisableKey, EnableKey, CancelArchive, RetireKey, at_once):
        assert await caller.ask(kind(**caller.key, version=V2)) is STATUS
    last = "SELECT status, sealed_seed, disabled_from, archive_at_us FROM keys WHERE version = 2"
    assert sql(last) == [("archived", None, None, None)]


async def test_a_repetition_changes_nothing(keys: KeyService, sql: Sql) -> None:
    """A repeated disable, enable, schedule or cancel changes nothing."""
    caller = Caller(keys)
    await caller.prepare()
    for kind in (DisableKey, EnableKey, partial(ScheduleArchive, days=7), CancelArchive):
        first = await caller.change(kind)
        revision = sql("SELECT revision FROM key_revisions")
        assert await caller.change(kind) == first
        assert sql("SELECT revision FROM key_revisions") == revision
    at = (await caller.change(ScheduleArchive, days=30)).archive_at
    assert (await caller.change(ScheduleArchive, days=7)).archive_at == at


@both_databases
async def test_the_clock_archives_once(
    service: InProcessService, restarted: Callable[[], InProcessService], sql: Sql
) -> None:
    """At its time a key is archived once, with one record, even if several schedules run."""
    caller = await scheduled(service)
    schedule = service.parts.schedule
    for too_early in (days(-1), days(0), days(6.99)):
        await schedule.carry_out(too_early)
    assert (await caller.change(GetKey)).archive_at is not None
    others = [restarted().parts.schedule for _ in range(3)]
    await asyncio.gather(*(one.carry_out(days(8)) for one in (schedule, *others, schedule)))
    await schedule.carry_out(days(9))
    assert sum(one.changes.total() for one in {schedule, *others}) == 1
    records = [
        record for record in sql(RECORDS) if record[0] in ("archive-key", "schedule-archive")
    ]
    assert records == [
        ("schedule-archive", "person", 1, "success"),
        ("archive-key", "schedule", 1, "success"),
    ]
    key = await caller.change(GetKey)
    assert (key.status, key.archive_at) == (KeyStatus.ARCHIVED, None)
    assert sql("SELECT version FROM keys WHERE sealed_seed IS NOT NULL") == [(2,)]
    assert sql("SELECT due_at_us FROM key_revisions") == [(None,)]


@both_databases
async def test_a_cancellation_that_comes_first_holds(
    service: InProcessService, restarted: Callable[[], InProcessService], sql: Sql
) -> None:
    """A schedule that read the key before its cancellation changes and records nothing."""
    caller = await scheduled(service)
    other = restarted()
    await caller.change(GetKey, of=other)  # it knows the key as one to be archived
    await caller.change(CancelArchive)
    deadline = asyncio.get_running_loop().time() + 60
    due = other.parts.transactions.make_due_change(caller.name, days(8), deadline)
    assert await due is None
    assert not [record for record in sql(RECORDS) if record[1] == "schedule"]
    assert sql("SELECT version FROM keys WHERE sealed_seed IS NULL") == []


@both_databases
async def test_a_cancellation_that_comes_late_is_refused(
    service: InProcessService, restarted: Callable[[], InProcessService]
) -> None:
    """A cancellation that read the key before its archiving is refused."""
    caller = await scheduled(service)
    other = restarted()
    await caller.change(GetKey, of=other)
    await service.parts.schedule.carry_out(days(8))
    assert await caller.ask(CancelArchive(**caller.key, version=V1), other) is STATUS
    assert (await caller.change(GetKey)).status is KeyStatus.ARCHIVED


@both_databases
async def test_a_race_has_one_winner(
    service: InProcessService, restarted: Callable[[], InProcessService], sql: Sql
) -> None:
    """If cancellation and due time coincide, exactly one of them is made and recorded."""
    other = restarted()
    for turn in range(6):
        caller = await scheduled(service)
        cancel = asyncio.ensure_future(caller.ask(CancelArchive(**caller.key, version=V1)))
        if turn % 2:
            await asyncio.sleep(0)
        await other.parts.schedule.carry_out(days(8))
        is_kept = await cancel is not STATUS
        key = await caller.change(GetKey)
        assert key.status is (KeyStatus.RETIRED if is_kept else KeyStatus.ARCHIVED)
        mine = f"SELECT count(*) FROM audit_records WHERE tenant_id = '{caller.tenant}'"  # noqa: S608
        assert sql(f"{mine} AND principal = 'schedule'") == [(0 if is_kept else 1,)]


async def overdue(service: InProcessService) -> Caller:
    """Return a caller whose version 1 was due for archiving yesterday."""
    caller = Caller(service)
    await caller.prepare()
    versions = await service.parts.store.find_key_versions(caller.name)
    change = KeyChange(versions, versions.with_archive_scheduled(V1, days(-1)))
    done = DueChange(Operation.SCHEDULE_ARCHIVE, V1, "test", change)
    assert await service.parts.log.commit(done.record, change) is CommitOutcome.DURABLE
    return caller


@both_databases
async def test_nothing_is_destroyed_for_a_week_after_a_restore(
    serving: Serving, location: Location, sealer: Sealer
) -> None:
    """A restore puts every due archiving off for a week, so that it can be cancelled."""
    async with serving() as service:
        callers = [await overdue(service) for _ in range(2)]
    database = await location.open()
    await database.write(continue_log, sealer)
    await database.close()
    async with serving() as service:
        await service.parts.schedule.carry_out(days(6.9))
        assert not service.parts.schedule.changes
        await callers[0].change(CancelArchive, of=service)
        await service.parts.schedule.carry_out(days(7.1))
        found = [(await caller.change(GetKey, of=service)).status for caller in callers]
        assert found == [KeyStatus.RETIRED, KeyStatus.ARCHIVED]


async def test_a_restarted_key_service_goes_on(serving: Serving) -> None:
    """A schedule from before a restart is carried out after it, even a month late."""
    async with serving() as service:
        caller = await scheduled(service, 30)
    async with serving() as service:
        await service.parts.schedule.carry_out(days(60))
        assert (await caller.change(GetKey, of=service)).status is KeyStatus.ARCHIVED


@both_databases
async def test_a_damaged_key_holds_no_other_up(
    service: InProcessService, restarted: Callable[[], InProcessService], sql: Sql
) -> None:
    """A damaged key is counted, left alone and retried later, and the others are archived."""
    callers = [await scheduled(service) for _ in range(3)]
    sql("UPDATE keys SET public_key = sealed_seed WHERE tenant_id = ?", _id(callers[0], sql))
    schedule = restarted().parts.schedule
    for _ in range(2):
        await schedule.carry_out(days(8))
    assert schedule.changes == {("archive-key", "success"): 2, ("none", "failure"): 1}
    archived = "SELECT count(*) FROM keys WHERE sealed_seed IS NULL"
    assert sql(archived) == [(2,)]


def _id(caller: Caller, sql: Sql) -> object:
    stored = [tenant_id for (tenant_id,) in sql("SELECT DISTINCT tenant_id FROM keys")]
    return next(
        tenant_id for tenant_id in stored if str(tenant_id).replace("-", "") == caller.tenant.hex
    )


@both_databases
async def test_many_keys_are_found_page_by_page(
    service: InProcessService, monkeypatch: pytest.MonkeyPatch, sql: Sql
) -> None:
    """More keys than a page, with different or equal due times, are each archived once."""
    monkeypatch.setattr(schedules, "AT_ONCE", 2)
    for number in (9, 8, 7, 9, 8, 7, 20):
        await scheduled(service, number)
    schedule = service.parts.schedule
    assert await schedule.count() == 0
    await schedule.carry_out(days(10))
    assert schedule.changes == {("archive-key", "success"): 6}
    assert sql("SELECT count(*) FROM keys WHERE archive_at_us IS NOT NULL") == [(1,)]


async def test_the_schedule_survives_a_database_that_cannot_be_read(
    service: InProcessService, sql: Sql, caplog: pytest.LogCaptureFixture
) -> None:
    """An unreadable database changes nothing, raises nothing, and is retried."""
    caller = await scheduled(service)
    schedule = service.parts.schedule
    sql("UPDATE key_revisions SET due_at_us = 0")  # for the look below, which is now
    sql("ALTER TABLE key_revisions RENAME TO gone")
    await schedule.look()
    assert not schedule.changes
    assert "the schedule could not be carried out" in caplog.text
    sql("ALTER TABLE gone RENAME TO key_revisions")
    await schedule.look()
    assert (await caller.change(GetKey)).archive_at is not None
    await schedule.carry_out(days(8))
    assert schedule.changes == {("archive-key", "success"): 1}


def in_keyring(caller: Caller, **limits: Any) -> CreateKeyring:
    """Move the caller to a keyring with these limits. Return the request that creates it."""
    caller.key["keyring"] = "payments"
    caller.name = KeyName(caller.tenant, caller.algorithm, "payments")
    return CreateKeyring(tenant=caller.tenant, keyring="payments", **limits)


@both_databases
async def test_a_keyring_rotates_its_active_keys(
    service: InProcessService, serving: Serving, sql: Sql
) -> None:
    """Active keys rotate once when they reach the age, with a record.

    Other and disabled keys do not.
    """
    caller, schedule = Caller(service), service.parts.schedule
    outside: dict[str, Any] = {"tenant": caller.tenant, "algorithm": KEM}
    await caller.ask(in_keyring(caller, rotation_days=30))
    for request in (
        GenerateKey(**caller.key, quota=3),
        GenerateKey(tenant=caller.tenant, keyring="payments", algorithm=SIGNATURE, quota=3),
        GenerateKey(**outside, quota=3),
    ):
        assert not isinstance(await caller.ask(request), ErrorKind)
    await schedule.carry_out(days(29.9))
    assert not schedule.changes
    await caller.change(DisableKey)
    for late in (400, 400, 401):
        await schedule.carry_out(days(late))
    assert schedule.changes == {("rotate-key", "success"): 1}
    await caller.change(EnableKey)
    await schedule.carry_out(days(401))
    assert schedule.changes == {("rotate-key", "success"): 2}
    records = "SELECT keyring, algorithm, principal, policy, key_version FROM audit_records"
    assert sql(f"{records} WHERE operation = 'rotate-key' ORDER BY id") == [
        ("payments", SIGNATURE, "schedule", "rotation-days", 2),
        ("payments", KEM, "schedule", "rotation-days", 2),
    ]
    blob = await caller.ask(Encrypt(**caller.key, version=None, plaintext=b"text"))
    assert blob.version == V2


async def test_a_key_that_is_full_is_left_as_it_is(
    service: InProcessService, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A full key is logged once, and its rotation is not retried for ever."""
    monkeypatch.setattr(key_versions, "MAX_VERSIONS", 3)
    caller, schedule = Caller(service), service.parts.schedule
    await caller.ask(in_keyring(caller, rotation_days=30))
    await caller.ask(GenerateKey(**caller.key, quota=None))
    for late in (40, 80, 120, 160):
        await schedule.carry_out(days(late))
    assert schedule.changes == {("rotate-key", "success"): 2}
    said = [message for message in caplog.messages if "cannot be rotated" in message]
    assert len(said) == 1
    assert await service.parts.schedule.count() == 0


@both_databases
async def test_retired_versions_are_archived_at_their_age(
    service: InProcessService, sql: Sql
) -> None:
    """Retired versions are scheduled a week ahead. A cancellation restarts their age."""
    caller, schedule = Caller(service), service.parts.schedule
    await caller.ask(in_keyring(caller, archive_after_days=30))
    await caller.prepare()
    await schedule.carry_out(days(29.9))
    assert not schedule.changes
    await schedule.carry_out(days(30.1))
    shown = (await caller.change(GetKey)).archive_at
    assert shown is not None
    assert days(37) < shown < days(37.2)
    await caller.change(CancelArchive)
    await schedule.carry_out(days(29.9))
    assert (await caller.change(GetKey)).archive_at is None
    for late in (31, 31, 37.9, 38.1):
        assert (await caller.change(GetKey)).status is KeyStatus.RETIRED
        await schedule.carry_out(days(late))
    assert (await caller.change(GetKey)).status is KeyStatus.ARCHIVED
    assert schedule.changes == {
        ("schedule-archive", "success"): 2,
        ("archive-key", "success"): 1,
    }


@both_databases
async def test_limits_hold_for_keys_that_are_there(
    service: InProcessService, serving: Serving, sql: Sql
) -> None:
    """New or removed limits apply at once, and the key itself does not change."""
    caller = Caller(service)
    create = in_keyring(caller)
    await caller.ask(create)
    await caller.prepare()
    due_at = "SELECT due_at_us IS NOT NULL FROM key_revisions WHERE keyring = 'payments'"
    changes: tuple[tuple[dict[str, Any], bool], ...] = (
        ({"rotation_days": 90}, True),
        ({"rotation_days": 0}, False),
        ({"archive_after_days": 90}, True),
        ({"archive_after_days": 0}, False),
    )
    for limits, is_due in changes:
        update = UpdateKeyring(tenant=caller.tenant, keyring="payments", **limits)
        assert not isinstance(await caller.ask(update), ErrorKind)
        assert [bool(due) for (due,) in sql(due_at)] == [is_due]
        keys = service.parts.store.find_key_versions(caller.name)
        assert len((await keys).entries) == 2


async def test_one_key_does_not_take_the_whole_look(
    service: InProcessService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A key with many due changes gets its share, and the rest after other keys."""
    monkeypatch.setattr(schedules, "CHANGES_AT_ONCE", 2)
    caller = Caller(service)
    await caller.ask(in_keyring(caller, archive_after_days=1))
    await caller.prepare()
    for _ in range(4):
        await caller.ask(RotateKey(**caller.key))
    other = await scheduled(service)
    for done in (2, 5):
        await service.parts.schedule.carry_out(days(8))
        assert service.parts.schedule.changes["schedule-archive", "success"] == done
        assert (await other.change(GetKey)).status is KeyStatus.ARCHIVED
