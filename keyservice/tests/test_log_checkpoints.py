"""The log is signed soon, on request, and again after failures."""

from __future__ import annotations

import asyncio
import logging
import math
import sqlite3
import time
from base64 import b64encode
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Never

import pytest
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.mldsa import MLDSA65PublicKey
from pqcrypto.sign import slh_dsa_sha2_128s
from tests.patience import PATIENCE

from pqkeep_keyservice.audit.checkpoint_signer import RECORDS
from pqkeep_keyservice.ledger.records import NewRecord
from pqkeep_protocol.algorithms import Algorithm, Operation
from pqkeep_protocol.audit import (
    AuditKey,
    Checkpoint,
    ListAuditKeys,
    ListCheckpoints,
    SignCheckpoint,
)
from pqkeep_protocol.errors import ErrorKind, KeyServiceError
from pqkeep_protocol.keys import INSTALLATION, TenantId
from pqkeep_protocol.messages import Attribution, RotateKey

if TYPE_CHECKING:
    from keyservice.tests.conftest import InProcessService, Serving

BOTH = pytest.mark.parametrize("backend", ["sqlite", "postgresql"], indirect=True)

Sql = Callable[..., list[Any]]
ML_DSA, SLH_DSA = Algorithm.ML_DSA_65, Algorithm.SLH_DSA_SHA2_128S
CONTEXT = b"pqkeep/v1/audit-checkpoint"
DAY = 24 * 3600 * 1_000_000


def new_record(tenant: TenantId) -> NewRecord:
    """Return a record without a place in the log."""
    return NewRecord(
        tenant, "p", Operation.ENCRYPT, Algorithm.ML_KEM_768, 1, "success", "r", "a", "y"
    )


def signed(checkpoint: Checkpoint) -> bytes:
    """Return the five lines that a checkpoint's signature covers."""
    at = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=checkpoint.at_us)
    return (
        "pqkeep/v1/audit-checkpoint\n"
        f"{checkpoint.log_id}\n"
        f"{checkpoint.size}\n"
        f"{b64encode(checkpoint.root).decode()}\n"
        f"{at:%Y-%m-%dT%H:%M:%S.%fZ}\n"
    ).encode()


def is_good(checkpoint: Checkpoint, key: AuditKey, text: bytes, context: bytes = CONTEXT) -> bool:
    """Verify a checkpoint with only the public key's bytes and the library."""
    try:
        if checkpoint.algorithm is SLH_DSA:
            slh_dsa_sha2_128s.verify(key.public_key, text, checkpoint.signature, context)
        else:
            public_key = MLDSA65PublicKey.from_public_bytes(key.public_key)
            public_key.verify(checkpoint.signature, text, context)
    except (InvalidSignature, ValueError):
        return False
    return True


class Signer:
    """A client of the log's public signature data."""

    def __init__(self, service: InProcessService, attribution: Attribution) -> None:
        self._service, self._attribution = service, attribution

    async def sign(self, algorithm: Algorithm, *, now: bool = False) -> Checkpoint:
        request = SignCheckpoint(tenant=INSTALLATION, algorithm=algorithm, now=now)
        return (await self._service.execute(request, self._attribution)).checkpoint

    async def key(self, algorithm: Algorithm, version: int) -> AuditKey:
        listed = await self._service.execute(ListAuditKeys(tenant=INSTALLATION), self._attribution)
        (found,) = (
            key for key in listed.keys if (key.algorithm, key.version) == (algorithm, version)
        )
        return found

    async def listed(self, **asked: Any) -> tuple[Checkpoint, ...]:
        request = ListCheckpoints(tenant=INSTALLATION, **{"after": 0, **asked})
        return (await self._service.execute(request, self._attribution)).checkpoints

    async def until_signed(self, size: int, algorithm: Algorithm = ML_DSA) -> Checkpoint:
        """Wait for a checkpoint of at least some size."""
        async with asyncio.timeout(PATIENCE):
            while True:
                for checkpoint in await self.listed(after=size - 1, algorithm=algorithm):
                    return checkpoint
                await asyncio.sleep(0.02)


@pytest.fixture
def signer(service: InProcessService, attribution: Attribution) -> Signer:
    """Return a client of the service."""
    return Signer(service, attribution)


@asynccontextmanager
async def running(service: InProcessService) -> AsyncIterator[None]:
    """Run the checkpoint signer during a block."""
    task = asyncio.create_task(service.parts.checkpoint_signer.run())
    yield
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


@BOTH
@pytest.mark.parametrize("algorithm", [ML_DSA, SLH_DSA])
async def test_a_checkpoint_verifies_with_its_public_key(
    algorithm: Algorithm, service: InProcessService, signer: Signer, tenant: TenantId
) -> None:
    """The signature verifies for its five lines and context, and for nothing else."""
    await service.parts.store.commit([(new_record(tenant), None)] * 3)
    checkpoint = await signer.sign(algorithm)
    _, tree = await service.parts.store.frontier()
    assert (checkpoint.size, checkpoint.root) == (4, tree.root())  # three, and the key's making
    assert abs(time.time_ns() // 1000 - checkpoint.at_us) < PATIENCE * 1_000_000
    key = await signer.key(algorithm, checkpoint.key_version)
    text = signed(checkpoint)
    assert is_good(checkpoint, key, text)
    assert not is_good(checkpoint, key, text, b"pqkeep/v1/message")
    assert not is_good(checkpoint, key, text, b"")
    assert not is_good(checkpoint, key, text.replace(b"\n4\n", b"\n5\n"))


async def test_an_export_signs_an_unchanged_log_again(
    service: InProcessService, signer: Signer, tenant: TenantId
) -> None:
    """With ``now``, the same root is signed with the present time, and the list does not grow."""
    await service.parts.store.commit([(new_record(tenant), None)] * 3)
    first = await signer.sign(ML_DSA)
    assert await signer.sign(ML_DSA) == first
    again = await signer.sign(ML_DSA, now=True)
    assert (again.size, again.root) == (first.size, first.root)
    assert again.at_us > first.at_us
    key = await signer.key(ML_DSA, again.key_version)
    assert is_good(again, key, signed(again))
    assert await signer.sign(ML_DSA) == first


async def test_after_a_rotation_both_keys_are_listed(
    service: InProcessService, signer: Signer, attribution: Attribution, tenant: TenantId
) -> None:
    """After a rotation, old and new checkpoints verify, each with its key version."""
    first = await signer.sign(ML_DSA)
    await service.execute(RotateKey(tenant=INSTALLATION, algorithm=ML_DSA), attribution)
    second = await signer.sign(ML_DSA)
    assert (first.key_version, second.key_version) == (1, 2)
    for checkpoint in (first, second):
        key = await signer.key(ML_DSA, checkpoint.key_version)
        assert is_good(checkpoint, key, signed(checkpoint))
    assert not is_good(first, await signer.key(ML_DSA, 2), signed(first))


@BOTH
async def test_checkpoints_are_listed_by_size(
    service: InProcessService, signer: Signer, tenant: TenantId
) -> None:
    """Checkpoints are listed after a size, by algorithm and limit, or the newest of each."""
    made = []
    for algorithm in (ML_DSA, ML_DSA, SLH_DSA, ML_DSA):
        await service.parts.store.commit([(new_record(tenant), None)])
        made.append(await signer.sign(algorithm))
    assert list(await signer.listed()) == made
    assert [c.size for c in made] == sorted(c.size for c in made)
    assert list(await signer.listed(after=made[1].size)) == made[2:]
    assert list(await signer.listed(algorithm=ML_DSA, limit=2)) == made[:2]
    assert set(await signer.listed(after=None)) == {made[3], made[2]}
    assert await signer.listed(after=None, algorithm=SLH_DSA) == (made[2],)
    assert await signer.listed(after=made[3].size) == ()


@pytest.mark.parametrize("algorithm", sorted(set(Algorithm) - {ML_DSA, SLH_DSA}))
async def test_other_algorithms_do_not_sign(algorithm: Algorithm, signer: Signer) -> None:
    """Only two algorithms sign checkpoints, and no key of another is made."""
    with pytest.raises(KeyServiceError) as refused:
        await signer.sign(algorithm)
    assert refused.value.kind is ErrorKind.UNSUPPORTED


async def test_signing_the_same_log_again_keeps_the_first(signer: Signer) -> None:
    """A size and algorithm have one checkpoint, which every request returns."""
    made = [await signer.sign(ML_DSA) for _ in range(3)]
    assert list(await signer.listed()) * 3 == made


async def test_what_is_new_is_signed_by_itself(
    service: InProcessService, signer: Signer, tenant: TenantId
) -> None:
    """A new record is signed soon. Without new records nothing is signed."""
    async with running(service):
        await service.parts.store.commit([(new_record(tenant), None)])
        first = await signer.until_signed(1)
        await service.parts.store.commit([(new_record(tenant), None)])
        second = await signer.until_signed(first.size + 1)
        await asyncio.sleep(1.2)
        assert list(await signer.listed()) == [first, second]


async def test_a_thousand_records_do_not_wait_for_the_second(
    service: InProcessService, signer: Signer, tenant: TenantId
) -> None:
    """Without the timer 999 records wait, and one more triggers a checkpoint."""
    service.parts.checkpoint_signer.seconds = math.inf
    signed = (await signer.sign(ML_DSA)).size
    async with running(service):
        for _ in range(3):
            missing = signed + RECORDS - service.parts.store.size
            await service.parts.store.commit([(new_record(tenant), None)] * (missing - 1))
            await asyncio.sleep(0.3)
            assert (await signer.listed())[-1].size == signed
            await service.parts.store.commit([(new_record(tenant), None)])
            signed = (await signer.until_signed(signed + RECORDS)).size


async def test_the_notary_goes_on_after_a_failure(
    service: InProcessService,
    signer: Signer,
    tenant: TenantId,
    database_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """While the database cannot be written nothing is signed. Afterwards everything is."""
    await service.parts.store.commit([(new_record(tenant), None)])
    with caplog.at_level(logging.ERROR), closing(sqlite3.connect(database_path)) as other:
        other.execute("BEGIN IMMEDIATE")
        async with running(service):
            async with asyncio.timeout(PATIENCE):
                while "the database cannot be" not in caplog.text:  # noqa: ASYNC110 - of a log
                    await asyncio.sleep(0.02)
            assert await signer.listed() == ()
            other.execute("ROLLBACK")
            assert (await signer.until_signed(1)).size >= 1
    assert "could not be signed" not in caplog.text  # one line says what happened


async def test_other_failures_are_logged(
    service: InProcessService,
    signer: Signer,
    tenant: TenantId,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A failure that no other part logs is logged, and signing is retried."""

    async def refuse(*_: object) -> Never:
        raise KeyServiceError(ErrorKind.OVERLOADED)

    await service.parts.store.commit([(new_record(tenant), None)])
    with caplog.at_level(logging.ERROR), monkeypatch.context() as patch:
        patch.setattr(service.parts.checkpoint_signer, "sign", refuse)
        async with running(service), asyncio.timeout(PATIENCE):
            while "could not be signed" not in caplog.text:  # noqa: ASYNC110 - of a log
                await asyncio.sleep(0.02)
            patch.undo()
            assert (await signer.until_signed(1)).size >= 1


async def test_once_a_day_the_log_is_signed_with_slh_dsa(
    serving: Serving,
    attribution: Attribution,
    tenant: TenantId,
    sql: Sql,
) -> None:
    """SLH-DSA signs one day after the log's beginning, and then once a day."""

    async def sign_one(service: InProcessService) -> Signer:
        signer = Signer(service, attribution)
        async with running(service):
            (before,) = (service.parts.store.size,)
            await service.parts.store.commit([(new_record(tenant), None)])
            signed = await signer.until_signed(before + 1)
            await service.parts.store.commit([(new_record(tenant), None)])
            await signer.until_signed(signed.size + 1)  # the one before is over then
        return signer

    async with serving() as service:
        await service.parts.store.commit([(new_record(tenant), None)])
    sql("UPDATE audit_records SET recorded_at_us = recorded_at_us - ?", DAY - 3_600_000_000)
    async with serving() as service:
        assert await (await sign_one(service)).listed(algorithm=SLH_DSA) == ()
    sql("DELETE FROM audit_checkpoints")  # which are of the first record as it was
    sql("UPDATE audit_records SET recorded_at_us = recorded_at_us - ? WHERE id = 1", 3_700_000_000)
    for _ in range(2):
        async with serving() as service:
            signer = await sign_one(service)
            assert len(await signer.listed(algorithm=SLH_DSA)) == 1
