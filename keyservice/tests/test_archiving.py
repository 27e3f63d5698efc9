"""Once archiving has succeeded, no file and no memory has the key's seed."""

import resource
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from pqkeep_keyservice.storage.database import Database
from pqkeep_keyservice.storage.sqlite import SqliteDatabase
from pqkeep_protocol.algorithms import Algorithm
from pqkeep_protocol.errors import ErrorKind, KeyServiceError
from pqkeep_protocol.keys import KeyVersion, TenantId
from pqkeep_protocol.messages import (
    Attribution,
    Decrypt,
    Encrypt,
    GenerateKey,
    KeyService,
    RetireKey,
    RotateKey,
    ScheduleArchive,
)

Sql = Callable[..., list[Any]]
KEM, SIGNATURE = Algorithm.ML_KEM_768, Algorithm.ML_DSA_87
VERSIONS = 30
PIECE = 16
SEALED = "SELECT algorithm, version, sealed_seed FROM keys WHERE sealed_seed IS NOT NULL"


def is_on_disk(sealed: bytes, database_path: Path) -> bool:
    """Return whether a file beside the database has a piece of a sealed seed."""
    pieces = [sealed[at : at + PIECE] for at in range(2, len(sealed) - PIECE, PIECE)]
    contents = [path.read_bytes() for path in database_path.parent.iterdir()]
    return any(content.find(piece) >= 0 for content in contents for piece in pieces)


@contextmanager
def no_room_to_scrub() -> Iterator[None]:
    """Limit file sizes so that a change fits the write-ahead log, but not the database."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (64 * 1024, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.threat("keys-database-reader")
async def test_no_archived_seed_is_on_the_disk(
    keys: KeyService, tenant: TenantId, attribution: Attribution, database_path: Path, sql: Sql
) -> None:
    """Of 60 keys archived one by one, no file has a piece after the response."""
    for algorithm in (KEM, SIGNATURE):
        generate = GenerateKey(tenant=tenant, algorithm=algorithm, quota=None)
        await keys.execute(generate, attribution)
        for _ in range(VERSIONS):
            await keys.execute(RotateKey(tenant=tenant, algorithm=algorithm), attribution)
    seeds = {(algorithm, version): seed for algorithm, version, seed in sql(SEALED)}
    assert all(is_on_disk(seed, database_path) for seed in seeds.values())
    archived = []
    for number in range(VERSIONS):
        version = KeyVersion(number * 7 % VERSIONS + 1)  # in no order
        for algorithm in (SIGNATURE, KEM):
            one: dict[str, Any] = {"tenant": tenant, "algorithm": algorithm, "version": version}
            await keys.execute(ScheduleArchive(days=0, **one), attribution)
            archived.append(seeds[algorithm, version])
            assert not is_on_disk(archived[-1], database_path)
    assert not any(is_on_disk(seed, database_path) for seed in archived)
    assert all(is_on_disk(seeds[algorithm, VERSIONS + 1], database_path) for algorithm in (KEM,))


async def test_a_reader_of_the_database_keeps_no_archived_seed(
    keys: KeyService, tenant: TenantId, attribution: Attribution, database_path: Path, sql: Sql
) -> None:
    """While a backup reads the file, archiving leaves no copy, or reports a failure."""
    key: dict[str, Any] = {"tenant": tenant, "algorithm": KEM}
    await keys.execute(GenerateKey(**key, quota=None), attribution)
    await keys.execute(RotateKey(**key), attribution)
    with closing(sqlite3.connect(database_path)) as backup:
        backup.execute("BEGIN")
        ((_, _, sealed), _) = backup.execute(SEALED + " ORDER BY version").fetchall()
        try:
            await keys.execute(ScheduleArchive(days=0, **key, version=KeyVersion(1)), attribution)
        except KeyServiceError:
            return
        assert not is_on_disk(sealed, database_path)


async def test_a_disk_too_full_to_scrub(
    keys: KeyService,
    tenant: TenantId,
    attribution: Attribution,
    database: Database,
    sql: Sql,
) -> None:
    """On a disk too full to scrub, the key is archived, and its copies are scrubbed later."""
    key: dict[str, Any] = {"tenant": tenant, "algorithm": KEM}
    await keys.execute(GenerateKey(**key, quota=None), attribution)
    for _ in range(60):  # so that the file is larger than what it may grow to below
        await keys.execute(RotateKey(**key), attribution)
    one: dict[str, Any] = {**key, "version": KeyVersion(61)}
    blob = await keys.execute(Encrypt(**one, plaintext=b"text"), attribution)
    await keys.execute(RetireKey(**one), attribution)
    await database.scrub()
    with no_room_to_scrub():
        await keys.execute(ScheduleArchive(days=0, **one), attribution)
    assert not database.is_scrubbed
    ((status,),) = sql("SELECT status FROM keys WHERE version = 61")
    assert status == "archived"
    with pytest.raises(KeyServiceError) as refused:
        await keys.execute(Decrypt(**one, ciphertext=blob.ciphertext), attribution)
    assert refused.value.kind is ErrorKind.KEY_NOT_FOUND
    assert await database.scrub()


async def test_a_crash_before_the_scrub_keeps_no_archived_seed(
    keys: KeyService,
    tenant: TenantId,
    attribution: Attribution,
    database: Database,
    database_path: Path,
    tmp_path_factory: pytest.TempPathFactory,
    sql: Sql,
) -> None:
    """A database that was left unscrubbed is scrubbed after it is opened again."""
    key: dict[str, Any] = {"tenant": tenant, "algorithm": KEM}
    await keys.execute(GenerateKey(**key, quota=None), attribution)
    for _ in range(60):  # see above
        await keys.execute(RotateKey(**key), attribution)
    ((sealed,),) = sql("SELECT sealed_seed FROM keys WHERE version = 60")
    await database.scrub()
    with no_room_to_scrub():
        await keys.execute(ScheduleArchive(days=0, **key, version=KeyVersion(60)), attribution)
    crashed = tmp_path_factory.mktemp("crashed")
    shutil.copytree(database_path.parent, crashed, dirs_exist_ok=True)
    assert is_on_disk(sealed, crashed / database_path.name)
    again = SqliteDatabase(str(crashed / database_path.name))
    try:
        assert not again.is_scrubbed
        assert await again.scrub()
        assert not is_on_disk(sealed, crashed / database_path.name)
    finally:
        await again.close()
