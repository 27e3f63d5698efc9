"""A repeated request with the same Idempotency-Key is done once, with the same result."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest

from pqkeep_keyservice.keys.changes import KeyChange
from pqkeep_keyservice.keys.key_versions import KeyEntry, KeyName, KeyVersions
from pqkeep_keyservice.ledger.records import NewRecord
from pqkeep_keyservice.live.key_material import KeyMaterial
from pqkeep_keyservice.storage.store import KeyStore
from pqkeep_protocol.algorithms import Algorithm, Operation
from pqkeep_protocol.errors import ErrorKind, KeyServiceError
from pqkeep_protocol.keys import KeyInfo, KeyStatus, KeyVersion, TenantId
from pqkeep_protocol.messages import (
    Attribution,
    GenerateKey,
    Idempotency,
    KeyService,
    RetireKey,
    RotateKey,
    ScheduleArchive,
)

if TYPE_CHECKING:
    from keyservice.tests.conftest import Serving

pytestmark = pytest.mark.parametrize("backend", ["sqlite", "postgresql"], indirect=True)

Sql = Callable[..., list[Any]]
KEM, SIGNATURE = Algorithm.ML_KEM_768, Algorithm.ML_DSA_65
DAY, MINUTE = timedelta(days=1), timedelta(minutes=1)


def idempotency(key: str, request: str = "the request") -> Idempotency:
    """Return the stored form of an Idempotency-Key and its request."""
    return Idempotency(sha256(key.encode()).digest(), sha256(request.encode()).digest())


class Owner:
    """A tenant and its changes of keys."""

    def __init__(self, keys: KeyService, attribution: Attribution, sql: Sql) -> None:
        self.keys, self.attribution, self._sql = keys, attribution, sql
        self.tenant = TenantId(uuid4())

    async def generate(self, key: Idempotency | None, algorithm: Algorithm = KEM) -> Any:
        request = GenerateKey(tenant=self.tenant, algorithm=algorithm, quota=None, idempotency=key)
        return await self.keys.execute(request, self.attribution)

    async def rotate(self, key: Idempotency | None) -> Any:
        request = RotateKey(tenant=self.tenant, algorithm=KEM, idempotency=key)
        return await self.keys.execute(request, self.attribution)

    async def archive(self, version: int) -> None:
        named = {"tenant": self.tenant, "algorithm": KEM, "version": KeyVersion(version)}
        await self.keys.execute(RetireKey(**named), self.attribution)  # type: ignore[arg-type]
        await self.keys.execute(ScheduleArchive(days=0, **named), self.attribution)  # type: ignore[arg-type]

    def versions(self) -> int:
        ((count,),) = self._sql("SELECT count(*) FROM keys")
        return int(count)


@pytest.fixture
def owner(keys: KeyService, attribution: Attribution, sql: Sql) -> Owner:
    """Return a tenant without keys."""
    return Owner(keys, attribution, sql)


async def test_a_repeated_request_changes_once(owner: Owner) -> None:
    """Five equal requests with one key generate one version, and five others rotate once."""
    made = [await owner.generate(idempotency("a")) for _ in range(5)]
    rotated = [await owner.rotate(idempotency("b")) for _ in range(5)]
    assert made == made[:1] * 5
    assert rotated == rotated[:1] * 5
    assert (made[0].key.version, rotated[0].key.version, rotated[0].old_version) == (1, 2, 1)
    assert owner.versions() == 2


async def test_each_key_is_a_change_of_its_own(owner: Owner) -> None:
    """Rotations with different Idempotency-Keys, or without one, are all made."""
    await owner.generate(None)
    for number in range(3):
        await owner.rotate(idempotency(f"{number}"))
        await owner.rotate(None)
    assert owner.versions() == 7


async def test_the_first_answer_comes_again_whatever_happened_since(owner: Owner) -> None:
    """The first result is repeated even after the version was rotated and archived."""
    made = await owner.generate(idempotency("a"))
    rotated = await owner.rotate(idempotency("b"))
    await owner.rotate(None)
    assert await owner.generate(idempotency("a")) == made
    assert await owner.rotate(idempotency("b")) == rotated
    for version in (1, 2):
        await owner.archive(version)
    assert await owner.generate(idempotency("a")) == made
    assert await owner.rotate(idempotency("b")) == rotated
    assert owner.versions() == 3


async def test_another_request_with_the_key_is_refused(owner: Owner) -> None:
    """Another request with a used key is refused and changes nothing."""
    await owner.generate(idempotency("a"))
    for attempt in (
        owner.generate(idempotency("a", "another")),
        owner.rotate(idempotency("a", "another")),
        owner.generate(idempotency("a", "another"), SIGNATURE),
    ):
        with pytest.raises(KeyServiceError) as refused:
            await attempt
        assert refused.value.kind is ErrorKind.IDEMPOTENCY_KEY_REUSED
    assert owner.versions() == 1


async def test_of_many_at_once_one_changes(owner: Owner) -> None:
    """Sixteen concurrent rotations with one key are one rotation, with one result."""
    await owner.generate(None)
    heard = await asyncio.gather(*(owner.rotate(idempotency("a")) for _ in range(16)))
    assert heard == heard[:1] * 16
    assert owner.versions() == 2


async def test_a_refusal_is_not_remembered(owner: Owner) -> None:
    """A refused request can succeed later with the same key."""
    with pytest.raises(KeyServiceError) as refused:
        await owner.rotate(idempotency("a"))
    assert refused.value.kind is ErrorKind.KEY_NOT_FOUND
    await owner.generate(None)
    assert (await owner.rotate(idempotency("a"))).key.version == 2


async def test_tenants_have_keys_of_their_own(owner: Owner) -> None:
    """Two tenants can use the same key independently."""
    other = Owner(owner.keys, owner.attribution, owner._sql)
    first, second = await owner.generate(idempotency("a")), await other.generate(idempotency("a"))
    assert first.key.public_key != second.key.public_key
    assert await owner.generate(idempotency("a")) == first
    assert await other.generate(idempotency("a")) == second


@pytest.mark.parametrize("age", [DAY - MINUTE, DAY])
async def test_a_key_is_remembered_for_a_day(
    age: timedelta, owner: Owner, store: KeyStore, material: KeyMaterial
) -> None:
    """For 24 hours the result is repeated. After that the key can be used again."""
    key = idempotency("a")
    public_key, sealed = material.generate(KeyName(owner.tenant, KEM), KeyVersion(1))
    created_at = datetime.now(UTC) - age
    info = KeyInfo(KEM, KeyVersion(1), KeyStatus.ACTIVE, public_key, created_at)
    empty = KeyVersions(owner.tenant, KEM)
    change = KeyChange(empty, empty.with_first(KeyEntry(info, sealed, key)))
    row = NewRecord(owner.tenant, "p", Operation.GENERATE_KEY, KEM, 1, "success", "r", "a", "y")
    await store.commit([(row, change)])
    if age < DAY:
        assert (await owner.generate(key)).key.version == 1
    else:
        assert (await owner.rotate(key)).key.version == 2


async def test_a_key_is_remembered_over_a_restart(
    serving: Serving,
    attribution: Attribution,
    sql: Sql,
    tenant: TenantId,
) -> None:
    """A key's result is repeated after a restart."""
    responses = []
    for _ in range(2):
        async with serving() as service:
            owner = Owner(service, attribution, sql)
            owner.tenant = tenant
            responses.append(await owner.generate(idempotency("a")))
    assert responses[0] == responses[1]
    assert owner.versions() == 1


async def test_every_repetition_is_recorded(owner: Owner, sql: Sql) -> None:
    """A repeated request has its own record, with the returned version."""
    for _ in range(3):
        await owner.generate(idempotency("a"))
    recorded = sql("SELECT operation, key_version, outcome FROM audit_records ORDER BY id")
    assert recorded == [("generate-key", 1, "success")] * 3
