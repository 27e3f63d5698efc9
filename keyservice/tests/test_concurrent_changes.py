"""Concurrent changes of the same keys leave a consistent history."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest
from tests.sampling import step

from pqkeep_keyservice.crypto.signature import SignatureSchemes
from pqkeep_keyservice.keys.key_versions import KeyName, SealedSeed
from pqkeep_keyservice.keys.sealing import Sealer
from pqkeep_keyservice.live.key_material import KeyMaterial
from pqkeep_protocol.algorithms import Algorithm
from pqkeep_protocol.errors import ErrorKind, KeyServiceError
from pqkeep_protocol.keys import KeyInfo, KeyStatus, KeyVersion, TenantId
from pqkeep_protocol.messages import (
    Attribution,
    Encrypt,
    Encrypted,
    GenerateKey,
    KeyPosition,
    KeyService,
    ListKeys,
    RetireKey,
    Rotated,
    RotateKey,
)

if TYPE_CHECKING:
    from keyservice.tests.conftest import NewService

pytestmark = pytest.mark.parametrize("backend", ["sqlite", "postgresql"], indirect=True)

Sql = Callable[..., list[Any]]
KEM, SIGNATURE = Algorithm.ML_KEM_768, Algorithm.ML_DSA_65
WRITERS, ROTATIONS = 8, 150 // step(15)
LOOKS = 20
MANY, SECONDS = 24, 60.0
ACTIVE = "SELECT count(*) FROM keys WHERE status = 'active'"


class Counting(KeyMaterial):
    """Key material that counts its generated key pairs."""

    made = 0

    def generate(self, name: KeyName, version: KeyVersion) -> tuple[bytes, SealedSeed]:
        """Generate a key pair, and count it."""
        self.made += 1
        return super().generate(name, version)


async def outcome(response: Any) -> Any:
    """Return a result, or the kind of the refusal."""
    try:
        return await response
    except KeyServiceError as refusal:
        return refusal.kind


async def test_rotations_leave_no_gap(
    keys: KeyService, tenant: TenantId, attribution: Attribution, sql: Sql
) -> None:
    """Eight writers rotate one key: each version exists once, and one is always active."""
    await keys.execute(GenerateKey(tenant=tenant, algorithm=KEM, quota=None), attribution)
    encrypted: list[int] = []

    async def rotate() -> list[Rotated]:
        request = RotateKey(tenant=tenant, algorithm=KEM)
        return [await keys.execute(request, attribution) for _ in range(ROTATIONS)]

    async def encrypt() -> None:
        request = Encrypt(tenant=tenant, algorithm=KEM, version=None, plaintext=b"")
        while len(encrypted) < ROTATIONS:
            result: Encrypted = await keys.execute(request, attribution)
            encrypted.append(result.version or 0)

    active: list[int] = []

    async def watch() -> None:
        while len(active) < LOOKS:
            ((count,),) = await asyncio.to_thread(sql, ACTIVE)
            active.append(count)

    *rotated, _, _ = await asyncio.gather(*(rotate() for _ in range(WRITERS)), encrypt(), watch())
    assert active == [1] * LOOKS
    pairs = [(one.old_version, one.key.version) for writer in rotated if writer for one in writer]
    total = WRITERS * ROTATIONS
    assert sorted(pairs) == [(version, version + 1) for version in range(1, total + 1)]
    assert encrypted == sorted(encrypted)  # the active key is never answered to be missing, or old

    listed: list[KeyInfo] = []
    page = ListKeys(tenant=tenant, algorithm=KEM, status=None)
    while (response := await keys.execute(page, attribution)).keys:
        listed += response.keys
        last = KeyPosition(KEM, response.keys[-1].version)
        page = ListKeys(tenant=tenant, algorithm=KEM, status=None, after=last)
    assert [key.version for key in listed] == list(range(1, total + 2))
    statuses = [KeyStatus.RETIRED] * total + [KeyStatus.ACTIVE]
    assert [key.status for key in listed] == statuses
    stored = sql("SELECT status FROM keys ORDER BY version")
    assert stored == [(status.value,) for status in statuses]
    assert sql("SELECT revision FROM key_revisions") == [(total + 1,)]
    assert sql("SELECT count(*) FROM audit_records WHERE operation = 'rotate-key'") == [(total,)]


@pytest.mark.parametrize("algorithm", [KEM, SIGNATURE])
async def test_no_rotation_is_made_in_vain(
    *,
    algorithm: Algorithm,
    new_service: NewService,
    sealer: Sealer,
    schemes: SignatureSchemes,
    tenant: TenantId,
    attribution: Attribution,
    sql: Sql,
) -> None:
    """24 concurrent rotations of one key all succeed, with exactly 24 generated pairs."""
    material = Counting(sealer, schemes)
    transactions = new_service(material).parts.transactions
    deadline = asyncio.get_running_loop().time() + SECONDS
    generate = GenerateKey(tenant=tenant, algorithm=algorithm, quota=None)
    await transactions.execute(generate, attribution, deadline)
    assert material.made == 1
    request = RotateKey(tenant=tenant, algorithm=algorithm)
    outcomes = await asyncio.gather(
        *(outcome(transactions.execute(request, attribution, deadline)) for _ in range(MANY))
    )
    assert sorted(one.key.version for one in outcomes) == list(range(2, MANY + 2))
    assert material.made == 1 + MANY
    stored = sql("SELECT version, status FROM keys ORDER BY version")
    retired = [(version, "retired") for version in range(1, MANY + 1)]
    assert stored == [*retired, (MANY + 1, "active")]


@pytest.mark.parametrize("algorithm", [KEM, SIGNATURE])
async def test_one_of_many_generations_wins(
    algorithm: Algorithm,
    new_service: NewService,
    sealer: Sealer,
    schemes: SignatureSchemes,
    tenant: TenantId,
    attribution: Attribution,
) -> None:
    """Of eight callers that generate the first key, one succeeds, and the others get KEY_EXISTS."""
    material = Counting(sealer, schemes)
    transactions = new_service(material).parts.transactions
    deadline = asyncio.get_running_loop().time() + SECONDS
    request = GenerateKey(tenant=tenant, algorithm=algorithm, quota=None)
    outcomes = await asyncio.gather(
        *(outcome(transactions.execute(request, attribution, deadline)) for _ in range(8))
    )
    assert material.made == 1
    made = [one for one in outcomes if not isinstance(one, ErrorKind)]
    assert [one.key.version for one in made] == [1]
    assert outcomes.count(ErrorKind.KEY_EXISTS) == 7


async def test_a_race_at_the_quota_is_lost_to_the_key_that_exists(
    keys: KeyService, tenant: TenantId, attribution: Attribution
) -> None:
    """The losers of a race get KEY_EXISTS, even if the winner used up the quota."""
    request = GenerateKey(tenant=tenant, algorithm=KEM, quota=1)
    outcomes = await asyncio.gather(
        *(outcome(keys.execute(request, attribution)) for _ in range(8))
    )
    assert await outcome(keys.execute(request, attribution)) is ErrorKind.KEY_EXISTS
    assert outcomes.count(ErrorKind.KEY_EXISTS) == 7


@pytest.mark.parametrize("quota", [0, 1, 2])
async def test_the_quota_is_exact(
    quota: int, keys: KeyService, tenant: TenantId, attribution: Attribution, sql: Sql
) -> None:
    """Concurrent generations of both algorithms use the quota exactly."""
    requests = [
        GenerateKey(tenant=tenant, algorithm=algorithm, quota=quota)
        for algorithm in (KEM, SIGNATURE) * 2
    ]
    outcomes = await asyncio.gather(
        *(outcome(keys.execute(request, attribution)) for request in requests)
    )
    made = [one for one in outcomes if not isinstance(one, ErrorKind)]
    assert len(made) == quota
    assert sql("SELECT count(*) FROM keys WHERE status = 'active'") == [(quota,)]


async def test_the_quota_is_exact_over_and_over(
    keys: KeyService, tenant: TenantId, attribution: Attribution
) -> None:
    """A retired key frees its place in the quota, and a rotation needs none."""
    for version in (1, 2, 3):
        for expected in (None, ErrorKind.KEY_QUOTA_REACHED):
            algorithm = KEM if expected is None else SIGNATURE
            request = GenerateKey(tenant=tenant, algorithm=algorithm, quota=1)
            got = await outcome(keys.execute(request, attribution))
            assert (got if isinstance(got, ErrorKind) else None) is expected
        retire = RetireKey(tenant=tenant, algorithm=KEM, version=KeyVersion(version))
        await keys.execute(retire, attribution)
    await keys.execute(GenerateKey(tenant=tenant, algorithm=KEM, quota=1), attribution)
    rotated = await keys.execute(RotateKey(tenant=tenant, algorithm=KEM), attribution)
    assert rotated.key.version == 5


async def test_rotating_and_retiring_at_once(
    keys: KeyService, tenant: TenantId, attribution: Attribution, sql: Sql
) -> None:
    """In any order, no version is missing and at most one key is active."""
    await keys.execute(GenerateKey(tenant=tenant, algorithm=KEM, quota=None), attribution)
    requests = [
        RotateKey(tenant=tenant, algorithm=KEM),
        RetireKey(tenant=tenant, algorithm=KEM, version=KeyVersion(1)),
        RetireKey(tenant=tenant, algorithm=KEM, version=KeyVersion(2)),
        RotateKey(tenant=tenant, algorithm=KEM),
        GenerateKey(tenant=tenant, algorithm=KEM, quota=None),
    ]
    outcomes = await asyncio.gather(
        *(outcome(keys.execute(request, attribution)) for request in requests * 4)
    )
    assert set(map(type, outcomes)) > {ErrorKind}
    assert ErrorKind.INTERNAL not in outcomes
    versions = [version for (version,) in sql("SELECT version FROM keys ORDER BY version")]
    assert versions == list(range(1, len(versions) + 1))
    counted = Counter(status for (status,) in sql("SELECT status FROM keys"))
    assert counted["active"] <= 1
    assert counted["active"] + counted["retired"] == len(versions)
