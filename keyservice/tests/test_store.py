"""Keyrings in a real SQLite file: compare-and-swap, quota, durability, and who may open it."""

import sqlite3
import stat
from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext

from pqkeep_keyservice.config import ConfigError
from pqkeep_keyservice.keyring import KeyEntry, Keyring, SealedSeed
from pqkeep_keyservice.storage.database import Database
from pqkeep_keyservice.storage.schema import METADATA
from pqkeep_keyservice.storage.store import AuditRow, Change, KeyStore, Verdict
from pqkeep_protocol.algorithms import Algorithm
from pqkeep_protocol.keys import KeyInfo, KeyStatus, KeyVersion, TenantId

Sql = Callable[..., list[Any]]
KEM, SIGNATURE = Algorithm.ML_KEM_768, Algorithm.ML_DSA_65
CREATED = datetime(2026, 2, 3, 4, 5, 6, 789_012, tzinfo=UTC)


def _is_in_schema(_: object, name: str | None, *__: object) -> bool:
    return name != "one_active_key"  # a partial index, in the migrations only


def row(request_id: str = "request") -> AuditRow:
    """Return an audit row that can be told by its request."""
    return AuditRow(1, "t", "p", "rotate-key", KEM, 1, "success", request_id, "a", "y")


def new_entry(ring: Keyring) -> KeyEntry:
    """Return an entry with which a ring can go on."""
    version = ring.next_version
    info = KeyInfo(ring.algorithm, version, KeyStatus.ACTIVE, b"public %d" % version, CREATED)
    return KeyEntry(info, SealedSeed(b"sealed %d" % version))


def generated(ring: Keyring) -> Keyring:
    """Return the ring with a first key."""
    return ring.with_first(new_entry(ring))


def rotated(ring: Keyring) -> Keyring:
    """Return the ring with its active key rotated."""
    return ring.with_rotated(new_entry(ring))


async def put(store: KeyStore, old: Keyring, new: Keyring, quota: int | None = None) -> Verdict:
    """Commit one change with its record."""
    (verdict,) = await store.commit([(row(), Change(old, new, quota))])
    return verdict


async def test_a_keyring_of_every_status_comes_back_after_a_restart(
    database_path: Path, tenant: TenantId
) -> None:
    """Versions, statuses, seeds, public keys, times to the microsecond and revision are kept."""
    ring = Keyring(tenant, KEM)
    with closing(Database(str(database_path))) as database:
        store = KeyStore(database)
        for change in (
            generated,
            rotated,
            rotated,
            lambda ring: ring.with_archived(KeyVersion(1)),
        ):
            new = change(ring)
            assert await put(store, ring, new) is Verdict.DURABLE
            ring = new
        assert await store.load(tenant, KEM) == ring
    statuses = [entry.info.status for entry in ring.entries]
    assert statuses == [KeyStatus.ARCHIVED, KeyStatus.RETIRED, KeyStatus.ACTIVE]
    with closing(Database(str(database_path))) as database:
        assert await KeyStore(database).load(tenant, KEM) == ring


async def test_keyrings_do_not_mix(store: KeyStore, tenant: TenantId) -> None:
    """A keyring belongs to one tenant and one algorithm; any other one is empty."""
    mine = Keyring(tenant, KEM)
    await put(store, mine, generated(mine))
    other = TenantId(uuid4())
    assert await store.load(tenant, SIGNATURE) == Keyring(tenant, SIGNATURE)
    assert await store.load(other, KEM) == Keyring(other, KEM)


@pytest.mark.parametrize("size", [0, 1], ids=["first key", "rotation"])
async def test_a_stale_change_writes_nothing(
    size: int, store: KeyStore, tenant: TenantId, sql: Sql
) -> None:
    """Of two changes of the same ring the second is refused, and its audit row is not written."""
    old = Keyring(tenant, KEM)
    if size:
        first = generated(old)
        await put(store, old, first)
        old = first
    new = rotated(old) if size else generated(old)
    rows = sql("SELECT count(*) FROM audit_records")
    assert await put(store, old, new) is Verdict.DURABLE
    (late,) = await store.commit([(row("late"), Change(old, new))])
    assert late is Verdict.STALE
    assert await store.load(tenant, KEM) == new
    assert sql("SELECT count(*) FROM audit_records") == [(rows[0][0] + 1,)]
    assert sql("SELECT count(*) FROM audit_records WHERE request_id = 'late'") == [(0,)]


async def test_one_batch_decides_entry_by_entry(
    store: KeyStore, tenant: TenantId, sql: Sql
) -> None:
    """In one transaction the first of two rivals wins, and the records beside them are kept."""
    old = Keyring(tenant, KEM)
    change = Change(old, generated(old))
    verdicts = await store.commit(
        [(row("a"), None), (row("b"), change), (row("c"), change), (row("d"), None)]
    )
    assert verdicts == [Verdict.DURABLE, Verdict.DURABLE, Verdict.STALE, Verdict.DURABLE]
    recorded = sql("SELECT request_id FROM audit_records ORDER BY sequence")
    assert recorded == [("a",), ("b",), ("d",)]


async def test_the_quota_counts_active_keys_of_all_algorithms(
    store: KeyStore, tenant: TenantId, sql: Sql
) -> None:
    """The last key within the quota is made, the next is not and leaves no record; others go on."""
    kem, signature = Keyring(tenant, KEM), Keyring(tenant, SIGNATURE)
    assert await put(store, kem, generated(kem), quota=1) is Verdict.DURABLE
    assert await put(store, signature, generated(signature), quota=1) is Verdict.QUOTA_REACHED
    assert await store.load(tenant, SIGNATURE) == signature
    assert sql("SELECT count(*) FROM audit_records") == [(1,)]

    other = Keyring(TenantId(uuid4()), SIGNATURE)
    assert await put(store, other, generated(other), quota=1) is Verdict.DURABLE
    retired = generated(kem).with_retired(KeyVersion(1))
    assert await put(store, generated(kem), retired) is Verdict.DURABLE
    assert await put(store, signature, generated(signature), quota=1) is Verdict.DURABLE


async def test_two_active_keys_cannot_be_stored(
    store: KeyStore, tenant: TenantId, sql: Sql
) -> None:
    """The database itself refuses a second active key, and lets any number of others be."""
    ring = Keyring(tenant, KEM)
    await put(store, ring, generated(ring))
    copy = (
        "INSERT INTO keys SELECT tenant_id, algorithm, version + ?, ?, public_key, sealed_seed,"
        " created_at_us FROM keys WHERE version = 1"
    )
    with pytest.raises(sqlite3.IntegrityError):
        sql(copy, 1, "active")
    sql(copy, 1, "retired")
    sql(copy, 2, "retired")


async def test_a_change_of_a_keyring_that_is_not_there_is_stale(
    store: KeyStore, tenant: TenantId
) -> None:
    """A ring that storage never saw cannot be replaced, and nothing of it is written."""
    absent = Keyring(tenant, KEM)
    forged = Keyring(tenant, KEM, (), revision=7)
    assert await put(store, forged, generated(forged)) is Verdict.STALE
    assert await store.load(tenant, KEM) == absent


@pytest.mark.parametrize(
    ("pragma", "value"),
    [
        ("journal_mode", "wal"),
        ("synchronous", 2),  # FULL
        ("foreign_keys", 1),
        ("secure_delete", 1),
        ("busy_timeout", 200),
    ],
)
async def test_pragmas_are_in_force(pragma: str, value: object, database: Database) -> None:
    """The connection that writes has each setting on, as SQLite itself says."""
    query = f"PRAGMA {pragma}"
    assert await database.read(lambda c: c.exec_driver_sql(query).scalar()) == value


async def test_migrations_make_the_tables_of_the_schema(database: Database) -> None:
    """Alembic finds no difference between a migrated database and storage/schema.py."""

    def differences(connection: sa.Connection) -> list[Any]:
        options = {"compare_type": True, "include_object": _is_in_schema}
        return list(
            compare_metadata(MigrationContext.configure(connection, opts=options), METADATA)
        )

    assert await database.read(differences) == []


def test_a_migrated_database_opens_again(database_path: Path, sql: Sql) -> None:
    """Opening a database of the current schema changes nothing in it."""
    for _ in range(2):
        Database(str(database_path)).close()
        assert sql("SELECT version_num FROM alembic_version") == [("0001",)]


def test_a_schema_from_the_future_is_refused(database_path: Path, sql: Sql) -> None:
    """A database that a newer version has migrated is not touched, with a clear message."""
    Database(str(database_path)).close()
    sql("UPDATE alembic_version SET version_num = '9999'")
    with pytest.raises(ConfigError, match="does not know"):
        Database(str(database_path))
    assert sql("SELECT version_num FROM alembic_version") == [("9999",)]


@pytest.mark.parametrize("content", [b"not a database" * 100, b"SQLite format 3\0" + bytes(4080)])
def test_a_file_that_is_no_database_is_refused(database_path: Path, content: bytes) -> None:
    """A file of something else is a ConfigError, and is left as it was."""
    database_path.write_bytes(content)
    database_path.chmod(0o600)
    with pytest.raises(ConfigError, match="cannot open"):
        Database(str(database_path))
    assert database_path.read_bytes() == content


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o604, 0o620, 0o602, 0o666, 0o601])
def test_a_database_open_to_others_is_refused(mode: int, database_path: Path) -> None:
    """A database with any right of the group or of others is not opened, and is left as it was."""
    Database(str(database_path)).close()
    content = database_path.read_bytes()
    database_path.chmod(mode)
    with pytest.raises(ConfigError, match="can be read by others; its mode must be 0600"):
        Database(str(database_path))
    assert database_path.read_bytes() == content
    assert stat.S_IMODE(database_path.stat().st_mode) == mode
    database_path.chmod(0o600)
    Database(str(database_path)).close()


def test_a_database_is_one_process_s_only(database_path: Path) -> None:
    """While a database is open it is opened by nobody else, and after close by anybody."""
    with closing(Database(str(database_path))):
        for _ in range(2):
            with pytest.raises(ConfigError, match="in use by another key service"):
                Database(str(database_path))
    Database(str(database_path)).close()


def test_a_refused_database_is_let_go(database_path: Path, sql: Sql) -> None:
    """What was wrong with a database can be put right, and the same process opens it then."""
    Database(str(database_path)).close()
    sql("UPDATE alembic_version SET version_num = '9999'")
    with pytest.raises(ConfigError, match="does not know"):
        Database(str(database_path))
    sql("UPDATE alembic_version SET version_num = '0001'")
    Database(str(database_path)).close()


def test_a_folder_that_is_not_there_is_a_clear_error(tmp_path: Path) -> None:
    """A path that cannot be opened is a ConfigError that names it."""
    with pytest.raises(ConfigError, match="missing"):
        Database(str(tmp_path / "missing" / "keys.sqlite3"))


async def test_only_the_owner_can_read_the_files(
    database_path: Path, store: KeyStore, tenant: TenantId
) -> None:
    """The database, its log and its index have mode 0600, whatever the umask."""
    ring = Keyring(tenant, KEM)
    await put(store, ring, generated(ring))
    modes = {
        path.name: stat.S_IMODE(path.stat().st_mode) for path in database_path.parent.iterdir()
    }
    assert modes == dict.fromkeys(["keys.sqlite3", "keys.sqlite3-wal", "keys.sqlite3-shm"], 0o600)


async def test_no_sealed_seed_is_visible_to_the_audit_log(
    store: KeyStore, tenant: TenantId, sql: Sql
) -> None:
    """A change's record holds what its row says, and nothing of the keyring."""
    ring = Keyring(tenant, KEM)
    await put(store, ring, generated(ring))
    ((*columns,),) = sql("SELECT * FROM audit_records")
    assert tuple(columns[1:]) == row()


async def test_an_archived_seed_is_gone_from_the_disk(
    database_path: Path, store: KeyStore, tenant: TenantId
) -> None:
    """Once the store is scrubbed, no file beside the database holds an archived seed."""
    ring = Keyring(tenant, KEM)
    first = generated(ring)
    retired = first.with_retired(KeyVersion(1))
    for old, new in (
        (ring, first),
        (first, retired),
        (retired, retired.with_archived(KeyVersion(1))),
    ):
        await put(store, old, new)
    assert await store.scrub()
    sealed = first.entries[0].sealed
    assert sealed is not None
    for path in database_path.parent.iterdir():
        assert path.read_bytes().find(sealed) < 0
