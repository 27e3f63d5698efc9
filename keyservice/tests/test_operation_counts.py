"""The reported operations of each hour always equal a count of the log."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest

from pqkeep_keyservice.ledger.key_usage import HOUR_US, KEPT_HOURS
from pqkeep_keyservice.ledger.records import NewRecord
from pqkeep_protocol.algorithms import Algorithm, Operation
from pqkeep_protocol.audit import REFUSED, CountOperations, SignCheckpoint
from pqkeep_protocol.audit_events import AuditEvent
from pqkeep_protocol.errors import ErrorKind
from pqkeep_protocol.keys import INSTALLATION, TenantId
from pqkeep_protocol.messages import Attribution

if TYPE_CHECKING:
    from keyservice.tests.conftest import InProcessService

pytestmark = pytest.mark.parametrize("backend", ["sqlite", "postgresql"], indirect=True)

Sql = Callable[..., list[Any]]
Counts = Counter[tuple[int, str]]
ATTRIBUTION = Attribution("r", "p", "a", "y")
NOT_REFUSED = {"success", "begun", "completed", ErrorKind.VERIFICATION_FAILED}


class Books:
    """Compares the reported operations with the log."""

    def __init__(self, service: InProcessService, sql: Sql) -> None:
        self.service, self._sql = service, sql

    async def record(
        self, tenant: TenantId, operation: str, outcome: str = "success", *, event: bool = False
    ) -> None:
        about = {"event_id": str(uuid4()), "happened_at_us": 1} if event else {}
        kem = Algorithm.ML_KEM_768
        record = NewRecord(tenant, "p", operation, kem, 1, outcome, "r", "a", "y", **about)  # type: ignore[arg-type]
        await self.service.parts.store.commit([(record, None)])

    async def work(self, tenant: TenantId) -> None:
        """Run counted operations and uncounted ones."""
        for operation in Operation:
            await self.record(tenant, operation)
        await self.record(tenant, Operation.VERIFY, ErrorKind.VERIFICATION_FAILED)
        await self.record(tenant, Operation.DECRYPT, ErrorKind.DECRYPTION_FAILED)
        await self.record(tenant, Operation.ENCRYPT, "ERR_POLICY_001", event=True)
        await self.record(tenant, AuditEvent.SIGN_IN_FAILED, "ERR_AUTH_001", event=True)
        await self.record(tenant, AuditEvent.CREATE_API_KEY, event=True)

    async def sign(self) -> None:
        request = SignCheckpoint(tenant=INSTALLATION, algorithm=Algorithm.ML_DSA_65)
        await self.service.execute(request, ATTRIBUTION)

    async def counts(self, tenant: TenantId, since_hour: int = 0, hours: int = 1) -> Counts:
        request = CountOperations(tenant=tenant, since_hour=since_hour, hours=hours)
        told = await self.service.execute(request, ATTRIBUTION)
        counted = Counter({(count.hour, count.operation): count.count for count in told.counts})
        assert len(counted) == len(told.counts)
        return counted

    def expected(self, tenant: TenantId, since_hour: int = 0, hours: int = 1) -> Counts:
        """Return the expected counts from the records."""
        of_tenant = "" if tenant == INSTALLATION else f"WHERE tenant_id = '{tenant}'"
        counts: Counts = Counter()
        for at_us, operation, outcome, event in self._sql(
            f"SELECT recorded_at_us, operation, outcome, event_id FROM audit_records {of_tenant}"  # noqa: S608
        ):
            hour = at_us // HOUR_US
            if hour < since_hour:
                continue
            if outcome not in NOT_REFUSED:
                counts[hour // hours * hours, REFUSED] += 1
            elif event is None and operation in set(Operation):
                counts[hour // hours * hours, operation] += 1
        return counts

    def age(self, hours: int) -> None:
        """Make all records and counts some hours older."""
        self._sql(f"UPDATE audit_records SET recorded_at_us = recorded_at_us - {hours * HOUR_US}")  # noqa: S608
        self._sql(f"UPDATE operation_counts SET hour = hour - {hours}")  # noqa: S608


@pytest.fixture
def books(service: InProcessService, sql: Sql) -> Books:
    """Return the comparison, without operations so far."""
    return Books(service, sql)


async def test_operations_are_counted_by_the_hour(books: Books) -> None:
    """Counts by hour and day equal the log before and after checkpoints, also for all tenants."""
    tenants = [TenantId(uuid4()) for _ in range(2)]
    for age in (30, 5, 0):
        for tenant in tenants:
            await books.work(tenant)
        for _ in range(2):
            for asked in (*tenants, INSTALLATION, TenantId(uuid4())):
                for hours in (1, 24):
                    assert await books.counts(asked, hours=hours) == books.expected(
                        asked, hours=hours
                    )
            await books.sign()
        books.age(age)
    (tenant, _) = tenants
    recorded = sorted({hour for hour, _ in books.expected(tenant)})
    for since in recorded:
        assert await books.counts(tenant, since) == books.expected(tenant, since)
    told = await books.counts(tenant, recorded[-1])
    assert (told[recorded[-1], REFUSED], told[recorded[-1], "verify"]) == (3, 2)
    assert "create-api-key" not in {operation for _, operation in told}


async def test_old_counts_are_dropped(books: Books, sql: Sql, tenant: TenantId) -> None:
    """A checkpoint drops the counts of expired hours."""
    await books.work(tenant)
    await books.sign()
    before = await books.counts(tenant)
    books.age(KEPT_HOURS - 1)
    await books.work(tenant)
    await books.sign()
    assert (await books.counts(tenant)).total() == 2 * before.total()
    books.age(2)
    await books.work(tenant)
    await books.sign()
    assert (await books.counts(tenant)).total() == 2 * before.total()
    ((oldest, newest),) = sql("SELECT min(hour), max(hour) FROM operation_counts")
    assert newest - oldest < KEPT_HOURS
