"""Requests run from memory only if they do not wait, change anything or fail."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from pqkeep_protocol.algorithms import Algorithm
from pqkeep_protocol.errors import ErrorKind
from pqkeep_protocol.keys import KeyVersion, TenantId
from pqkeep_protocol.messages import (
    AnyRequest,
    AnyResult,
    Attribution,
    Decrypt,
    Encrypt,
    Encrypted,
    GenerateKey,
    KeyService,
    RetireKey,
    Wrap,
)

if TYPE_CHECKING:
    from keyservice.tests.conftest import InProcessService

Sql = Callable[..., list[Any]]
KEM, ONE = Algorithm.ML_KEM_768, KeyVersion(1)
RECORDS = "SELECT operation, outcome FROM audit_records ORDER BY id"


def begun(
    service: InProcessService, request: AnyRequest, attribution: Attribution, seconds: float = 60.0
) -> asyncio.Future[AnyResult | ErrorKind | None] | None:
    """Return the result of a request that runs from memory, or None."""
    loop = asyncio.get_running_loop()
    response: asyncio.Future[AnyResult | ErrorKind | None] = loop.create_future()
    is_begun = service.parts.transactions.execute_from_memory(
        request, attribution, loop.time() + seconds, response.set_result
    )
    return response if is_begun else None


async def test_what_is_in_memory_is_answered_by_its_commit(
    service: InProcessService,
    keys: KeyService,
    tenant: TenantId,
    attribution: Attribution,
    sql: Sql,
) -> None:
    """The result follows the record, and the caller's key is wiped then."""
    await keys.execute(GenerateKey(tenant=tenant, algorithm=KEM, quota=None), attribution)
    encrypt = Encrypt(tenant=tenant, algorithm=KEM, version=None, plaintext=b"text")
    wrap = Wrap(tenant=tenant, algorithm=KEM, version=ONE, symmetric_key=bytearray(b"k" * 32))
    responses = [begun(service, request, attribution) for request in (encrypt, encrypt, wrap)]
    assert all(response is not None and not response.done() for response in responses)
    assert wrap.symmetric_key == b"k" * 32
    results = [await response for response in responses if response is not None]
    assert isinstance(results[0], Encrypted)
    assert wrap.symmetric_key == bytes(32)
    assert sql(RECORDS)[1:] == [("encrypt", "success")] * 2 + [("wrap", "success")]


async def test_everything_else_is_left_to_a_task(
    service: InProcessService,
    keys: KeyService,
    tenant: TenantId,
    attribution: Attribution,
    sql: Sql,
) -> None:
    """A request with missing data, a refusal, a past deadline or a change has no effect here."""
    encrypt = Encrypt(tenant=tenant, algorithm=KEM, version=None, plaintext=b"text")
    assert begun(service, encrypt, attribution) is None
    await keys.execute(GenerateKey(tenant=tenant, algorithm=KEM, quota=None), attribution)
    damaged = Decrypt(tenant=tenant, algorithm=KEM, version=ONE, ciphertext=bytes(2000))
    retire = RetireKey(tenant=tenant, algorithm=KEM, version=ONE)
    for request in (damaged, retire):
        assert begun(service, request, attribution) is None
    assert begun(service, encrypt, attribution, seconds=0.0) is None
    assert sql(RECORDS) == [("generate-key", "success")]


async def test_a_tenant_that_moves_waits_for_it(
    service: InProcessService, keys: KeyService, tenant: TenantId, attribution: Attribution
) -> None:
    """The gate closes after the records of calls in flight, and admits no others."""
    await keys.execute(GenerateKey(tenant=tenant, algorithm=KEM, quota=None), attribution)
    encrypt = Encrypt(tenant=tenant, algorithm=KEM, version=None, plaintext=b"text")
    response = begun(service, encrypt, attribution)
    assert response is not None
    deadline = asyncio.get_running_loop().time() + 60
    async with service.parts.gate.closed(tenant, deadline):
        assert isinstance(response.result(), Encrypted)
        assert begun(service, encrypt, attribution) is None


async def test_an_epoch_that_ends_before_the_commit(
    service: InProcessService,
    keys: KeyService,
    tenant: TenantId,
    attribution: Attribution,
    sql: Sql,
) -> None:
    """A result from an ended epoch is not recorded, and the request must run again."""
    await keys.execute(GenerateKey(tenant=tenant, algorithm=KEM, quota=None), attribution)
    encrypt = Encrypt(tenant=tenant, algorithm=KEM, version=None, plaintext=b"text")
    response = begun(service, encrypt, attribution)
    service.parts.store.writer.epoch += 1
    assert response is not None
    assert await response is None
    service.parts.store.writer.epoch -= 1
    assert sql(RECORDS) == [("generate-key", "success")]
