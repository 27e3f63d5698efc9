"""The log grows by one record at a time, in order, without gaps, in canonical text."""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from typing import TYPE_CHECKING, Any, cast
from uuid import UUID, uuid4

import pytest
import sqlalchemy as sa
from tests.patience import PATIENCE

from pqkeep_keyservice.audit.log import AuditLog
from pqkeep_keyservice.keys.changes import CommitOutcome, KeyChange
from pqkeep_keyservice.keys.key_versions import KeyVersions
from pqkeep_keyservice.keys.sealing import Sealer
from pqkeep_keyservice.ledger.records import NewRecord, Row
from pqkeep_keyservice.storage.database import Database, DatabaseUnavailableError
from pqkeep_keyservice.storage.store import KeyStore
from pqkeep_protocol.algorithms import Algorithm, Operation
from pqkeep_protocol.audit import Event, ListRecords, RecordEvents
from pqkeep_protocol.audit_events import AuditEvent
from pqkeep_protocol.errors import ErrorKind, KeyServiceError
from pqkeep_protocol.keys import INSTALLATION, KeyVersion, TenantId
from pqkeep_protocol.messages import (
    Attribution,
    GenerateKey,
    GetActiveKey,
    KeyService,
    ListKeys,
    RetireKey,
    RotateKey,
)

if TYPE_CHECKING:
    from keyservice.tests.conftest import Serving

pytestmark = pytest.mark.parametrize("backend", ["sqlite", "postgresql"], indirect=True)

Sql = Callable[..., list[Any]]
KEM = Algorithm.ML_KEM_768
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def new_record(tenant: TenantId, request_id: str = "request") -> NewRecord:
    """Return a record without a place in the log."""
    return NewRecord(tenant, "p", Operation.ENCRYPT, KEM, 1, "success", request_id, "a", "y")


def new_event(tenant: TenantId, operation: str = "create-tenant") -> Event:
    """Return an event of the gateway."""
    return Event(
        id=uuid4(),
        at_us=time.time_ns() // 1000,
        tenant=tenant,
        principal="operator",
        operation=operation,
        algorithm=None,
        key_version=None,
        outcome="success",
        request_id="r",
        source_address="a",
        policy="",
    )


def brought(*events: Event) -> RecordEvents:
    """Return the request that records events."""
    return RecordEvents(tenant=INSTALLATION, events=events)


def require_contiguous(sql: Sql) -> int:
    """Check that ids and each tenant's numbers count from 1 in the same order; return the size."""
    counted: Counter[str] = Counter()
    rows = sql("SELECT id, tenant_id, number FROM audit_records ORDER BY id")
    for place, (number_of_all, tenant, number) in enumerate(rows, 1):
        counted[tenant] += 1
        assert (number_of_all, number) == (place, counted[tenant])
    return len(rows)


async def test_places_have_no_gaps_under_concurrency(store: KeyStore, sql: Sql) -> None:
    """With 600 concurrent records of five tenants, ids and numbers have no gaps."""
    log = AuditLog(store)
    tenants = [TenantId(uuid4()) for _ in range(5)]
    await asyncio.gather(*(log.commit(new_record(tenants[n * n % 5])) for n in range(600)))
    assert require_contiguous(sql) == 600


async def test_what_was_refused_leaves_no_gap(
    keys: KeyService, tenant: TenantId, attribution: Attribution, sql: Sql
) -> None:
    """Conflicts, quotas and missing keys leave no gap between records."""
    requests = [
        *(GenerateKey(tenant=tenant, algorithm=KEM, quota=1) for _ in range(5)),
        *(RotateKey(tenant=tenant, algorithm=KEM) for _ in range(5)),
        GenerateKey(tenant=tenant, algorithm=Algorithm.X_WING, quota=1),
        RetireKey(tenant=tenant, algorithm=KEM, version=KeyVersion(99)),
    ]
    asked = (keys.execute(cast(Any, request), attribution) for request in requests)
    await asyncio.gather(*asked, return_exceptions=True)
    assert require_contiguous(sql) == len(requests)


async def test_places_go_on_after_a_restart(
    serving: Serving, tenant: TenantId, attribution: Attribution, sql: Sql
) -> None:
    """Three runs with two records each continue without a gap."""
    for _ in range(3):
        async with serving() as keys:
            for owner in (tenant, TenantId(uuid4())):
                await keys.execute(ListKeys(tenant=owner, algorithm=None, status=None), attribution)
    assert require_contiguous(sql) == 6


class Failing:
    """A Database that lets the next transactions fail just before their commit."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self.failures = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._database, name)

    async def write(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Run a function in a transaction, which fails if requested."""

        def spoiled(connection: sa.Connection, *arguments: Any) -> Any:
            function(connection, *arguments)
            raise RuntimeError

        if self.failures:
            self.failures -= 1
            return await self._database.write(spoiled, *arguments)
        return await self._database.write(function, *arguments)

    async def insert(self, plan: Callable[..., Any], *arguments: Any) -> Any:
        """Insert a plan's rows, or return None if a failure is requested (``write`` then fails)."""
        return None if self.failures else await self._database.insert(plan, *arguments)


async def test_a_failed_commit_leaves_no_gap(database: Database, sealer: Sealer, sql: Sql) -> None:
    """A failed transaction leaves no rows, and the next records take its places."""
    failing = Failing(database)
    store = KeyStore(cast(Database, failing), sealer)
    tenant, other = TenantId(uuid4()), TenantId(uuid4())
    for failures in (0, 1, 2, 0):
        failing.failures = failures
        for owner in (tenant, other, tenant):
            try:
                await store.commit([(new_record(owner, f"{failures}"), None)])
            except (RuntimeError, DatabaseUnavailableError):
                assert failures
                await _until_back(database)
    assert require_contiguous(sql) == 3 + 2 + 1 + 3
    assert store.size == 9
    _, tree = await store.frontier()
    assert tree.root() == root_of(sql)


async def _until_back(database: Database) -> None:
    """Wait for the new session after a failed one."""
    async with asyncio.timeout(PATIENCE):
        while True:
            with suppress(DatabaseUnavailableError):
                return await database.read(lambda _: None)
            await asyncio.sleep(0.01)


async def test_time_never_runs_backwards(
    store: KeyStore, sealer: Sealer, location: Any, tenant: TenantId, sql: Sql
) -> None:
    """If the last record's time is in the future, the next record has the same time."""
    await store.commit([(new_record(tenant), None)])
    future = time.time_ns() // 1000 + 3_600_000_000
    location.sql("UPDATE audit_records SET recorded_at_us = ?", future)
    again = KeyStore(store.database, sealer)
    for _ in range(2):
        await again.commit([(new_record(tenant), None), (new_record(tenant), None)])
    times = [at for (at,) in sql("SELECT recorded_at_us FROM audit_records ORDER BY id")]
    assert times == [future] * 5


def text_of(row: Row) -> bytes:
    """Return a record's canonical text, by json and datetime."""

    def iso_timestamp(microseconds: int) -> str:
        when = EPOCH + timedelta(microseconds=microseconds)
        return when.isoformat(timespec="microseconds").replace("+00:00", "Z")

    said = row._asdict()
    said["nonce"] = bytes(row.nonce).hex()
    said["recorded_at"] = iso_timestamp(said.pop("recorded_at_us"))
    happened = said.pop("happened_at_us")
    said["happened_at"] = None if happened is None else iso_timestamp(happened)
    return json.dumps(said, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def rows_of(sql: Sql) -> list[Row]:
    """Return the log's rows."""
    return [Row(*row) for row in sql("SELECT * FROM audit_records ORDER BY id")]


def root_of(sql: Sql) -> bytes:
    """Return the tree's root, from the rows by RFC 9162's definition alone."""

    def tree(leaves: list[bytes]) -> bytes:
        if len(leaves) == 1:
            return leaves[0]
        half = 1 << (len(leaves) - 1).bit_length() - 1
        return sha256(b"\x01" + tree(leaves[:half]) + tree(leaves[half:])).digest()

    return tree([sha256(b"\x00" + text_of(row)).digest() for row in rows_of(sql)])


STRANGE = '"\\/\u00e9\u20ac\U0001f511\u2028\u007f<>&'


async def test_a_record_is_its_canonical_text(
    store: KeyStore, keys: KeyService, attribution: Attribution, tenant: TenantId, sql: Sql
) -> None:
    """The text follows RFC 8785: sorted names, no spaces, minimal escaping."""
    strange = NewRecord(
        tenant, STRANGE, Operation.SIGN, None, None, "x", "\b\t\n\f\r\x01\x1f", "", STRANGE
    )
    await store.commit([(new_record(tenant), None), (strange, None)])
    await keys.execute(brought(new_event(tenant)), attribution)
    listed = await keys.execute(ListRecords(tenant=tenant), attribution)
    assert list(listed.lines) == [text_of(row) for row in rows_of(sql)]
    assert len(listed.lines) == 3


@pytest.mark.parametrize("size", [1, 255, 256, 257, 700])
async def test_the_root_is_that_of_the_rows(
    size: int, store: KeyStore, sealer: Sealer, tenant: TenantId, sql: Sql
) -> None:
    """The tree grown by commits, and the tree read after a restart, equal the rows' tree."""
    await store.commit([(new_record(tenant, f"{n}"), None) for n in range(size)])
    _, grown = await store.frontier()
    assert (grown.size, grown.root()) == (size, root_of(sql))
    again = KeyStore(store.database, sealer)
    await again.check()
    assert again.size == size
    assert (await again.frontier())[1] == grown


async def test_nonces_are_of_each_record(store: KeyStore, tenant: TenantId, sql: Sql) -> None:
    """Two equal records have different nonces, and so different leaves."""
    await store.commit([(new_record(tenant), None)] * 300)
    assert sql("SELECT count(DISTINCT nonce), min(length(nonce)) FROM audit_records") == [(300, 16)]


async def test_an_event_is_recorded_once(
    keys: KeyService, attribution: Attribution, tenant: TenantId, sql: Sql
) -> None:
    """An event that is sent repeatedly, in any way, has one record."""
    events = [new_event(tenant, name) for name in sorted(AuditEvent)[:6]]
    await keys.execute(brought(events[0], events[0], events[1]), attribution)
    rest = (brought(*events[n:], *events[:2]) for n in range(6) for _ in range(3))
    await asyncio.gather(*(keys.execute(request, attribution) for request in rest))
    await keys.execute(brought(*events), attribution)
    recorded = sql("SELECT event_id, operation FROM audit_records")
    assert sorted(recorded) == sorted((str(event.id), event.operation) for event in events)
    assert require_contiguous(sql) == 6


async def test_an_event_is_recorded_once_over_a_restart(
    serving: Serving, attribution: Attribution, tenant: TenantId, sql: Sql
) -> None:
    """An event from before a restart is not recorded again, and keeps its time."""
    event = new_event(tenant)
    for _ in range(2):
        async with serving() as keys:
            await keys.execute(brought(event), attribution)
    assert sql("SELECT event_id, happened_at_us, tenant_id FROM audit_records") == [
        (str(event.id), event.at_us, str(tenant))
    ]


async def test_reading_leaves_no_record(
    keys: KeyService, attribution: Attribution, tenant: TenantId, sql: Sql
) -> None:
    """Listing records adds no record."""
    await keys.execute(brought(new_event(tenant)), attribution)
    for owner in (tenant, INSTALLATION, TenantId(UUID(int=3))):
        await keys.execute(ListRecords(tenant=owner), attribution)
    assert sql("SELECT count(*) FROM audit_records") == [(1,)]


async def test_a_batch_without_anything_new_is_no_failure(
    store: KeyStore, keys: KeyService, attribution: Attribution, tenant: TenantId, sql: Sql
) -> None:
    """A batch of only refused changes records nothing, and the log works on."""
    versions = KeyVersions(tenant, KEM)
    stale = KeyChange(KeyVersions(tenant, KEM, (), revision=7), versions)
    assert await store.commit([(new_record(tenant), stale)] * 2) == [CommitOutcome.STALE] * 2
    with pytest.raises(KeyServiceError) as refused:
        await keys.execute(GetActiveKey(tenant=tenant, algorithm=KEM), attribution)
    assert refused.value.kind is ErrorKind.KEY_NOT_FOUND
    assert require_contiguous(sql) == 1
