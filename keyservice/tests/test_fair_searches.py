"""A tenant's searches of the audit log do not block other tenants."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, cast
from uuid import UUID

import pytest

from pqkeep_keyservice.audit.service import MAX_WAITING, AuditService
from pqkeep_keyservice.ledger.search import Page
from pqkeep_protocol.audit import ListRecords, Records
from pqkeep_protocol.errors import ErrorKind, KeyServiceError
from pqkeep_protocol.keys import TenantId

BUSY, OTHER = (TenantId(UUID(int=number)) for number in (1, 2))


class SlowStore:
    """A store with queries that the test ends."""

    def __init__(self) -> None:
        self.running: list[TenantId] = []
        self.ends = asyncio.Event()
        self.database = self

    async def query(self, function: Callable[..., Any], request: ListRecords) -> Page:
        """Read nothing, slowly."""
        self.running.append(request.tenant)
        await self.ends.wait()
        return Page((), None)


async def test_a_tenant_with_many_searches_has_one_running() -> None:
    """Another tenant's search begins at once, and only the first tenant's excess is refused."""
    store = SlowStore()
    nothing: Any = None
    service = AuditService(cast(Any, store), *[nothing] * 8)

    def search(tenant: TenantId) -> asyncio.Task[object]:
        return asyncio.create_task(service.respond(ListRecords(tenant=tenant)))

    busy = [search(BUSY) for _ in range(MAX_WAITING + 2)]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert store.running == [BUSY]
    other = search(OTHER)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert store.running == [BUSY, OTHER]
    with pytest.raises(KeyServiceError) as refused:
        await busy.pop()
    assert refused.value.kind is ErrorKind.OVERLOADED
    store.ends.set()
    assert await other == Records(lines=(), next=None)
    assert len(await asyncio.gather(*busy)) == MAX_WAITING + 1
