"""A new root key comes into use while the service runs."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.patience import PATIENCE

from pqkeep_keyservice.audit.log import AuditLog
from pqkeep_keyservice.crypto.secret import Secret
from pqkeep_keyservice.crypto.signature import SignatureSchemes
from pqkeep_keyservice.keys.changes import (
    Change,
    CommitOutcome,
    KeyChange,
    RootKeyAdded,
    RootKeysDropped,
)
from pqkeep_keyservice.keys.key_versions import KeyEntry, KeyName, KeyVersions
from pqkeep_keyservice.keys.sealing import Sealer, sealing_root_key_id
from pqkeep_keyservice.ledger.records import NewRecord
from pqkeep_keyservice.live.key_material import KeyMaterial
from pqkeep_keyservice.root_key_sources.file import read_root_key
from pqkeep_keyservice.root_keys import RootKeyRotation
from pqkeep_keyservice.storage.database import DatabaseUnavailableError
from pqkeep_keyservice.storage.rules import find_rules
from pqkeep_keyservice.storage.store import KeyStore
from pqkeep_protocol.administration import ReloadRootKeys, RootKeys
from pqkeep_protocol.algorithms import ALGORITHMS, Algorithm, Operation
from pqkeep_protocol.errors import ErrorKind, KeyServiceError
from pqkeep_protocol.keyrings import KeyPurpose
from pqkeep_protocol.keys import INSTALLATION, KeyInfo, KeyStatus, KeyVersion, TenantId
from pqkeep_protocol.messages import (
    Attribution,
    CreateKeyring,
    Decrypt,
    Encrypt,
    GenerateKey,
    GetKeyring,
    KeyService,
    ListRules,
    PutRule,
    Sign,
)
from pqkeep_protocol.rules import Rule
from pqkeep_protocol.startup.settings import ConfigError

if TYPE_CHECKING:
    from keyservice.tests.conftest import InProcessService, Serving, Sql

KEM, SLH_DSA = Algorithm.ML_KEM_768, Algorithm.SLH_DSA_SHA2_128F
RELOAD = ReloadRootKeys(tenant=INSTALLATION)
RENEWED = RootKeys(in_use=(2,), remaining=0, damaged=0)

pytestmark = pytest.mark.parametrize("backend", ["sqlite", "postgresql"], indirect=True)


@pytest.fixture
def root_keys(service: InProcessService) -> RootKeyRotation:
    """Return the rotation of the root key."""
    return service.parts.root_keys


@pytest.fixture
def new_root_key(tmp_path: Path) -> Path:
    """Create a second root key."""
    path = tmp_path / "root-2.key"
    path.write_bytes(os.urandom(32))
    path.chmod(0o400)
    return path


def name(settings: Path, **files: Path) -> None:
    """Write settings that name root keys."""
    named = ", ".join(
        f'{key_id.removeprefix("_")} = {{file = "{path}"}}' for key_id, path in files.items()
    )
    settings.write_text(
        f'socket = "s"\ngateway_uid = "same"\ndatabase = "k"\nroot_keys = {{{named}}}\n'
    )


@asynccontextmanager
async def renewing(rotation: RootKeyRotation) -> AsyncIterator[None]:
    """Run the rotation during a block."""
    work = asyncio.create_task(rotation.run())
    try:
        yield
    finally:
        work.cancel()
        with suppress(asyncio.CancelledError):
            await work


async def renew(rotation: RootKeyRotation) -> None:
    """Return when only the second root key is in use."""
    async with renewing(rotation), asyncio.timeout(PATIENCE):
        while await rotation.reload(RELOAD) != RENEWED:  # noqa: ASYNC110 - as the command asks
            await asyncio.sleep(0.01)


async def test_everything_is_sealed_again(  # noqa: PLR0917 - fixtures are arguments
    keys: KeyService,
    root_keys: RootKeyRotation,
    store: KeyStore,
    sealer: Sealer,
    schemes: SignatureSchemes,
    settings: Path,
    root_key: Path,
    new_root_key: Path,
    tenant: TenantId,
    attribution: Attribution,
) -> None:
    """Earlier ciphertexts open when only the new root key is left."""
    await store.check()
    await keys.execute(GenerateKey(tenant=tenant, algorithm=KEM, quota=None), attribution)
    sealed = await keys.execute(
        Encrypt(tenant=tenant, algorithm=KEM, version=None, plaintext=b"text"), attribution
    )
    name(settings, _1=root_key, _2=new_root_key)
    await renew(root_keys)
    name(settings, _2=new_root_key)
    assert await root_keys.reload(RELOAD) == RENEWED
    assert sealed.version is not None
    request = Decrypt(
        tenant=tenant, algorithm=KEM, version=sealed.version, ciphertext=sealed.ciphertext
    )
    assert (await keys.execute(request, attribution)).plaintext == b"text"
    versions = await store.find_key_versions(KeyName(tenant, KEM))
    alone = KeyMaterial(Sealer({2: read_root_key(new_root_key)}), schemes)
    alone.decapsulation_key(tenant, versions.require_active())


async def test_keyrings_are_under_the_new_root_key(  # noqa: PLR0917 - fixtures are arguments
    keys: KeyService,
    root_keys: RootKeyRotation,
    store: KeyStore,
    settings: Path,
    root_key: Path,
    new_root_key: Path,
    tenant: TenantId,
    attribution: Attribution,
    restarted: Callable[[], KeyService],
) -> None:
    """A keyring gets a MAC under the new root key, even without keys to reseal."""
    await store.check()
    purposes = (KeyPurpose.ENCRYPT,)
    made = await keys.execute(
        CreateKeyring(tenant=tenant, keyring="cards", purposes=purposes), attribution
    )
    name(settings, _1=root_key, _2=new_root_key)
    await renew(root_keys)
    name(settings, _2=new_root_key)
    assert await root_keys.reload(RELOAD) == RENEWED
    store.change_sealer(Sealer({2: read_root_key(new_root_key)}))
    found = await restarted().execute(GetKeyring(tenant=tenant, keyring="cards"), attribution)
    assert found.keyring == made.keyring


async def test_the_state_of_the_root_key(
    keys: KeyService,
    root_keys: RootKeyRotation,
    store: KeyStore,
    settings: Path,
    root_key: Path,
    new_root_key: Path,
    tenant: TenantId,
    attribution: Attribution,
) -> None:
    """The state has the newest root key, its time, and the rotation's progress."""
    began_us = time.time_ns() // 1000
    await store.check()
    await keys.execute(GenerateKey(tenant=tenant, algorithm=KEM, quota=None), attribution)
    first = await store.find_root_key_state()
    assert (first.id, first.done, first.remaining, first.is_alone) == (1, 0, 0, True)
    assert began_us <= first.added_at_us <= time.time_ns() // 1000
    name(settings, _1=root_key, _2=new_root_key)
    await root_keys.reload(RELOAD)
    second = await store.find_root_key_state()
    assert (second.id, second.done, second.remaining, second.is_alone) == (2, 0, 1, False)
    assert second.added_at_us > first.added_at_us
    await renew(root_keys)
    last = await store.find_root_key_state()
    assert (last.id, last.added_at_us, last.is_alone) == (2, second.added_at_us, True)


async def test_a_root_key_in_use_cannot_be_left_out(
    root_keys: RootKeyRotation,
    store: KeyStore,
    sealer: Sealer,
    schemes: SignatureSchemes,
    settings: Path,
    new_root_key: Path,
) -> None:
    """Settings without a root key in use are refused, and change nothing."""
    await store.check()
    before = await store.list_root_key_check_values()
    name(settings, _2=new_root_key)
    with pytest.raises(KeyServiceError) as refused:
        await root_keys.reload(RELOAD)
    assert refused.value.kind is ErrorKind.UNAVAILABLE
    assert await store.list_root_key_check_values() == before


async def test_a_root_key_cannot_be_exchanged(
    root_keys: RootKeyRotation,
    store: KeyStore,
    sealer: Sealer,
    schemes: SignatureSchemes,
    settings: Path,
    new_root_key: Path,
) -> None:
    """Another key under the id of a root key in use is refused."""
    await store.check()
    name(settings, _1=new_root_key)
    with pytest.raises(KeyServiceError):
        await root_keys.reload(RELOAD)


async def test_a_key_made_meanwhile_is_not_lost(
    root_keys: RootKeyRotation,
    store: KeyStore,
    sealer: Sealer,
    schemes: SignatureSchemes,
    settings: Path,
    root_key: Path,
    new_root_key: Path,
    tenant: TenantId,
) -> None:
    """A key that was slowly sealed under a dropped root key is not committed."""
    await store.check()
    slow = KeyMaterial(sealer, schemes)
    entry = slow_entry(slow, tenant)
    assert entry.active
    assert entry.active.sealed
    assert sealing_root_key_id(entry.active.sealed) == 1
    name(settings, _1=root_key, _2=new_root_key)
    await renew(root_keys)
    new_record = NewRecord(tenant, "p", Operation.GENERATE_KEY, KEM, 1, "success", "r", "", "")
    outcome = await AuditLog(store).commit(new_record, KeyChange(KeyVersions(tenant, KEM), entry))
    assert outcome is CommitOutcome.STALE


def slow_entry(material: KeyMaterial, tenant: TenantId) -> KeyVersions:
    """Return a key with a first version."""
    public_key, sealed = material.generate(KeyName(tenant, KEM), KeyVersion(1))
    info = KeyInfo(KEM, KeyVersion(1), KeyStatus.ACTIVE, public_key, datetime.now(UTC))
    return KeyVersions(tenant, KEM).with_first(KeyEntry(info, sealed))


async def test_only_older_root_keys_are_dropped(serving: Serving) -> None:
    """A rotation drops older root keys only. A root key that was added meanwhile stays."""
    async with serving() as service:
        store = service.parts.store

        async def outcome(change: Change) -> CommitOutcome:
            record = NewRecord(INSTALLATION, "p", Operation.GET_KEY, None, None, "s", "r", "", "")
            return await service.parts.log.commit(record, change)

        for root_key_id in (2, 3):
            added = RootKeyAdded(root_key_id, bytes(16))
            assert await outcome(added) is CommitOutcome.DURABLE
        assert await outcome(RootKeysDropped(2)) is CommitOutcome.DURABLE
        assert set(await store.list_root_key_check_values()) == {2, 3}
        for newest in (2, 4):
            assert await outcome(RootKeysDropped(newest)) is CommitOutcome.STALE
        assert set(await store.list_root_key_check_values()) == {2, 3}


async def test_keys_without_a_root_key_are_refused(
    serving: Serving, sql: Sql, tenant: TenantId, attribution: Attribution
) -> None:
    """A database with keys but without root key rows is not opened as new."""
    async with serving() as service:
        await service.execute(GenerateKey(tenant=tenant, algorithm=KEM, quota=None), attribution)
    sql("DELETE FROM root_keys")
    with pytest.raises(ConfigError, match="does not name their root keys"):
        async with serving():
            pass
    assert sql("SELECT * FROM root_keys") == []


async def test_a_root_key_that_is_not_stored_is_not_used(
    service: InProcessService, root_key: Path, settings: Path
) -> None:
    """Of two root keys added with one id at once, the second is refused."""
    parts = service.parts

    def rotation() -> RootKeyRotation:
        sealer = Sealer({1: read_root_key(root_key), 2: Secret(os.urandom(32))})
        caches = parts.key_cache, parts.keyring_cache, parts.rules
        others = (parts.store, parts.log, *caches, parts.material)
        return RootKeyRotation(settings, sealer, *others, {})

    first, second = await asyncio.gather(
        rotation().start(), rotation().start(), return_exceptions=True
    )
    assert first is None
    assert isinstance(second, DatabaseUnavailableError)


async def test_worker_processes_read_no_root_key(
    service: InProcessService, root_key: Path, tenant: TenantId, attribution: Attribution
) -> None:
    """With all root key files destroyed, a new worker makes keys and signatures.

    So work that waited during a change and destruction of root keys is done.
    """
    await service.parts.root_keys.start()
    await asyncio.to_thread(root_key.unlink)
    await service.execute(GenerateKey(tenant=tenant, algorithm=SLH_DSA, quota=None), attribution)
    for worker in multiprocessing.active_children():
        worker.kill()
        worker.join()
    sign = Sign(tenant=tenant, algorithm=SLH_DSA, version=None, message=b"text")
    signed = await service.execute(sign, attribution)
    assert len(signed.signature) == ALGORITHMS[SLH_DSA].output_size


async def test_a_root_key_whose_file_was_moved(
    *,
    service: InProcessService,
    settings: Path,
    root_key: Path,
    tenant: TenantId,
    attribution: Attribution,
) -> None:
    """The same root key at another path is accepted."""
    await service.parts.root_keys.start()
    moved = await asyncio.to_thread(root_key.rename, root_key.with_name("moved.key"))
    name(settings, _1=moved)
    await service.parts.root_keys.reload(RELOAD)
    await service.execute(GenerateKey(tenant=tenant, algorithm=SLH_DSA, quota=None), attribution)


async def test_a_root_key_in_use_is_not_read_again(
    *, service: InProcessService, settings: Path, root_key: Path, new_root_key: Path
) -> None:
    """A root key can be replaced after its file or token was lost."""
    rotation = service.parts.root_keys
    await rotation.start()
    name(settings, _1=root_key)
    await rotation.reload(RELOAD)
    await asyncio.to_thread(root_key.unlink)
    name(settings, _1=root_key, _2=new_root_key)
    await renew(rotation)


async def test_nothing_but_root_keys_is_read_again(
    *,
    service: InProcessService,
    settings: Path,
    root_key: Path,
    new_root_key: Path,
    tenant: TenantId,
    attribution: Attribution,
) -> None:
    """A changed implementation of SLH-DSA waits for the next start and its self-test."""
    await service.parts.root_keys.start()
    name(settings, _1=root_key, _2=new_root_key)
    with settings.open("a") as file:
        file.write('slh_dsa = "openssl"\nopenssl_library = "libmissing.so"\n')
    await service.parts.root_keys.reload(RELOAD)
    await service.execute(GenerateKey(tenant=tenant, algorithm=SLH_DSA, quota=None), attribution)


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE keys SET sealed_seed = ? WHERE algorithm = 'Kyber768'",
        "UPDATE keys SET public_key = ? WHERE algorithm = 'Kyber768'",
        "DELETE FROM keys WHERE length(?) = 1 AND algorithm = 'Kyber768'",
    ],
    ids=["a short seed", "another public key", "a missing row"],
)
async def test_a_damaged_key_does_not_hold_up_the_others(
    *,
    damage: str,
    serving: Serving,
    sql: Sql,
    settings: Path,
    root_key: Path,
    new_root_key: Path,
    tenant: TenantId,
    attribution: Attribution,
) -> None:
    """Intact keys are resealed under the new root key, and damaged ones are counted."""
    async with serving() as service:
        for algorithm in (Algorithm.ML_KEM_1024, KEM, Algorithm.X_WING):
            generate = GenerateKey(tenant=tenant, algorithm=algorithm, quota=None)
            await service.execute(generate, attribution)
    sql(damage, b"\1")
    name(settings, _1=root_key, _2=new_root_key)
    expected = RootKeys(in_use=(1, 2), remaining=1, damaged=1)
    async with serving() as service:
        rotation = service.parts.root_keys
        async with renewing(rotation), asyncio.timeout(PATIENCE):
            while await rotation.reload(RELOAD) != expected:  # noqa: ASYNC110 - as above
                await asyncio.sleep(0.01)
    resealed = "SELECT algorithm FROM keys WHERE substr(sealed_seed, 2, 1) = ? ORDER BY algorithm"
    assert sql(resealed, b"\2") == [(Algorithm.ML_KEM_1024.value,), (Algorithm.X_WING.value,)]


async def test_rules_are_under_the_new_root_key(  # noqa: PLR0917 - fixtures are arguments
    keys: KeyService,
    root_keys: RootKeyRotation,
    store: KeyStore,
    settings: Path,
    root_key: Path,
    new_root_key: Path,
    tenant: TenantId,
    attribution: Attribution,
    sql: Sql,
) -> None:
    """Their MACs are renewed before the old root key is dropped; nothing else changes."""
    await store.check()
    put = PutRule(tenant=tenant, name="end", rules=(Rule("end", (KEM,)),))
    await keys.execute(put, attribution)
    name(settings, _1=root_key, _2=new_root_key)
    await renew(root_keys)
    ((mac,),) = sql("SELECT mac FROM tenant_rules")
    assert bytes(mac)[1] == 2
    found = await keys.execute(ListRules(tenant=tenant), attribution)
    assert (found.rules, found.revision) == (put.rules, 2)
    alone = Sealer({2: read_root_key(new_root_key)})
    assert (await store.database.read(find_rules, alone, tenant)).rules == put.rules
