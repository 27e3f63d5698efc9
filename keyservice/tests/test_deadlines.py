"""A late request does no work: it makes no key or signature, and starts no process."""

from __future__ import annotations

import asyncio
import multiprocessing
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest
from tests.patience import PATIENCE

from pqkeep_keyservice.crypto.kem import EncapsulationKey
from pqkeep_keyservice.crypto.signature import SignatureSchemes, SigningKey
from pqkeep_keyservice.keys.key_versions import KeyEntry, KeyName, SealedSeed
from pqkeep_keyservice.keys.sealing import Sealer
from pqkeep_keyservice.live.key_material import KeyMaterial
from pqkeep_keyservice.storage.sqlite import SqliteDatabase
from pqkeep_protocol.algorithms import Algorithm
from pqkeep_protocol.errors import ErrorKind, KeyServiceError
from pqkeep_protocol.keys import KeyVersion, TenantId
from pqkeep_protocol.messages import (
    AnyRequest,
    Attribution,
    Encrypt,
    GenerateKey,
    RotateKey,
    Sign,
)

if TYPE_CHECKING:
    from keyservice.tests.conftest import InProcessService

Sql = Callable[..., list[Any]]
KEM, SIGNATURE, SLH_DSA = Algorithm.ML_KEM_768, Algorithm.ML_DSA_65, Algorithm.SLH_DSA_SHA2_128F


class Watched(KeyMaterial):
    """Key material that notes each generated key, and each key handed out for use."""

    def __init__(self, sealer: Sealer, schemes: SignatureSchemes) -> None:
        super().__init__(sealer, schemes)
        self.work: list[str] = []

    def generate(self, name: KeyName, version: KeyVersion) -> tuple[bytes, SealedSeed]:
        self.work.append("generate")
        return super().generate(name, version)

    def signing_key(self, tenant: TenantId, entry: KeyEntry) -> SigningKey:
        self.work.append("sign")
        return super().signing_key(tenant, entry)

    def encapsulation_key(self, tenant: TenantId, entry: KeyEntry) -> EncapsulationKey:
        self.work.append("encapsulate")
        return super().encapsulation_key(tenant, entry)


Ask = Callable[[AnyRequest, float], Any]


@pytest.fixture
def material(sealer: Sealer, schemes: SignatureSchemes) -> Watched:
    """Return the watched key material."""
    return Watched(sealer, schemes)


@pytest.fixture
def ask(service: InProcessService, attribution: Attribution) -> Ask:
    """Return a function that executes a request with a time limit in seconds."""

    async def execute(request: AnyRequest, seconds: float) -> Any:
        deadline = asyncio.get_running_loop().time() + seconds
        try:
            return await service.parts.transactions.execute(request, attribution, deadline)
        except KeyServiceError as refusal:
            return refusal.kind

    return execute


async def test_an_expired_deadline_does_no_work(
    ask: Ask, material: Watched, tenant: TenantId, sql: Sql
) -> None:
    """A late request makes no key and no signature. The same request in time does."""
    for algorithm in (KEM, SIGNATURE):
        await ask(GenerateKey(tenant=tenant, algorithm=algorithm, quota=None), PATIENCE)
    before = sql("SELECT * FROM keys ORDER BY algorithm, version")
    processes = multiprocessing.active_children()
    requests: list[AnyRequest] = [
        RotateKey(tenant=tenant, algorithm=KEM),
        RotateKey(tenant=tenant, algorithm=SIGNATURE),
        GenerateKey(tenant=tenant, algorithm=Algorithm.X_WING, quota=None),
        Sign(tenant=tenant, algorithm=SIGNATURE, version=None, message=b"text"),
        Encrypt(tenant=tenant, algorithm=KEM, version=None, plaintext=b"text"),
    ]
    in_a_process = GenerateKey(tenant=tenant, algorithm=SLH_DSA, quota=None)
    material.work.clear()
    for request in (*requests, in_a_process):
        assert await ask(request, 0.0) is ErrorKind.DEADLINE_EXCEEDED
    assert material.work == []
    assert multiprocessing.active_children() == processes
    assert sql("SELECT * FROM keys ORDER BY algorithm, version") == before
    for request in requests:
        assert not isinstance(await ask(request, PATIENCE), ErrorKind)
    assert material.work == ["generate", "generate", "generate", "sign", "encapsulate"]


async def test_a_turn_that_comes_too_late_makes_no_key(
    ask: Ask, material: Watched, database: SqliteDatabase, tenant: TenantId, sql: Sql
) -> None:
    """A rotation that times out behind another one makes no key afterwards."""
    await ask(GenerateKey(tenant=tenant, algorithm=KEM, quota=None), PATIENCE)
    rotate = RotateKey(tenant=tenant, algorithm=KEM)
    async with database._lock:  # the disk is busy, so the first one cannot end its turn
        first = asyncio.create_task(ask(rotate, PATIENCE))
        late = asyncio.create_task(ask(rotate, 0.05))
        await asyncio.sleep(0.1)
        assert material.work == ["generate", "generate"]
    assert (await first).key.version == 2
    assert await late is ErrorKind.DEADLINE_EXCEEDED
    assert material.work == ["generate", "generate"]
    assert sql("SELECT max(version) FROM keys") == [(2,)]
    assert (await ask(rotate, PATIENCE)).key.version == 3


async def test_who_waits_for_a_turn_is_answered_at_the_deadline(
    ask: Ask, tenant: TenantId, sql: Sql
) -> None:
    """A change behind a slow one gets DEADLINE_EXCEEDED at its deadline."""
    generate = GenerateKey(tenant=tenant, algorithm=SLH_DSA, quota=None)
    slow = asyncio.create_task(ask(generate, PATIENCE))  # a process has to start first
    late = asyncio.create_task(ask(generate, 0.05))
    done, _ = await asyncio.wait([slow, late], return_when=asyncio.FIRST_COMPLETED)
    assert (await slow).key.version == 1
    assert await late is ErrorKind.DEADLINE_EXCEEDED
    assert sql("SELECT count(*) FROM keys") == [(1,)]
    assert done == {late}
