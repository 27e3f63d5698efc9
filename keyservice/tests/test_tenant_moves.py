"""A tenant leaves one key service and arrives at another: completely, once, and never in both."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, closing
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from typing import TYPE_CHECKING, Any, TypeVar
from uuid import uuid4

import pytest
from keyservice.tests.test_key_import import wrap
from keyservice.tests.test_legacy_keys import CANARY, OAEP_256, P_256, document, sealed, signed
from tests.patience import PATIENCE

from pqkeep_keyservice import moves
from pqkeep_keyservice.crypto.secret import Secret
from pqkeep_keyservice.keys.key_versions import KeyName
from pqkeep_keyservice.keys.keyring import KeyringId
from pqkeep_keyservice.keys.sealing import DamagedKeyError, Sealer
from pqkeep_keyservice.keys.tenant_bundle import TransferKey, bundle_digest
from pqkeep_keyservice.ledger.moves import RecordedMove, move_record
from pqkeep_keyservice.live.worker_processes import WorkerSettings
from pqkeep_keyservice.moves import TenantMoves
from pqkeep_keyservice.storage import tenants
from pqkeep_keyservice.storage.store import KeyStore
from pqkeep_keyservice.wiring import KeyServiceParts, wire
from pqkeep_protocol.administration import (
    AnyMoveRequest,
    BundlePart,
    CancelMove,
    ExportedTenant,
    ExportTenant,
    FinishMove,
    ImportProgress,
    ImportTenant,
    ListMoves,
    MoveCancelled,
    MoveFinished,
    MoveRefusal,
    MoveRefused,
    Moves,
    ReadBundle,
    Receipt,
    Renounced,
    RenounceTenant,
)
from pqkeep_protocol.algorithms import Algorithm
from pqkeep_protocol.audit import (
    CountOperations,
    GetMigration,
    GetUsage,
    KeyVersionSet,
    ListRecords,
    ListUsage,
    SignCheckpoint,
)
from pqkeep_protocol.audit_events import Outcome
from pqkeep_protocol.errors import ErrorKind, KeyServiceError
from pqkeep_protocol.keyrings import KeyPurpose
from pqkeep_protocol.keys import INSTALLATION, KeyVersion, TenantId
from pqkeep_protocol.messages import (
    Attribution,
    Batch,
    ComputeMac,
    CreateKeyring,
    Decrypt,
    DeleteKeyring,
    DisableKey,
    EnableKey,
    Encrypt,
    Encrypted,
    GenerateKey,
    GetActiveKey,
    GetImportKey,
    GetKeyring,
    Idempotency,
    ImportPrivateKey,
    Item,
    ListKeyrings,
    ListKeys,
    ListRules,
    PutRule,
    ReEncrypt,
    RestoreKeyring,
    RetireKey,
    RotateKey,
    ScheduleArchive,
    ScheduleDestruction,
    Sign,
    Target,
    UpdateKeyring,
    Verify,
    VerifyMac,
)
from pqkeep_protocol.rules import Rule
from pqkeep_protocol.startup.settings import ConfigError

if TYPE_CHECKING:
    from pathlib import Path

    from keyservice.tests.conftest import Location

    from pqkeep_keyservice.storage.database import Database

KEM, OTHER_KEM, ML_DSA = Algorithm.ML_KEM_768, Algorithm.X_WING, Algorithm.ML_DSA_65
NAMED = "payments.cards"
EAST, WEST = "east", "west"
MOVED_IN = "tenant-moved-in"
ATTRIBUTION = Attribution("request-1", "api-key:3", "192.0.2.7", "plan-allows")
TEXT = b"text"
SMALL_PART = 700
T = TypeVar("T")

pytestmark = pytest.mark.parametrize("backend", ["sqlite", "postgresql"], indirect=True)


@dataclass
class Shard:
    """A key service with its own root key, which can be closed and reopened."""

    name: str
    location: Location
    workers: WorkerSettings
    settings: Path
    transfer_key: TransferKey | None
    is_readable: bool = True
    sealer: Sealer = field(default_factory=lambda: Sealer({1: Secret(os.urandom(32))}))
    parts: KeyServiceParts = field(init=False)

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        """Serve the database like a new process."""
        database = await self.location.open()
        try:
            store = KeyStore(database, self.sealer)
            await store.check()
            parts = wire(
                store,
                self.sealer,
                self.workers,
                self.settings,
                shard=self.name,
                transfer_key=self.read_transfer_key,
                least_destruction_days=0,
            )
            with closing(parts):
                self.parts = parts
                yield
        finally:
            await database.close()

    def read_transfer_key(self) -> TransferKey | None:
        """Return the transfer key in the shard's file."""
        if not self.is_readable:
            raise ConfigError("the file of the transfer key cannot be read")
        return self.transfer_key

    async def ask(self, request: Any) -> Any:
        """Execute a gateway's request."""
        deadline = asyncio.get_running_loop().time() + PATIENCE
        if isinstance(request, Batch):
            return await self.parts.batches.execute(request, ATTRIBUTION, deadline)
        if not hasattr(request, "operation") or isinstance(request, ListRecords):
            return await self.parts.audit_service.respond(request)
        return await self.parts.transactions.execute(request, ATTRIBUTION, deadline)

    async def step(self, request: AnyMoveRequest, kind: type[T]) -> T:
        """Execute the operator's request."""
        response = await self.parts.administration.respond(request)
        assert isinstance(response, kind), response
        return response

    async def refusal(self, request: AnyMoveRequest) -> MoveRefusal:
        """Return why the operator's request is refused."""
        return (await self.step(request, MoveRefused)).reason

    async def records(self, tenant: TenantId) -> list[dict[str, Any]]:
        """Return a tenant's records."""
        found = await self.ask(ListRecords(tenant=tenant, limit=500))
        return [json.loads(line) for line in found.lines]


@dataclass
class Pair:
    """Two shards of an installation."""

    east: Shard
    west: Shard
    stack: AsyncExitStack

    async def restart(self) -> None:
        """Restart both processes."""
        await self.stack.aclose()
        for shard in (self.east, self.west):
            await self.stack.enter_async_context(shard.serving())


@pytest.fixture
async def pair(
    location: Location,
    other_location: Location,
    worker_settings: WorkerSettings,
    settings: Path,
) -> AsyncIterator[Pair]:
    """Serve two shards, each with its own database and root key."""
    transfer_key = TransferKey(Secret(os.urandom(32)))
    east, west = (
        Shard(name, where, worker_settings, settings, transfer_key)
        for name, where in ((EAST, location), (WEST, other_location))
    )
    async with AsyncExitStack() as stack:
        pair = Pair(east, west, stack)
        await pair.restart()
        yield pair


def numbers(count: int) -> Iterator[int]:
    """Yield large pseudo-random numbers, always the same."""
    return (int.from_bytes(sha256(bytes([number])).digest()[:8], "big") for number in range(count))


async def no_pause() -> None:
    """Continue at once."""


async def export(source: Shard, target: Shard, tenant: TenantId) -> tuple[ExportedTenant, bytes]:
    """Export a tenant, and return its bundle."""
    exported = await source.step(ExportTenant(tenant=tenant, target=target.name), ExportedTenant)
    return exported, await read(source, exported, tenant)


async def read(source: Shard, exported: ExportedTenant, tenant: TenantId) -> bytes:
    """Return a bundle from its parts."""
    bundle = b""
    while len(bundle) < exported.size:
        request = ReadBundle(tenant=tenant, sha256=exported.sha256, part=len(bundle) // part_size())
        bundle += (await source.step(request, BundlePart)).data
    return bundle


def part_size() -> int:
    """Return the bytes in a part: fewer in one test."""
    size: int = vars(moves)["BUNDLE_PART"]
    return size


def parts_of(tenant: TenantId, digest: bytes, bundle: bytes) -> Iterator[ImportTenant]:
    """Yield the requests that import a bundle."""
    for start in range(0, len(bundle), part_size()):
        yield ImportTenant(
            tenant=tenant,
            sha256=digest,
            size=len(bundle),
            part=start // part_size(),
            data=bundle[start : start + part_size()],
        )


async def bring(target: Shard, tenant: TenantId, bundle: bytes, digest: bytes) -> Receipt:
    """Import a tenant, and return the receipt."""
    for request in parts_of(tenant, digest, bundle):
        progress = await target.step(request, ImportProgress)
    assert progress.receipt is not None
    return progress.receipt


async def refused(target: Shard, tenant: TenantId, bundle: bytes) -> MoveRefusal:
    """Return why a bundle is refused."""
    response: Any = None
    for request in parts_of(tenant, bundle_digest(bundle), bundle):
        response = await target.parts.administration.respond(request)
    assert isinstance(response, MoveRefused), response
    return response.reason


async def move(
    source: Shard, target: Shard, tenant: TenantId, pause: Callable[[], Any] = no_pause
) -> bytes:
    """Run every step of a move, with a pause after each. Return the bundle."""
    exported, bundle = await export(source, target, tenant)
    await pause()
    receipt = await bring(target, tenant, bundle, exported.sha256)
    await pause()
    await source.step(FinishMove(tenant=tenant, receipt=receipt), MoveFinished)
    await pause()
    return bundle


def used(tenant: TenantId, **how: Any) -> list[Any]:
    """Return requests that make keys of every status, in two keyrings."""
    key: dict[str, Any] = {"tenant": tenant, "algorithm": KEM, **how}
    return [
        GenerateKey(**key, quota=None, idempotency=Idempotency(bytes(32), b"r" * 32)),
        RotateKey(**key),
        RotateKey(**key),
        RotateKey(**key),
        ScheduleArchive(days=0, **key, version=KeyVersion(1)),
        ScheduleArchive(**key, version=KeyVersion(2), days=7),
        DisableKey(**key, version=KeyVersion(3), until=datetime.now(UTC) + timedelta(days=5)),
        Encrypt(**key, version=None, plaintext=TEXT),
    ]


async def fill(shard: Shard, tenant: TenantId) -> list[Any]:
    """Create all kinds of tenant data. Return requests that use it."""
    for request in (
        UpdateKeyring(tenant=tenant, description="what everything is in", rotation_days=90),
        CreateKeyring(tenant=tenant, keyring=NAMED, labels={"team": "payments"}),
        ScheduleDestruction(tenant=tenant, at=datetime.now(UTC) + timedelta(days=50)),
        *used(tenant),
    ):
        here = await shard.ask(request)
    named: dict[str, Any] = {"tenant": tenant, "keyring": NAMED}
    for request in (
        GenerateKey(**named, algorithm=OTHER_KEM, quota=None),
        Encrypt(**named, algorithm=OTHER_KEM, version=None, plaintext=TEXT),
    ):
        there = await shard.ask(request)
    await shard.ask(
        ReEncrypt(
            tenant=tenant,
            algorithm=KEM,
            version=KeyVersion(4),
            ciphertext=here.ciphertext,
            is_wrapped_key=False,
            target=Target(OTHER_KEM, NAMED),
            campaign="cards",
        )
    )
    await shard.ask(GenerateKey(tenant=tenant, algorithm=ML_DSA, quota=None))
    signed = await shard.ask(Sign(tenant=tenant, algorithm=ML_DSA, version=None, message=TEXT))
    return [
        Decrypt(tenant=tenant, algorithm=KEM, version=KeyVersion(4), ciphertext=here.ciphertext),
        Decrypt(**named, algorithm=OTHER_KEM, version=KeyVersion(1), ciphertext=there.ciphertext),
        Verify(
            tenant=tenant,
            algorithm=ML_DSA,
            version=KeyVersion(1),
            message=TEXT,
            signature=signed.signature,
        ),
    ]


async def everything(shard: Shard, tenant: TenantId) -> list[Any]:
    """Return all that a shard reports of a tenant, except its records."""
    lists = ListKeys(tenant=tenant, algorithm=None, status=None, all_keyrings=True)
    usage = ListUsage(tenant=tenant, algorithm=None)
    migration = await shard.ask(
        GetMigration(tenant=tenant, campaign="cards", sources=(KeyVersionSet("default", KEM),))
    )
    counts = await shard.ask(CountOperations(tenant=tenant, since_hour=0, hours=24))
    return [
        (await shard.ask(lists)).keys,
        (await shard.ask(ListKeyrings(tenant=tenant))).keyrings,
        (await shard.ask(usage)).usage,
        (await shard.parts.store.find_keyring(KeyringId(tenant, "default"))).destruction,
        {
            count.operation: count.count
            for count in counts.counts
            if count.operation in {"encrypt", "decrypt", "sign"}
        },
        (migration.moved, migration.last_used_us),
    ]


async def test_a_tenant_moves_with_all_it_has(pair: Pair, tenant: TenantId) -> None:
    """Keys, keyrings, uses and counts are the same, and the keys open the same data."""
    uses = await fill(pair.east, tenant)
    await pair.east.ask(SignCheckpoint(tenant=INSTALLATION, algorithm=ML_DSA))
    pair.east.location.sql("UPDATE uses SET day = day - 40 WHERE operation = 'sign'")
    by_day = (
        "SELECT keyring, algorithm, key_version, principal, operation, day, uses, first_used_us,"
        " last_used_us FROM uses ORDER BY 1, 2, 3, 4, 5, 6"
    )
    counted = pair.east.location.sql(by_day)
    assert len({row[5] for row in counted}) > 1
    before = await everything(pair.east, tenant)
    await move(pair.east, pair.west, tenant)
    assert await everything(pair.west, tenant) == before
    await pair.west.ask(SignCheckpoint(tenant=INSTALLATION, algorithm=ML_DSA))
    assert pair.west.location.sql(by_day) == counted
    for use in uses:
        await pair.west.ask(use)
    repeated = await pair.west.ask(used(tenant)[0])
    assert repeated.key.version == 1  # the Idempotency-Key is still its
    rotated = await pair.west.ask(RotateKey(tenant=tenant, algorithm=KEM))
    assert (rotated.old_version, rotated.key.version) == (4, 5)
    with pytest.raises(KeyServiceError, match="key-not-found"):
        await pair.west.ask(
            Decrypt(tenant=tenant, algorithm=KEM, version=KeyVersion(3), ciphertext=b"c" * 2000)
        )
    enabled = EnableKey(tenant=tenant, algorithm=KEM, version=KeyVersion(3))
    assert (await pair.west.ask(enabled)).key.version == 3


async def test_symmetric_keys_move(pair: Pair, tenant: TenantId) -> None:
    """A cipher's and a MAC's key have the same fingerprints after a move, and read their output."""
    cipher: dict[str, Any] = {"tenant": tenant, "algorithm": Algorithm.XAES_256_GCM}
    mac_of: dict[str, Any] = {"tenant": tenant, "algorithm": Algorithm.HMAC_SHA_512}
    for key in (cipher, mac_of):
        await pair.east.ask(GenerateKey(**key, quota=None))
    sealed = await pair.east.ask(Encrypt(**cipher, version=None, plaintext=TEXT))
    mac = await pair.east.ask(ComputeMac(**mac_of, version=None, message=TEXT))
    before = await everything(pair.east, tenant)
    await move(pair.east, pair.west, tenant)
    assert await everything(pair.west, tenant) == before
    one = KeyVersion(1)
    opened = await pair.west.ask(Decrypt(**cipher, version=one, ciphertext=sealed.ciphertext))
    assert opened.plaintext == TEXT
    await pair.west.ask(VerifyMac(**mac_of, version=one, message=TEXT, mac=mac.mac))


async def test_a_deleted_keyring_moves_with_its_time(pair: Pair, tenant: TenantId) -> None:
    """In the new shard the keyring is hidden too, and can be destroyed or restored."""
    for name in ("kept", "lost"):
        named: dict[str, Any] = {"tenant": tenant, "keyring": name}
        await pair.east.ask(CreateKeyring(**named, minimum_decryption_version=7))
        await pair.east.ask(GenerateKey(**named, algorithm=KEM, quota=None))
        deleted = await pair.east.ask(DeleteKeyring(**named, days=30, only_if_allowed=False))
    deleting = ListKeyrings(tenant=tenant, deleted=True)
    before = (await pair.east.ask(deleting)).keyrings
    await move(pair.east, pair.west, tenant)
    assert (await pair.west.ask(deleting)).keyrings == before
    assert before[-1] == deleted.keyring
    restored = await pair.west.ask(RestoreKeyring(tenant=tenant, keyring="kept"))
    assert restored.keyring.minimum_decryption_version == 7
    counted = "SELECT keyrings FROM keyring_counts"
    assert (pair.east.location.sql(counted), pair.west.location.sql(counted)) == ([], [(2,)])
    assert deleted.keyring.archive_at is not None
    await pair.west.parts.schedule.carry_out(deleted.keyring.archive_at)
    assert (await pair.west.ask(deleting)).total == 0
    assert pair.west.location.sql(counted) == [(1,)]


@pytest.mark.threat("moved-tenant-rollback")
async def test_the_shard_it_left_has_nothing_and_refuses(pair: Pair, tenant: TenantId) -> None:
    """After the departure every call is refused and recorded, even after a restart."""
    uses = await fill(pair.east, tenant)
    exported, bundle = await export(pair.east, pair.west, tenant)
    sql = pair.east.location.sql
    for restart in (False, True):
        if restart:
            await pair.restart()
        key: dict[str, Any] = {"tenant": tenant, "algorithm": KEM}
        batch = Batch(tenant=tenant, items=tuple(Item(request=use) for use in uses[:1]))
        for request in (
            *uses,
            *used(tenant),
            GetActiveKey(**key),
            GetKeyring(tenant=tenant),
            batch,
            GetUsage(**key, version=KeyVersion(1)),
            ListUsage(**key),
        ):
            with pytest.raises(KeyServiceError) as error:
                await pair.east.ask(request)
            assert error.value.kind is ErrorKind.TENANT_MOVED
        last = (await pair.east.records(tenant))[-1]
        assert (last["operation"], last["outcome"]) == ("decrypt", "tenant-moved")  # the batch's
        for table in ("keys", "key_revisions", "keyrings"):
            assert sql(f"SELECT * FROM {table} WHERE tenant_id = ?", _stored(tenant, pair)) == []  # noqa: S608 - of a table of names
    assert exported.keys == 6
    receipt = await bring(pair.west, tenant, bundle, exported.sha256)
    assert sql("SELECT count(*) FROM tenant_bundles") != [(0,)]
    await pair.east.step(FinishMove(tenant=tenant, receipt=receipt), MoveFinished)
    assert sql("SELECT count(*) FROM tenant_bundles") == [(0,)]
    assert (await pair.east.step(ListMoves(tenant=INSTALLATION), Moves)).tenants == ()


def _stored(tenant: TenantId, pair: Pair) -> Any:
    return tenant.hex if pair.east.location.url.startswith("sqlite") else tenant


async def test_both_logs_say_it(pair: Pair, tenant: TenantId) -> None:
    """Each key and keyring has a record with its revision, and the move one with both shards."""
    await fill(pair.east, tenant)
    exported, bundle = await export(pair.east, pair.west, tenant)
    receipt = await bring(pair.west, tenant, bundle, exported.sha256)
    await pair.east.step(FinishMove(tenant=tenant, receipt=receipt), MoveFinished)
    out = [record for record in await pair.east.records(tenant) if "moved" in record["operation"]]
    into = await pair.west.records(tenant)
    ends = ["begun", "handed-out", "completed"]
    assert [record["outcome"] for record in out] == ["success"] * 5 + ends
    assert [record["outcome"] for record in into] == ["success"] * 5 + ["completed"]
    assert {record["operation"] for record in out} == {"tenant-moved-out"}
    assert {record["operation"] for record in into} == {"tenant-moved-in"}
    for record in (*out, *into):
        assert record["policy"] == f"move/{EAST}/{WEST}/6"
        assert record["request_id"] == exported.sha256.hex()
        assert (record["principal"], record["tenant_id"]) == ("operator", str(tenant))
    for last in (*out[-2:], into[-1]):
        assert (last["keyring"], last["algorithm"], last["keyring_revision"]) == (None, None, 1)
    named = [(record["keyring"], record["algorithm"]) for record in out[:5]]
    assert sorted(named, key=str) == sorted(
        [
            ("default", None),
            (NAMED, None),
            ("default", KEM),
            ("default", ML_DSA),
            (NAMED, OTHER_KEM),
        ],
        key=str,
    )
    assert [record["keyring_revision"] for record in into[:5]] == [
        record["keyring_revision"] + 1 for record in out[:5]
    ]


async def test_every_step_can_be_taken_again(pair: Pair, tenant: TenantId) -> None:
    """A repeated step, even by a new process, returns the same and changes nothing."""
    await fill(pair.east, tenant)
    bundles, receipts = set(), set()
    for restart in (False, True, False):
        if restart:
            await pair.restart()
        exported, bundle = await export(pair.east, pair.west, tenant)
        bundles.add(bundle)
    for restart in (False, True, False):
        if restart:
            await pair.restart()
        receipt = await bring(pair.west, tenant, bundle, exported.sha256)
        receipts.add(receipt.mac)
    sizes = [await pair.west.records(tenant)]
    for restart in (False, True, False):
        if restart:
            await pair.restart()
        await pair.east.step(FinishMove(tenant=tenant, receipt=receipt), MoveFinished)
    again = await pair.east.step(ExportTenant(tenant=tenant, target=WEST), ExportedTenant)
    assert (again.finished, again.size, again.sha256) == (True, 0, exported.sha256)
    assert (len(bundles), len(receipts)) == (1, 1)
    assert sizes == [await pair.west.records(tenant)]
    out = [
        record["outcome"]
        for record in await pair.east.records(tenant)
        if "-out" in record["operation"]
    ]
    assert out[-3:] == ["begun", "handed-out", "completed"]
    assert out.count("begun") == 1


async def test_a_tenant_goes_and_comes_back(pair: Pair, tenant: TenantId) -> None:
    """After many moves its data opens, and each change is the next revision."""
    uses = await fill(pair.east, tenant)
    before = await everything(pair.east, tenant)
    source, target = pair.east, pair.west
    for generation in range(1, 6):
        await move(source, target, tenant)
        source, target = target, source
        last = (await source.records(tenant))[-1]
        assert last["keyring_revision"] == generation
        if generation % 2:
            await pair.restart()
        assert (await everything(source, tenant))[:2] == before[:2]
        for use in uses:
            await source.ask(use)
    usage = GetUsage(tenant=tenant, algorithm=ML_DSA, version=KeyVersion(1))
    assert (await source.ask(usage)).uses == 1 + 5  # wherever it was used
    await source.ask(RotateKey(tenant=tenant, algorithm=KEM))


@pytest.mark.threat("tenant-bundles")
async def test_a_bundle_is_received_once_and_in_order(pair: Pair, tenant: TenantId) -> None:
    """An earlier bundle is refused wherever the tenant is."""
    await fill(pair.east, tenant)
    first = await move(pair.east, pair.west, tenant)
    await pair.west.ask(RotateKey(tenant=tenant, algorithm=KEM))
    second = await move(pair.west, pair.east, tenant)
    # The tenant is in the east: the west would have it back, and lose the rotation.
    assert await refused(pair.west, tenant, first) is MoveRefusal.BUNDLE_OUTDATED
    await move(pair.east, pair.west, tenant)
    assert await refused(pair.west, tenant, first) is MoveRefusal.BUNDLE_OUTDATED
    assert await refused(pair.east, tenant, second) is MoveRefusal.BUNDLE_OUTDATED
    assert (await pair.west.ask(GetActiveKey(tenant=tenant, algorithm=KEM))).key.version == 5


@pytest.mark.threat("tenant-bundles")
async def test_a_bundle_that_is_not_whole_is_refused(pair: Pair, tenant: TenantId) -> None:
    """A bundle that is cut, extended, changed or foreign is refused."""
    await fill(pair.east, tenant)
    exported, bundle = await export(pair.east, pair.west, tenant)
    places = {0, 20, 40, 70, 85, 90, 100, len(bundle) - 1} | {
        place % len(bundle) for place in numbers(20)
    }
    for place in places:
        changed = bytearray(bundle)
        changed[place] ^= 1
        for bad in (bytes(changed), bundle[:place]):
            if bad:
                assert await refused(pair.west, tenant, bad) in {
                    MoveRefusal.BUNDLE_INVALID,
                    MoveRefusal.BUNDLE_MISDIRECTED,
                }
    assert await refused(pair.west, tenant, bundle + b"\0") is MoveRefusal.BUNDLE_INVALID
    wrong_digest = ImportTenant(
        tenant=tenant, sha256=bytes(32), size=len(bundle), part=0, data=bundle
    )
    assert await pair.west.refusal(wrong_digest) is MoveRefusal.BUNDLE_INVALID
    ours = pair.west.transfer_key
    pair.west.transfer_key = TransferKey(Secret(os.urandom(32)))
    assert await refused(pair.west, tenant, bundle) is MoveRefusal.BUNDLE_INVALID
    pair.west.transfer_key = ours
    assert await pair.west.records(tenant) == []
    await bring(pair.west, tenant, bundle, exported.sha256)


async def test_nothing_is_sealed_under_a_replaced_key(pair: Pair, tenant: TenantId) -> None:
    """A tenant that departs after a change of the transfer key can arrive, even after restarts."""
    await fill(pair.east, tenant)
    pair.east.transfer_key = pair.west.transfer_key = TransferKey(Secret(os.urandom(32)))
    exported, bundle = await export(pair.east, pair.west, tenant)
    await pair.restart()
    await bring(pair.west, tenant, bundle, exported.sha256)


@pytest.mark.threat("tenant-bundles")
async def test_a_bundle_for_another_is_refused(pair: Pair, tenant: TenantId) -> None:
    """A bundle is refused by another shard and for another tenant."""
    await fill(pair.east, tenant)
    exported = await pair.east.step(ExportTenant(tenant=tenant, target="north"), ExportedTenant)
    bundle = await read(pair.east, exported, tenant)
    assert await refused(pair.west, tenant, bundle) is MoveRefusal.BUNDLE_MISDIRECTED
    other = TenantId(uuid4())
    _, others = await export(pair.west, pair.east, other)
    assert await refused(pair.east, tenant, others) is MoveRefusal.BUNDLE_MISDIRECTED
    elsewhere = ExportTenant(tenant=tenant, target=WEST)
    assert await pair.east.refusal(elsewhere) is MoveRefusal.OTHER_TARGET


@pytest.mark.threat("tenant-bundles")
async def test_a_forged_receipt_is_refused(pair: Pair, tenant: TenantId) -> None:
    """A bundle is destroyed only with the target's receipt for it."""
    await fill(pair.east, tenant)
    exported, bundle = await export(pair.east, pair.west, tenant)
    receipt = await bring(pair.west, tenant, bundle, exported.sha256)
    real = {name: getattr(receipt, name) for name in Receipt.__struct_fields__}
    for name, value in (
        ("mac", bytes(32)),
        ("mac", receipt.mac[:-1] + bytes([receipt.mac[-1] ^ 1])),
        ("tenant", TenantId(uuid4())),
        ("source", WEST),
        ("target", EAST),
        ("generation", 2),
        ("sha256", bytes(32)),
    ):
        forged = FinishMove(tenant=tenant, receipt=Receipt(**{**real, name: value}))
        assert await pair.east.refusal(forged) is MoveRefusal.RECEIPT_INVALID
    assert await read(pair.east, exported, tenant) == bundle
    other = TenantId(uuid4())
    assert (
        await pair.east.refusal(FinishMove(tenant=other, receipt=receipt)) is MoveRefusal.NOT_MOVING
    )
    await pair.east.step(FinishMove(tenant=tenant, receipt=receipt), MoveFinished)
    # The receipt of that move is not accepted for the next one.
    await move(pair.west, pair.east, tenant)
    exported, bundle = await export(pair.east, pair.west, tenant)
    replayed = FinishMove(tenant=tenant, receipt=receipt)
    assert await pair.east.refusal(replayed) is MoveRefusal.RECEIPT_INVALID


async def test_moves_that_make_no_sense_are_refused(pair: Pair, tenant: TenantId) -> None:
    """A move to the same shard, without a tenant, transfer key or need is refused."""
    same = ExportTenant(tenant=tenant, target=EAST)
    assert await pair.east.refusal(same) is MoveRefusal.SAME_SHARD
    installation = ExportTenant(tenant=INSTALLATION, target=WEST)
    assert await pair.east.refusal(installation) is MoveRefusal.SAME_SHARD
    unmoved = ReadBundle(tenant=tenant, sha256=bytes(32), part=0)
    assert await pair.east.refusal(unmoved) is MoveRefusal.NOT_MOVING
    await fill(pair.east, tenant)
    await pair.west.ask(GenerateKey(tenant=tenant, algorithm=KEM, quota=None))
    exported, bundle = await export(pair.east, pair.west, tenant)
    assert await refused(pair.west, tenant, bundle) is MoveRefusal.TENANT_IS_HERE
    beyond = ReadBundle(tenant=tenant, sha256=exported.sha256, part=63)
    assert await pair.east.refusal(beyond) is MoveRefusal.NOT_MOVING
    pair.east.transfer_key = None
    none = ExportTenant(tenant=TenantId(uuid4()), target=WEST)
    assert await pair.east.refusal(none) is MoveRefusal.NO_TRANSFER_KEY
    pair.east.is_readable = False
    assert await pair.east.refusal(none) is MoveRefusal.NO_TRANSFER_KEY


async def test_a_tenant_without_keys_moves(pair: Pair, tenant: TenantId) -> None:
    """A tenant without keys moves, and its new keys are made in the target shard."""
    await move(pair.east, pair.west, tenant)
    generate = GenerateKey(tenant=tenant, algorithm=KEM, quota=None)
    with pytest.raises(KeyServiceError, match="tenant-moved"):
        await pair.east.ask(generate)
    assert (await pair.west.ask(generate)).key.version == 1


async def test_a_large_bundle_comes_in_parts(
    pair: Pair, tenant: TenantId, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each part is accepted once and in order. A wrong one returns the next number."""
    for module in (moves, tenants):
        monkeypatch.setattr(module, "BUNDLE_PART", SMALL_PART)
    uses = await fill(pair.east, tenant)
    exported, bundle = await export(pair.east, pair.west, tenant)
    requests = list(parts_of(tenant, exported.sha256, bundle))
    assert len(requests) > 4
    for request in requests[:3]:
        progress = await pair.west.step(request, ImportProgress)
    for wrong in (requests[1], requests[-1]):
        progress = await pair.west.step(wrong, ImportProgress)
        assert (progress.part, progress.receipt) == (3, None)
    await pair.restart()
    progress = await pair.west.step(requests[3], ImportProgress)
    assert progress.part == 0  # what was brought to the process before is gone
    receipt = await bring(pair.west, tenant, bundle, exported.sha256)
    await pair.east.step(FinishMove(tenant=tenant, receipt=receipt), MoveFinished)
    for use in uses:
        await pair.west.ask(use)


async def test_too_much_is_refused_before_anything_is_done(
    pair: Pair, tenant: TenantId, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A tenant too large for a bundle stays, and is served."""
    uses = await fill(pair.east, tenant)
    monkeypatch.setattr(moves, "MAX_BUNDLE", 1000)
    request = ExportTenant(tenant=tenant, target=WEST)
    assert await pair.east.refusal(request) is MoveRefusal.TOO_LARGE
    for use in uses:
        await pair.east.ask(use)


async def test_calls_under_way_end_before_it_leaves(pair: Pair, tenant: TenantId) -> None:
    """Calls with a response are logged before the departure. Nothing is used afterwards."""
    await fill(pair.east, tenant)
    encrypt = Encrypt(tenant=tenant, algorithm=KEM, version=None, plaintext=TEXT)
    sign = Sign(tenant=tenant, algorithm=ML_DSA, version=None, message=TEXT)
    rotate = RotateKey(tenant=tenant, algorithm=KEM)
    calls = [
        asyncio.create_task(pair.east.ask(call))
        for call in (encrypt, sign, rotate)
        for _ in range(8)
    ]
    await asyncio.sleep(0)
    exporting = asyncio.create_task(export(pair.east, pair.west, tenant))
    late = []
    while not exporting.done():
        late.append(asyncio.create_task(pair.east.ask(encrypt)))
        await asyncio.sleep(0.001)
    results = await asyncio.gather(*calls, *late, return_exceptions=True)
    kinds = {result.kind for result in results if isinstance(result, KeyServiceError)}
    assert kinds <= {ErrorKind.TENANT_MOVED}
    assert not any(isinstance(result, KeyServiceError) for result in results[: len(calls)])
    records = []
    after = 0
    while page := [
        json.loads(line)
        for line in (await pair.east.ask(ListRecords(tenant=tenant, after=after, limit=500))).lines
    ]:
        records += page
        after = page[-1]["id"]
    left = next(record["id"] for record in records if record["outcome"] == "begun")
    later = {record["outcome"] for record in records if record["id"] > left}
    assert later == {"tenant-moved", "handed-out"}
    exported, bundle = await exporting
    await bring(pair.west, tenant, bundle, exported.sha256)
    for result in results:
        if isinstance(result, Encrypted) and result.version is not None:
            opened = Decrypt(
                tenant=tenant,
                algorithm=KEM,
                version=result.version,
                ciphertext=result.ciphertext,
            )
            assert (await pair.west.ask(opened)).plaintext == TEXT


async def test_the_gate_is_open_until_a_tenant_leaves(pair: Pair, tenant: TenantId) -> None:
    """The gate is open while no tenant has left, and stays closed once one has."""
    other = TenantId(uuid4())
    for owner in (tenant, other):
        await pair.east.ask(GenerateKey(tenant=owner, algorithm=KEM, quota=None))
    gate = pair.east.parts.gate
    assert (gate.is_open, gate.uncounted, gate._calls) == (True, 0, {})
    encrypt = Encrypt(tenant=other, algorithm=KEM, version=None, plaintext=TEXT)
    await export(pair.east, pair.west, tenant)
    assert not gate.is_open
    pair.east.transfer_key = None  # as if the settings named no other shard any more
    await pair.restart()
    for _ in range(2):
        await pair.east.ask(encrypt)
        with pytest.raises(KeyServiceError, match="tenant-moved"):
            await pair.east.ask(GetActiveKey(tenant=tenant, algorithm=KEM))
        assert not pair.east.parts.gate.is_open


async def test_the_gate_opens_again_when_a_tenant_is_back(pair: Pair, tenant: TenantId) -> None:
    """A cancelled move restores the earlier state of the gate."""
    await pair.east.ask(GenerateKey(tenant=tenant, algorithm=KEM, quota=None))
    await pair.east.step(ExportTenant(tenant=tenant, target=WEST), ExportedTenant)
    await pair.east.step(CancelMove(tenant=tenant), MoveCancelled)
    assert not pair.east.parts.gate.is_open
    await pair.east.ask(Encrypt(tenant=tenant, algorithm=KEM, version=None, plaintext=TEXT))
    assert pair.east.parts.gate.is_open


async def test_a_move_that_waits_for_too_long_leaves_the_tenant_where_it_is(
    pair: Pair, tenant: TenantId, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A move waits a limited time for an earlier call of another tenant."""
    await pair.east.ask(GenerateKey(tenant=tenant, algorithm=KEM, quota=None))
    monkeypatch.setattr(moves, "DRAIN_SECONDS", 0.05)
    gate = pair.east.parts.gate
    gate.uncounted += 1
    export_ = ExportTenant(tenant=tenant, target=WEST)
    assert await pair.east.refusal(export_) is MoveRefusal.BUSY
    await pair.east.ask(Encrypt(tenant=tenant, algorithm=KEM, version=None, plaintext=TEXT))
    monkeypatch.undo()
    exporting = asyncio.create_task(pair.east.step(export_, ExportedTenant))
    await asyncio.sleep(0)
    gate.uncounted -= 1
    gate.left()
    assert (await exporting).target == WEST


async def test_other_tenants_are_served_meanwhile(pair: Pair, tenant: TenantId) -> None:
    """A move closes the gate for one tenant only."""
    other = TenantId(uuid4())
    await fill(pair.east, tenant)
    await fill(pair.east, other)
    await move(pair.east, pair.west, tenant)
    encrypt = Encrypt(tenant=other, algorithm=KEM, version=None, plaintext=TEXT)
    await pair.east.ask(encrypt)
    assert (await pair.east.step(ListMoves(tenant=INSTALLATION), Moves)).shard == EAST


@pytest.mark.threat("moved-tenant-rollback")
async def test_rows_that_are_put_back_are_refused(pair: Pair, tenant: TenantId) -> None:
    """Restored rows do not bring back a departed tenant."""
    await fill(pair.east, tenant)
    sql = pair.east.location.sql
    kept = {
        table: sql(f"SELECT * FROM {table} WHERE tenant_id = ?", _stored(tenant, pair))  # noqa: S608
        for table in ("keyrings", "key_revisions", "keys")
    }
    await move(pair.east, pair.west, tenant)
    for table, rows in kept.items():
        for row in rows:
            sql(f"INSERT INTO {table} VALUES ({', '.join('?' * len(row))})", *row)  # noqa: S608
    await pair.restart()
    with pytest.raises(KeyServiceError, match="tenant-moved"):
        await pair.east.ask(GetActiveKey(tenant=tenant, algorithm=KEM))
    with pytest.raises(DamagedKeyError, match="older than its last change in the audit log"):
        await pair.east.parts.store.find_key_versions(KeyName(tenant, KEM))
    with pytest.raises(DamagedKeyError, match="older than its last change in the audit log"):
        await pair.east.parts.store.list_keyrings(tenant)


async def test_what_was_done_between_moves_stays_done(pair: Pair, tenant: TenantId) -> None:
    """After sixty changes, uses and moves in any order, keys match and ciphertexts open."""
    here, there = pair.east, pair.west
    made: dict[Algorithm, list[tuple[KeyVersion, bytes]]] = {KEM: [], OTHER_KEM: []}
    refusals: set[ErrorKind] = set()
    for algorithm in made:
        await here.ask(GenerateKey(tenant=tenant, algorithm=algorithm, quota=None))
    for number in numbers(60):
        algorithm = (KEM, OTHER_KEM)[number % 2]
        key: dict[str, Any] = {"tenant": tenant, "algorithm": algorithm}
        versions = [KeyVersion(version_number) for version_number, _ in made[algorithm]] or [
            KeyVersion(1)
        ]
        version = versions[(number >> 8) % len(versions)]
        requests = (
            RotateKey(**key),
            Encrypt(**key, version=None, plaintext=TEXT),
            Encrypt(**key, version=None, plaintext=TEXT),
            RetireKey(**key, version=version),
            DisableKey(**key, version=version),
            EnableKey(**key, version=version),
            GenerateKey(**key, quota=None),
            UpdateKeyring(tenant=tenant, purposes=tuple(KeyPurpose)),
            None,
            None,
        )
        request = requests[(number >> 16) % len(requests)]
        if request is None:
            before = await everything(here, tenant)
            await move(here, there, tenant)
            here, there = there, here
            assert await everything(here, tenant) == before
            continue
        try:
            done = await here.ask(request)
        except KeyServiceError as error:
            refusals.add(error.kind)
            continue
        if isinstance(request, Encrypt):
            made[algorithm].append((done.version, done.ciphertext))
    assert ErrorKind.TENANT_MOVED not in refusals
    for algorithm, ciphertexts in made.items():
        for version, ciphertext in ciphertexts:
            key = {"tenant": tenant, "algorithm": algorithm, "version": version}
            await here.ask(EnableKey(**key))
            assert (await here.ask(Decrypt(**key, ciphertext=ciphertext))).plaintext == TEXT


async def has_come_back(shard: Shard, tenant: TenantId, uses: list[Any], before: list[Any]) -> None:
    """Check that a tenant has all its data, is served, and has no bundle."""
    assert await everything(shard, tenant) == before
    for use in uses:
        await shard.ask(use)
    assert (await shard.step(ListMoves(tenant=INSTALLATION), Moves)).tenants == ()


async def test_a_move_is_cancelled_while_its_bundle_is_here(pair: Pair, tenant: TenantId) -> None:
    """Before its bundle is handed out, a tenant can return at once, and move again."""
    uses = await fill(pair.east, tenant)
    before = await everything(pair.east, tenant)
    await pair.east.step(ExportTenant(tenant=tenant, target=WEST), ExportedTenant)
    await pair.restart()
    for _ in range(2):  # asked again it says the same
        response = await pair.east.step(CancelMove(tenant=tenant), MoveCancelled)
        assert response.cancelled
    await has_come_back(pair.east, tenant, uses, before)
    into = [record for record in await pair.east.records(tenant) if record["operation"] == MOVED_IN]
    assert (into[-1]["outcome"], into[-1]["policy"].split("/")[:3]) == (
        "completed",
        ["move", EAST, EAST],
    )
    await pair.restart()
    await move(pair.east, pair.west, tenant)
    for use in uses:
        await pair.west.ask(use)


async def test_a_bundle_that_was_handed_out_needs_the_other_shards_word(
    pair: Pair, tenant: TenantId
) -> None:
    """Afterwards it returns only with the target's renunciation, which is binding."""
    uses = await fill(pair.east, tenant)
    before = await everything(pair.east, tenant)
    exported, bundle = await export(pair.east, pair.west, tenant)
    await pair.restart()  # that it was handed out is in the log
    response = await pair.east.step(CancelMove(tenant=tenant), MoveCancelled)
    assert (response.cancelled, response.sha256) == (False, exported.sha256)
    with pytest.raises(KeyServiceError, match="tenant-moved"):
        await pair.east.ask(uses[0])
    asked = RenounceTenant(
        tenant=tenant, source=EAST, generation=response.generation, sha256=response.sha256
    )
    first = (await pair.west.step(asked, Renounced)).renunciation
    await pair.restart()
    again = (await pair.west.step(asked, Renounced)).renunciation
    assert first == again
    assert await refused(pair.west, tenant, bundle) is MoveRefusal.BUNDLE_OUTDATED
    with pytest.raises(KeyServiceError, match="tenant-moved"):
        await pair.west.ask(GenerateKey(tenant=tenant, algorithm=KEM, quota=None))
    cancelled = CancelMove(tenant=tenant, renunciation=again)
    assert (await pair.east.step(cancelled, MoveCancelled)).cancelled
    await has_come_back(pair.east, tenant, uses, before)
    await move(pair.east, pair.west, tenant)
    for use in uses:
        await pair.west.ask(use)


async def test_a_tenant_that_has_arrived_does_not_come_back(pair: Pair, tenant: TenantId) -> None:
    """A shard that imported the bundle never renounces the tenant."""
    uses = await fill(pair.east, tenant)
    exported, bundle = await export(pair.east, pair.west, tenant)
    receipt = await bring(pair.west, tenant, bundle, exported.sha256)
    asked = RenounceTenant(tenant=tenant, source=EAST, generation=1, sha256=exported.sha256)
    assert await pair.west.refusal(asked) is MoveRefusal.HAS_ARRIVED
    assert not (await pair.east.step(CancelMove(tenant=tenant), MoveCancelled)).cancelled
    forged = CancelMove(tenant=tenant, renunciation=receipt)  # the same, but for its key
    assert await pair.east.refusal(forged) is MoveRefusal.RECEIPT_INVALID
    await pair.east.step(FinishMove(tenant=tenant, receipt=receipt), MoveFinished)
    for request in (CancelMove(tenant=tenant), forged):
        assert await pair.east.refusal(request) is MoveRefusal.HAS_ARRIVED
    await move(pair.west, pair.east, tenant)  # and away again: it was there all the same
    assert await pair.west.refusal(asked) is MoveRefusal.HAS_ARRIVED
    assert await pair.east.refusal(CancelMove(tenant=tenant)) is MoveRefusal.NOT_MOVING
    for use in uses:
        await pair.east.ask(use)


async def test_a_renunciation_is_for_one_move(pair: Pair, tenant: TenantId) -> None:
    """A renunciation of another tenant, bundle or move is refused, and so is a receipt."""
    other = TenantId(uuid4())
    for owner in (tenant, other):
        await fill(pair.east, owner)
    exported, _ = await export(pair.east, pair.west, tenant)
    asked: dict[str, Any] = {"source": EAST, "generation": 1, "sha256": exported.sha256}
    real = (await pair.west.step(RenounceTenant(tenant=tenant, **asked), Renounced)).renunciation
    fields = {name: getattr(real, name) for name in real.__struct_fields__}
    for name, value in (
        ("tenant", other),
        ("target", "north"),
        ("generation", 2),
        ("sha256", bytes(32)),
        ("mac", bytes(32)),
    ):
        forged = CancelMove(tenant=tenant, renunciation=Receipt(**{**fields, name: value}))
        assert await pair.east.refusal(forged) is MoveRefusal.RECEIPT_INVALID
    finish = FinishMove(tenant=tenant, receipt=real)
    assert await pair.east.refusal(finish) is MoveRefusal.RECEIPT_INVALID
    await pair.east.step(CancelMove(tenant=tenant, renunciation=real), MoveCancelled)
    await export(pair.east, pair.west, tenant)
    replayed = CancelMove(tenant=tenant, renunciation=real)
    assert await pair.east.refusal(replayed) is MoveRefusal.RECEIPT_INVALID
    never = CancelMove(tenant=other)
    assert await pair.east.refusal(never) is MoveRefusal.NOT_MOVING
    itself = RenounceTenant(tenant=other, source=WEST, generation=1, sha256=bytes(32))
    assert await pair.west.refusal(itself) is MoveRefusal.SAME_SHARD


async def take_over(database: Database, location: Location) -> None:
    """End the holder's session like a standby, and wait for the next epoch."""
    before = database.writer.epoch
    location.sql("SELECT pg_terminate_backend(backend_pid) FROM service_epoch")
    async with asyncio.timeout(PATIENCE):
        while database.writer.epoch in {0, before}:  # noqa: ASYNC110 - it happens elsewhere
            await asyncio.sleep(0.01)


async def test_a_tenant_is_not_taken_back_on_what_an_earlier_epoch_read(
    pair: Pair, tenant: TenantId, backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If another process has handed the bundle out, the tenant stays away."""
    if backend == "sqlite":
        pytest.skip("a file has one key service")
    uses = await fill(pair.east, tenant)
    await pair.east.step(ExportTenant(tenant=tenant, target=WEST), ExportedTenant)
    open_own_bundle, bundles = TenantMoves._open_own_bundle, list[bytes]()

    async def interrupted(self: TenantMoves, key: TransferKey, last: RecordedMove) -> Any:
        opened = await open_own_bundle(self, key, last)
        await take_over(self._store.database, pair.east.location)
        part = await self._store.database.read(tenants.find_bundle_part, tenant, 0)
        assert part is not None
        bundles.append(part)
        await self._log.commit(move_record(last._replace(outcome=Outcome.HANDED_OUT)))
        return opened

    monkeypatch.setattr(TenantMoves, "_open_own_bundle", interrupted)
    assert await pair.east.refusal(CancelMove(tenant=tenant)) is MoveRefusal.INTERRUPTED
    assert not (await pair.east.step(CancelMove(tenant=tenant), MoveCancelled)).cancelled
    with pytest.raises(KeyServiceError, match="tenant-moved"):
        await pair.east.ask(uses[0])
    await bring(pair.west, tenant, bundles[0], bundle_digest(bundles[0]))
    for use in uses:
        await pair.west.ask(use)


async def test_no_bundle_arrives_on_what_an_earlier_epoch_read(
    pair: Pair, tenant: TenantId, backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If another process has renounced the bundle, it does not arrive."""
    if backend == "sqlite":
        pytest.skip("a file has one key service")
    uses = await fill(pair.east, tenant)
    exported, bundle = await export(pair.east, pair.west, tenant)
    receive = TenantMoves._receive
    renounced = RecordedMove(
        tenant,
        is_out=True,
        outcome=Outcome.CANCELLED,
        source=EAST,
        target=WEST,
        generation=exported.generation,
        sha256=exported.sha256,
        key_versions=0,
    )

    async def interrupted(self: TenantMoves, *arguments: Any) -> ImportProgress:
        await take_over(self._store.database, pair.west.location)
        await self._log.commit(move_record(renounced))
        return await receive(self, *arguments)

    monkeypatch.setattr(TenantMoves, "_receive", interrupted)
    assert await refused(pair.west, tenant, bundle) is MoveRefusal.INTERRUPTED
    asked = RenounceTenant(
        tenant=tenant, source=EAST, generation=exported.generation, sha256=exported.sha256
    )
    said = (await pair.west.step(asked, Renounced)).renunciation
    cancelled = CancelMove(tenant=tenant, renunciation=said)
    assert (await pair.east.step(cancelled, MoveCancelled)).cancelled
    for use in uses:
        await pair.east.ask(use)
    with pytest.raises(KeyServiceError, match="tenant-moved"):
        await pair.west.ask(uses[0])


async def test_legacy_keys_move(pair: Pair) -> None:
    """Decryption and verification work in the new shard, and no longer in the old one."""
    tenant = TenantId(uuid4())
    await pair.east.ask(GenerateKey(tenant=tenant, algorithm=OTHER_KEM, quota=None))
    for algorithm in (OAEP_256, P_256):
        issued = await pair.east.ask(GetImportKey(tenant=tenant, algorithm=algorithm))
        imported = ImportPrivateKey(
            tenant=tenant,
            algorithm=algorithm,
            import_key_id=issued.id,
            wrapped_private_key=wrap(issued, document(algorithm)),
            quota=None,
        )
        await pair.east.ask(imported)
    named: dict[str, Any] = {"tenant": tenant, "version": KeyVersion(1)}
    uses = [
        ReEncrypt(
            **named,
            algorithm=OAEP_256,
            ciphertext=sealed(OAEP_256),
            is_wrapped_key=False,
            target=Target(OTHER_KEM),
        ),
        Verify(**named, algorithm=P_256, message=CANARY, signature=signed(P_256)),
    ]
    await move(pair.east, pair.west, tenant)
    moved, _ = [await pair.west.ask(request) for request in uses]
    opened = Decrypt(**named, algorithm=OTHER_KEM, ciphertext=moved.ciphertext)
    assert (await pair.west.ask(opened)).plaintext == CANARY
    for request in uses:
        with pytest.raises(KeyServiceError) as refusal:
            await pair.east.ask(request)
        assert refusal.value.kind is ErrorKind.TENANT_MOVED


async def test_rules_move_with_their_tenant(pair: Pair, tenant: TenantId) -> None:
    """Moved rules deny in the new shard, fail closed without their row, and move back."""
    encrypt = Encrypt(tenant=tenant, algorithm=KEM, version=None, plaintext=TEXT)
    await fill(pair.east, tenant)
    past = datetime(2020, 1, 1, tzinfo=UTC)
    rule = Rule("end", (KEM,), deny_from=past)
    await pair.east.ask(PutRule(tenant=tenant, name="end", rules=(rule,)))
    await move(pair.east, pair.west, tenant)
    assert pair.east.location.sql("SELECT * FROM tenant_rules") == []
    for restarts in (False, True):
        if restarts:
            await pair.restart()
        with pytest.raises(KeyServiceError) as refused:
            await pair.west.ask(encrypt)
        assert refused.value.kind is ErrorKind.RULE_DENIED
    rules = await pair.west.ask(ListRules(tenant=tenant))
    recorded = [
        record for record in await pair.west.records(tenant) if record["operation"] == "move-rules"
    ]
    assert [record["public_key_sha256"] for record in recorded] == [rules.sha256.hex()]
    await move(pair.west, pair.east, tenant)
    assert (await pair.east.ask(ListRules(tenant=tenant))).rules == rules.rules
    await move(pair.east, pair.west, tenant)
    pair.west.location.sql("DELETE FROM tenant_rules")
    await pair.restart()
    with pytest.raises(KeyServiceError) as refused:
        await pair.west.ask(encrypt)
    assert refused.value.kind is ErrorKind.UNAVAILABLE
