"""Exports of the audit log are limited in number and concurrency for each tenant."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any, cast
from uuid import UUID

import pytest
from gateway.tests.world import one_shard

from pqkeep_gateway.access.admission import RateLimitedError
from pqkeep_gateway.access.principals import OperatorPrincipal
from pqkeep_gateway.access.rate_limit import MemoryRateLimiter
from pqkeep_gateway.api import audit
from pqkeep_gateway.api.audit_export import EXPORTS, MAX_AT_ONCE, MAX_RUNNING, ExportLimits
from pqkeep_gateway.http.endpoint import ApiCall, JsonLines
from pqkeep_gateway.unavailable import OverloadedError
from pqkeep_protocol.algorithms import Algorithm
from pqkeep_protocol.audit import (
    AuditKeys,
    Checkpoint,
    Checkpoints,
    ListAuditKeys,
    ListCheckpoints,
    ListRecords,
    NewCheckpoint,
    Proofs,
    Records,
    SignCheckpoint,
)
from pqkeep_protocol.keys import KeyVersion, TenantId
from pqkeep_protocol.messages import Attribution, KeyService

TENANT, OTHER = (TenantId(UUID(int=number)) for number in (1, 2))


@pytest.fixture
def limits() -> ExportLimits:
    """New counters with a fixed time."""
    return ExportLimits(MemoryRateLimiter(lambda: 1000.0))


async def test_a_tenant_begins_so_many_exports(limits: ExportLimits) -> None:
    """One more export in an hour is refused; another tenant's is accepted."""
    for _ in range(EXPORTS.events):
        await limits.count(TENANT)
    with pytest.raises(RateLimitedError) as refused:
        await limits.count(TENANT)
    assert (refused.value.limit, refused.value.wait) == (EXPORTS, EXPORTS.seconds)
    await limits.count(OTHER)


def test_a_tenant_runs_so_many_at_once(limits: ExportLimits) -> None:
    """One more concurrent export is refused until another ends; another tenant's is accepted."""
    with ExitStack() as first, ExitStack() as others:
        first.enter_context(limits.run(TENANT))
        for _ in range(MAX_AT_ONCE - 1):
            others.enter_context(limits.run(TENANT))
        others.enter_context(limits.run(OTHER))
        with pytest.raises(OverloadedError), limits.run(TENANT):
            pass
        first.close()
        others.enter_context(limits.run(TENANT))


def test_all_together_run_so_many(limits: ExportLimits) -> None:
    """A gateway runs at most 64 exports for all tenants together. Ended exports no longer count."""
    with ExitStack() as running:
        for number in range(MAX_RUNNING):
            running.enter_context(limits.run(TenantId(UUID(int=number))))
        with pytest.raises(OverloadedError), limits.run(TenantId(UUID(int=MAX_RUNNING))):
            pass
    assert not limits._running


class EmptyLog:
    """A key service with an empty log and a checkpoint."""

    async def execute(self, request: object, _: Attribution, /) -> object:
        """Respond to an export's requests."""
        match request:
            case SignCheckpoint():
                made = Checkpoint(
                    log_id=UUID(int=1),
                    size=0,
                    root=bytes(32),
                    at_us=0,
                    algorithm=Algorithm.ML_DSA_65,
                    key_version=KeyVersion(1),
                    signature=b"",
                )
                return NewCheckpoint(checkpoint=made)
            case ListAuditKeys():
                return AuditKeys(log_id=UUID(int=1), keys=())
            case ListRecords():
                return Records(lines=(), next=None)
            case ListCheckpoints():
                return Checkpoints(checkpoints=())
            case _:
                return Proofs(proofs=())


async def test_an_export_counts_until_it_is_read_or_given_up(limits: ExportLimits) -> None:
    """Two running exports block a third one, until one of them ends or is abandoned."""
    nothing: Any = None
    rows = audit.endpoints(one_shard(cast(KeyService, EmptyLog())), limits, nothing, nothing)
    (export,) = (row for row in rows if row.path == "/audit/export")
    call = ApiCall(
        principal=OperatorPrincipal(), attribution=Attribution("", "operator", ""), values={}
    )

    async def begin() -> JsonLines:
        lines = await export.handler(call)
        assert isinstance(lines, JsonLines)
        await anext(lines.chunks)
        return lines

    first, second = await begin(), await begin()
    with pytest.raises(OverloadedError):
        await begin()
    await first.chunks.aclose()
    third = await begin()
    for item in (second, third):
        assert b'"end"' in b"".join([chunk async for chunk in item.chunks])
    assert not limits._running
