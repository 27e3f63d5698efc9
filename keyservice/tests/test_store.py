"""Keys in a real database: compare-and-swap, quota, durability and exclusive access."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any
from uuid import UUID, uuid4

import psycopg
import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext

from pqkeep_keyservice.keys.changes import CommitOutcome, KeyChange
from pqkeep_keyservice.keys.key_versions import KeyEntry, KeyName, KeyVersions, SealedSeed
from pqkeep_keyservice.keys.sealing import Sealer
from pqkeep_keyservice.ledger import schema as ledger
from pqkeep_keyservice.ledger.records import NewRecord, Row
from pqkeep_keyservice.storage import schema as keys
from pqkeep_keyservice.storage.database import Database
from pqkeep_keyservice.storage.store import KeyStore
from pqkeep_protocol.algorithms import Algorithm, Operation
from pqkeep_protocol.keys import KeyInfo, KeyStatus, KeyVersion, TenantId
from pqkeep_protocol.startup.settings import ConfigError

if TYPE_CHECKING:
    from keyservice.tests.conftest import Location

pytestmark = pytest.mark.parametrize("backend", ["sqlite", "postgresql"], indirect=True)

Sql = Callable[..., list[Any]]
KEM, SIGNATURE = Algorithm.ML_KEM_768, Algorithm.ML_DSA_65
TENANT = TenantId(UUID(int=7))
CREATED = datetime(2026, 2, 3, 4, 5, 6, 789_012, tzinfo=UTC)


def _is_in_schema(_: object, name: str | None, *__: object) -> bool:
    return name not in {
        "one_active_key",
        "one_event",
        "key_changes",
        "moves",
        "rare_operations",
        "rare_outcomes",
        "refusals",
        "rules",
        "campaigns",
        "successions",
    }  # partial indices, in the migrations only


def row(request_id: str = "request") -> NewRecord:
    """Return a record, identified by its request."""
    return NewRecord(TENANT, "p", Operation.ROTATE_KEY, KEM, 1, "success", request_id, "a", "y")


def new_entry(versions: KeyVersions) -> KeyEntry:
    """Return the next entry for a key."""
    version = versions.next_version()
    info = KeyInfo(versions.algorithm, version, KeyStatus.ACTIVE, b"public %d" % version, CREATED)
    return KeyEntry(info, SealedSeed(b"sealed %d" % version))


def generated(versions: KeyVersions) -> KeyVersions:
    """Return the key with a first version."""
    return versions.with_first(new_entry(versions))


def rotated(versions: KeyVersions) -> KeyVersions:
    """Return the key with its active version rotated."""
    return versions.with_rotated(new_entry(versions))


async def put(
    store: KeyStore, old: KeyVersions, new: KeyVersions, quota: int | None = None
) -> CommitOutcome:
    """Commit one change with its record."""
    (outcome,) = await store.commit([(row(), KeyChange(old, new, quota))])
    return outcome


async def test_a_key_of_every_status_comes_back_after_a_restart(
    location: Location, sealer: Sealer, tenant: TenantId
) -> None:
    """Versions, statuses, seeds, public keys, times to the microsecond and revision are stored."""
    versions = KeyVersions(tenant, KEM)
    database = await location.open()
    store = KeyStore(database, sealer)
    for change in (
        generated,
        rotated,
        rotated,
        lambda versions: versions.with_archived(KeyVersion(1)),
    ):
        new = change(versions)
        assert await put(store, versions, new) is CommitOutcome.DURABLE
        versions = new
    assert await store.find_key_versions(KeyName(tenant, KEM)) == versions
    await database.close()
    statuses = [entry.info.status for entry in versions.entries]
    assert statuses == [KeyStatus.ARCHIVED, KeyStatus.RETIRED, KeyStatus.ACTIVE]
    database = await location.open()
    assert await KeyStore(database, sealer).find_key_versions(KeyName(tenant, KEM)) == versions
    await database.close()


async def test_keys_do_not_mix(store: KeyStore, tenant: TenantId) -> None:
    """Keys are separate for each tenant and algorithm. Missing keys have no versions."""
    mine = KeyVersions(tenant, KEM)
    await put(store, mine, generated(mine))
    other = TenantId(uuid4())
    assert await store.find_key_versions(KeyName(tenant, SIGNATURE)) == KeyVersions(
        tenant, SIGNATURE
    )
    assert await store.find_key_versions(KeyName(other, KEM)) == KeyVersions(other, KEM)


@pytest.mark.parametrize("size", [0, 1], ids=["first key", "rotation"])
async def test_a_stale_change_writes_nothing(
    size: int, store: KeyStore, tenant: TenantId, sql: Sql
) -> None:
    """Of two changes of the same revision, the second is refused without a record."""
    old = KeyVersions(tenant, KEM)
    if size:
        first = generated(old)
        await put(store, old, first)
        old = first
    new = rotated(old) if size else generated(old)
    rows = sql("SELECT count(*) FROM audit_records")
    assert await put(store, old, new) is CommitOutcome.DURABLE
    (late,) = await store.commit([(row("late"), KeyChange(old, new))])
    assert late is CommitOutcome.STALE
    assert await store.find_key_versions(KeyName(tenant, KEM)) == new
    assert sql("SELECT count(*) FROM audit_records") == [(rows[0][0] + 1,)]
    assert sql("SELECT count(*) FROM audit_records WHERE request_id = 'late'") == [(0,)]


async def test_one_batch_decides_entry_by_entry(
    store: KeyStore, tenant: TenantId, sql: Sql
) -> None:
    """In one transaction the first of two conflicting changes wins, and other records are kept."""
    old = KeyVersions(tenant, KEM)
    change = KeyChange(old, generated(old))
    outcomes = await store.commit(
        [(row("a"), None), (row("b"), change), (row("c"), change), (row("d"), None)]
    )
    assert outcomes == [
        CommitOutcome.DURABLE,
        CommitOutcome.DURABLE,
        CommitOutcome.STALE,
        CommitOutcome.DURABLE,
    ]
    recorded = sql("SELECT request_id FROM audit_records ORDER BY id")
    assert recorded == [("a",), ("b",), ("d",)]


async def test_the_quota_counts_active_keys_of_all_algorithms(
    store: KeyStore, tenant: TenantId, sql: Sql
) -> None:
    """The quota's last key is made. The next is refused without a record, and others succeed."""
    kem, signature = KeyVersions(tenant, KEM), KeyVersions(tenant, SIGNATURE)
    assert await put(store, kem, generated(kem), quota=1) is CommitOutcome.DURABLE
    assert await put(store, signature, generated(signature), quota=1) is CommitOutcome.QUOTA_REACHED
    assert await store.find_key_versions(KeyName(tenant, SIGNATURE)) == signature
    assert sql("SELECT count(*) FROM audit_records") == [(1,)]

    other = KeyVersions(TenantId(uuid4()), SIGNATURE)
    assert await put(store, other, generated(other), quota=1) is CommitOutcome.DURABLE
    retired = generated(kem).with_retired(KeyVersion(1), CREATED)
    assert await put(store, generated(kem), retired) is CommitOutcome.DURABLE
    assert await put(store, signature, generated(signature), quota=1) is CommitOutcome.DURABLE


async def test_two_active_keys_cannot_be_stored(
    store: KeyStore, tenant: TenantId, sql: Sql
) -> None:
    """The database itself refuses a second active version, even if disabled, and allows others."""
    versions = KeyVersions(tenant, KEM)
    await put(store, versions, generated(versions))
    copy = (
        "INSERT INTO keys (tenant_id, keyring, algorithm, version, status, disabled_from, public_key,"
        " public_key_sha256, sealed_seed, created_at_us) SELECT tenant_id, keyring, algorithm, version + ?, ?, ?, public_key,"
        " public_key_sha256, sealed_seed, created_at_us FROM keys WHERE version = 1"
    )
    for active in (("active", None), ("disabled", "active")):
        with pytest.raises((sqlite3.IntegrityError, psycopg.IntegrityError)):
            sql(copy, 1, *active)
    sql(copy, 1, "retired", None)
    sql(copy, 2, "disabled", "retired")


async def test_a_change_of_a_key_that_is_not_there_is_stale(
    store: KeyStore, tenant: TenantId
) -> None:
    """A change of a key that was never stored is stale, and writes nothing."""
    absent = KeyVersions(tenant, KEM)
    forged = KeyVersions(tenant, KEM, (), revision=7)
    assert await put(store, forged, generated(forged)) is CommitOutcome.STALE
    assert await store.find_key_versions(KeyName(tenant, KEM)) == absent


@pytest.mark.parametrize("has_schema", [False])
async def test_migrations_make_the_tables_of_the_schema(database: Database) -> None:
    """Alembic finds no difference between a migrated database and the two schemas."""
    expected = sa.MetaData()
    for table in (*ledger.METADATA.sorted_tables, *keys.METADATA.sorted_tables):
        table.to_metadata(expected)

    def differences(connection: sa.Connection) -> list[Any]:
        options = {"compare_type": True, "include_object": _is_in_schema}
        migrated = MigrationContext.configure(connection, opts=options)
        return list(compare_metadata(migrated, expected))

    assert await database.read(differences) == []


async def test_no_sealed_seed_is_visible_to_the_audit_log(
    store: KeyStore, tenant: TenantId, sql: Sql
) -> None:
    """A change's record has its row's values, and nothing of the seed."""
    versions = KeyVersions(tenant, KEM)
    await put(store, versions, generated(versions))
    ((*columns,),) = sql("SELECT * FROM audit_records")
    kept = Row(*columns)
    assert (kept.id, kept.tenant_id, kept.number) == (1, str(TENANT), 1)
    assert kept[Row._fields.index("principal") :] == row()[1:]


@pytest.mark.parametrize("has_schema", [False])
async def test_a_migrated_database_opens_again(location: Location) -> None:
    """Opening a database of the current schema does not change it."""
    await (await location.open()).close()
    version = location.sql("SELECT version_num FROM alembic_version")
    await (await location.open()).close()
    assert location.sql("SELECT version_num FROM alembic_version") == version


@pytest.mark.parametrize("revision", ["0001", "0002", "0003", "keys_9999"])
async def test_a_database_of_another_version_is_refused(location: Location, revision: str) -> None:
    """For an older or newer schema the message names it and what to do, and nothing changes."""
    await (await location.open()).close()
    location.sql("UPDATE alembic_version SET version_num = ?", revision)
    location.sql("DROP TABLE key_usage")
    with pytest.raises(ConfigError) as refused:
        await location.open()
    message = str(refused.value)
    assert (
        f"has the unknown schema revision {revision}: another version of pqkeep created it"
        in message
    )
    assert "Use the version that created it, or a new database" in message
    assert location.sql("SELECT version_num FROM alembic_version") == [(revision,)]
    with pytest.raises((sqlite3.Error, psycopg.Error)):
        location.sql("SELECT * FROM key_usage")


@pytest.mark.threat("swapped-key-service")
async def test_a_database_is_one_shards_only(location: Location, sealer: Sealer) -> None:
    """The first shard that opens a new database owns it, and another one is refused by name."""
    for _ in range(2):
        database = await location.open()
        store = KeyStore(database, sealer)
        await store.claim_shard("b")
        with pytest.raises(
            ConfigError, match='belongs to the shard "b", but the settings have'
        ) as no:
            await store.claim_shard("default")
        assert 'shard = "default"' in str(no.value)
        await database.close()
    assert location.sql("SELECT name FROM shard") == [("b",)]


async def test_a_database_is_one_process_s_only(location: Location) -> None:
    """An open database cannot be opened again. After close it can."""
    database = await location.open()
    for _ in range(2):
        with pytest.raises(ConfigError, match="in use by another key service"):
            await location.open()
    await database.close()
    await (await location.open()).close()


async def test_a_refused_database_is_let_go(location: Location) -> None:
    """After an error is fixed, the same process can open the database."""
    await (await location.open()).close()
    ((version,),) = location.sql("SELECT version_num FROM alembic_version")
    location.sql("UPDATE alembic_version SET version_num = '9999'")
    with pytest.raises(ConfigError, match="unknown schema"):
        await location.open()
    location.sql("UPDATE alembic_version SET version_num = ?", version)
    await (await location.open()).close()
