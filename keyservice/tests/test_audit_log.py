"""Every response has a durable record. Many records share a transaction."""

import asyncio
import gc
import logging
import resource
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any, cast
from uuid import UUID

import pytest

from pqkeep_keyservice.audit.log import MAX_BATCH, AuditLog
from pqkeep_keyservice.keys.changes import CommitOutcome
from pqkeep_keyservice.ledger.records import NewRecord
from pqkeep_keyservice.storage.database import Database
from pqkeep_keyservice.storage.fenced_database import FencedDatabase
from pqkeep_keyservice.storage.postgresql import PostgresqlSession
from pqkeep_keyservice.storage.sqlite import SqliteDatabase
from pqkeep_keyservice.storage.store import KeyStore
from pqkeep_protocol.algorithms import Algorithm, Operation
from pqkeep_protocol.errors import ErrorKind, KeyServiceError
from pqkeep_protocol.keys import TenantId
from pqkeep_protocol.messages import (
    Attribution,
    GenerateKey,
    GetActiveKey,
    KeyService,
    RotateKey,
)

Sql = Callable[..., list[Any]]
TENANT = TenantId(UUID(int=7))
COUNT = "SELECT count(*), count(DISTINCT request_id) FROM audit_records"


def row(number: int) -> NewRecord:
    """Return a record of about 350 bytes, identified by its number."""
    return NewRecord(
        TENANT,
        "p" * 128,
        Operation.ENCRYPT,
        "Kyber768",
        1,
        "success",
        f"request-{number}",
        "a",
        "y" * 128,
    )


BOTH = pytest.mark.parametrize("backend", ["sqlite", "postgresql"], indirect=True)
RENEWALS = 1
"""Commits whose server session is reported as still in use."""


@pytest.fixture
def transactions(database: Database) -> list[str]:
    """Collect the ends of transactions from the driver."""
    ends: list[str] = []

    def note(statement: str) -> None:
        if statement.rstrip(";") in {"COMMIT", "ROLLBACK"}:
            ends.append(statement.rstrip(";"))

    if isinstance(database, FencedDatabase):
        session = database._session
        assert isinstance(session, PostgresqlSession)
        session.driver.add_query_logger(lambda logged: note(logged.query))
    else:
        assert isinstance(database, SqliteDatabase)
        database._driver.set_trace_callback(note)
    return ends


@BOTH
async def test_many_records_share_a_transaction(
    store: KeyStore, transactions: list[str], sql: Sql
) -> None:
    """500 concurrent commits give 500 rows in order, in two transactions."""
    log = AuditLog(store)
    outcomes = await asyncio.gather(*(log.commit(row(number)) for number in range(500)))
    assert outcomes == [CommitOutcome.DURABLE] * 500
    assert sql("SELECT request_id FROM audit_records ORDER BY id") == [
        (f"request-{number}",) for number in range(500)
    ]
    assert transactions.count("COMMIT") <= 2 + RENEWALS


@BOTH
async def test_a_batch_has_a_limit(store: KeyStore, transactions: list[str], sql: Sql) -> None:
    """More than MAX_BATCH waiting records are written in several transactions, without loss."""
    log = AuditLog(store)
    await asyncio.gather(*(log.commit(row(number)) for number in range(MAX_BATCH * 2 + 1)))
    assert sql(COUNT) == [(MAX_BATCH * 2 + 1, MAX_BATCH * 2 + 1)]
    assert 3 <= transactions.count("COMMIT") <= 3 + RENEWALS


@BOTH
async def test_a_record_is_durable_when_its_caller_goes_on(store: KeyStore, sql: Sql) -> None:
    """When commit returns, another connection to the file sees the row."""
    log = AuditLog(store)

    async def caller(number: int) -> bool:
        await log.commit(row(number))
        seen = "SELECT count(*) FROM audit_records WHERE request_id = ?"
        return sql(seen, f"request-{number}") == [(1,)]

    assert all(await asyncio.gather(*(caller(number) for number in range(50))))


@asynccontextmanager
async def no_more_pages(database: Database, _: Path) -> AsyncIterator[None]:
    """Stop the growth of the database, so that SQLite reports a full disk."""

    async def limit(pages: int) -> None:
        await database.read(lambda c: c.exec_driver_sql(f"PRAGMA max_page_count = {pages}").all())

    await limit(1)  # SQLite takes the present size for less than that
    yield
    await limit(2**31 - 2)


@asynccontextmanager
async def no_larger_files(_: Database, database_path: Path) -> AsyncIterator[None]:
    """Stop the growth of this process's files, so that the write itself fails."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    size = max(path.stat().st_size for path in database_path.parent.glob("*-wal"))
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


OutOfSpace = Callable[[], AbstractAsyncContextManager[None]]


@pytest.fixture(params=[no_more_pages, no_larger_files])
def out_of_space(
    request: pytest.FixtureRequest, database: Database, database_path: Path
) -> OutOfSpace:
    """Remove free space during a block, in each of several ways."""
    return lambda: cast(AbstractAsyncContextManager[None], request.param(database, database_path))


async def test_without_space_nothing_is_answered(
    out_of_space: OutOfSpace, store: KeyStore, sql: Sql
) -> None:
    """Without space every caller gets UNAVAILABLE. With space again, commits succeed."""
    log = AuditLog(store)
    await log.commit(row(0))
    async with out_of_space():
        refusals = await asyncio.gather(
            *(log.commit(row(number)) for number in range(1, 201)), return_exceptions=True
        )
    assert [getattr(refusal, "kind", None) for refusal in refusals] == [ErrorKind.UNAVAILABLE] * 200
    assert sql(COUNT) == [(1, 1)]
    assert await log.commit(row(201)) is CommitOutcome.DURABLE
    assert sql("SELECT id, request_id FROM audit_records ORDER BY id") == [
        (1, "request-0"),
        (2, "request-201"),
    ]
    assert sql("PRAGMA integrity_check") == [("ok",)]


async def test_nothing_is_left_of_a_record_that_cannot_be_written(
    out_of_space: OutOfSpace, store: KeyStore
) -> None:
    """The error and the request in its frames are freed without the cycle collector."""
    log = AuditLog(store)
    await log.commit(row(0))
    refused = 0
    async with out_of_space():
        gc.collect()
        gc.disable()
        try:
            for number in range(1, 201):
                try:
                    await log.commit(row(number))
                except KeyServiceError:
                    refused += 1
            await asyncio.sleep(0)  # this step of the task has the last one
            left = sum(type(live) is KeyServiceError for live in gc.get_objects())
        finally:
            gc.enable()
    assert refused
    assert left == 0


async def test_without_space_no_key_is_changed(
    out_of_space: OutOfSpace,
    keys: KeyService,
    tenant: TenantId,
    attribution: Attribution,
) -> None:
    """A rotation without a record is refused, and the old key stays active."""
    generate = GenerateKey(tenant=tenant, algorithm=Algorithm.ML_KEM_768, quota=None)
    rotate = RotateKey(tenant=tenant, algorithm=Algorithm.ML_KEM_768)
    active = GetActiveKey(tenant=tenant, algorithm=Algorithm.ML_KEM_768)
    first = await keys.execute(generate, attribution)
    async with out_of_space():
        outcomes = [await asyncio.gather(keys.execute(rotate, attribution), return_exceptions=True)]
        for _ in range(20):  # what free space there is in pages is used up
            outcomes += [
                await asyncio.gather(keys.execute(rotate, attribution), return_exceptions=True)
            ]
    done = [outcome for (outcome,) in outcomes if not isinstance(outcome, BaseException)]
    refused = [outcome for (outcome,) in outcomes if isinstance(outcome, BaseException)]
    assert refused
    assert {getattr(outcome, "kind", outcome) for outcome in refused} == {ErrorKind.UNAVAILABLE}
    assert (await keys.execute(active, attribution)).key.version == first.key.version + len(done)
    assert (await keys.execute(rotate, attribution)).old_version == first.key.version + len(done)


async def test_what_went_wrong_is_logged_without_the_rows(
    database: Database, database_path: Path, store: KeyStore, caplog: pytest.LogCaptureFixture
) -> None:
    """The log reports records that could not be written, without their content."""
    with caplog.at_level(logging.ERROR):
        async with no_more_pages(database, database_path):
            rows = (row(number) for number in range(200))
            log = AuditLog(store)
            await asyncio.gather(*(log.commit(row) for row in rows), return_exceptions=True)
    assert caplog.text.count("the database cannot be read or written") == 1
    assert "full" in caplog.text
    assert "ppp" not in caplog.text
