"""The stored uses of keys always equal a count of the log."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from collections import defaultdict
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest
import sqlalchemy as sa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from keyservice.tests.test_appended_counts import RECORDS, TENANTS, save_checkpoint
from tests.patience import PATIENCE

from pqkeep_keyservice import clock
from pqkeep_keyservice.ledger.records import NewRecord
from pqkeep_keyservice.ledger.search import record_texts
from pqkeep_keyservice.ledger.uses import (
    DAY_US,
    KEPT_DAYS,
    MAX_MERGED,
    MAX_PRINCIPALS,
    Counting,
    Tally,
    first_day,
    first_single_day,
    month_of,
)
from pqkeep_keyservice.storage.database import DatabaseUnavailableError
from pqkeep_keyservice.storage.store import KeyStore
from pqkeep_protocol.algorithms import USES, Algorithm, Operation
from pqkeep_protocol.audit import OTHER_PRINCIPALS, RE_ENCRYPT_TARGET

if TYPE_CHECKING:
    from pqkeep_keyservice.storage.database import Database

pytestmark = pytest.mark.parametrize("backend", ["sqlite", "postgresql"], indirect=True)

Sql = Callable[..., list[Any]]
Uses = dict[tuple[Any, ...], tuple[int, int, int]]
KEM = Algorithm.ML_KEM_768.value
TENANT = str(uuid4())


def exported(connection: sa.Connection) -> list[dict[str, Any]]:
    """Return all records in the form of an export."""
    return [json.loads(line) for line in record_texts(connection, 0, 2**31)]


def microseconds(text: str) -> int:
    """Return the time of a record."""
    since = datetime.strptime(text, "%Y-%m-%dT%H:%M:%S.%fZ").replace(tzinfo=UTC) - EPOCH
    return since // timedelta(microseconds=1)


EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def counted(records: list[dict[str, Any]]) -> Uses:
    """Count the uses in exported records by hand, by day."""
    times = defaultdict[tuple[Any, ...], list[int]](list)
    for record in records:
        if record["event_id"] is not None or record["operation"] not in set(USES):
            continue
        if record["outcome"] not in {"success", "verification-failed"}:
            continue
        at_us = microseconds(record["recorded_at"])
        who = record["tenant_id"], record["principal"], at_us // DAY_US
        key = record["keyring"], record["algorithm"], record["key_version"]
        if (key[0] is None) != (key[2] is None):
            continue
        if key[0] is None:
            times[who, ("", key[1], 0), record["operation"]].append(at_us)
            continue
        times[who, key, record["operation"]].append(at_us)
        if record["target"] is not None:
            keyring, algorithm, version = record["target"].split("/")
            times[who, (keyring, algorithm, int(version)), RE_ENCRYPT_TARGET].append(at_us)
    return {
        (tenant, *key, principal, operation, day): (len(at), min(at), max(at))
        for ((tenant, principal, day), key, operation), at in times.items()
    }


def stored(sql: Sql) -> Uses:
    """Return the stored uses by day."""
    return {tuple(row[:7]): tuple(row[7:]) for row in sql("SELECT * FROM uses")}


def totals(uses: Uses) -> Uses:
    """Return uses by day as uses of all days."""
    of: Uses = {}
    for key, (count, first, last) in uses.items():
        before = of.get(key[:6], (0, first, last))
        of[key[:6]] = before[0] + count, min(before[1], first), max(before[2], last)
    return of


def stored_totals(sql: Sql) -> Uses:
    """Return the stored uses of all days."""
    return {tuple(row[:6]): tuple(row[6:]) for row in sql("SELECT * FROM key_usage")}


@given(
    commits=st.lists(
        st.tuples(st.lists(RECORDS, max_size=6), st.integers(0, 40), st.booleans(), st.booleans()),
        min_size=1,
        max_size=5,
    )
)
@settings(
    max_examples=7, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
async def test_the_uses_are_those_of_the_export(
    database: Database,
    sealer: Any,
    sql: Sql,
    monkeypatch: pytest.MonkeyPatch,
    commits: list[tuple[list[NewRecord], int, bool, bool]],
) -> None:
    """After records on any days, checkpoints and restarts, the uses equal a count of the export."""
    now_us = clock.now_us()
    store = KeyStore(database, sealer)
    await store.check()
    for records, days, restarts, signs in commits:
        now_us += days * DAY_US
        monkeypatch.setattr(clock, "now_us", partial(int, now_us))
        if restarts:
            store = KeyStore(database, sealer)
            await store.check()
        await store.commit([(record, None) for record in records])
        if signs:
            await save_checkpoint(store)
    await save_checkpoint(store)
    expected = counted(await database.query(exported))
    newest = max((key[6] for key in expected), default=0)
    assert first_single_day(newest) < now_us // DAY_US - 40 * 5
    assert stored(sql) == expected
    assert stored_totals(sql) == totals(expected)


def tally(day: int, *principals: str, tenant: str = TENANT) -> Tally:
    """Return one use for each principal, on one day."""
    at_us = day * DAY_US + 5
    return {
        (tenant, "default", KEM, 1, principal, "encrypt", day): (1, at_us, at_us)
        for principal in principals
    }


async def add(database: Database, counting: Counting, uses: Tally) -> None:
    """Add uses to the tables."""
    await database.write(counting.add, uses)


async def test_too_many_principals_of_a_month_are_one(database: Database, sql: Sql) -> None:
    """Of more than 10,000 principals the first are counted by themselves, also after a restart."""
    day = first_day(month_of(20_000))
    first = [f"user:{number}" for number in range(MAX_PRINCIPALS - 1)]
    counting = Counting()
    await add(database, counting, tally(day, *first))
    await add(database, counting, tally(day, "last", "late", tenant=TENANT))
    await add(database, Counting(), tally(day + 1, "later", "last"))
    await add(database, Counting(), tally(day + 1, "later", tenant=str(TENANTS[0])))
    by = dict(
        sql(
            "SELECT principal, sum(uses) FROM uses WHERE tenant_id = ? GROUP BY principal"
            " ORDER BY principal LIMIT 2",
            TENANT,
        )
    )
    assert {name: int(count) for name, count in by.items()} == {"last": 2, OTHER_PRINCIPALS: 2}
    of_other_tenant = sql("SELECT principal FROM uses WHERE tenant_id = ?", str(TENANTS[0]))
    assert [row[0] for row in of_other_tenant] == ["later"]
    next_month = first_day(month_of(day) + 1)
    await add(database, counting, tally(next_month, "late"))
    assert [row[0] for row in sql("SELECT principal FROM uses WHERE day = ?", next_month)] == [
        "late"
    ]
    await add(database, counting, tally(first_day(month_of(day) + 2), "late"))
    months = sql("SELECT DISTINCT month FROM use_principals WHERE month > 0 ORDER BY month")
    assert [row[0] - month_of(day) for row in months] == [1, 2]


async def test_old_days_become_months(database: Database, sql: Sql) -> None:
    """After 400 days a month has one row for each principal, with the same counts and times."""
    counting = Counting()
    begin = first_day(month_of(20_000))
    names = [f"user:{number}" for number in range(MAX_MERGED // 2)]
    for day in range(begin, begin + 40, 3):
        await add(database, counting, tally(day, *names))
    before, of_all = stored(sql), stored_totals(sql)
    end = first_day(month_of(begin) + 1)
    newest = end + KEPT_DAYS
    await add(database, counting, tally(newest - 1, "p"))
    assert stored(sql).keys() > before.keys()
    for _ in range(len(before) // MAX_MERGED + 10):
        await add(database, counting, tally(newest, "p"))
    months: Uses = {}
    for key, (count, first, last) in before.items():
        place = (*key[:6], begin if key[6] < end else key[6])
        known = months.get(place, (0, first, last))
        months[place] = known[0] + count, known[1], last
    assert {key: use for key, use in stored(sql).items() if key[4] != "p"} == months
    assert {key: use for key, use in stored_totals(sql).items() if key[4] != "p"} == of_all
    assert len(months) < len(before)


async def test_what_a_failed_checkpoint_counted_is_counted_again(store: KeyStore, sql: Sql) -> None:
    """If a checkpoint cannot be stored, the next one includes its uses."""
    await store.check()
    record = NewRecord(
        *(TENANTS[0], "p", Operation.ENCRYPT, Algorithm.ML_KEM_768, 1, "success", "r", "a", "y"),
        keyring="default",
    )
    await store.commit([(record, None)])
    sql("ALTER TABLE operation_counts RENAME TO hidden")
    writes_again = asyncio.Event()
    writer = store.database.writer
    epoch = writer.epoch
    writer.on_change(lambda: writes_again.set() if writer.epoch else writes_again.clear())
    with pytest.raises((DatabaseUnavailableError, sa.exc.DBAPIError, sqlite3.Error)):
        await save_checkpoint(store)
    sql("ALTER TABLE hidden RENAME TO operation_counts")
    if writer.epoch != epoch:  # on a server, the session of the failed transaction is given up
        if not writer.epoch:
            async with asyncio.timeout(PATIENCE):
                await writes_again.wait()
        await store.check()
    await save_checkpoint(store)
    await store.commit([(record, None)])
    await save_checkpoint(store)
    assert [(row[4], row[6]) for row in sql("SELECT * FROM key_usage")] == [("p", 2)]
    months = [bool(row[0]) for row in sql("SELECT * FROM use_principals ORDER BY month")]
    assert months == [False, True]  # of all time, and of this month
