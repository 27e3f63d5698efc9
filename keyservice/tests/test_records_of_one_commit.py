"""Records of one commit keep their order, with tenants' numbers and different nonces."""

from typing import Any
from uuid import UUID

import pytest

from pqkeep_keyservice.audit.log import AuditLog
from pqkeep_keyservice.keys.changes import CommitOutcome
from pqkeep_keyservice.ledger.records import NewRecord
from pqkeep_keyservice.storage.store import KeyStore
from pqkeep_protocol.algorithms import Operation
from pqkeep_protocol.keys import TenantId

TENANTS = [TenantId(UUID(int=number)) for number in (1, 2)]


def record(number: int) -> NewRecord:
    """Return a record of one of two tenants, alternating every two."""
    tenant = TENANTS[number // 2 % 2]
    name = f"request-{number}"
    return NewRecord(tenant, "p", Operation.WRAP, "Kyber768", 1, "success", name, "a", "y")


@pytest.mark.parametrize("backend", ["sqlite", "postgresql"], indirect=True)
async def test_neighbours_of_two_tenants(store: KeyStore, sql: Any) -> None:
    """Commits of 1 to 50 records of two tenants keep order, numbers and tree."""
    log = AuditLog(store)
    sizes = [1, 2, 3, 17, 50]
    for size in sizes:
        numbers = range(store.size, store.size + size)
        assert await log.commit_all([*map(record, numbers)], 1) is CommitOutcome.DURABLE
    whole = sum(sizes)
    found = sql("SELECT id, request_id, tenant_id, number FROM audit_records ORDER BY id")
    assert [(row[0], row[1]) for row in found] == [
        (number + 1, f"request-{number}") for number in range(whole)
    ]
    for tenant in TENANTS:
        own = [row[3] for row in found if str(row[2]) == str(tenant)]
        assert own == [*range(1, len(own) + 1)]
    nonces = sql("SELECT count(DISTINCT nonce), min(length(nonce)) FROM audit_records")
    assert [tuple(nonce) for nonce in nonces] == [(whole, 16)]
    await store.check()
    assert store.size == whole
