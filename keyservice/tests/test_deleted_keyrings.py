"""Deleted keyrings: hidden and refused, restorable, then destroyed; the name continues its versions."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from keyservice.tests.conftest import InProcessService, Restart, Walk
from msgspec import structs

from pqkeep_keyservice.keys.changes import CommitOutcome, KeyChange
from pqkeep_keyservice.keys.key_versions import KeyName
from pqkeep_keyservice.keys.keyring import KeyringId
from pqkeep_keyservice.ledger.records import operation_record
from pqkeep_protocol.algorithms import Algorithm
from pqkeep_protocol.audit import GetUsage, ListUsage
from pqkeep_protocol.audit_events import Outcome
from pqkeep_protocol.errors import ErrorKind, KeyServiceError
from pqkeep_protocol.keyrings import PROTECTED
from pqkeep_protocol.keys import DEFAULT_KEYRING, KeyStatus, KeyVersion, TenantId
from pqkeep_protocol.messages import (
    Attribution,
    CreateKeyring,
    Decrypt,
    DeleteKeyring,
    DisableKey,
    Encrypt,
    GenerateKey,
    GetActiveKey,
    GetKeyring,
    ListKeyrings,
    ListKeys,
    ReEncrypt,
    Request,
    RestoreKeyring,
    RotateKey,
    ScheduleArchive,
    Target,
    UpdateKeyring,
)

if TYPE_CHECKING:
    from keyservice.tests.conftest import Serving, Sql

KEM, SIGNATURE = Algorithm.ML_KEM_768, Algorithm.ML_DSA_65
V1 = KeyVersion(1)
CARDS = "payments.cards"
TEXT = b"attack at dawn"
ATTRIBUTION = Attribution("r", "user:1", "192.0.2.1", "")
BOTH = pytest.mark.parametrize("backend", ["sqlite", "postgresql"], indirect=True)


@pytest.fixture
def least_destruction_days() -> int:
    """Return the default delay."""
    return 7


def days(number: float) -> datetime:
    """Return the time in some days."""
    return datetime.now(UTC) + timedelta(days=number)


class Caller:
    """A caller of one tenant, who gets a result or the kind of a refusal."""

    def __init__(self, service: InProcessService) -> None:
        self.service = service
        self.tenant = TenantId(uuid4())
        self.keyring: dict[str, Any] = {"tenant": self.tenant, "keyring": CARDS}
        self.key: dict[str, Any] = {**self.keyring, "algorithm": KEM}

    async def ask(self, request: Request[Any]) -> Any:
        """Return a result, or the kind of a refusal."""
        try:
            return await self.service.execute(request, ATTRIBUTION)
        except KeyServiceError as refusal:
            return refusal.kind

    async def prepare(self) -> bytes:
        """Make a keyring with a retired, an active and a disabled version. Return a ciphertext."""
        await self.ask(CreateKeyring(**self.keyring, rotation_days=1, archive_after_days=1))
        await self.ask(GenerateKey(**self.key, quota=None))
        sealed = await self.ask(Encrypt(**self.key, version=None, plaintext=TEXT))
        await self.ask(RotateKey(**self.key))
        await self.ask(GenerateKey(**self.keyring, algorithm=SIGNATURE, quota=None))
        await self.ask(DisableKey(**self.keyring, algorithm=SIGNATURE, version=V1))
        await self.ask(GenerateKey(tenant=self.tenant, algorithm=KEM, quota=None))
        ciphertext: bytes = sealed.ciphertext
        return ciphertext

    async def delete(self, days: int = 7) -> datetime:
        """Delete the keyring. Return when its private keys are destroyed."""
        at = (
            await self.ask(DeleteKeyring(**self.keyring, days=days, only_if_allowed=False))
        ).keyring.archive_at
        assert isinstance(at, datetime)
        return at

    async def names(self, *, deleted: bool = False) -> list[str]:
        """Return the names of the listed keyrings."""
        listed = await self.ask(ListKeyrings(tenant=self.tenant, deleted=deleted))
        assert listed.total == len(listed.keyrings)
        return [keyring.name for keyring in listed.keyrings]

    async def listed_keys(self) -> set[tuple[str, KeyStatus]]:
        """Return keyring and status of the keys of all keyrings."""
        listing = ListKeys(tenant=self.tenant, algorithm=None, status=None, all_keyrings=True)
        return {(key.keyring, key.status) for key in (await self.ask(listing)).keys}


@BOTH
async def test_a_deleted_keyring_is_hidden_and_every_request_refused(
    service: InProcessService, restarted: Callable[[], InProcessService]
) -> None:
    """Each request that names a deleted keyring is KEYRING_NOT_FOUND, also after a restart.

    Lists omit it.
    """
    caller = Caller(service)
    blob = await caller.prepare()
    public_key = (await caller.ask(GetActiveKey(**caller.key))).key.public_key
    assert days(6.9) < await caller.delete() < days(7.1)
    default: dict[str, Any] = {"tenant": caller.tenant, "algorithm": KEM}
    sealed = await caller.ask(Encrypt(**default, version=None, plaintext=TEXT))
    for _ in range(2):
        for request in (
            GetKeyring(**caller.keyring),
            UpdateKeyring(**caller.keyring, description="new"),
            DeleteKeyring(**caller.keyring, days=7, only_if_allowed=False),
            Encrypt(**caller.key, version=None, plaintext=TEXT),
            Decrypt(**caller.key, version=V1, ciphertext=blob),
            Encrypt(**default, version=None, plaintext=TEXT, public_key=public_key),
            GenerateKey(**caller.keyring, algorithm=Algorithm.X_WING, quota=None),
            RotateKey(**caller.key),
            DisableKey(**caller.key, version=V1),
            GetActiveKey(**caller.key),
            ListKeys(**caller.key, status=None),
            ListUsage(**caller.key),
            GetUsage(**caller.key, version=V1),
        ):
            assert await caller.ask(request) is ErrorKind.KEYRING_NOT_FOUND, request
        to = ReEncrypt(
            **default,
            version=V1,
            ciphertext=sealed.ciphertext,
            is_wrapped_key=False,
            target=Target(KEM, CARDS),
        )
        assert await caller.ask(to) is ErrorKind.TARGET_NOT_FOUND
        assert await caller.ask(CreateKeyring(**caller.keyring)) is ErrorKind.KEYRING_DELETED
        assert await caller.names() == [DEFAULT_KEYRING]
        assert await caller.names(deleted=True) == [CARDS]
        assert await caller.listed_keys() == {(DEFAULT_KEYRING, KeyStatus.ACTIVE)}
        caller.service = restarted()


@BOTH
async def test_a_restored_keyring_is_as_it_was(service: InProcessService) -> None:
    """Settings, statuses and ciphertexts are the same, and nothing is destroyed at the time."""
    caller = Caller(service)
    blob = await caller.prepare()
    before = (await caller.ask(GetKeyring(**caller.keyring))).keyring
    at = await caller.delete()
    restored = await caller.ask(RestoreKeyring(**caller.keyring))
    assert restored.keyring == before
    again = await caller.ask(RestoreKeyring(**caller.keyring))
    assert again.keyring == before
    assert await caller.names() == [DEFAULT_KEYRING, CARDS]
    opened = await caller.ask(Decrypt(**caller.key, version=V1, ciphertext=blob))
    assert opened.plaintext == TEXT
    await caller.ask(UpdateKeyring(**caller.keyring, rotation_days=0, archive_after_days=0))
    await caller.service.parts.schedule.carry_out(at + timedelta(days=1))
    assert (CARDS, KeyStatus.ARCHIVED) not in await caller.listed_keys()
    assert await caller.delete() > at


@BOTH
async def test_a_deleted_keyring_s_keys_are_destroyed_at_its_time(
    service: InProcessService, sql: Sql
) -> None:
    """Before the time nothing changes. Then exactly this keyring's keys are destroyed."""
    caller = Caller(service)
    await caller.prepare()
    at = await caller.delete()
    schedule = caller.service.parts.schedule
    await schedule.carry_out(at - timedelta(microseconds=1))
    assert not schedule.changes  # not even by its rotation_days and archive_after_days
    await schedule.carry_out(at)
    kept = "SELECT keyring, status FROM keys WHERE sealed_seed IS NOT NULL"
    assert sql(kept) == [(DEFAULT_KEYRING, "active")]
    assert await caller.names(deleted=True) == []
    assert await caller.ask(RestoreKeyring(**caller.keyring)) is ErrorKind.KEYRING_NOT_FOUND
    said = sql(
        "SELECT operation, outcome, policy FROM audit_records"
        " WHERE principal = 'schedule' AND keyring = ? ORDER BY id",
        CARDS,
    )
    why = "keyring-deletion"
    assert said[0] == ("destroy-keyring", "begun", why)
    assert said[-1] == ("destroy-keyring", "completed", why)
    assert (
        sorted(said[1:-1])
        == [("archive-key", "success", why)] * 3 + [("retire-key", "success", why)] * 2
    )
    await schedule.carry_out(days(100))
    assert sql(kept) == [(DEFAULT_KEYRING, "active")]


@BOTH
async def test_a_name_that_is_created_again_continues_the_versions(
    service: InProcessService, restarted: Callable[[], InProcessService]
) -> None:
    """The new keyring has its own settings, the archived versions, and the next version number."""
    caller = Caller(service)
    blob = await caller.prepare()
    await caller.service.parts.schedule.carry_out(await caller.delete())
    made = await caller.ask(CreateKeyring(**caller.keyring, description="second", first_version=2))
    assert (made.keyring.description, made.keyring.rotation_days) == ("second", 0)
    caller.service = restarted()
    assert (await caller.ask(GenerateKey(**caller.key, quota=None))).key.version == 3
    opening = Decrypt(**caller.key, version=V1, ciphertext=blob)
    assert await caller.ask(opening) is ErrorKind.KEY_NOT_FOUND
    assert await caller.names() == [DEFAULT_KEYRING, CARDS]


@BOTH
async def test_a_key_that_is_being_made_does_not_slip_into_a_destroyed_keyring(
    service: InProcessService,
) -> None:
    """A key generated before the destruction is not stored after its beginning."""
    caller = Caller(service)
    await caller.prepare()
    parts = caller.service.parts
    versions = await parts.store.find_key_versions(KeyName(caller.tenant, KEM, CARDS))
    entry = versions.require_active()
    at = await caller.delete()
    deadline = asyncio.get_running_loop().time() + 60
    keyring = KeyringId(caller.tenant, CARDS)
    assert (
        await parts.transactions.take_destruction_step(keyring, at, deadline) == "destroy-keyring"
    )
    assert await caller.ask(RestoreKeyring(**caller.keyring)) is ErrorKind.KEYRING_NOT_FOUND
    info = structs.replace(entry.info, version=KeyVersion(entry.info.version + 1))
    new = versions.with_rotated(replace(entry, info=info))
    record = operation_record(RotateKey(**caller.key), ATTRIBUTION, V1, Outcome.SUCCESS)
    outcome = await parts.log.commit(record, KeyChange(versions, new))
    assert outcome is CommitOutcome.STALE


async def test_the_default_keyring_cannot_be_deleted(tenant: TenantId) -> None:
    """The request cannot be made: every tenant has the default keyring."""
    with pytest.raises(ValueError, match="default"):
        DeleteKeyring(tenant=tenant, keyring=DEFAULT_KEYRING, days=7, only_if_allowed=False)


async def test_a_deleted_keyring_counts_until_it_is_destroyed(service: InProcessService) -> None:
    """A deleted keyring counts while it can be restored.

    After its destruction it does not count.
    """
    caller = Caller(service)
    await caller.prepare()
    at = await caller.delete()
    other = CreateKeyring(tenant=caller.tenant, keyring="other", quota=2)
    assert await caller.ask(other) is ErrorKind.KEYRING_QUOTA_REACHED
    await caller.service.parts.schedule.carry_out(at)
    assert (await caller.ask(other)).keyring.name == "other"
    again = CreateKeyring(**caller.keyring, quota=2)
    assert await caller.ask(again) is ErrorKind.KEYRING_QUOTA_REACHED
    assert (await caller.ask(structs.replace(again, quota=3))).keyring.name == CARDS


@pytest.mark.threat("keys-database-writer")
@BOTH
@pytest.mark.parametrize(
    "forgery",
    [
        "UPDATE keyrings SET destruction = 'begun', destruction_at_us = 1",
        "UPDATE keyrings SET destruction_at_us = 1",
        "UPDATE keyrings SET destruction = 'cancelled'",
    ],
)
async def test_who_writes_the_database_deletes_and_restores_no_keyring(
    serving: Serving, sql: Sql, forgery: str
) -> None:
    """A deletion that was changed in the database destroys nothing, and restores nothing."""
    async with serving() as service:
        caller = Caller(service)
        await caller.prepare()
        await caller.delete()
    sql(forgery)
    async with serving() as caller.service:
        await caller.service.parts.schedule.carry_out(days(100))
        assert await caller.ask(GetKeyring(**caller.keyring)) is ErrorKind.UNAVAILABLE
        assert await caller.ask(RestoreKeyring(**caller.keyring)) is ErrorKind.UNAVAILABLE
    destroyed = "SELECT count(*) FROM keys WHERE sealed_seed IS NULL AND keyring = ?"
    assert sql(destroyed, CARDS) == [(0,)]


NAMES = ("cards", "Cards", "logs")
ANY = st.sampled_from(NAMES)
LIVE, DELETED, GONE = "live", "deleted", "gone"


class Deletions(RuleBasedStateMachine):
    """One tenant's keyrings: created, deleted, restored, destroyed, and created again."""

    def __init__(self, runner: asyncio.Runner, new: Restart) -> None:
        super().__init__()
        self.runner, self.new, self.service = runner, new, new()
        self.tenant = TenantId(uuid4())
        self.states: dict[str, str] = {}
        self.versions: dict[str, int] = {}
        self.blobs: dict[tuple[str, int], bytes] = {}
        """Ciphertexts of versions with a private key, by keyring and version."""
        self.now = datetime.now(UTC)

    def ask(self, kind: Callable[..., Request[Any]], name: str, **more: Any) -> Any:
        """Return a result, or the kind of a refusal."""
        request = kind(tenant=self.tenant, keyring=name, **more)
        try:
            return self.runner.run(self.service.execute(request, ATTRIBUTION))
        except KeyServiceError as refusal:
            return refusal.kind

    @rule(name=ANY)
    def create(self, name: str) -> None:
        """Create a keyring whose name is free."""
        response, state = self.ask(CreateKeyring, name), self.states.get(name)
        expected = {LIVE: ErrorKind.KEYRING_EXISTS, DELETED: ErrorKind.KEYRING_DELETED}
        if state in expected:
            assert response is expected[state]
            return
        assert response.keyring.name == name
        self.states[name] = LIVE

    @rule(name=ANY)
    def delete(self, name: str) -> None:
        """Delete a keyring that exists."""
        response = self.ask(DeleteKeyring, name, days=0, only_if_allowed=False)
        if self.states.get(name) != LIVE:
            assert response is ErrorKind.KEYRING_NOT_FOUND
            return
        assert response.keyring.archive_at > self.now
        self.states[name] = DELETED

    @rule(name=ANY)
    def restore(self, name: str) -> None:
        """Restore a deleted keyring; an existing one does not change."""
        response = self.ask(RestoreKeyring, name)
        if self.states.get(name) not in (LIVE, DELETED):
            assert response is ErrorKind.KEYRING_NOT_FOUND
            return
        assert response.keyring.archive_at is None
        self.states[name] = LIVE

    @rule(name=ANY)
    def make_a_version(self, name: str) -> None:
        """Generate or rotate, and encrypt. The version number follows all earlier ones."""
        response = self.ask(RotateKey, name, algorithm=KEM)
        if response is ErrorKind.KEY_NOT_FOUND:
            response = self.ask(GenerateKey, name, algorithm=KEM, quota=None)
        if self.states.get(name) != LIVE:
            assert response is ErrorKind.KEYRING_NOT_FOUND
            return
        version = self.versions.get(name, 0) + 1
        assert response.key.version == version
        self.versions[name] = version
        sealed = self.ask(Encrypt, name, algorithm=KEM, version=None, plaintext=TEXT)
        self.blobs[name, version] = sealed.ciphertext

    @rule()
    def the_time_comes(self) -> None:
        """Destroy the private keys of all deleted keyrings."""
        due = datetime.now(UTC) + timedelta(days=8)
        self.runner.run(self.service.parts.schedule.carry_out(due))
        for name, state in self.states.items():
            if state == DELETED:
                self.states[name] = GONE
                self.blobs = {key: blob for key, blob in self.blobs.items() if key[0] != name}

    @rule()
    def restart(self) -> None:
        """Restart with empty caches."""
        self.service = self.new()

    @invariant()
    def the_lists_are_the_model(self) -> None:
        """Existing and deleted keyrings are in separate lists.

        Destroyed keyrings are in no list.
        """
        for deleted, state in ((False, LIVE), (True, DELETED)):
            listed = self.ask(ListKeyrings, DEFAULT_KEYRING, deleted=deleted)
            names = {keyring.name for keyring in listed.keyrings} - {DEFAULT_KEYRING}
            assert names == {name for name, found in self.states.items() if found == state}

    @invariant()
    def ciphertexts_open_while_their_keyring_exists(self) -> None:
        """A ciphertext of a deleted keyring does not open, and one of another keyring does."""
        for (name, version), blob in self.blobs.items():
            response = self.ask(
                Decrypt, name, algorithm=KEM, version=KeyVersion(version), ciphertext=blob
            )
            if self.states[name] == LIVE:
                assert response.plaintext == TEXT
            else:
                assert response is ErrorKind.KEYRING_NOT_FOUND


@BOTH
def test_every_walk_of_deletions_is_as_the_model_has_it(walk: Walk) -> None:
    """Deleted, restored, destroyed and recreated keyrings follow the model across restarts."""
    walk(Deletions, 5)


@BOTH
async def test_a_protected_keyring_s_keys_are_not_destroyed(service: InProcessService) -> None:
    """In a protected keyring, no age, no set time and no person archives a version."""
    caller = Caller(service)
    await caller.prepare()
    later = days(1000)
    await caller.ask(UpdateKeyring(**caller.keyring, rotation_days=0, archive_after_days=0))
    scheduled = ScheduleArchive(**caller.key, version=V1, days=7)
    assert not isinstance(await caller.ask(scheduled), ErrorKind)
    protected = {PROTECTED: "etcd of a cluster"}
    await caller.ask(UpdateKeyring(**caller.keyring, labels=protected, archive_after_days=1))
    assert await caller.ask(scheduled) is ErrorKind.KEYRING_PROTECTED
    deletion = DeleteKeyring(**caller.keyring, days=7, only_if_allowed=False)
    assert await caller.ask(deletion) is ErrorKind.KEYRING_PROTECTED
    schedule = service.parts.schedule
    for _ in range(2):
        await schedule.carry_out(later)
    assert not schedule.changes
    assert (CARDS, KeyStatus.ARCHIVED) not in await caller.listed_keys()
    await caller.ask(UpdateKeyring(**caller.keyring, labels={}))
    assert not isinstance(await caller.ask(deletion), ErrorKind)
