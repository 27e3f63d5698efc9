"""No private key is destroyed before the key service's own minimum delay."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest
from msgspec import structs
from tests.simulation.choices import Choices

from pqkeep_keyservice import clock
from pqkeep_keyservice.keys.changes import CommitOutcome, KeyChange, KeyringChange
from pqkeep_keyservice.keys.key_versions import KeyEntry, KeyName
from pqkeep_keyservice.keys.keyring import KeyringId
from pqkeep_keyservice.ledger.records import operation_record
from pqkeep_keyservice.listeners import GATEWAY_REQUESTS, Listener
from pqkeep_keyservice.server import Server
from pqkeep_keyservice.succession import continue_log, list_due
from pqkeep_protocol import audit
from pqkeep_protocol.algorithms import Algorithm
from pqkeep_protocol.audit_events import Outcome
from pqkeep_protocol.codec import TO_GATEWAY, Answer, Call, FrameDecoder, Refusal, encode
from pqkeep_protocol.errors import ErrorKind, KeyServiceError
from pqkeep_protocol.keys import (
    DEFAULT_KEYRING,
    INSTALLATION,
    Destruction,
    DestructionState,
    KeyInfo,
    KeyStatus,
    KeyVersion,
    TenantId,
)
from pqkeep_protocol.messages import (
    Attribution,
    Batch,
    CancelArchive,
    CancelDestruction,
    CreateKeyring,
    Decrypt,
    DeleteKeyring,
    DeleteRule,
    DisableKey,
    EnableKey,
    Encrypt,
    GenerateKey,
    GetActiveKey,
    GetImportKey,
    GetKey,
    GetKeyring,
    Idempotency,
    ImportPrivateKey,
    Item,
    ListDestructions,
    ListKeyrings,
    ListKeys,
    ListPublicKeys,
    ListRules,
    PutRule,
    Request,
    RestoreKeyring,
    RetireKey,
    RotateKey,
    ScheduleArchive,
    ScheduleDestruction,
    UpdateKeyring,
)
from pqkeep_protocol.metrics import GetMetrics
from pqkeep_protocol.rules import Rule

if TYPE_CHECKING:
    from pathlib import Path

    from keyservice.tests.conftest import InProcessService, Location, Serving

    from pqkeep_keyservice.keys.sealing import Sealer

Sql = Callable[..., list[Any]]
KEM, SIGNATURE = Algorithm.ML_KEM_768, Algorithm.ML_DSA_65
V1, V2 = KeyVersion(1), KeyVersion(2)
ATTRIBUTION = Attribution("r", "operator", "192.0.2.1", "")
PAST = datetime(2020, 1, 1, tzinfo=UTC)
RECORDS = "SELECT operation, principal, outcome, policy FROM audit_records ORDER BY id"
pytestmark = pytest.mark.parametrize("backend", ["sqlite", "postgresql"], indirect=True)


@pytest.fixture
def least_destruction_days() -> int:
    """Return the default delay."""
    return 7


def days(number: float) -> datetime:
    """Return the time in some days."""
    return datetime.now(UTC) + timedelta(days=number)


class Caller:
    """A gateway that sends requests for one tenant."""

    def __init__(self, service: InProcessService, tenant: TenantId | None = None) -> None:
        self.service = service
        self.tenant = tenant or TenantId(uuid4())
        self.key: dict[str, Any] = {"tenant": self.tenant, "algorithm": KEM}

    async def ask(self, request: Request[Any]) -> Any:
        """Return a result, or the kind of the refusal."""
        try:
            return await self.service.execute(request, ATTRIBUTION)
        except KeyServiceError as refusal:
            return refusal.kind

    async def prepare(self) -> None:
        """Make a retired, an active and a disabled version, and one in another keyring."""
        await self.ask(GenerateKey(**self.key, quota=None))
        await self.ask(RotateKey(**self.key))
        await self.ask(GenerateKey(tenant=self.tenant, algorithm=SIGNATURE, quota=None))
        await self.ask(DisableKey(tenant=self.tenant, algorithm=SIGNATURE, version=V1))
        await self.ask(CreateKeyring(tenant=self.tenant, keyring="cards"))
        await self.ask(GenerateKey(**self.key, keyring="cards", quota=None))

    async def destroy(self, at: datetime = PAST) -> Destruction:
        """Schedule the destruction of all the tenant's private keys."""
        found = (await self.ask(ScheduleDestruction(tenant=self.tenant, at=at))).destruction
        assert isinstance(found, Destruction)
        return found

    async def destruction(self) -> Destruction | None:
        """Return the state of the destruction, or None."""
        found = (await self.ask(ListDestructions(tenant=self.tenant))).destructions
        assert {scheduled.tenant for scheduled in found} <= {self.tenant}
        return found[0].destruction if found else None

    async def statuses(self) -> set[KeyStatus]:
        """Return the statuses of all its key versions."""
        listing = ListKeys(tenant=self.tenant, algorithm=None, status=None, all_keyrings=True)
        return {key.status for key in (await self.ask(listing)).keys}


async def test_an_archive_waits_for_the_least_delay(service: InProcessService) -> None:
    """A shorter delay is raised, a longer one kept, and a repeated request changes nothing."""
    for asked, expected in ((0, 7), (1, 7), (7, 7), (30, 30)):
        caller = Caller(service)
        await caller.prepare()
        before = days(expected)
        shown = await caller.ask(ScheduleArchive(**caller.key, version=V1, days=asked))
        assert isinstance(shown.key, KeyInfo)
        assert shown.key.archive_at is not None
        assert before <= shown.key.archive_at <= days(expected)
        again = await caller.ask(ScheduleArchive(**caller.key, version=V1, days=0))
        assert again.key == shown.key


async def test_a_tenant_is_destroyed_at_its_time(service: InProcessService, sql: Sql) -> None:
    """Destruction starts exactly after the delay, is complete, and spares other tenants."""
    caller, other = Caller(service), Caller(service)
    await caller.prepare()
    await other.prepare()
    before = days(7)
    found = await caller.destroy()
    assert before <= found.at <= days(7)
    assert found.state is DestructionState.SCHEDULED
    assert await caller.destroy(PAST) == found
    schedule = service.parts.schedule
    await schedule.carry_out(found.at - timedelta(microseconds=1))
    assert not schedule.changes
    await schedule.carry_out(found.at)
    assert await caller.destruction() == Destruction(DestructionState.COMPLETED, found.at)
    assert await caller.statuses() == {KeyStatus.ARCHIVED}
    assert await other.statuses() == {KeyStatus.ACTIVE, KeyStatus.RETIRED, KeyStatus.DISABLED}
    kept = "SELECT count(*) FROM keys WHERE tenant_id = ? AND sealed_seed IS NOT NULL"
    assert sql(kept, _stored(caller.tenant, sql)) == [(0,)]
    assert sql(kept, _stored(other.tenant, sql)) == [(4,)]
    at = f"at-{found.at:%Y-%m-%dT%H:%M:%SZ}"
    why = ("schedule", "success", "tenant-destruction")
    records = [record for record in sql(RECORDS) if record[0] in _OF_DESTRUCTION]
    assert records[:2] == [("schedule-destruction", "operator", "success", at)] * 2
    assert records[2] == ("destroy-tenant", "schedule", "begun", "tenant-destruction")
    assert sorted(records[3:-1]) == [("archive-key", *why)] * 4 + [("retire-key", *why)] * 3
    assert records[-1] == ("destroy-tenant", "schedule", "completed", "tenant-destruction")
    await schedule.carry_out(days(100))
    assert [record for record in sql(RECORDS) if record[0] in _OF_DESTRUCTION] == records


_OF_DESTRUCTION = ("schedule-destruction", "destroy-tenant", "archive-key", "retire-key")


def _stored(tenant: TenantId, sql: Sql) -> object:
    ((found,),) = sql("SELECT tenant_id FROM key_revisions LIMIT 1")
    return tenant if isinstance(found, type(tenant)) else tenant.hex


async def test_a_destruction_is_cancelled_until_it_begins(service: InProcessService) -> None:
    """A cancelled destruction never happens. During a destruction in progress, no key is made."""
    caller = Caller(service)
    await caller.prepare()
    first = await caller.destroy(days(3))
    cancelled = Destruction(DestructionState.CANCELLED, first.at)
    assert (await caller.ask(CancelDestruction(tenant=caller.tenant))).destruction == cancelled
    assert await caller.destruction() == cancelled
    await service.parts.schedule.carry_out(days(100))
    assert not service.parts.schedule.changes
    second = await caller.destroy(days(20))
    assert second.at > first.at
    deadline = asyncio.get_running_loop().time() + 60
    step = service.parts.transactions.take_destruction_step(
        KeyringId(caller.tenant, "default"), days(21), deadline
    )
    assert await step == "destroy-tenant"
    for request in (
        CancelDestruction(tenant=caller.tenant),
        GenerateKey(tenant=caller.tenant, algorithm=Algorithm.X_WING, quota=None),
        RotateKey(**caller.key),
    ):
        assert isinstance(await caller.ask(request), ErrorKind), request
    begun = Destruction(DestructionState.BEGUN, second.at)
    assert await caller.destruction() == begun
    assert await caller.destroy(days(30)) == begun
    await service.parts.schedule.carry_out(days(21))
    assert await caller.statuses() == {KeyStatus.ARCHIVED}


async def test_a_restarted_key_service_goes_on(serving: Serving) -> None:
    """After a stop at any change, the next process destroys the rest, without beginning again."""
    async with serving() as service:
        caller = Caller(service)
        await caller.prepare()
        at = (await caller.destroy()).at
    for _ in range(4):
        async with serving() as caller.service:
            deadline = asyncio.get_running_loop().time() + 60
            transactions = caller.service.parts.transactions
            await transactions.take_destruction_step(
                KeyringId(caller.tenant, "default"), at, deadline
            )
            assert await caller.destruction() == Destruction(DestructionState.BEGUN, at)
    async with serving() as caller.service:
        await caller.service.parts.schedule.carry_out(at)
        assert await caller.statuses() == {KeyStatus.ARCHIVED}


@pytest.mark.parametrize("keyring", [DEFAULT_KEYRING, "cards"])
async def test_a_cancellation_at_the_instant_is_all_or_nothing(
    service: InProcessService, keyring: str
) -> None:
    """A cancellation or a restore meets a destruction at each step, while keys decrypt.

    An accepted one keeps every key, and a refused one changes nothing. A decryption has the right
    plaintext, or it is refused.
    """
    outcomes = set()
    for turns in range(0, 120, 3):
        caller = Caller(service)
        await caller.prepare()
        key = {**caller.key, "keyring": keyring}
        made = await caller.ask(Encrypt(**key, version=None, plaintext=b"text"))
        opened = Decrypt(**key, version=made.version, ciphertext=made.ciphertext)
        keep: Request[Any] = CancelDestruction(tenant=caller.tenant)
        if keyring == DEFAULT_KEYRING:
            due = (await caller.destroy()).at
        else:
            deleted = DeleteKeyring(
                tenant=caller.tenant, keyring=keyring, days=7, only_if_allowed=False
            )
            due = (await caller.ask(deleted)).keyring.archive_at
            keep = RestoreKeyring(tenant=caller.tenant, keyring=keyring)
        destruction = asyncio.create_task(service.parts.schedule.carry_out(due))
        for _ in range(turns):
            await asyncio.sleep(0)
        decryption = asyncio.create_task(caller.ask(opened))
        kept = await caller.ask(keep)
        during = await decryption
        await destruction
        await service.parts.schedule.carry_out(days(100))
        after = await caller.ask(opened)
        is_kept = not isinstance(kept, ErrorKind)
        outcomes.add(is_kept)
        assert isinstance(during, ErrorKind) or during.plaintext == b"text"
        if is_kept:
            assert after.plaintext == b"text", turns
        else:
            assert isinstance(after, ErrorKind), turns
            assert kept in {ErrorKind.KEY_STATUS, ErrorKind.KEYRING_NOT_FOUND}
    assert outcomes == {True, False}


async def test_a_key_that_is_being_made_does_not_slip_in(service: InProcessService) -> None:
    """A key generated before the destruction is not stored after its beginning."""
    caller = Caller(service)
    await caller.prepare()
    name = KeyName(caller.tenant, KEM)
    versions = await service.parts.store.find_key_versions(name)
    entry = (await service.parts.store.find_key_versions(name)).require_active()
    at = (await caller.destroy()).at
    deadline = asyncio.get_running_loop().time() + 60
    await service.parts.transactions.take_destruction_step(
        KeyringId(caller.tenant, "default"), at, deadline
    )
    new = versions.with_rotated(_next(entry))
    request = RotateKey(**caller.key)
    record = operation_record(request, ATTRIBUTION, V2, Outcome.SUCCESS)
    outcome = await service.parts.log.commit(record, KeyChange(versions, new))
    assert outcome is CommitOutcome.STALE


def _next(entry: KeyEntry) -> KeyEntry:
    info = structs.replace(entry.info, version=KeyVersion(entry.info.version + 1))
    return replace(entry, info=info)


FORGERIES = {
    "brought forward": "UPDATE keyrings SET destruction_at_us = 1 WHERE destruction IS NOT NULL",
    "begun": "UPDATE keyrings SET destruction = 'begun', destruction_at_us = 1 WHERE name = 'default'",
    "made up": (
        "UPDATE keyrings SET destruction = 'scheduled', destruction_at_us = 1"
        " WHERE name = 'default'"
    ),
}


@pytest.mark.threat("keys-database-writer")
@pytest.mark.parametrize("forgery", FORGERIES)
async def test_who_writes_the_database_destroys_nothing(
    forgery: str, serving: Serving, sql: Sql
) -> None:
    """A destruction that was written directly into the database is ignored."""
    async with serving() as service:
        caller = Caller(service)
        await caller.prepare()
        await caller.destroy()
        if forgery == "made up":
            await caller.ask(CancelDestruction(tenant=caller.tenant))
    sql(FORGERIES[forgery])
    async with serving() as service:
        await service.parts.schedule.carry_out(days(100))
        assert service.parts.schedule.changes == {("none", "failure"): 1}
    assert sql("SELECT count(*) FROM keys WHERE sealed_seed IS NULL") == [(0,)]


@pytest.mark.threat("keys-database-writer")
async def test_a_row_of_before_a_cancellation_destroys_nothing(serving: Serving, sql: Sql) -> None:
    """A row restored from before a cancellation is older than the log, and ignored."""
    columns = "revision, destruction, destruction_at_us, mac"
    async with serving() as service:
        caller = Caller(service)
        await caller.prepare()
        await caller.destroy()
        (copied,) = sql(f"SELECT {columns} FROM keyrings WHERE name = 'default'")  # noqa: S608
        await caller.ask(CancelDestruction(tenant=caller.tenant))
    changed = ", ".join(f"{column} = ?" for column in columns.split(", "))
    sql(f"UPDATE keyrings SET {changed} WHERE name = 'default'", *copied)  # noqa: S608
    async with serving() as service:
        await service.parts.schedule.carry_out(days(100))
        assert service.parts.schedule.changes == {("none", "failure"): 1}
    assert sql("SELECT count(*) FROM keys WHERE sealed_seed IS NULL") == [(0,)]


async def test_a_cancellation_comes_before_its_schedule(serving: Serving, sql: Sql) -> None:
    """A cancelled destruction, scheduled before or not, is renewed only by a request that says so."""
    async with serving() as service:
        for is_scheduled in (False, True):
            caller = Caller(service)
            await caller.prepare()
            if is_scheduled:
                await caller.destroy()
            await caller.ask(CancelDestruction(tenant=caller.tenant))
            late = ScheduleDestruction(tenant=caller.tenant, at=PAST, renews=False)
            found = (await caller.ask(late)).destruction
            assert found == await caller.destruction()
            assert found.state is DestructionState.CANCELLED
            assert (await caller.destroy()).state is DestructionState.SCHEDULED
    cancelled = "SELECT count(*) FROM audit_records WHERE operation = 'cancel-destruction'"
    assert sql(cancelled) == [(2,)]


async def overdue(caller: Caller, state: DestructionState) -> None:
    """Schedule a destruction and an archive in another keyring, both due yesterday."""
    store, log = caller.service.parts.store, caller.service.parts.log
    at = days(-1)
    keyring = await store.find_keyring(KeyringId(caller.tenant, "default"))
    change = KeyringChange(keyring.with_destruction_scheduled(at))
    request = ScheduleDestruction(tenant=caller.tenant, at=at)
    record = operation_record(request, ATTRIBUTION, None, Outcome.SUCCESS)
    assert await log.commit(record, change) is CommitOutcome.DURABLE
    if state is DestructionState.BEGUN:
        change = KeyringChange(change.new.with_destruction_begun(Destruction(state, at)))
        assert await log.commit(record, change) is CommitOutcome.DURABLE
    versions = await store.find_key_versions(KeyName(caller.tenant, KEM))
    schedule = ScheduleArchive(**caller.key, version=V1, days=7)
    scheduled = KeyChange(versions, versions.with_archive_scheduled(V1, at))
    record = operation_record(schedule, ATTRIBUTION, V1, Outcome.SUCCESS)
    assert await log.commit(record, scheduled) is CommitOutcome.DURABLE


@pytest.mark.parametrize("state", [DestructionState.SCHEDULED, DestructionState.BEGUN])
async def test_a_restore_destroys_nothing_for_a_week(
    state: DestructionState, serving: Serving, location: Location, sealer: Sealer, sql: Sql
) -> None:
    """After a restore, due or begun destructions get a new visible time. Later ones keep theirs."""
    async with serving() as service:
        late, caller = Caller(service), Caller(service)
        await late.prepare()
        await caller.prepare()
        await overdue(caller, state)
        kept = await late.destroy(days(40))
    restored_at = datetime.now(UTC)
    database = await location.open()
    await database.write(continue_log, sealer)
    due = await database.read(list_due, sealer)
    await database.close()
    assert [destruction.tenant for destruction in due] == [
        caller.tenant,
        caller.tenant,
        late.tenant,
    ]
    assert all(destruction.at >= restored_at + timedelta(days=7) for destruction in due)
    assert due[-1].at == kept.at
    shown = [destruction.key.archive_at for destruction in due if destruction.key is not None]
    assert shown == [due[0].at]
    async with serving() as service:
        caller.service = service
        assert await caller.destruction() == Destruction(state, due[0].at)
        key = (await caller.ask(GetKey(**caller.key, version=V1))).key
        assert key.archive_at == due[0].at
        await service.parts.schedule.carry_out(due[0].at - timedelta(seconds=1))
        assert not service.parts.schedule.changes
        await service.parts.schedule.carry_out(due[0].at)
        assert await caller.statuses() == {KeyStatus.ARCHIVED}
    postponed = [record for record in sql(RECORDS) if record[1] == "key-service" and record[3]]
    at = f"at-{due[0].at:%Y-%m-%dT%H:%M:%SZ}"
    assert postponed == [
        ("schedule-destruction", "key-service", "success", at),
        ("schedule-archive", "key-service", "success", at),
    ]


async def test_a_restore_postpones_the_destruction_of_a_deleted_keyring(
    serving: Serving, location: Location, sealer: Sealer, sql: Sql
) -> None:
    """The keyring is listed with its new time, and can be restored until it is destroyed then."""
    async with serving() as service:
        caller = Caller(service)
        await caller.prepare()
        await caller.ask(
            DeleteKeyring(tenant=caller.tenant, keyring="cards", days=7, only_if_allowed=False)
        )
        store, log = service.parts.store, service.parts.log
        name = KeyringId(caller.tenant, "cards")
        keyring = await store.find_keyring(name)
        early = replace(
            keyring,
            destruction=Destruction(DestructionState.SCHEDULED, days(-1)),
            revision=keyring.revision + 1,
        )
        request = GetKeyring(tenant=caller.tenant, keyring="cards")
        record = operation_record(request, ATTRIBUTION, None, Outcome.SUCCESS)
        assert await log.commit(record, KeyringChange(early)) is CommitOutcome.DURABLE
    restored_at = datetime.now(UTC)
    database = await location.open()
    await database.write(continue_log, sealer)
    (due,) = await database.read(list_due, sealer)
    await database.close()
    assert (due.tenant, due.keyring, due.key) == (caller.tenant, "cards", None)
    assert due.at >= restored_at + timedelta(days=7)
    said = (
        "SELECT keyring, policy FROM audit_records WHERE operation = 'delete-keyring' ORDER BY id"
    )
    assert sql(said)[-1] == ("cards", f"at-{due.at:%Y-%m-%dT%H:%M:%SZ}")
    async with serving() as caller.service:
        schedule = caller.service.parts.schedule
        await schedule.carry_out(due.at - timedelta(seconds=1))
        assert not schedule.changes
        await schedule.carry_out(due.at)
        restore = RestoreKeyring(tenant=caller.tenant, keyring="cards")
        assert await caller.ask(restore) is ErrorKind.KEYRING_NOT_FOUND


async def test_a_clock_that_is_set_forward_destroys_nothing(
    service: InProcessService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For a day after a step of the clock nothing is destroyed, while rotations continue."""
    caller = Caller(service)
    await caller.prepare()
    await caller.ask(UpdateKeyring(tenant=caller.tenant, keyring="cards", rotation_days=30))
    await caller.ask(ScheduleArchive(**caller.key, version=V1, days=7))
    await caller.destroy()
    schedule = service.parts.schedule
    await schedule.look()
    monkeypatch.setattr(clock, "now", partial(days, 100))
    for _ in range(2):
        await schedule.look()
    assert set(schedule.changes) == {("rotate-key", "success")}
    assert KeyStatus.ARCHIVED not in await caller.statuses()
    monkeypatch.setattr("pqkeep_keyservice.schedule.HOLD_SECONDS", 0.0)
    monkeypatch.setattr(schedule, "_held_until", asyncio.get_running_loop().time())
    await schedule.look()
    assert await caller.statuses() == {KeyStatus.ARCHIVED}


async def test_a_start_long_after_the_newest_record_destroys_nothing_at_first(
    serving: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A step of the clock while the key service is stopped is detected by the log."""
    async with serving() as service:
        caller = Caller(service)
        await caller.prepare()
        await caller.destroy()
    monkeypatch.setattr(clock, "now", partial(days, 100))
    async with serving() as caller.service:
        await caller.service.parts.schedule.look()
        assert not caller.service.parts.schedule.changes
    monkeypatch.setattr(clock, "now", partial(days, 0.9))
    async with serving() as caller.service:
        await caller.service.parts.schedule.look()
        assert not caller.service.parts.schedule._held_until > 0


class Attacker:
    """A compromised gateway, which sends any permitted frame in any order."""

    def __init__(self, choices: Choices, tenants: list[TenantId]) -> None:
        self._choices = choices
        self._tenants = tenants
        self._makers: dict[type, Callable[[], Request[Any]]] = {
            GenerateKey: lambda: GenerateKey(**self._key(), quota=None),
            GetImportKey: lambda: GetImportKey(**self._key()),
            ImportPrivateKey: lambda: ImportPrivateKey(
                **self._key(),
                import_key_id=uuid4(),
                wrapped_private_key=bytes(64),
                quota=None,
                idempotency=Idempotency(os.urandom(32), bytes(32)),
            ),
            RotateKey: lambda: RotateKey(**self._key()),
            RetireKey: lambda: RetireKey(**self._version()),
            DisableKey: lambda: DisableKey(**self._version()),
            EnableKey: lambda: EnableKey(**self._version()),
            ScheduleArchive: lambda: ScheduleArchive(
                **self._version(), days=self._choices.one_of([0, 0, 1, 7])
            ),
            CancelArchive: lambda: CancelArchive(**self._version()),
            ListKeys: lambda: ListKeys(tenant=self._tenant(), algorithm=None, status=None),
            ListPublicKeys: lambda: ListPublicKeys(tenant=self._tenant(), algorithms=(KEM,)),
            GetKey: lambda: GetKey(**self._version()),
            GetActiveKey: lambda: GetActiveKey(**self._key()),
            CreateKeyring: lambda: CreateKeyring(**self._keyring(), archive_after_days=1),
            UpdateKeyring: lambda: UpdateKeyring(
                **self._keyring(), rotation_days=1, archive_after_days=1
            ),
            GetKeyring: lambda: GetKeyring(**self._keyring()),
            ListKeyrings: lambda: ListKeyrings(**self._keyring()),
            DeleteKeyring: lambda: DeleteKeyring(
                **{**self._keyring(), "keyring": "cards"}, days=0, only_if_allowed=False
            ),
            RestoreKeyring: lambda: RestoreKeyring(**self._keyring()),
            ScheduleDestruction: lambda: ScheduleDestruction(
                tenant=self._tenant(), at=self._choices.one_of([PAST, days(-1), days(0)])
            ),
            CancelDestruction: lambda: CancelDestruction(tenant=self._tenant()),
            ListDestructions: lambda: ListDestructions(tenant=INSTALLATION),
            ListRules: lambda: ListRules(tenant=self._tenant()),
            PutRule: lambda: PutRule(
                tenant=self._tenant(),
                name="end",
                rules=(Rule("end", (KEM,), deny_from=PAST),),
            ),
            DeleteRule: lambda: DeleteRule(tenant=self._tenant(), name="end"),
            Batch: lambda: Batch(
                tenant=self._tenant(),
                items=(Item(Encrypt(**self._key(), version=None, plaintext=b"")),),
            ),
            audit.RecordEvents: self._event,
        }

    def unused(self) -> frozenset[type]:
        """Return the requests that are never sent, because they only read or use keys."""
        return GATEWAY_REQUESTS - self._makers.keys()

    def next(self) -> Any:
        """Return a random request. Half of them are destructive."""
        destroying = (ScheduleArchive, ScheduleDestruction, RetireKey, RotateKey, UpdateKeyring)
        kinds = destroying if self._choices.happens(0.5) else tuple(self._makers)
        return self._makers[self._choices.one_of(kinds)]()

    def _tenant(self) -> TenantId:
        return self._choices.one_of(self._tenants)

    def _keyring(self) -> dict[str, Any]:
        keyring = self._choices.one_of(["default", "cards", "new"])
        return {"tenant": self._tenant(), "keyring": keyring}

    def _key(self) -> dict[str, Any]:
        return {**self._keyring(), "algorithm": self._choices.one_of([KEM, SIGNATURE])}

    def _version(self) -> dict[str, Any]:
        return {**self._key(), "version": KeyVersion(self._choices.one_of([1, 1, 2, 3]))}

    def _event(self) -> Request[Any]:
        operations = ["delete-tenant", "tenant-deleted", "archive-key", "destroy-tenant"]
        event = audit.Event(
            id=uuid4(),
            at_us=time.time_ns() // 1000,
            tenant=self._tenant(),
            principal="operator",
            operation=self._choices.one_of(operations),
            algorithm=KEM,
            key_version=V1,
            outcome="success",
            request_id="",
            source_address="",
            policy="",
            keyring="default",
        )
        return audit.RecordEvents(tenant=INSTALLATION, events=(event,))


USES = frozenset(
    {
        *("Encrypt", "Decrypt", "Encapsulate", "Decapsulate", "Wrap", "Unwrap", "ReEncrypt"),
        *("Sign", "Verify", "SignHash", "VerifyHash", "SignJws", "SignMu", "VerifyMu"),
        *("GenerateDataKey", "ComputeMac", "VerifyMac", "HashData", "GenerateRandom"),
        *("ListLibraries", "VerifySignature"),
    }
)
"""Operations that change no key, including those without a key."""


@pytest.mark.threat("compromised-gateway")
@pytest.mark.parametrize("seed", [1, 2])
async def test_no_sequence_of_frames_destroys_a_key(
    seed: int, service: InProcessService, sql: Sql, tmp_path: Path
) -> None:
    """Within the minimum delay every private key remains, and can be used for reading again."""
    await service.parts.activation.start()
    tenants = [Caller(service) for _ in range(2)]
    blobs: list[tuple[Caller, bytes]] = []
    for caller in tenants:
        await caller.prepare()
        blob = await caller.ask(Encrypt(**caller.key, version=V2, plaintext=b"text"))
        blobs.append((caller, blob.ciphertext))
    seeds = (
        "SELECT tenant_id, keyring, algorithm, version, sealed_seed FROM keys ORDER BY 1, 2, 3, 4"
    )
    before = sql(seeds)
    attacker = Attacker(Choices(seed, "frames"), [caller.tenant for caller in tenants])
    audit_requests = {kind for kind in GATEWAY_REQUESTS if kind.__module__ == audit.__name__}
    unsent = {kind.__name__ for kind in attacker.unused() - audit_requests}
    assert unsent == USES | {GetMetrics.__name__}
    parts = service.parts
    server = Server(
        parts.transactions,
        parts.batches,
        parts.audit_service,
        parts.administration,
        parts.metrics,
        parts.activation,
    )
    path = tmp_path / "socket"
    await server.listen(Listener(path, frozenset({os.geteuid()}), GATEWAY_REQUESTS, 0o600))
    reader, writer = await asyncio.open_unix_connection(str(path))
    began, decoder = datetime.now(UTC), FrameDecoder(TO_GATEWAY)
    responses = 0
    for number in range(400):
        writer.write(encode(Call(number, 60_000, ATTRIBUTION, attacker.next())))
        found: list[object] = []
        while not found:
            data = await reader.read(len(decoder.space()))
            assert data
            decoder.space()[: len(data)] = data
            found = list(decoder.filled(len(data)))
        assert isinstance(found[0], Answer | Refusal)
        responses += isinstance(found[0], Answer)
        if not number % 40:
            await parts.schedule.carry_out(began + timedelta(days=7 * number / 400))
    await parts.schedule.carry_out(began + timedelta(days=7))
    writer.close()
    await server.drain(60)
    assert responses > 150
    kept = [row for row in sql(seeds) if row[:4] in {earlier[:4] for earlier in before}]
    assert kept == before
    for caller, blob in blobs:
        assert not isinstance(await caller.ask(CancelDestruction(tenant=caller.tenant)), ErrorKind)
        for kind in (CancelArchive, EnableKey):
            assert not isinstance(await caller.ask(kind(**caller.key, version=V2)), ErrorKind)
        opened = await caller.ask(Decrypt(**caller.key, version=V2, ciphertext=blob))
        assert opened.plaintext == b"text"


async def test_destructions_are_listed_by_pages(
    service: InProcessService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The pages have each destruction that is not completed once, and nothing else."""
    monkeypatch.setattr("pqkeep_keyservice.administration.MAX_DESTRUCTIONS_LISTED", 2)
    callers = [Caller(service) for _ in range(5)]
    for caller in callers:
        await caller.destroy(days(20 if caller is callers[0] else 50))
    await Caller(service).prepare()
    await service.parts.schedule.carry_out(days(21))
    found: list[TenantId] = []
    after: TenantId | None = None
    while True:
        request = ListDestructions(tenant=INSTALLATION, after=after)
        page = await service.execute(request, ATTRIBUTION)
        found += [destruction.tenant for destruction in page.destructions]
        if not page.has_more:
            break
        after = found[-1]
    assert found == sorted(caller.tenant for caller in callers[1:])


@pytest.mark.threat("keys-database-writer")
async def test_damaged_rows_hide_no_destruction(
    serving: Serving, sql: Sql, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Behind a whole page of changed rows the other destructions are listed, to be cancelled."""
    monkeypatch.setattr("pqkeep_keyservice.administration.MAX_DESTRUCTIONS_LISTED", 2)
    async with serving() as service:
        callers = sorted((Caller(service) for _ in range(5)), key=lambda caller: caller.tenant)
        for caller in callers:
            await caller.destroy(days(20))
    rows = sql("SELECT tenant_id, mac FROM keyrings ORDER BY tenant_id")
    for tenant, mac in rows[:4]:
        changed = bytes([*mac[:-1], mac[-1] ^ 1])
        sql("UPDATE keyrings SET mac = ? WHERE tenant_id = ?", changed, tenant)
    async with serving() as service:
        page = await service.execute(ListDestructions(tenant=INSTALLATION), ATTRIBUTION)
    assert [found.tenant for found in page.destructions] == [callers[4].tenant]
    assert not page.has_more
