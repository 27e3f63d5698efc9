"""Re-encryption leaves the plaintext in no response, record or log."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest
from msgspec import structs

from pqkeep_protocol.algorithms import Algorithm
from pqkeep_protocol.codec import Answer, encode
from pqkeep_protocol.errors import ErrorKind, KeyServiceError
from pqkeep_protocol.keys import KeyVersion, TenantId
from pqkeep_protocol.messages import (
    Attribution,
    CiphertextFormat,
    Decrypt,
    Encrypt,
    GenerateKey,
    KeyService,
    ReEncrypt,
    RotateKey,
    Target,
    Wrap,
)

Sql = Callable[..., list[Any]]
KEM, HYBRID = Algorithm.ML_KEM_768, Algorithm.X_WING
ONE = KeyVersion(1)
CANARY = b"a canary in a mine, 32 bytes lon"


@pytest.mark.parametrize("backend", ["sqlite", "postgresql"], indirect=True)
async def test_the_plaintext_stays_inside(
    *,
    tenant: TenantId,
    keys: KeyService,
    attribution: Attribution,
    sql: Sql,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Ciphertexts and wrapped keys do not leak. One record names source and target."""
    for algorithm in (KEM, HYBRID):
        await keys.execute(GenerateKey(tenant=tenant, algorithm=algorithm, quota=None), attribution)
    encrypt = Encrypt(tenant=tenant, algorithm=KEM, version=None, plaintext=CANARY)
    wrap = Wrap(tenant=tenant, algorithm=KEM, version=ONE, symmetric_key=bytearray(CANARY))
    sealed = (await keys.execute(encrypt, attribution)).ciphertext
    wrapped = (await keys.execute(wrap, attribution)).wrapped_key
    with caplog.at_level(logging.DEBUG):
        for blob, is_wrapped_key in ((sealed, False), (wrapped, True)):
            request = ReEncrypt(
                tenant=tenant,
                algorithm=KEM,
                version=ONE,
                ciphertext=blob,
                is_wrapped_key=is_wrapped_key,
                target=Target(HYBRID),
            )
            moved = await keys.execute(request, attribution)
            assert CANARY not in encode(Answer(1, moved))
            assert CANARY.decode() not in repr(request) + repr(moved)
    assert CANARY.decode() not in caplog.text
    rows = sql("SELECT * FROM audit_records")
    assert all(CANARY not in str(row).encode() for row in rows)
    found = sql(
        "SELECT algorithm, key_version, target FROM audit_records WHERE operation = 're-encrypt'"
    )
    assert found == [(KEM, 1, "default/X-Wing/1")] * 2


async def test_a_ciphertext_is_no_wrapped_key(
    tenant: TenantId, keys: KeyService, attribution: Attribution
) -> None:
    """Ciphertext and wrapped key are not interchangeable, and only the target opens the result."""
    for algorithm in (KEM, HYBRID):
        await keys.execute(GenerateKey(tenant=tenant, algorithm=algorithm, quota=None), attribution)
    encrypt = Encrypt(tenant=tenant, algorithm=KEM, version=None, plaintext=CANARY)
    sealed = (await keys.execute(encrypt, attribution)).ciphertext
    named: dict[str, Any] = {"tenant": tenant, "algorithm": KEM, "version": ONE}
    request = ReEncrypt(**named, ciphertext=sealed, is_wrapped_key=True, target=Target(HYBRID))
    with pytest.raises(KeyServiceError) as refused:
        await keys.execute(request, attribution)
    assert refused.value.kind is ErrorKind.DECRYPTION_FAILED
    request = ReEncrypt(**named, ciphertext=sealed, is_wrapped_key=False, target=Target(HYBRID))
    moved = await keys.execute(request, attribution)
    decrypt = Decrypt(**named, ciphertext=moved.ciphertext)
    with pytest.raises(KeyServiceError):
        await keys.execute(decrypt, attribution)
    decrypt = Decrypt(**{**named, "algorithm": HYBRID}, ciphertext=moved.ciphertext)
    assert (await keys.execute(decrypt, attribution)).plaintext == CANARY


async def test_data_that_is_already_there_stays(
    tenant: TenantId, keys: KeyService, attribution: Attribution, sql: Sql
) -> None:
    """Data already under the target's version and form is returned unchanged, and is no move."""
    await keys.execute(GenerateKey(tenant=tenant, algorithm=KEM, quota=None), attribution)
    named: dict[str, Any] = {"tenant": tenant, "algorithm": KEM}
    bound: dict[str, Any] = {**named, "version": ONE, "associated_data": b"row"}
    envelope = CiphertextFormat.ENVELOPE
    encrypt = Encrypt(**{**bound, "version": None}, plaintext=CANARY)
    wrap = Wrap(**bound, symmetric_key=bytearray(CANARY))
    sealed = (await keys.execute(encrypt, attribution)).ciphertext
    enveloped = (
        await keys.execute(structs.replace(encrypt, format=envelope), attribution)
    ).ciphertext
    wrapped = (await keys.execute(wrap, attribution)).wrapped_key

    same = Target(KEM, associated_data=b"row")
    move = ReEncrypt(**bound, ciphertext=sealed, is_wrapped_key=False, target=same)
    of_envelope = structs.replace(move, ciphertext=enveloped, format=envelope)
    of_key = structs.replace(move, ciphertext=wrapped, is_wrapped_key=True)
    in_envelope = structs.replace(same, format=envelope)
    staying = (move, structs.replace(of_envelope, target=in_envelope), of_key)
    moving = (
        structs.replace(move, target=in_envelope),
        structs.replace(of_envelope, target=same),
        structs.replace(move, target=structs.replace(same, associated_data=b"other")),
        structs.replace(of_key, target=structs.replace(same, associated_data=b"")),
    )
    for request in staying:
        stayed = await keys.execute(request, attribution)
        assert (stayed.ciphertext, stayed.version) == (request.ciphertext, ONE)
        assert not stayed.moved
    for request in moving:
        moved = await keys.execute(request, attribution)
        assert moved.moved
        assert moved.ciphertext != request.ciphertext
    targets = sql("SELECT target FROM audit_records WHERE operation = 're-encrypt' ORDER BY id")
    assert targets == [(None,)] * 3 + [("default/Kyber768/1",)] * 4

    damaged = structs.replace(move, ciphertext=sealed[:-1] + bytes((sealed[-1] ^ 1,)))
    with pytest.raises(KeyServiceError) as refused:
        await keys.execute(damaged, attribution)
    assert refused.value.kind is ErrorKind.DECRYPTION_FAILED
    await keys.execute(RotateKey(**named), attribution)
    old = await keys.execute(move, attribution)
    assert (old.moved, old.version) == (True, 2)
    claimed = structs.replace(move, version=KeyVersion(2))
    with pytest.raises(KeyServiceError) as refused:
        await keys.execute(claimed, attribution)
    assert refused.value.kind is ErrorKind.DECRYPTION_FAILED
