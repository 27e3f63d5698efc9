"""A request that is late, or meets damaged data, is refused without a change or a leak."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from pqkeep_protocol.algorithms import Algorithm
from pqkeep_protocol.errors import ErrorKind, KeyServiceError
from pqkeep_protocol.keys import KeyVersion, TenantId
from pqkeep_protocol.messages import (
    AnyRequest,
    Attribution,
    Decrypt,
    Encrypt,
    GenerateKey,
    KeyService,
    Request,
    RetireKey,
    RotateKey,
    Sign,
)

if TYPE_CHECKING:
    from keyservice.tests.conftest import InProcessService

Sql = Callable[..., list[Any]]
KEM, SIGNATURE = Algorithm.ML_KEM_768, Algorithm.ML_DSA_65
KEYS = "SELECT version, status, sealed_seed FROM keys ORDER BY algorithm, version"


async def refusal(keys: KeyService, request: Request[Any], attribution: Attribution) -> ErrorKind:
    """Return the kind of a refusal."""
    with pytest.raises(KeyServiceError) as refused:
        await keys.execute(request, attribution)
    return refused.value.kind


@pytest.mark.parametrize("late", [0.0, 0.001, 3600.0, 2.0**63])
async def test_a_deadline_in_the_past_changes_nothing(
    *,
    late: float,
    service: InProcessService,
    keys: KeyService,
    tenant: TenantId,
    attribution: Attribution,
    sql: Sql,
) -> None:
    """A late request is recorded as DEADLINE_EXCEEDED, and no key is made or changed."""
    generate = GenerateKey(tenant=tenant, algorithm=KEM, quota=None)
    await keys.execute(generate, attribution)
    before = sql(KEYS)
    requests: list[AnyRequest] = [
        GenerateKey(tenant=tenant, algorithm=SIGNATURE, quota=None),
        RotateKey(tenant=tenant, algorithm=KEM),
        RetireKey(tenant=tenant, algorithm=KEM, version=KeyVersion(1)),
        Encrypt(tenant=tenant, algorithm=KEM, version=None, plaintext=b""),
    ]
    for request in requests:
        deadline = asyncio.get_running_loop().time() - late
        with pytest.raises(KeyServiceError) as refused:
            await service.parts.transactions.execute(request, attribution, deadline)
        assert refused.value.kind is ErrorKind.DEADLINE_EXCEEDED
    assert sql(KEYS) == before
    outcomes = sql("SELECT outcome FROM audit_records ORDER BY id")
    assert outcomes == [("success",), *[("deadline-exceeded",)] * len(requests)]
    await keys.execute(
        RotateKey(tenant=tenant, algorithm=KEM), attribution
    )  # in memory nothing was changed either


@pytest.mark.parametrize("damage", ["a flipped bit", "cut short", "another key's seed"])
async def test_a_damaged_seed_is_unavailable(
    *,
    damage: str,
    keys: KeyService,
    restarted: Callable[[], KeyService],
    tenant: TenantId,
    attribution: Attribution,
    sql: Sql,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """If a version's sealed seed was changed, its public key and private key are not used.

    Other versions, other keys and the key itself still work.
    """
    for algorithm in (KEM, SIGNATURE):
        request = GenerateKey(tenant=tenant, algorithm=algorithm, quota=None)
        await keys.execute(request, attribution)
    encrypt = Encrypt(tenant=tenant, algorithm=KEM, version=None, plaintext=b"text")
    old = await keys.execute(encrypt, attribution)
    await keys.execute(RotateKey(tenant=tenant, algorithm=KEM), attribution)
    new = await keys.execute(encrypt, attribution)
    old_one, decrypt = (
        Decrypt(
            tenant=tenant, algorithm=KEM, version=KeyVersion(version), ciphertext=blob.ciphertext
        )
        for version, blob in enumerate((old, new), 1)
    )
    sign = Sign(tenant=tenant, algorithm=SIGNATURE, version=None, message=b"text")

    of_version = "SELECT sealed_seed FROM keys WHERE algorithm = ? AND version = ?"
    ((sealed,),), ((other,),) = sql(of_version, KEM, 2), sql(of_version, KEM, 1)
    damaged = {
        "a flipped bit": sealed[:-1] + bytes([sealed[-1] ^ 1]),
        "cut short": sealed[:20],
        "another key's seed": other,
    }[damage]
    sql("UPDATE keys SET sealed_seed = ? WHERE version = 2", damaged)

    keys = restarted()
    with caplog.at_level(logging.DEBUG):
        assert await refusal(keys, decrypt, attribution) is ErrorKind.UNAVAILABLE
    assert "damaged" in caplog.text
    assert str(tenant) in caplog.text
    assert "Traceback" not in caplog.text
    for seed in (sealed, damaged):
        assert seed.hex() not in caplog.text
        assert repr(seed)[2:20] not in caplog.text
    last = "SELECT operation, outcome FROM audit_records ORDER BY id DESC LIMIT 1"
    assert sql(last) == [("decrypt", "unavailable")]
    assert await refusal(keys, encrypt, attribution) is ErrorKind.UNAVAILABLE
    await keys.execute(sign, attribution)
    assert (await keys.execute(old_one, attribution)).plaintext == b"text"
    await keys.execute(RotateKey(tenant=tenant, algorithm=KEM), attribution)
    assert (await keys.execute(encrypt, attribution)).version == 3


async def test_a_changed_public_key_opens_nothing(
    keys: KeyService,
    restarted: Callable[[], KeyService],
    tenant: TenantId,
    attribution: Attribution,
    sql: Sql,
) -> None:
    """A row with another public key does not decrypt, because the seed is bound to it."""
    await keys.execute(GenerateKey(tenant=tenant, algorithm=KEM, quota=None), attribution)
    encrypt = Encrypt(tenant=tenant, algorithm=KEM, version=None, plaintext=b"text")
    blob = await keys.execute(encrypt, attribution)
    ((public_key,),) = sql("SELECT public_key FROM keys")
    sql("UPDATE keys SET public_key = ?", public_key[:-1] + bytes([public_key[-1] ^ 1]))
    decrypt = Decrypt(
        tenant=tenant, algorithm=KEM, version=KeyVersion(1), ciphertext=blob.ciphertext
    )
    assert await refusal(restarted(), decrypt, attribution) is ErrorKind.UNAVAILABLE


async def test_our_own_fault_is_internal_and_recorded(
    *,
    keys: KeyService,
    tenant: TenantId,
    attribution: Attribution,
    sql: Sql,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """An unforeseen error, here a plaintext of another type, is INTERNAL, logged and recorded."""
    await keys.execute(GenerateKey(tenant=tenant, algorithm=KEM, quota=None), attribution)
    text: Any = "very secret text"  # no frame holds text where bytes belong
    encrypt = Encrypt(tenant=tenant, algorithm=KEM, version=None, plaintext=text)
    assert await refusal(keys, encrypt, attribution) is ErrorKind.INTERNAL
    assert "operation failed" in caplog.text
    assert "Traceback" in caplog.text
    assert "very secret text" not in caplog.text
    last = "SELECT operation, outcome FROM audit_records ORDER BY id DESC LIMIT 1"
    assert sql(last) == [("encrypt", "internal")]
