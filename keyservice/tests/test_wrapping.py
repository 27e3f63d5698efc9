"""The symmetric key of a wrap is wrapped completely, and overwritten after the response."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pqkeep_keyservice.crypto.kem import EncapsulationKey
from pqkeep_keyservice.crypto.signature import SignatureSchemes
from pqkeep_keyservice.keys.key_versions import KeyEntry
from pqkeep_keyservice.keys.sealing import Sealer
from pqkeep_keyservice.live.key_material import KeyMaterial
from pqkeep_keyservice.storage.sqlite import SqliteDatabase
from pqkeep_protocol.algorithms import Algorithm
from pqkeep_protocol.errors import ErrorKind, KeyServiceError
from pqkeep_protocol.keys import KeyVersion, TenantId
from pqkeep_protocol.messages import Attribution, GenerateKey, Unwrap, Wrap

if TYPE_CHECKING:
    from keyservice.tests.conftest import InProcessService, NewService

KEM = Algorithm.ML_KEM_768


class Reconnecting(SqliteDatabase):
    """A database with epochs that the test ends, like PostgreSQL's lost sessions."""

    sessions = 1

    @property
    def epoch(self) -> int:
        return self.sessions


class LosesSession(KeyMaterial):
    """Key material that ends the first epoch at its first use."""

    def __init__(self, sealer: Sealer, schemes: SignatureSchemes, database: Reconnecting) -> None:
        super().__init__(sealer, schemes)
        self.database = database

    def encapsulation_key(self, tenant: TenantId, entry: KeyEntry) -> EncapsulationKey:
        self.database.sessions = 2
        return super().encapsulation_key(tenant, entry)


@pytest.fixture
async def database(database_path: Path) -> AsyncIterator[Reconnecting]:
    """Open a new database."""
    opened = Reconnecting(str(database_path))
    yield opened
    await opened.close()


def wrap(tenant: TenantId, version: int = 1) -> Wrap:
    """Return a request to wrap a random key."""
    return Wrap(
        tenant=tenant,
        algorithm=KEM,
        version=KeyVersion(version),
        symmetric_key=bytearray(os.urandom(32)),
    )


async def test_a_wrap_that_is_run_again_wraps_the_same_key(
    new_service: NewService,
    sealer: Sealer,
    schemes: SignatureSchemes,
    database: Reconnecting,
    tenant: TenantId,
    attribution: Attribution,
) -> None:
    """If the session is lost before the record, the retry wraps the caller's key."""
    service = new_service(LosesSession(sealer, schemes, database))
    await service.execute(GenerateKey(tenant=tenant, algorithm=KEM, quota=None), attribution)
    request = wrap(tenant)
    symmetric_key = bytes(request.symmetric_key)
    wrapped = await service.execute(request, attribution)
    assert database.sessions == 2
    unwrap = Unwrap(
        tenant=tenant, algorithm=KEM, version=KeyVersion(1), wrapped_key=wrapped.wrapped_key
    )
    assert (await service.execute(unwrap, attribution)).symmetric_key == symmetric_key
    assert request.symmetric_key == bytes(32)


@pytest.mark.parametrize(
    ("version", "seconds", "kind"),
    [(2, 60.0, ErrorKind.KEY_NOT_FOUND), (1, 0.0, ErrorKind.DEADLINE_EXCEEDED)],
)
async def test_the_key_of_a_refused_wrap_is_overwritten(
    *,
    version: int,
    seconds: float,
    kind: ErrorKind,
    service: InProcessService,
    tenant: TenantId,
    attribution: Attribution,
) -> None:
    """The key of a refused wrap is overwritten too."""
    await service.execute(GenerateKey(tenant=tenant, algorithm=KEM, quota=None), attribution)
    request = wrap(tenant, version)
    deadline = asyncio.get_running_loop().time() + seconds
    with pytest.raises(KeyServiceError) as refused:
        await service.parts.transactions.execute(request, attribution, deadline)
    assert refused.value.kind is kind
    assert request.symmetric_key == bytes(32)
