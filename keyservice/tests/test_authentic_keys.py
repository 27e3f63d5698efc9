"""A key's rows are verified. A changed row is not used and not shown."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest

from pqkeep_keyservice.crypto.kem import KEMS
from pqkeep_keyservice.crypto.signature import signature_schemes
from pqkeep_keyservice.crypto.slhdsa import PARAMETER_SETS
from pqkeep_keyservice.crypto.slhdsa_pqcrypto import Pqcrypto
from pqkeep_keyservice.crypto.symmetric import SYMMETRIC
from pqkeep_protocol.algorithms import ALGORITHMS, CURRENT, Algorithm, HashAlgorithm, Operation
from pqkeep_protocol.errors import ErrorKind, KeyServiceError
from pqkeep_protocol.keys import KeyVersion, TenantId
from pqkeep_protocol.messages import (
    Attribution,
    CiphertextFormat,
    ComputeMac,
    Decapsulate,
    Decrypt,
    Encapsulate,
    Encrypt,
    GenerateDataKey,
    GenerateKey,
    GetActiveKey,
    GetKey,
    KeyService,
    ListKeys,
    Request,
    RetireKey,
    RotateKey,
    ScheduleArchive,
    Sign,
    SignHash,
    Unwrap,
    Verify,
    VerifyHash,
    VerifyMac,
    Wrap,
)

if TYPE_CHECKING:
    from keyservice.tests.conftest import Serving

Sql = Callable[..., list[Any]]
SCHEMES = signature_schemes(Pqcrypto())
KEM, SIGNATURE, SLH_DSA = Algorithm.ML_KEM_768, Algorithm.ML_DSA_65, Algorithm.SLH_DSA_SHA2_128F
V1, V2, V3 = KeyVersion(1), KeyVersion(2), KeyVersion(3)
HALVES = "SELECT public_key, sealed_seed FROM keys WHERE tenant_id = ? AND version = ?"


class Caller:
    """A caller with one key of one algorithm. Its second version is active."""

    def __init__(self, tenant: TenantId, algorithm: Algorithm, attribution: Attribution) -> None:
        self.tenant, self.algorithm = tenant, algorithm
        self._attribution = attribution
        self._key: dict[str, Any] = {"tenant": tenant, "algorithm": algorithm}

    async def ask(self, keys: KeyService, request: Request[Any]) -> Any:
        """Return a result, or the kind of the refusal."""
        try:
            return await keys.execute(request, self._attribution)
        except KeyServiceError as refusal:
            return refusal.kind

    async def prepare(self, keys: KeyService) -> None:
        """Generate two versions."""
        await keys.execute(GenerateKey(**self._key, quota=None), self._attribution)
        await keys.execute(RotateKey(**self._key), self._attribution)

    async def uses(self, keys: KeyService) -> list[Request[Any]]:
        """Return every request that uses or shows the active version. Each must succeed."""
        active: dict[str, Any] = {**self._key, "version": None}
        one: dict[str, Any] = {**self._key, "version": V2}
        requests: list[Request[Any]] = [
            GetKey(**one),
            GetActiveKey(**self._key),
            ListKeys(**self._key, status=None),
            ListKeys(tenant=self.tenant, algorithm=None, status=None),
        ]
        operations = ALGORITHMS[self.algorithm].operations
        if Operation.ENCRYPT in operations:
            encrypt, data_key = (
                Encrypt(**active, plaintext=b"text"),
                GenerateDataKey(
                    **active, size=32, plaintext=True, format=CiphertextFormat.CIPHERTEXT
                ),
            )
            blob = await self.ask(keys, encrypt)
            requests += [encrypt, Encrypt(**one, plaintext=b"text"), data_key]
            requests.append(Decrypt(**one, ciphertext=blob.ciphertext))
        if Operation.ENCAPSULATE in operations:
            encapsulate = Encapsulate(**one)
            capsule = await self.ask(keys, encapsulate)
            requests += [encapsulate, Decapsulate(**one, kem_ciphertext=capsule.kem_ciphertext)]
        if Operation.COMPUTE_MAC in operations:
            compute = ComputeMac(**active, message=b"text")
            made = await self.ask(keys, compute)
            requests += [compute, VerifyMac(**one, message=b"text", mac=made.mac)]
        if Operation.WRAP in operations:
            wrap = Wrap(**one, symmetric_key=bytearray(32))
            wrapped = await self.ask(keys, wrap)
            requests += [wrap, Unwrap(**one, wrapped_key=wrapped.wrapped_key)]
        if Operation.SIGN in operations:
            digest: dict[str, Any] = {"hash_algorithm": HashAlgorithm.SHA_256, "digest": bytes(32)}
            sign, sign_hash = Sign(**active, message=b"text"), SignHash(**active, **digest)
            signed, hashed = await self.ask(keys, sign), await self.ask(keys, sign_hash)
            requests += [
                sign,
                sign_hash,
                Verify(**one, message=b"text", signature=signed.signature),
                VerifyHash(**one, **digest, signature=hashed.signature),
            ]
        return requests


def public_key_of_a_thief(algorithm: Algorithm) -> bytes:
    """Return the public key, or the check value, of a key from outside."""
    scheme = KEMS.get(algorithm) or SYMMETRIC.get(algorithm) or SCHEMES[algorithm]
    return scheme.generate().public_bytes()


@pytest.mark.threat("keys-database-writer")
@pytest.mark.parametrize("algorithm", sorted({*CURRENT} - {*PARAMETER_SETS} | {SLH_DSA}))
async def test_a_swapped_public_key_is_never_used_or_shown(
    algorithm: Algorithm, serving: Serving, sql: Sql, tenant: TenantId, attribution: Attribution
) -> None:
    """With a foreign public key in a row, every request for the key is UNAVAILABLE."""
    caller = Caller(tenant, algorithm, attribution)
    async with serving() as keys:
        await caller.prepare(keys)
        requests = await caller.uses(keys)
        for request in requests:
            assert not isinstance(await caller.ask(keys, request), ErrorKind), request
    sql("UPDATE keys SET public_key = ? WHERE version = 2", public_key_of_a_thief(algorithm))
    async with serving() as keys:
        for request in requests:
            assert await caller.ask(keys, request) is ErrorKind.UNAVAILABLE, request
    outcomes = sql("SELECT outcome FROM audit_records ORDER BY id DESC")
    assert outcomes[: len(requests)] == [("unavailable",)] * len(requests)


@pytest.mark.parametrize("source", ["another tenant", "an older version"])
@pytest.mark.parametrize("algorithm", [KEM, SIGNATURE])
async def test_a_pair_in_anothers_row_is_never_used_or_shown(
    source: str,
    algorithm: Algorithm,
    serving: Serving,
    sql: Sql,
    tenant: TenantId,
    attribution: Attribution,
) -> None:
    """A key pair in another key's row, seed included, is refused as well."""
    caller = Caller(tenant, algorithm, attribution)
    other = Caller(TenantId(uuid4()), algorithm, attribution)
    async with serving() as keys:
        for who in (caller, other):
            await who.prepare(keys)
        requests = await caller.uses(keys)
    (pair,) = (
        sql(HALVES, other.tenant.hex, 2)
        if source == "another tenant"
        else sql(HALVES, tenant.hex, 1)
    )
    move = "UPDATE keys SET public_key = ?, sealed_seed = ? WHERE tenant_id = ? AND version = 2"
    sql(move, *pair, tenant.hex)
    async with serving() as keys:
        for request in requests:
            assert await caller.ask(keys, request) is ErrorKind.UNAVAILABLE, request
        for request in await other.uses(keys):
            assert not isinstance(await other.ask(keys, request), ErrorKind), request


@pytest.mark.parametrize("step", [RetireKey, partial(ScheduleArchive, days=0)])
async def test_a_change_does_not_show_a_swapped_public_key(
    step: Callable[..., Request[Any]],
    serving: Serving,
    sql: Sql,
    tenant: TenantId,
    attribution: Attribution,
) -> None:
    """Retiring or archiving such a version never returns the foreign key."""
    caller = Caller(tenant, KEM, attribution)
    async with serving() as keys:
        await caller.prepare(keys)
    thiefs = public_key_of_a_thief(KEM)
    sql("UPDATE keys SET public_key = ?", thiefs)
    version = V2 if step is RetireKey else V1
    async with serving() as keys:
        response = await caller.ask(keys, step(tenant=tenant, algorithm=KEM, version=version))
    assert isinstance(response, ErrorKind) or response.key.public_key != thiefs


LOST = {
    "the oldest": "version = 1",
    "one in the middle": "version = 2",
    "the newest": "version = 3",
    "all": "true",
}


@pytest.mark.parametrize(
    "lost",
    LOST,
)
async def test_a_missing_version_makes_the_key_unavailable(
    lost: str, serving: Serving, sql: Sql, tenant: TenantId, attribution: Attribution
) -> None:
    """A key with a missing row is UNAVAILABLE, and no version number is used twice."""
    caller = Caller(tenant, KEM, attribution)
    key: dict[str, Any] = {"tenant": tenant, "algorithm": KEM}
    async with serving() as keys:
        await caller.prepare(keys)
        await caller.ask(keys, RotateKey(**key))
        blob = await caller.ask(keys, Encrypt(**key, version=None, plaintext=b"text"))
        await caller.ask(keys, RetireKey(**key, version=V3))
        await caller.ask(keys, GenerateKey(tenant=tenant, algorithm=SIGNATURE, quota=None))
    sql(f"DELETE FROM keys WHERE algorithm = 'Kyber768' AND {LOST[lost]}")  # noqa: S608 - ours
    left = sql("SELECT * FROM keys")
    requests: list[Request[Any]] = [
        *(GetKey(**key, version=version) for version in (V1, V2, V3)),
        GetActiveKey(**key),
        ListKeys(**key, status=None),
        ListKeys(tenant=tenant, algorithm=None, status=None),
        Decrypt(**key, version=V3, ciphertext=blob.ciphertext),
        RotateKey(**key),
        RetireKey(**key, version=V2),
        ScheduleArchive(days=0, **key, version=V2),
        GenerateKey(**key, quota=None),
    ]
    async with serving() as keys:
        for request in requests:
            assert await caller.ask(keys, request) is ErrorKind.UNAVAILABLE, request
        sign = Sign(tenant=tenant, algorithm=SIGNATURE, version=None, message=b"text")
        assert not isinstance(await caller.ask(keys, sign), ErrorKind)
    assert sql("SELECT * FROM keys") == left


async def test_a_damaged_neighbour_does_not_change_an_answer(
    serving: Serving, sql: Sql, tenant: TenantId, attribution: Attribution
) -> None:
    """A ciphertext that does not open is DECRYPTION_FAILED, even beside a damaged key."""
    caller = Caller(tenant, KEM, attribution)
    async with serving() as keys:
        await caller.prepare(keys)
        await Caller(tenant, Algorithm.X_WING, attribution).prepare(keys)
    sql("UPDATE keys SET sealed_seed = x'00' WHERE algorithm = 'X-Wing'")
    async with serving() as keys:
        request = Decrypt(tenant=tenant, algorithm=KEM, version=V1, ciphertext=bytes(2000))
        assert await caller.ask(keys, request) is ErrorKind.DECRYPTION_FAILED
