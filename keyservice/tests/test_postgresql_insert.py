"""On PostgreSQL a single statement inserts records, only in their own epoch."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import closing
from math import inf
from typing import TYPE_CHECKING, Any
from uuid import UUID

import psycopg
import pytest
import sqlalchemy as sa
from tests.patience import PATIENCE

from pqkeep_keyservice.ledger.records import NewRecord, Row
from pqkeep_keyservice.ledger.schema import AUDIT_RECORDS, AUDIT_TILES
from pqkeep_keyservice.storage.database import (
    DatabaseUnavailableError,
    Inserts,
    NotOnlyInsertsError,
    Rows,
)
from pqkeep_keyservice.storage.fenced_database import FencedDatabase
from pqkeep_keyservice.storage.postgresql import PostgresqlSession
from pqkeep_keyservice.storage.store import KeyStore
from pqkeep_keyservice.storage.writer import RENEW_SECONDS
from pqkeep_protocol.algorithms import Algorithm, Operation
from pqkeep_protocol.keys import TenantId

if TYPE_CHECKING:
    from keyservice.tests.conftest import Location

pytestmark = pytest.mark.parametrize("backend", ["postgresql"], indirect=True)

Sql = Callable[..., list[Any]]
TENANT = TenantId(UUID(int=7))
COUNT = "SELECT count(*) FROM audit_records"
WAITS = (
    "SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
)
FAILS_TO_COMMIT = """
    CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS
        $$ BEGIN RAISE EXCEPTION 'not this one'; END $$;
    CREATE CONSTRAINT TRIGGER refuse AFTER INSERT ON audit_records
        DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION refuse();
"""
TEXTS = ("'", '"', "\\", "\\x00", "\n\t", "ü €", "\U0001f511", "null", "", "{}", "[1]", "%s", "$1")


def row(number: int, /, **values: object) -> Row:
    """Return the row of a record."""
    made = Row(
        *(number, 3, str(TENANT), number, 1_700_000_000_000_000 + number, bytes(range(16)), "p"),
        *("encrypt", None, None, "success", "request", "192.0.2.7", "yes"),
        *(None, None, None, None, None, None, None, None),
    )
    return made._replace(**values)  # type: ignore[arg-type]


def record() -> NewRecord:
    """Return a record without a change."""
    return NewRecord(
        TENANT, "p", Operation.ENCRYPT, Algorithm.ML_KEM_768, 1, "success", "r", "a", "y"
    )


def of(*rows: Row) -> tuple[Rows, int]:
    """Return the rows to insert, and their number."""
    return {AUDIT_RECORDS: rows}, len(rows)


@pytest.fixture(autouse=True)
def renewed(database: FencedDatabase) -> None:
    """Postpone the session's renewal, so that the fast insert is used."""
    database.writer.renewed(inf)


async def test_what_is_inserted_is_read_again(database: FencedDatabase, sql: Sql) -> None:
    """Texts, bytes, large numbers and nulls are stored unchanged."""
    rows = [row(number, principal=text, target=text) for number, text in enumerate(TEXTS, 1)]
    full = row(len(rows) + 1, number=2**62, algorithm="Kyber768", key_version=7, keyring="default")
    rows.append(full._replace(event_id="e", happened_at_us=2**60, public_key_sha256=bytes(32)))
    tiles = [(0, number, bytes([number]) * 32) for number in range(3)]
    inserted = await database.insert(lambda: ({AUDIT_TILES: tiles, AUDIT_RECORDS: rows}, "done"))
    assert inserted == "done"
    assert sql(f"SELECT {', '.join(Row._fields)} FROM audit_records ORDER BY id") == rows  # noqa: S608
    assert sql("SELECT level, position, hash FROM audit_tiles ORDER BY position") == tiles


async def test_a_commit_of_records_is_one_statement(
    database: FencedDatabase, store: KeyStore, sql: Sql
) -> None:
    """With a known log, a commit is one statement, with tiles or without."""
    await store.commit([(record(), None)] * 200)
    asked: list[str] = []
    session = database._session
    assert isinstance(session, PostgresqlSession)
    session.driver.add_query_logger(lambda said: asked.append(said.query))
    for count in (1, 50, 50):
        await store.commit([(record(), None)] * count)
    of_records = [query for query in asked if "audit" in query]  # and not of the heartbeat
    assert ["audit_tiles" in query for query in of_records] == [False, False, True]
    assert sql(COUNT) == [(301,)]
    assert sql("SELECT count(*) FROM audit_tiles") == [(1,)]


async def test_a_commit_without_records_is_no_insert(store: KeyStore, sql: Sql) -> None:
    """A commit without entries succeeds, before and after the log is known."""
    await store.frontier()
    assert await store.commit([]) == []
    await store.commit([(record(), None)])
    assert sql(COUNT) == [(1,)]


async def test_nothing_is_inserted_where_a_renewal_is_due(
    database: FencedDatabase, sql: Sql
) -> None:
    """Every half second an ordinary transaction renews the session instead."""
    assert database._heartbeat is not None
    database._heartbeat.cancel()
    database.writer.renewed(asyncio.get_running_loop().time() - RENEW_SECONDS)
    assert await database.insert(lambda: of(row(1))) is None
    assert sql(COUNT) == [(0,)]
    await database.write(lambda _: None)
    database.writer.renewed(inf)
    assert await database.insert(lambda: of(row(1))) == 1


async def test_an_earlier_epoch_inserts_nothing(database: FencedDatabase, sql: Sql) -> None:
    """A session that wrongly believes to be the holder inserts nothing in a later epoch."""
    sql("UPDATE service_epoch SET epoch = epoch + 1")
    with pytest.raises(DatabaseUnavailableError):
        await database.insert(lambda: of(row(1)))
    assert sql(COUNT) == [(0,)]


@pytest.mark.parametrize(("ends", "inserted"), [("commit", 0), ("rollback", 1)])
async def test_an_epoch_that_is_about_to_begin_is_waited_for(
    ends: str, inserted: int, database: FencedDatabase, location: Location, sql: Sql
) -> None:
    """An insert locks the epoch's row, so it completes before the next epoch or never."""
    with closing(psycopg.connect(location.url.replace("+psycopg", "", 1))) as other:
        other.execute("UPDATE service_epoch SET epoch = epoch + 1")
        inserting = asyncio.create_task(database.insert(lambda: of(row(1))))
        async with asyncio.timeout(PATIENCE):
            while not await asyncio.to_thread(sql, WAITS):  # noqa: ASYNC110 - it happens elsewhere
                await asyncio.sleep(0.01)
        getattr(other, ends)()
        outcome = (await asyncio.gather(inserting, return_exceptions=True))[0]
    assert (outcome == 1) is bool(inserted)
    assert sql(COUNT) == [(inserted,)]


async def test_rows_that_cannot_be_committed_are_refused(
    database: FencedDatabase, sql: Sql
) -> None:
    """A failure at the commit itself is not taken for success."""
    await asyncio.to_thread(sql, FAILS_TO_COMMIT)
    with pytest.raises(DatabaseUnavailableError):
        await database.insert(lambda: of(row(1), row(2)))
    assert sql(COUNT) == [(0,)]


async def test_a_record_that_is_there_is_refused(database: FencedDatabase, sql: Sql) -> None:
    """A refused duplicate number does not end the session."""
    assert await database.insert(lambda: of(row(1))) == 1
    with pytest.raises(Exception, match="duplicate key"):
        await database.insert(lambda: of(row(2), row(1)))
    assert await database.insert(lambda: of(row(2))) == 1
    assert (database.writer.epoch, sql(COUNT)) == (1, [(2,)])


def test_other_statements_than_inserts_are_refused() -> None:
    """A commit that needs other statements cannot be collected without a database."""
    inserts = Inserts({"INSERT": AUDIT_RECORDS})
    inserts.exec_driver_sql("INSERT", [row(1)])
    inserts.execute(sa.insert(AUDIT_TILES), [{"level": 1, "position": 2, "hash": b"h"}])
    assert inserts.rows == {AUDIT_RECORDS: [row(1)], AUDIT_TILES: [(1, 2, b"h")]}
    for statement in (sa.select(1), sa.update(AUDIT_TILES), sa.insert(AUDIT_TILES)):
        with pytest.raises(NotOnlyInsertsError):
            inserts.execute(statement)
    with pytest.raises(NotOnlyInsertsError):
        inserts.exec_driver_sql("DELETE", [])
